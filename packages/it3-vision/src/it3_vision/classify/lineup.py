"""Every line of the table: which methods are compared, with which settings, at which batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from it3_core import IT3, ActMAD, AnswerStep, OnlineIT3, Source
from it3_core.evaluation import Predictor
from it3_core.norms import Norm, has_batch_norm
from it3_vision.augmix import AugMix
from it3_vision.classify.runs import Run
from it3_vision.methods import ETA, MEMO, TTT, BatchNormStats, Tent

__all__ = ["ONCE", "PRIOR", "Lineup", "lineup"]

ONCE = ("source", "second pass", "MEMO", "TTT")
"""Methods whose answers don't depend on the batch size: they look at one image at a time."""

PRIOR = 16
"""Images that the training data count as, where statistics are blended (Schneider et al. 2020)."""


@dataclass(frozen=True)
class Lineup:
    """The methods for one batch size, by name, and how they are made."""

    methods: dict[str, Predictor]
    settings: dict[str, str]


def lineup(run: Run, batch_size: int, *, slow: bool = True) -> Lineup:
    """The methods that are compared at a batch size, each an object of its own.

    Up to 8 images, "batch statistics" means blended ones for every method, since a handful of
    images has none of its own to speak of. IT³'s rates are those that did best on held-out
    training images; the others' are their papers', for CIFAR.

    Args:
        run: the trained network.
        batch_size: how many images come together.
        slow: whether to have MEMO and TTT, which take many passes for each image.

    Example:
        >>> ONCE[0]
        'source'
    """
    model, adapter = run.model, run.adapter
    few = batch_size <= 8
    norm: Norm = batch_size / (PRIOR + batch_size) if few else "batch"
    statistics = has_batch_norm(model)
    if not statistics:
        norm = "source"
    plain = _paper(run, batch_size, "source")
    found: dict[str, Predictor] = {
        "source": Source(model, adapter),
        "second pass": AnswerStep(model, adapter, alpha=1.0),
    }
    told = {"source": "f(x, neutral)", "second pass": "F(x, y0)"}
    if statistics:
        if not few:
            found["batch statistics"] = BatchNormStats(model, adapter)
        found["blended statistics"] = BatchNormStats(model, adapter, prior=PRIOR)
        told["batch statistics"] = "of the batch alone"
        told["blended statistics"] = f"the training data count as {PRIOR} images"
    found["IT³, source statistics"] = IT3(model, adapter, **plain)
    told["IT³, source statistics"] = _words(plain)
    if statistics:
        batch = _paper(run, batch_size, norm)
        found["IT³, batch statistics"] = IT3(model, adapter, **batch)
        told["IT³, batch statistics"] = _words(batch)
    auto = run.tuning(batch_size)
    found["IT³ auto"] = auto.build(model, adapter)
    told["IT³ auto"] = repr(auto.chosen)
    online = {**_paper(run, batch_size, norm), "trust_region": True}
    found["online IT³"] = OnlineIT3(model, adapter, **online)
    told["online IT³"] = f"{_words(online)}, no further than F's answer; weights are kept"
    found["ActMAD"] = ActMAD(model, adapter, run.activations, norm=norm)
    found["Tent"] = Tent(model, adapter, norm=norm)
    found["Tent, episodic"] = Tent(model, adapter, norm=norm, online=False)
    found["ETA"] = ETA(model, adapter, norm=norm)
    found["EATA"] = ETA(model, adapter, run.fisher, fisher_weight=1.0, norm=norm)
    shown = norm if isinstance(norm, str) else f"{norm:.2f}"
    told["ActMAD"] = f"one step of Adam at 2e-4, norm={shown}"
    told["Tent"] = f"online, Adam at 1e-3, norm={shown}"
    told["Tent, episodic"] = f"the same, from the trained network for each batch, norm={shown}"
    told["ETA"] = f"online, SGD at 5e-3, E0 = 0.4 ln C, d = 0.4, norm={shown}"
    told["EATA"] = "ETA with the Fisher term, weight 1"
    if slow:
        flip = bool(run.settings["training"]["flip"])
        augment = AugMix(run.prepare.mean, run.prepare.std, flip=flip)
        found["MEMO"] = MEMO(model, adapter, augment, copies=16)
        blended = ", statistics blended" if statistics else ""
        told["MEMO"] = f"16 AugMix copies of each image, SGD at 5e-3{blended}"
        if run.rotates:
            found["TTT"] = TTT(model, adapter, steps=1, lr=1e-3)
            told["TTT"] = "each image's four rotations, one step of SGD at 1e-3"
    return Lineup(found, told)


def _paper(run: Run, batch_size: int, norm: Norm) -> dict[str, Any]:
    """The paper's step on these statistics, at the rate that was best on held-out images."""
    tried = [
        entry
        for entry in run.tuning(batch_size).tried
        if entry.get("method") == "IT3"
        and entry["settings"].get("anchor_gradient")
        and (entry["settings"].get("norm", "source") == "source") == (norm == "source")
    ]
    best = max(tried, key=_gain, default=None)
    lr = 2e-4 if best is None else float(best["settings"]["lr"])
    return {"lr": lr, "anchor_gradient": True, "trust_region": False, "norm": norm}


def _gain(entry: Mapping[str, Any]) -> float:
    """None stands for an error that was not finite; 0 is better than any loss."""
    return -math.inf if entry["gain"] is None else float(entry["gain"])


def _words(settings: dict[str, Any]) -> str:
    norm = settings["norm"]
    shown = norm if isinstance(norm, str) else f"{norm:.2f}"
    return f"one step of Adam at {settings['lr']:g}, gradient through F, norm={shown}"
