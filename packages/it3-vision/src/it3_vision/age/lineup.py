"""Every line of the table: which methods are compared, with which settings, at which batch size."""

from __future__ import annotations

import torch
from torch import Tensor

from it3_core import ActMAD, AnswerStep, OnlineIT3
from it3_core.norms import has_batch_norm
from it3_vision.age.runs import Run
from it3_vision.lineup import Lineup, common, paper_step, words

__all__ = ["ONCE", "STREAMS", "MeanAge", "lineup"]

ONCE = ("source", "second pass", "answer step", "vanilla net", "mean age")
"""Methods whose answers don't depend on the batch size."""

STREAMS = ("online IT³", "online IT³, source statistics")
"""Methods that go through all levels as one stream, the nearest ages first."""

_FEWEST = 4  # faces from whose own statistics "batch statistics" are taken


class MeanAge:
    """Answers the mean age of the training faces, whatever it is shown.

    Example:
        >>> MeanAge(34.5)(torch.zeros(2, 3, 8, 8))
        tensor([[34.5000],
                [34.5000]])
    """

    def __init__(self, age: float) -> None:
        self.age = age

    def __call__(self, x: Tensor) -> Tensor:
        return torch.full((len(x), 1), self.age, device=x.device)


def lineup(run: Run, batch_size: int) -> Lineup:
    """The methods that are compared at a batch size, each an object of its own.

    Beside the common ones there are ActMAD and online IT³ with the training data's statistics,
    since a batch of faces of one age tells by its statistics what is then normalised away.

    Args:
        run: the trained network.
        batch_size: how many faces come together.

    Example:
        >>> ONCE[0]
        'source'
    """
    model, adapter = run.model, run.adapter
    found = common(run, batch_size, _FEWEST)
    alpha = _alpha(run, batch_size)
    step = AnswerStep(model, adapter, alpha=alpha)
    found.add("answer step", step, f"y0 + {alpha:g} (y1 − y0): α as held-out faces recommend")
    if has_batch_norm(model):
        actmad = ActMAD(model, adapter, run.activations)
        found.add("ActMAD, source statistics", actmad, "one step of Adam at 2e-4, norm=source")
        plain = {**paper_step(run, batch_size, "source"), "trust_region": True}
        told = f"{words(plain)}, no further than F's answer; weights are kept"
        online = OnlineIT3(model, adapter, **plain)
        found.add("online IT³, source statistics", online, told)
    mean = adapter.mean[0]
    found.add("mean age", MeanAge(mean), f"{mean:.1f} years, whatever the face")
    return found


def _alpha(run: Run, batch_size: int) -> float:
    """The answer step that did best on held-out faces; 1 is the second pass."""
    tried = run.tuning(batch_size).tried
    plain = [one for one in tried if one["method"] == "AnswerStep" and one.get("gate") is None]
    known = [entry for entry in plain if entry["gain"] is not None]
    best = max(known, key=lambda entry: float(entry["gain"]), default=None)
    return 1.0 if best is None else float(best["settings"]["alpha"])
