"""The lines that every table has: which methods, with which settings, at which batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from it3_core import IT3, ActMAD, AnswerStep, IT3Error, OnlineIT3, Source
from it3_core.evaluation import Predictor
from it3_core.norms import Norm, has_batch_norm
from it3_vision.methods import BatchNormStats
from it3_vision.runs import TrainedRun

__all__ = ["PRIOR", "Lineup", "common", "norm_for", "paper_step", "shown", "words"]

PRIOR = 16
"""Images that the training data count as, where statistics are blended (Schneider et al. 2020)."""


@dataclass(frozen=True)
class Lineup:
    """The methods for one batch size, by name, and how they are made."""

    methods: dict[str, Predictor]
    settings: dict[str, str]

    def add(self, name: str, method: Predictor, told: str) -> None:
        """One more line."""
        self.methods[name], self.settings[name] = method, told

    def chosen(self, only: Sequence[str] | None, once: Sequence[str], complete: bool) -> Lineup:
        """The methods that were asked for, the source always among them.

        Args:
            only: their names; all by default.
            once: those whose answers don't depend on the batch size.
            complete: whether these run too, as they do at the largest batch size.
        """
        if only is not None and (unknown := set(only) - set(self.methods)) and complete:
            raise IT3Error(
                f"no method is called {'; '.join(sorted(unknown))}: take {'; '.join(self.methods)}"
            )
        methods = {
            name: method
            for name, method in self.methods.items()
            if name == "source"
            or ((complete or name not in once) and (only is None or name in only))
        }
        return Lineup(methods, {name: self.settings[name] for name in methods})


def norm_for(run: TrainedRun[Any], batch_size: int, fewest: int) -> Norm:
    """What "batch statistics" are: the batch's, blended below `fewest` images, or none at all."""
    if not has_batch_norm(run.model):
        return "source"
    return "batch" if batch_size >= fewest else batch_size / (PRIOR + batch_size)


def common(run: TrainedRun[Any], batch_size: int, fewest: int = 9) -> Lineup:
    """Source, second pass, statistics, IT³ on either, tuning's choice, online IT³, ActMAD, vanilla.

    IT³'s rates are those that did best on held-out training images.

    Args:
        run: the trained network.
        batch_size: how many images come together.
        fewest: below so many images every method "on batch statistics" is on blended ones, since a
            handful of images has none of its own to speak of: the line of that name shows it.
    """
    model, adapter = run.model, run.adapter
    norm = norm_for(run, batch_size, fewest)
    statistics = norm != "source"
    found = Lineup({}, {})
    found.add("source", Source(model, adapter), "f(x, neutral)")
    found.add("second pass", AnswerStep(model, adapter, alpha=1.0), "F(x, y0)")
    if norm == "batch" or (statistics and batch_size > 1):
        found.add("batch statistics", BatchNormStats(model, adapter), "of the batch alone")
    if statistics:
        blended = BatchNormStats(model, adapter, prior=PRIOR)
        found.add("blended statistics", blended, f"the training data count as {PRIOR} images")
    plain = paper_step(run, batch_size, "source")
    found.add("IT³, source statistics", IT3(model, adapter, **plain), words(plain))
    if statistics:
        batch = paper_step(run, batch_size, norm)
        found.add("IT³, batch statistics", IT3(model, adapter, **batch), words(batch))
    auto = run.tuning(batch_size)
    found.add("IT³ auto", auto.build(model, adapter), repr(auto.chosen))
    online = {**paper_step(run, batch_size, norm), "trust_region": True}
    told = f"{words(online)}, no further than F's answer; weights are kept"
    found.add("online IT³", OnlineIT3(model, adapter, **online), told)
    actmad = ActMAD(model, adapter, run.activations, norm=norm)
    found.add("ActMAD", actmad, f"one step of Adam at 2e-4, norm={shown(norm)}")
    if run.vanilla is not None:
        vanilla = Source(run.vanilla, adapter)
        found.add("vanilla net", vanilla, "the same network, trained without a signal")
    return found


def shown(norm: Norm) -> str:
    """A choice of statistics in a word.

    Example:
        >>> shown("batch"), shown(1 / 3)
        ('batch', '0.33')
    """
    return norm if isinstance(norm, str) else f"{norm:.2f}"


def paper_step(run: TrainedRun[Any], batch_size: int, norm: Norm) -> dict[str, Any]:
    """The paper's step on these statistics, at the rate that was best on held-out images.

    Where it was not tried for so few images, it is the rate for the fewest that it was tried for.
    """
    larger = [run.tunings[size] for size in sorted(run.tunings) if size > batch_size]
    everything = [list(tuning.tried) for tuning in (run.tuning(batch_size), *larger)]
    tried = [
        entry
        for entry in next((some for some in everything if any(map(_is_step, some))), [])
        if _is_step(entry)
        and entry.get("gate") is None
        and entry["settings"].get("anchor_gradient")
        and (entry["settings"].get("norm", "source") == "source") == (norm == "source")
    ]
    best = max(tried, key=_gain, default=None)
    lr = 2e-4 if best is None else float(best["settings"]["lr"])
    return {"lr": lr, "anchor_gradient": True, "trust_region": False, "norm": norm}


def _is_step(entry: Mapping[str, Any]) -> bool:
    return entry.get("method") == "IT3"


def _gain(entry: Mapping[str, Any]) -> float:
    """None stands for an error that was not finite; 0 is better than any loss."""
    return -math.inf if entry["gain"] is None else float(entry["gain"])


def words(settings: Mapping[str, Any]) -> str:
    """How a step of IT³ is made, in words."""
    norm = shown(settings["norm"])
    return f"one step of Adam at {settings['lr']:g}, gradient through F, norm={norm}"
