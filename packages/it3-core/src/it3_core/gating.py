"""The gates that `tune` tries, and what each of them picks in every trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from it3_core.adapters import Adapter, Regression
from it3_core.batching import batches, take
from it3_core.candidates import observer
from it3_core.methods import Adaptation, Drifted, Edge, Gate, Source
from it3_core.methods.gated import Sign
from it3_core.norms import has_batch_norm

__all__ = ["Picking", "Trial", "drift_gates", "pickings"]


class Trial(NamedTuple):
    """What candidates are tried on: a network, inputs and their labels."""

    model: nn.Module
    x: Any
    y: Tensor


class Picking(NamedTuple):
    """A gate of the network that is tuned, and the rows of each trial that it picks.

    In a trial of another network, a gate of that network's own.
    """

    gate: Gate | Edge
    picked: Mapping[str, Tensor]


def pickings(
    trials: Mapping[str, Trial],
    tails: Sequence[str],
    adapter: Adapter,
    size: int,
    false_alarms: float,
) -> Iterator[Picking]:
    """Every gate that these networks and trials allow, the cheapest first.

    Args:
        trials: the first is of usual data.
        tails: which of them are of labels beyond what their network was trained on.
        adapter: what kind of answer the networks give.
        size: how many instances come together.
        false_alarms: the share of usual batches, or answers, that may be picked.
    """
    usual = next(iter(trials.values()))
    if tails and isinstance(adapter, Regression) and len(adapter.mean) == 1:
        # Some usual answers are picked; or none, but only those beyond all that were seen.
        for share in (false_alarms / 2, 0.0):
            yield _by_answer(trials, usual, tails, adapter, size, share)
    # Several instances' statistics tell an unusual batch far better than their errors do, where a
    # network looks at statistics; one instance's do not (docs/experiments.md).
    sign: Sign = "drift" if size > 1 and has_batch_norm(usual.model) else "error"
    found = _by_batch(sign, trials, usual, adapter, size, false_alarms)
    if found is not None:
        yield found


def _by_batch(
    of: Sign,
    trials: Mapping[str, Trial],
    usual: Trial,
    adapter: Adapter,
    size: int,
    false_alarms: float,
) -> Picking | None:
    """None where something is not finite."""
    gates = _fitted(of, trials, usual, adapter, size, false_alarms)
    if gates is None:
        return None
    picked = {}
    for name, (network, inputs, _) in trials.items():
        source = observer(of, network, adapter)
        parts = [gates[network].picks(source(part)).cpu() for part in batches(inputs, size)]
        picked[name] = torch.cat(parts)
    return Picking(gates[usual.model], picked)


def drift_gates(
    trials: Mapping[str, Trial], adapter: Adapter, size: int, false_alarms: float
) -> dict[nn.Module, Gate]:
    """Of each network the gate on its drift; none where one has no batch norm, or no finite drift.

    Args:
        trials: the first is of usual data.
        adapter: what kind of answer the networks give.
        size: how many instances come together.
        false_alarms: the share of usual batches that may be picked.
    """
    if not all(has_batch_norm(trial.model) for trial in trials.values()):
        return {}
    usual = next(iter(trials.values()))
    return _fitted("drift", trials, usual, adapter, size, false_alarms) or {}


def _fitted(
    of: Sign,
    trials: Mapping[str, Trial],
    usual: Trial,
    adapter: Adapter,
    size: int,
    false_alarms: float,
) -> dict[nn.Module, Gate] | None:
    """What each network takes for usual; None where something is not finite."""
    gates: dict[nn.Module, Gate] = {}
    for network in dict.fromkeys(trial.model for trial in trials.values()):
        source = observer(of, network, adapter)
        known = torch.cat([_alone(source(part)) for part in batches(usual.x, size)])
        if not bool(torch.isfinite(known).all()):
            return None
        gates[network] = Gate.fit(known, false_alarms, of)
    return gates


def _alone(answer: Adaptation) -> Tensor:
    """What a gate looks at, of each instance alone, in double precision."""
    found = answer.each if isinstance(answer, Drifted) else answer.error_before
    return found.double().cpu()


def _by_answer(
    trials: Mapping[str, Trial],
    usual: Trial,
    tails: Sequence[str],
    adapter: Adapter,
    size: int,
    share: float,
) -> Picking:
    labels = usual.y.flatten().double()
    low, high = _trained_between(labels, trials[tails[0]].y.flatten().double())
    sides = {"lower": low > -math.inf, "upper": high < math.inf}
    # A tail's network knows no labels beyond, so that its usual answers are of the others.
    known = ((labels > low) & (labels < high)).nonzero().flatten().tolist()
    edges: dict[nn.Module, Edge] = {}
    picked = {}
    for name, (network, inputs, _) in trials.items():
        source = Source(network, adapter)
        if network not in edges:
            inside = take(usual.x, known) if name in tails else usual.x
            answers = [source(part).prediction.cpu() for part in batches(inside, size)]
            edges[network] = Edge.fit(torch.cat(answers), share, **sides)
        parts = [edges[network].picks(source(part)).cpu() for part in batches(inputs, size)]
        picked[name] = torch.cat(parts)
    return Picking(edges[usual.model], picked)


def _trained_between(labels: Tensor, tail: Tensor) -> tuple[float, float]:
    """Between which labels a network was trained that this tail was kept from."""
    middle = labels.median()
    below, above = tail[tail < middle], tail[tail >= middle]
    return (
        float(below.max()) if len(below) else -math.inf,
        float(above.min()) if len(above) else math.inf,
    )
