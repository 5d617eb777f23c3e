"""Gated: adapts what is unusual, and leaves the rest alone."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from it3_core.errors import IT3Error
from it3_core.methods.base import Adaptation, Method
from it3_core.methods.drift import Drifted

__all__ = ["Edge", "Gate", "Gated", "Sign"]

Sign = Literal["error", "drift"]
"""What gives an unusual batch away: its idempotence errors, or its statistics."""


@dataclass(frozen=True)
class Gate:
    """Which batches are unusual: those whose idempotence error, or drift, is beyond what is usual.

    The mean of many errors varies less than one error, so that a batch of 64 is told from a usual
    one much sooner than an image alone. The limit follows the batch: `mean + z · std / √n`. A drift
    is one number for the whole batch.

    Args:
        mean: of the errors of inputs that the network should know, held out from training; or of
            their drifts, each alone.
        std: their standard deviation.
        false_alarms: share of usual batches that may pass as unusual.
        of: what it looks at, see `Drift`.

    Example:
        >>> import torch
        >>> gate = Gate(mean=0.2, std=0.1)
        >>> gate.opens(torch.full((1,), 0.3)), gate.opens(torch.full((16,), 0.3))
        (False, True)
    """

    mean: float
    std: float
    false_alarms: float = 0.1
    of: Sign = "error"

    def __post_init__(self) -> None:
        if self.of not in get_args(Sign):
            raise IT3Error(f"a gate looks at {' or '.join(get_args(Sign))}, not {self.of!r}")
        if not 0 < self.false_alarms < 1:
            raise IT3Error(f"false_alarms is a share between 0 and 1, not {self.false_alarms}")
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std >= 0):
            raise IT3Error(f"usual errors have a finite mean and deviation, not {self!r}")

    @classmethod
    def fit(cls, errors: Tensor, false_alarms: float = 0.1, of: Sign = "error") -> Gate:
        """The gate of these usual errors, as `Adaptation.error_before` has them, or drifts.

        One odd image's drift can be hundreds of times as large as the others': the largest in a
        hundred count as the next.

        Example:
            >>> import torch
            >>> Gate.fit(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
            Gate(mean=0.2, std=0.1, false_alarms=0.1, of='error')
        """
        known = errors.detach().double().flatten()
        if len(known) < 2:
            raise IT3Error("a gate needs at least two errors to know what is usual")
        if of == "drift":
            known = known.clamp(max=float(known.quantile(0.99, interpolation="lower")))
        return cls(round(float(known.mean()), 9), round(float(known.std()), 9), false_alarms, of)

    def opens(self, errors: Tensor) -> bool:
        """Whether a batch with these errors, or this drift, is unusual; not finite ones are not."""
        z = statistics.NormalDist().inv_cdf(1 - self.false_alarms)
        limit = self.mean + z * self.std / math.sqrt(max(1, errors.numel()))
        return limit < float(errors.mean()) < math.inf

    def looks_at(self, answer: Adaptation) -> Tensor:
        """What `opens` wants to know of the network's own answer."""
        if self.of == "error":
            return answer.error_before
        if isinstance(answer, Drifted):
            return answer.drift
        raise IT3Error("a gate on the drift needs `Drift` for its source")

    def picks(self, answer: Adaptation) -> Tensor:
        """The instances to adapt: all of an unusual batch, none of a usual one."""
        opens = self.opens(self.looks_at(answer))
        return torch.full((len(answer.initial),), opens, device=answer.initial.device)

    def describe(self) -> dict[str, Any]:
        """This gate as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Edge:
    """Which answers lie at the edge of what was trained: each instance by its own first answer.

    A network that is asked about labels beyond all that it was trained on answers from the edge of
    those: it does not go further by itself, but it goes that far. For one number an instance.

    Args:
        low: answers below are adapted; None adapts none there.
        high: answers above are.

    Example:
        >>> import torch
        >>> Edge.fit(torch.arange(100.0), 0.1, upper=True)
        Edge(low=None, high=89.1...)
    """

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for limit in (self.low, self.high):
            if limit is not None and not math.isfinite(limit):
                raise IT3Error(f"an edge is a finite number, or None, not {limit}")

    @classmethod
    def fit(
        cls, answers: Tensor, share: float, *, lower: bool = False, upper: bool = False
    ) -> Edge:
        """The edge, on these sides, that so large a share of usual answers lies beyond."""
        if not 0 <= share < 0.5:
            raise IT3Error(f"share is from 0 to below a half, not {share}")
        if answers.numel() < 2:
            raise IT3Error("an edge needs at least two answers to know what is usual")
        known = answers.detach().double().flatten()
        return cls(
            float(known.quantile(share)) if lower else None,
            float(known.quantile(1 - share)) if upper else None,
        )

    def picks(self, answer: Adaptation) -> Tensor:
        """The instances to adapt: those whose first answer lies beyond."""
        first = answer.initial
        if first.numel() != len(first):
            raise IT3Error("an edge is of one number an instance, and the network answers several")
        rows = first.detach().flatten()
        below = rows < (-math.inf if self.low is None else self.low)
        return below | (rows > (math.inf if self.high is None else self.high))

    def describe(self) -> dict[str, Any]:
        """This edge as JSON."""
        return asdict(self)


class Gated:
    """Asks `method` about what is unusual, and answers the rest as `source` does.

    So a method that helps under shift and costs a little on what the network knows, as batch
    statistics of few images do, costs next to nothing there: it runs for one usual batch in ten.

    Args:
        source: answers what is usual, and whose answers the gate looks at: `Source`, or `Drift`.
        method: answers what is not; it is given the whole batch.
        gate: tells them apart: a `Gate` batch by batch, an `Edge` instance by instance.

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

    def __init__(self, source: Method, method: Method, gate: Gate | Edge) -> None:
        self.source = source
        self.method = method
        self.gate = gate

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
