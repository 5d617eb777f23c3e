"""The methods that comparisons share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from it3_core.engine.inner_optimizer import Norm, has_batch_norm
from it3_core.errors import IT3Error
from it3_core.evaluation.evaluate import Predictor
from it3_core.experiment.types import Experiment, Line, Network
from it3_core.methods.actmad import Activations, ActMAD
from it3_core.methods.answer_step import AnswerStep
from it3_core.methods.batch_statistics import BatchStatistics
from it3_core.methods.it3 import IT3
from it3_core.methods.online_it3 import OnlineIT3
from it3_core.methods.paper import PaperStep, paper_it3, paper_online_it3
from it3_core.methods.source import Source
from it3_core.methods.stream_gate import StreamGate

_KINDS = ("source", "online")  # of the paper's steps
PRIOR = 16
"""Inputs that the training data count as, where statistics are blended (Schneider et al. 2020)."""


def vanilla(network: Network, size: int) -> Predictor | None:
    """The same network trained without a signal."""
    return None if network.vanilla is None else Source(network.vanilla, network.adapter)


def actmad(network: Network, size: int, norm: Norm = "source") -> Predictor:
    """ActMAD, by the training data's activations."""
    found = Activations.from_tensors(dict(network.statistics))
    return ActMAD(network.model, network.adapter, found, norm=norm)


def online_it3(network: Network, norm: Norm = "source", **settings: Any) -> OnlineIT3:
    """Online IT³ with a gate of the validation errors, which are of the trained statistics."""
    usual = network.measured.get("usual_error") if norm == "source" else None
    gate = StreamGate(usual[0], usual[1], 0.01) if usual else "stream"
    settings = {"gate": gate, "norm": norm, **settings}
    return OnlineIT3(network.model, network.adapter, **settings)


SOURCE = Line("source", lambda network, size: Source(network.model, network.adapter), once=True)
SECOND_PASS = Line(
    "second pass",
    lambda network, size: AnswerStep(network.model, network.adapter, alpha=1.0),
    once=True,
)
VANILLA = Line("vanilla net", vanilla, once=True)
AUTO = Line(
    "IT³ auto",
    lambda network, size: network.predictor(size).method,
    note="The method that was chosen on validation data, which may be no adaptation.",
)


def _paper(
    kind: str,
    network: Network,
    size: int,
    *,
    steps: int | None = None,
    norm: Norm = "source",
    stop_gradient: bool = False,
) -> IT3:
    step = network.paper_step(kind)
    step = step if steps is None else step.of(steps)
    settings: dict[str, Any] = {"steps": step.steps, "lr": step.lr, "norm": norm}
    return paper_it3(network.model, network.adapter, **settings, stop_gradient=stop_gradient)


def _paper_online(network: Network, size: int) -> Predictor:
    step = network.paper_step("online")
    return paper_online_it3(network.model, network.adapter, steps=step.steps, lr=step.lr)


def _without_anchor(network: Network, size: int) -> Predictor:
    return replace(_paper("source", network, size), anchor="none")


def _plain_actmad(network: Network, size: int) -> Predictor | None:
    return actmad(network, size) if has_batch_norm(network.model) else None


PLAIN_ACTMAD = Line("ActMAD, source statistics", _plain_actmad)
"""Beside `common_lines`' own, which is on the batch's statistics."""


def norm_for(network: Network, size: int, fewest: int) -> Norm:
    """What "batch statistics" are: the batch's, blended below `fewest` inputs, or none at all."""
    if not has_batch_norm(network.model):
        return "source"
    return "batch" if size >= fewest else size / (PRIOR + size)


_PAPER = "The paper's equation (6), with the steps and the rate in the table of networks."
_PAPER_ONLINE = "The paper's equation (7): one stream through all levels, no trust region."
_PAPER_LEVELS = "The paper's equation (7): a stream for each level, no trust region."

PAPER_LINES = [
    Line("IT³ (paper)", partial(_paper, "source"), idempotence=True, note=_PAPER),
    Line("IT³ (paper, gradient stopped)", partial(_paper, "source", stop_gradient=True),
         note="The other reading of the paper's appendix C.4: no gradient through F's input."),
    Line("online IT³ (paper)", _paper_online, stream=True, note=_PAPER_ONLINE),
]  # fmt: skip
"""The paper's own step, as `it3_core.methods.paper` defines it, on the trained statistics."""

ABLATION_LINES = [
    line._replace(ablation=True)
    for line in [
        *(Line(f"IT³ (paper), steps: {n}", partial(_paper, "source", steps=n)) for n in (1, 2, 3)),
        Line("IT³ without anchor", _without_anchor, note="The second pass is f's: equation (5)."),
        Line("online IT³ (paper), shifted only", _paper_online, stream=True, shifted=True,
             note="A stream that starts with the first shifted level."),
    ]
]  # fmt: skip
"""What else the paper's section 3 and appendix speak of; `evaluate --ablation` adds them."""


def with_paper_step(experiment: Experiment, steps: int | None, lr: float | None) -> Experiment:
    """The experiment with these in place of the paper's steps and rate that were chosen."""
    if steps is None and lr is None:
        return experiment

    def changed(step: PaperStep) -> PaperStep:
        found = step if steps is None else step.of(steps)
        return found if lr is None else PaperStep(found.steps, lr)

    networks = [
        replace(one, paper={kind: changed(one.paper_step(kind)) for kind in one.paper or _KINDS})
        for one in experiment.networks
    ]
    return replace(experiment, networks=networks)


def units(name: str) -> str:
    """What a gate opens for, in words."""
    return "single rows" if name == "row" else f"batches of {name}"


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

    def it3_batch(network: Network, size: int) -> Predictor | None:
        norm = norm_for(network, size, fewest)
        return None if norm == "source" else _paper("batch", network, size, norm=norm)

    def online(network: Network, size: int) -> Predictor:
        norm = norm_for(network, size, fewest)
        step = network.paper_step("source" if norm == "source" else "batch")
        settings: dict[str, Any] = {"steps": step.steps, "lr": step.lr, "anchor_gradient": True}
        if stream:  # it begins in distribution
            settings["gate"] = "stream"
        return online_it3(network, norm, **settings)

    def aligned(network: Network, size: int) -> Predictor:
        return actmad(network, size, norm_for(network, size, fewest))

    why = f"The training data count as {PRIOR} further inputs."
    return [
        SOURCE,
        SECOND_PASS,
        Line("batch statistics", statistics, note="Of the batch alone."),
        Line("blended statistics", blended, note=why),
        *PAPER_LINES[:-1],
        PAPER_LINES[-1] if stream else PAPER_LINES[-1]._replace(stream=False, note=_PAPER_LEVELS),
        Line(
            "IT³ (paper), batch statistics", it3_batch, note=f"Below {fewest} inputs blended ones."
        ),
        AUTO,
        Line(
            "online IT³",
            online,
            stream=stream,
            note="Ours, on such statistics.",
        ),
        Line("ActMAD", aligned),
        VANILLA,
        *(line for line in ABLATION_LINES if stream or not line.stream),
    ]


def chosen_lines(
    lines: Sequence[Line], only: Sequence[str] | None, ablation: bool = False
) -> list[Line]:
    """The lines of these names, and the source; None means all, the ablation's if asked for."""
    if only is None:
        return [line for line in lines if ablation or not line.ablation]
    names = [line.name for line in lines]
    if unknown := [name for name in only if name not in names]:
        raise IT3Error(f"no method is called {'; '.join(unknown)}: take {'; '.join(names)}")
    wanted = ("source", *only)
    return [line for line in lines if line.name in wanted or (ablation and line.ablation)]
