"""Stream statistics: batch norms with the statistics of the stream that a batch comes in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.engine.functional import FunctionalModel
from it3_core.engine.inner_optimizer import Blend, Weights
from it3_core.errors import IT3Error
from it3_core.methods.base import Adaptation, answered, idempotence_error, not_finite, shown
from it3_core.methods.stream_gate import StreamGate
from it3_core.model.adapters import Adapter
from it3_core.scores.passes import Passes
from it3_core.scores.statistics import StatisticsShift

_ENOUGH = 16  # instances whose means tell whether the stream has turned


@dataclass(eq=False, repr=False)
class StreamStatistics:
    """Answers f(x, neutral) on the statistics of the stream, once these have shifted.

    Few instances say little about their own statistics, but those before them saw the same camera
    in the same fog. While the stream is training-like, the network answers as it was trained. When
    the stream's means have shifted, batch norms blend in what they saw since; the training data
    count as some instances at first, and are forgotten. A batch that is nearer to the training data
    than to the stream is still answered as it was trained, and when the newest instances differ
    from those before, all is forgotten. The order matters: images of one kind should come one
    after the other.

    Args:
        model: any network with batch norms, with a signal or without.
        adapter: what kind of answer it gives.
        gate: `StreamGate.fit(…, of="statistics")`: which statistics have shifted.
        prior: how many instances the training data count as.
        memory: how many instances of the stream count.

    Example:
        >>> import torch
        >>> from it3_core import Regression, StreamGate, StreamStatistics, condition
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        >>> adapter, x = Regression(), torch.randn(64, 3)
        >>> model = condition(net, adapter, layer="1")
        >>> from it3_core import StatisticsShift
        >>> gate = StreamGate.fit(StatisticsShift(model, adapter)(x), of="statistics")
        >>> method = StreamStatistics(model, adapter, gate, prior=0)
        >>> right = method(x).prediction
        >>> for row in (x + 9).split(4):
        ...     last = method(row).prediction
        >>> bool((last - right[-4:]).abs().mean() < 0.3)  # it has seen through the offset
        True
    """

    model: nn.Module
    adapter: Adapter
    gate: StreamGate
    _: KW_ONLY
    prior: float = 16.0
    memory: int = 64

    __repr__ = shown

    def __post_init__(self) -> None:
        if self.gate.of != "statistics":
            raise IT3Error('a stream is gated by its statistics: fit the gate with of="statistics"')
        if not 0 <= self.prior < math.inf or self.memory < 1:
            raise IT3Error(
                f"prior and memory are numbers of instances, not {self.prior} and {self.memory}"
            )
        self._observe = StatisticsShift(self.model, self.adapter)
        self._blend = Blend()
        self._functional = FunctionalModel(self.model, norm=self._blend)
        self._plain = FunctionalModel(self.model)
        self.reset()

    def reset(self) -> None:
        """Forgets the stream."""
        self._known = _Means()
        self._newest = _Means()
        self._statistics: Weights = {}
        self._weight = self.prior

    def __call__(self, x: Any) -> Adaptation:
        seen = self._observe.observe(x)
        first = answered(seen)
        return self._adapted(x, first) if self._shifted(seen) else first

    def _shifted(self, seen: Passes) -> bool:
        """Adds the batch's means to the stream's, and says whether these have shifted."""
        batch = _Means([one.mean(0) for one in seen.means], len(seen.answer))
        if not bool(torch.isfinite(_size(batch.means))):
            return False  # nothing to remember
        before = self._known.and_also(self._newest)
        whole = before.and_also(batch).at_most(self.memory)
        newest = self._newest.and_also(batch)
        self._newest = newest
        if newest.count >= _ENOUGH:
            if self._known.count and self.gate.opens(self._known.apart(newest)):
                self.reset()
                before, whole = _Means(), newest.at_most(self.memory)
            self._known, self._newest = whole, _Means()
        return self.gate.opens(whole.shift()) and (not before.count or before.nearer_to(batch))

    def _adapted(self, x: Any, first: Adaptation) -> Adaptation:
        size, y0 = len(first.initial), first.initial
        self._blend.fraction = size / (self._weight + size)
        with self._functional.session() as run, torch.no_grad():
            answer = run(x, self.adapter.neutral(x), self._statistics)
        if not bool(torch.isfinite(answer).all()):
            self.reset()
            return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=first.before)
        self._statistics = dict(self._blend.found)
        self._weight = min(self._weight + size, float(self.memory))
        error = partial(idempotence_error, self._plain, self.adapter, x, answer, self._statistics)
        return Adaptation(answer, y0, 0, before=first.before, after=error)


class _Means:
    """What batch norms saw of some instances: their means, and how many these are."""

    def __init__(self, means: Sequence[Tensor] = (), count: int = 0) -> None:
        self.means = list(means)
        self.count = count

    def and_also(self, other: _Means) -> _Means:
        """Of both together."""
        if not self.count or not other.count:
            return self if self.count else other
        part = other.count / (self.count + other.count)
        both = [torch.lerp(*pair, part) for pair in zip(self.means, other.means, strict=True)]
        return _Means(both, self.count + other.count)

    def at_most(self, count: int) -> _Means:
        """The same, counting as so many: what comes next then weighs more."""
        return _Means(self.means, min(self.count, count))

    def shift(self) -> Tensor:
        """As `StatisticsShift.of_batch`, of all of them."""
        return self.count * _size(self.means)

    def apart(self, other: _Means) -> Tensor:
        """The same of the difference, as large for two training-like parts as for one instance."""
        return self.count * other.count / (self.count + other.count) * self._gap(other)

    def nearer_to(self, other: _Means) -> bool:
        """Whether these others are nearer to them than to the training data, whose means are 0."""
        return bool(self._gap(other) < _size(other.means))

    def _gap(self, other: _Means) -> Tensor:
        return _size([one - two for one, two in zip(self.means, other.means, strict=True)])


def _size(means: Sequence[Tensor]) -> Tensor:
    """The mean square over channels and layers."""
    return torch.stack([one.square().mean() for one in means]).mean().view(1)
