"""Gated: adapts inputs that are unlike the training data, and leaves the rest alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from it3_core.engine.functional import FunctionalModel, prepared
from it3_core.engine.inner_optimizer import batch_norm_names
from it3_core.errors import IT3Error
from it3_core.methods.base import Adaptation, Method, idempotence_error, shown
from it3_core.model.adapters import Adapter

Observed = Literal["error", "statistics"]
"""What a gate looks at: idempotence errors, or the shift of batch norms' statistics."""


@dataclass(frozen=True, eq=False)
class ShiftObservation(Adaptation):
    """An answer with what the batch norms saw."""

    # For each batch norm (n, channels): the mean of each instance, less that of the training data,
    # in the training data's standard deviations.
    means: Sequence[Tensor] = field(repr=False, kw_only=True)

    @property
    def shift(self) -> Tensor:
        """Of the batch: n times the mean square of its means.

        The means of n training-like instances vary as 1/√n, so that this is as large for a batch of
        them as for one; a shift that all instances share makes it grow with n.
        """
        layers = [one.mean(0).square().mean() for one in self.means]
        return len(self.initial) * torch.stack(layers).mean().view(1)

    @property
    def each(self) -> Tensor:
        """The same for every instance alone."""
        return torch.stack([one.square().mean(1) for one in self.means]).mean(0)


class StatisticsShift:
    """Answers y0 = f(x, neutral), and keeps what batch norms saw on the way.

    It needs no second pass, and finds batches with a common shift much sooner than the idempotence
    error does; of single instances it says little.

    Args:
        model: any network with batch norms, with a signal or without.
        adapter: what kind of answer it gives.

    Example:
        >>> import torch
        >>> from it3_core import StatisticsShift, Regression, condition
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        >>> adapter = Regression()
        >>> observe = StatisticsShift(condition(net, adapter, layer="1"), adapter)
        >>> x = torch.randn(64, 3)
        >>> float(observe(x).shift) < 2 < float(observe(x + 1).shift)
        True
    """

    def __init__(self, model: nn.Module, adapter: Adapter) -> None:
        names = batch_norm_names(model)
        if not names:
            raise IT3Error("the network has no batch norm, whose statistics could shift")
        self.model, self.adapter = model, adapter
        self._functional = FunctionalModel(model, watch=names, keep=_standardised)

    __repr__ = shown

    def __call__(self, x: Any) -> ShiftObservation:
        x, _ = prepared(x, self._functional)
        with self._functional.session() as run, torch.no_grad():
            y0 = run(x, self.adapter.neutral(x))
            means = run.ran
        if not means:
            raise IT3Error("no batch norm runs in the first pass: there is no shift to see")
        error = partial(idempotence_error, self._functional, self.adapter, x, y0)
        return ShiftObservation(y0.clone(), y0, steps=0, before=error, means=means)

    def reset(self) -> None:
        """Nothing to forget."""


def _standardised(layer: nn.Module, output: Tensor) -> Tensor:
    """Each instance's means: a batch norm's bias is what it puts the training data's mean at.

    Its scale is taken over all channels: what a channel that is scaled away sees counts for little.
    """
    means = output.flatten(2).mean(2) if output.dim() > 2 else output
    if not isinstance(layer, nn.modules.batchnorm._BatchNorm) or not layer.affine:
        return means
    scale = layer.weight.detach().square().mean().sqrt().clamp_min(1e-12)
    return (means - layer.bias) / scale


@dataclass(frozen=True)
class Gate:
    """Which batches are unlike the training data: by idempotence error, or by statistics shift.

    The mean of many errors varies less than one error, so that a batch of 64 is told from a
    training-like one much sooner than an image alone. The limit follows the batch:
    `mean + z · std / √n`. A statistics shift is one number for the whole batch.

    Args:
        mean: of the errors (or of the shifts, each instance alone) on validation data.
        std: their standard deviation.
        false_alarms: fraction of training-like batches that may pass as unlike.
        of: what it looks at: `"error"`, or `"statistics"` of a `StatisticsShift`.

    Example:
        >>> import torch
        >>> gate = Gate(mean=0.2, std=0.1)
        >>> gate.opens(torch.full((1,), 0.3)), gate.opens(torch.full((16,), 0.3))
        (False, True)
    """

    mean: float
    std: float
    false_alarms: float = 0.1
    of: Observed = "error"

    def __post_init__(self) -> None:
        if self.of not in get_args(Observed):
            raise IT3Error(f"a gate looks at {' or '.join(get_args(Observed))}, not {self.of!r}")
        if not 0 < self.false_alarms < 1:
            raise IT3Error(f"false_alarms is a fraction between 0 and 1, not {self.false_alarms}")
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std >= 0):
            raise IT3Error("the mean and standard deviation of a gate must be finite")

    @classmethod
    def fit(cls, errors: Tensor, false_alarms: float = 0.1, of: Observed = "error") -> Gate:
        """The gate of these errors (`Adaptation.error_before`) or shifts of validation data.

        One odd image's shift can be hundreds of times as large as the others': the largest in a
        hundred count as the next.
        """
        values = errors.detach().double().flatten()
        if len(values) < 2:
            raise IT3Error("a gate needs at least two errors of validation data")
        if of == "statistics":
            values = values.clamp(max=float(values.quantile(0.99, interpolation="lower")))
        return cls(round(float(values.mean()), 9), round(float(values.std()), 9), false_alarms, of)

    def opens(self, errors: Tensor) -> bool:
        """Whether a batch with these errors, or this shift, is adapted; not finite ones are not."""
        z = statistics.NormalDist().inv_cdf(1 - self.false_alarms)
        limit = self.mean + z * self.std / math.sqrt(max(1, errors.numel()))
        return limit < float(errors.mean()) < math.inf

    def picks(self, answer: Adaptation) -> Tensor:
        """The instances to adapt: all of a batch, or none, by the network's own answer."""
        seen = answer.error_before if self.of == "error" else getattr(answer, "shift", None)
        if seen is None:
            raise IT3Error("a gate on statistics needs StatisticsShift for its source")
        opens = self.opens(seen)
        return torch.full((len(answer.initial),), opens, device=answer.initial.device)


@dataclass(frozen=True)
class AnswerRange:
    """Which answers lie at an end of the trained range: each instance by its own first answer.

    A network that is given inputs whose labels lie outside the training range predicts values near
    the end of that range: it goes that far, but not further. For one number an instance.

    Args:
        low: answers below are adapted; None adapts none there.
        high: answers above are.

    Example:
        >>> import torch
        >>> AnswerRange.fit(torch.arange(100.0), 0.1, upper=True)
        AnswerRange(low=None, high=89.1...)
    """

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for limit in (self.low, self.high):
            if limit is not None and not math.isfinite(limit):
                raise IT3Error(f"an end of a range is a finite number, or None, not {limit}")

    @classmethod
    def fit(
        cls, answers: Tensor, fraction: float, *, lower: bool = False, upper: bool = False
    ) -> AnswerRange:
        """The range that this fraction of validation answers lies outside of, on these sides."""
        if not 0 <= fraction < 0.5:
            raise IT3Error(f"fraction is from 0 to below a half, not {fraction}")
        if answers.numel() < 2:
            raise IT3Error("a range needs at least two answers of validation data")
        values = answers.detach().double().flatten()
        return cls(
            float(values.quantile(fraction)) if lower else None,
            float(values.quantile(1 - fraction)) if upper else None,
        )

    def picks(self, answer: Adaptation) -> Tensor:
        """The instances to adapt: those whose first answer lies outside."""
        first = answer.initial
        if first.numel() != len(first):
            raise IT3Error("a range is of one number an instance, and the network answers several")
        rows = first.detach().flatten()
        below = rows < (-math.inf if self.low is None else self.low)
        return below | (rows > (math.inf if self.high is None else self.high))


@dataclass(eq=False, repr=False)
class Gated:
    """Adapts with `method` what the gate picks, and answers the rest as `source` does.

    So a method that helps under shift and costs a little on in-distribution data, as batch
    statistics of few images do, costs next to nothing there: it runs for one such batch in ten.

    Args:
        source: its answers are what the gate looks at: `Source`, or `StatisticsShift`.
        method: answers what the gate picks; it is given the whole batch.
        gate: a `Gate` picks batch by batch, an `AnswerRange` instance by instance.

    Example:
        >>> import torch
        >>> from it3_core import AnswerStep, Regression, Source, widen
        >>> adapter = Regression()
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> _ = torch.nn.init.normal_(model.model.weight)  # stands in for training
        >>> step = AnswerStep(model, adapter, alpha=1.0)
        >>> never = Gated(Source(model, adapter), step, Gate(mean=9.0, std=1.0))
        >>> answer = never(torch.randn(4, 3))
        >>> torch.equal(answer.prediction, answer.initial)
        True
    """

    source: Method
    method: Method
    gate: Gate | AnswerRange

    __repr__ = shown

    def __call__(self, x: Any) -> Adaptation:
        first = self.source(x)
        picked = self.gate.picks(first)
        if not bool(picked.any()):
            return first
        answer = self.method(x)
        rows = picked.view(-1, *[1] * (first.initial.dim() - 1))
        return Adaptation(
            torch.where(rows, answer.prediction, first.initial),
            first.initial,
            answer.steps,
            answer.fallback,
            before=lambda: first.error_before,
            after=lambda: torch.where(picked, answer.error_after, first.error_before),
        )

    def reset(self) -> None:
        """Forgets what the method has learnt."""
        self.source.reset()
        self.method.reset()
