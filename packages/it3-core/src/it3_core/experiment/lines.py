"""The methods that comparisons share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from it3_core.engine.inner_optimizer import Norm, has_batch_norm
from it3_core.errors import IT3Error
from it3_core.evaluation.evaluate import Predictor
from it3_core.experiment.types import Line, Network
from it3_core.methods.actmad import Activations, ActMAD
from it3_core.methods.answer_step import AnswerStep
from it3_core.methods.batch_statistics import BatchStatistics
from it3_core.methods.it3 import IT3
from it3_core.methods.online_it3 import OnlineIT3
from it3_core.methods.source import Source

PRIOR = 16
"""Inputs that the training data count as, where statistics are blended (Schneider et al. 2020)."""


def vanilla(network: Network, size: int) -> Predictor | None:
    """The same network trained without a signal."""
    return None if network.vanilla is None else Source(network.vanilla, network.adapter)


def actmad(network: Network, size: int, norm: Norm = "source") -> Predictor:
    """ActMAD, by the training data's activations."""
    found = Activations.from_tensors(dict(network.statistics))
    return ActMAD(network.model, network.adapter, found, norm=norm)


SOURCE = Line("source", lambda network, size: Source(network.model, network.adapter), once=True)
SECOND_PASS = Line(
    "second pass",
    lambda network, size: AnswerStep(network.model, network.adapter, alpha=1.0),
    once=True,
)
VANILLA = Line("vanilla net", vanilla, once=True)
AUTO = Line(
    "IT³ auto",
    lambda network, size: network.tuning(size).build(network.model, network.adapter),
    note="The method that was chosen on validation data, which may be no adaptation.",
)


def norm_for(network: Network, size: int, fewest: int) -> Norm:
    """What "batch statistics" are: the batch's, blended below `fewest` inputs, or none at all."""
    if not has_batch_norm(network.model):
        return "source"
    return "batch" if size >= fewest else size / (PRIOR + size)


def paper_step(network: Network, size: int, norm: Norm) -> dict[str, Any]:
    """The paper's step on these statistics, at the rate that was best on validation rows.

    Where it was not tried for so few inputs, it is the rate for the fewest that it was tried for.
    """
    larger = [network.tunings[n] for n in sorted(network.tunings) if n > size]
    steps = (
        [entry for entry in tuning.tried if entry.get("method") == "IT3"]
        for tuning in (network.tuning(size), *larger)
    )
    tried = [
        entry
        for entry in next(filter(None, steps), [])
        if entry.get("gate") is None
        and entry["settings"].get("anchor_gradient")
        and (entry["settings"].get("norm", "source") == "source") == (norm == "source")
    ]
    best = max(tried, key=gain_of, default=None)
    lr = 2e-4 if best is None else float(best["settings"]["lr"])
    return {"lr": lr, "anchor_gradient": True, "trust_region": False, "norm": norm}


def gain_of(entry: Mapping[str, Any]) -> float:
    """What a candidate gained; one that failed, whose gain is None, comes last."""
    return -math.inf if entry["gain"] is None else float(entry["gain"])


def error_and_bias(prediction: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What to measure of a single number."""
    off = prediction.reshape(len(y)) - y
    return {"error": off.abs(), "bias": off}


def common_lines(fewest: int, *, stream: bool = False) -> list[Line]:
    """What every comparison on images has: statistics, IT³ on either, `auto`, online, ActMAD.

    Below `fewest` inputs every method "on batch statistics" is on blended ones, since a handful has
    none to speak of. `stream`: online IT³ goes through all levels without a reset.
    """

    def statistics(network: Network, size: int) -> Predictor | None:
        norm = norm_for(network, size, fewest)
        if norm == "source" or (norm != "batch" and size == 1):
            return None
        return BatchStatistics(network.model, network.adapter)

    def blended(network: Network, size: int) -> Predictor | None:
        if not has_batch_norm(network.model):
            return None
        return BatchStatistics(network.model, network.adapter, prior=PRIOR)

    def it3(network: Network, size: int) -> Predictor:
        return IT3(network.model, network.adapter, **paper_step(network, size, "source"))

    def it3_batch(network: Network, size: int) -> Predictor | None:
        norm = norm_for(network, size, fewest)
        if norm == "source":
            return None
        return IT3(network.model, network.adapter, **paper_step(network, size, norm))

    def online(network: Network, size: int) -> Predictor:
        step = paper_step(network, size, norm_for(network, size, fewest))
        return OnlineIT3(network.model, network.adapter, **{**step, "trust_region": True})

    def aligned(network: Network, size: int) -> Predictor:
        return actmad(network, size, norm_for(network, size, fewest))

    why = f"The training data count as {PRIOR} further inputs."
    return [
        SOURCE,
        SECOND_PASS,
        Line("batch statistics", statistics, note="Of the batch alone."),
        Line("blended statistics", blended, note=why),
        Line("IT³, source statistics", it3, idempotence=True),
        Line("IT³, batch statistics", it3_batch),
        AUTO,
        Line("online IT³", online, stream=stream),
        Line("ActMAD", aligned),
        VANILLA,
    ]


def chosen_lines(lines: Sequence[Line], only: Sequence[str] | None) -> list[Line]:
    """The lines of these names, the source always among them; None means all."""
    if only is None:
        return list(lines)
    names = [line.name for line in lines]
    if unknown := [name for name in only if name not in names]:
        raise IT3Error(f"no method is called {'; '.join(unknown)}: take {'; '.join(names)}")
    return [line for line in lines if line.name in ("source", *only)]
