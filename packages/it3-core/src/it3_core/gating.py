"""The gates that `tune` tries, and what each of them picks in every trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from it3_core.adapters import Adapter, Regression
from it3_core.batching import batches, take
from it3_core.candidates import observer
from it3_core.methods import Adaptation, Drifted, Edge, Gate, Method, Source
from it3_core.methods.gated import Sign
from it3_core.norms import has_batch_norm

__all__ = ["Gates", "Picking", "Trial"]


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


@dataclass(frozen=True)
class Gates:
    """The gates that these networks and trials allow.

    Attributes:
        trials: the first is of usual data.
        adapter: what kind of answer the networks give.
        size: how many instances come together.
        false_alarms: the share of usual batches, or answers, that may be picked.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))  # without batch norm: no drift
        >>> trials = {"clean": Trial(model, torch.rand(8, 4), torch.rand(8))}
        >>> Gates(trials, Regression([0.0], [1.0]), 4, 0.1).by_drift()
        {}
    """

    trials: Mapping[str, Trial]
    adapter: Adapter
    size: int
    false_alarms: float

    @property
    def usual(self) -> Trial:
        """Of usual data."""
        return next(iter(self.trials.values()))

    def pickings(self, tails: Sequence[str]) -> Iterator[Picking]:
        """Every gate, and what it picks; the cheapest first.

        Args:
            tails: which trials are of labels beyond what their network was trained on.
        """
        adapter = self.adapter
        if tails and isinstance(adapter, Regression) and len(adapter.mean) == 1:
            # Some usual answers are picked; or none, but only those beyond all that were seen.
            for share in (self.false_alarms / 2, 0.0):
                yield self._by_answer(tails, share)
        # Several instances' statistics tell an unusual batch far better than their errors do, where
        # a network looks at statistics; one instance's do not (docs/experiments.md).
        of: Sign = "drift" if self.size > 1 and has_batch_norm(self.usual.model) else "error"
        gates = self._fitted(of)
        if gates:
            picked = {
                name: self._picked(trial, gates[trial.model], observer(of, trial.model, adapter))
                for name, trial in self.trials.items()
            }
            yield Picking(gates[self.usual.model], picked)

    def by_drift(self) -> dict[nn.Module, Gate]:
        """Of each network the gate on its drift; none where one has no batch norm."""
        normed = all(has_batch_norm(trial.model) for trial in self.trials.values())
        return self._fitted("drift") if normed else {}

    def _fitted(self, of: Sign) -> dict[nn.Module, Gate]:
        """What each network takes for usual; none where something is not finite."""
        gates: dict[nn.Module, Gate] = {}
        for network in dict.fromkeys(trial.model for trial in self.trials.values()):
            source = observer(of, network, self.adapter)
            known = torch.cat([_alone(source(part)) for part in batches(self.usual.x, self.size)])
            if not bool(torch.isfinite(known).all()):
                return {}
            gates[network] = Gate.fit(known, self.false_alarms, of)
        return gates

    def _by_answer(self, tails: Sequence[str], share: float) -> Picking:
        usual, tail = self.usual, self.trials[tails[0]]
        labels = usual.y.flatten().double()
        low, high = _trained_between(labels, tail.y.flatten().double())
        sides = {"lower": low > -math.inf, "upper": high < math.inf}
        # A tail's network knows no labels beyond, so that its usual answers are of the others.
        known = ((labels > low) & (labels < high)).nonzero().flatten().tolist()
        edges: dict[nn.Module, Edge] = {}
        picked = {}
        for name, trial in self.trials.items():
            source = Source(trial.model, self.adapter)
            if trial.model not in edges:
                inside = take(usual.x, known) if name in tails else usual.x
                answers = [source(part).prediction.cpu() for part in batches(inside, self.size)]
                edges[trial.model] = Edge.fit(torch.cat(answers), share, **sides)
            picked[name] = self._picked(trial, edges[trial.model], source)
        return Picking(edges[usual.model], picked)

    def _picked(self, trial: Trial, gate: Gate | Edge, source: Method) -> Tensor:
        """The rows of a trial that a gate picks, by what this method says of them."""
        parts = [gate.picks(source(part)).cpu() for part in batches(trial.x, self.size)]
        return torch.cat(parts)


def _alone(answer: Adaptation) -> Tensor:
    """What a gate looks at, of each instance alone, in double precision."""
    found = answer.each if isinstance(answer, Drifted) else answer.error_before
    return found.double().cpu()


def _trained_between(labels: Tensor, tail: Tensor) -> tuple[float, float]:
    """Between which labels a network was trained that this tail was kept from."""
    middle = labels.median()
    below, above = tail[tail < middle], tail[tail >= middle]
    return (
        float(below.max()) if len(below) else -math.inf,
        float(above.min()) if len(above) else math.inf,
    )
