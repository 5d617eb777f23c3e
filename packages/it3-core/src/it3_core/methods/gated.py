"""Gated: adapts what is unlike the usual inputs, and only so far; the rest is left to the bit.

For units (rows, or batches of one size) that are exchangeable with those of the threshold, on
average over their draw, at most α of them are opened: the k-th smallest of n scores, k =
⌈(n + 1)(1 − α)⌉, is exceeded by the next one with that probability at most. So harm is bounded by
how the method is built, whatever the step does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from it3_core.batching import batches, count, inputs_of, labelled, take
from it3_core.errors import IT3Error
from it3_core.methods.base import Adaptation, Method, answered, idempotence_error
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter, Regression
from it3_core.model.classes import Classification
from it3_core.scores.passes import Passes, Score, UncertaintyScore

Unit = int | Literal["row"]
"""What a gate opens for: each row by itself, or whole batches of this size."""


def fewest(rate: float, confidence: float | None = None) -> int:
    """How many threshold scores a false-positive rate needs."""
    part = Fraction(str(rate))
    if confidence is None:
        return math.ceil(1 / part) - 1
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate))


def _rank(n: int, rate: float, confidence: float | None) -> int:
    """Which of n ascending scores is the threshold; above n there is none."""
    if confidence is None:
        return math.ceil((n + 1) * (1 - Fraction(str(rate))))
    # At the k-th smallest, the opened share is at most α for a given model where at least
    # n + 1 − k of n exceed the quantile: a binomial tail.
    log = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
           + i * math.log(rate) + (n - i) * math.log1p(-rate) for i in range(n + 1)]  # fmt: skip
    tail = 0.0  # P(at least m exceed it), from m = n down
    for m in range(n, 0, -1):
        tail += math.exp(log[m])
        if tail >= confidence:
            return n + 1 - m
    return n + 1


@dataclass(frozen=True)
class Gate:
    """Opens for what scores strictly above a threshold; never where that is None.

    Args:
        score: what it looks at, in words.
        threshold: of the score.
        n: how many units the threshold is of.
        false_positive_rate: α, of such units.
        unit: rows, or batches of one size.
        confidence: with which α holds for one given model; None: on average over the draw.

    Example:
        >>> import torch
        >>> gate = Gate.fit(torch.arange(99.0), 0.01)
        >>> gate.threshold, gate.opens(torch.tensor([98.0, 99.0]))
        (98.0, tensor([False,  True]))
        >>> print(Gate.fit(torch.arange(98.0), 0.01))
        never opens: 98 threshold rows are too few for 1 %, which 99 would do
    """

    threshold: float | None
    n: int
    false_positive_rate: float
    unit: Unit = "row"
    score: str = "score"
    confidence: float | None = None

    @classmethod
    def fit(
        cls, scores: Tensor, false_positive_rate: float, unit: Unit = "row", *,
        score: str = "score", confidence: float | None = None,
    ) -> Gate:  # fmt: skip
        """The gate of the scores of so many usual units."""
        if not 0 < false_positive_rate < 1:
            raise IT3Error(f"a false-positive rate lies between 0 and 1: {false_positive_rate}")
        if confidence is not None and not 0 < confidence < 1:
            raise IT3Error(f"confidence lies between 0 and 1, such as 0.95, not at {confidence}")
        values = scores.detach().double().flatten().cpu()
        if bool(values.isnan().any()):
            raise IT3Error(f"{score} of threshold inputs is not a number: take another score")
        n, rate = len(values), false_positive_rate
        rank = _rank(n, rate, confidence)
        found = None if rank > n else float(values.sort().values[rank - 1])
        found = None if found is None or math.isinf(found) else found
        return cls(found, n, rate, unit, score, confidence)

    def opens(self, scores: Tensor) -> Tensor:
        """For each score, whether the gate opens; not for NaN."""
        if self.threshold is None:
            return torch.zeros_like(scores, dtype=torch.bool)
        return scores.double() > self.threshold

    def __str__(self) -> str:
        units = "rows" if self.unit == "row" else f"batches of {self.unit}"
        rate = f"{100 * self.false_positive_rate:g} %"
        if self.threshold is None:
            needed = fewest(self.false_positive_rate, self.confidence)
            return (
                f"never opens: {self.n} threshold {units} are too few for {rate}, "
                f"which {needed} would do"
            )
        return f"opens for {units} with {self.score} above {self.threshold:.4g}: {rate} of usual"


class Gated:
    """Adapts with `method` where the gate is open, and answers as the source does where it is shut.

    Shut: the source's answer, to the bit. Open: a number moves at most cap · error towards the
    method's answer; of a batch's class answers at most a share `cap` changes, the least certain
    first; a map changes as a whole. **Guaranteed** for units that are exchangeable with those of
    the threshold, on average over their draw, and whatever the method does: at most α of them are
    opened, so that the mean absolute error rises by at most α · cap · error, and at most α · cap
    of class answers (α of maps) change. **Not guaranteed**: squared errors, quotients, one given
    model (`confidence=0.95` is for that), usual rows among shifted ones. What is not of the
    batch size is answered by the source.

    The score is of the source network alone, so that what a stream has learnt, behind the gate,
    can't open it.

    Args:
        method: answers what the gate opens for, and sees nothing else.
        score: a score of the source network, such as `AnswerDistance(model, adapter)`.
        threshold_inputs: usual inputs that neither training nor choosing has seen; no labels are
            needed. Or a `Gate`, which was fitted to some.
        false_positive_rate: α.
        cap: c. Numbers: of `error`. Classes: share of a batch, at most 1.
        error: of numbers, the source's mean absolute error on the rows that the choice was made
            on: one for all outputs, or one for each.
        unit: `"row"`, or the size of the batches that are opened as a whole.
        confidence: see `Gate`.

    Example:
        >>> import torch
        >>> from it3_core import AnswerStep, Gated, Regression, widen
        >>> from it3_core.scores.answers import AnswerDistance
        >>> _ = torch.manual_seed(0)
        >>> adapter, usual = Regression(), torch.randn(200, 3)
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> _ = torch.nn.init.normal_(model.model.weight)  # stands in for training
        >>> step, score = AnswerStep(model, adapter), AnswerDistance(model, adapter)
        >>> method = Gated(step, score, usual, false_positive_rate=0.01, cap=2.0, error=0.1)
        >>> answer = method(torch.tensor([[0.1, 0.2, 0.3], [9.0, 9.0, 9.0]]))
        >>> answer.adapted
        tensor([False,  True])
        >>> float((answer.prediction - answer.initial).abs().max())  # cap * error
        0.2...
    """

    def __init__(
        self, method: Method, score: Score, threshold_inputs: Any, *,
        false_positive_rate: float = 0.01, cap: float = 1.0,
        error: float | Sequence[float] | None = None, unit: Unit = "row",
        confidence: float | None = None,
    ) -> None:  # fmt: skip
        self.method, self.score, self.cap = method, score, float(cap)
        if isinstance(score, Method) or not callable(score):
            raise IT3Error(
                f"a gate looks at a score of the source network, such as Idempotence(model, "
                f"adapter), which remembers nothing; {type(score).__name__} is none"
            )
        self.model, self.adapter = _network_of(method)
        self._source = Source(self.model, self.adapter)
        self.error = _errors(self.adapter, error, self.cap, unit)
        if isinstance(threshold_inputs, Gate):
            self.gate = threshold_inputs
            return
        if threshold_inputs is None:
            raise IT3Error("a gate needs threshold inputs: usual ones that training has not seen")
        if unit != "row" and (not isinstance(unit, int) or unit < 1):
            raise IT3Error(f'unit is "row" or the size of a batch, not {unit!r}')
        scores = unit_scores(score, threshold_inputs, unit)
        self.gate = Gate.fit(scores, false_positive_rate, unit, score=named(score),
                             confidence=confidence)  # fmt: skip

    def __call__(self, x: Any) -> Adaptation:
        first, scores = self._seen(x)
        n, unit = len(first.initial), self.gate.unit
        if n != count(x):
            raise IT3Error(f"a gate needs one answer a row, and {count(x)} rows have {n} answers")
        if scores is None:
            return replace(first, opened=torch.zeros(n, dtype=torch.bool))
        opened = self.gate.opens(scores).to(first.initial.device).expand(n)
        rows = opened.nonzero().flatten()
        if not len(rows):
            return replace(first, opened=opened)
        found = self.method(x if len(rows) == n else take(x, rows.tolist()))
        initial = first.initial[rows]
        if found.prediction.shape != initial.shape:
            raise IT3Error("the method's answer is not of the shape of the source's")
        answer = found.prediction.detach().to(initial)
        answer, kept = within_cap(self.adapter, answer, initial, self.cap, self.error, unit)
        prediction = first.initial.clone()
        prediction[rows[kept]] = answer[kept]
        opened = torch.zeros_like(opened).index_fill(0, rows[kept], True)
        network = self._source._functional
        error = partial(idempotence_error, network, self.adapter, x, prediction)
        return replace(
            first, prediction=prediction, steps=found.steps, fallback=found.fallback,
            opened=opened, after=error,
        )  # fmt: skip

    def _seen(self, x: Any) -> tuple[Adaptation, Tensor | None]:
        """The source's answer, and the scores; None where the batch is not of the size."""
        fits = self.gate.unit == "row" or count(x) == self.gate.unit
        if isinstance(self.score, UncertaintyScore):
            passes = self.score.observe(x)
            scores = _of(self.score, passes, self.gate.unit) if fits else None
            return answered(passes), scores
        found = self.score(x) if fits else None
        return self._source(x), found if found is None else _reduced(found, self.gate.unit)

    def reset(self) -> None:
        """Forgets what the method has learnt."""
        self.method.reset()

    def __repr__(self) -> str:
        cap = f"cap={self.cap:g}"
        return f"Gated({self.method!r}, {self.gate}, {cap})"


def within_cap(
    adapter: Adapter, answer: Tensor, initial: Tensor, cap: float, error: Sequence[float],
    unit: Unit,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """How far answers to what is open may go, and which rows change at all."""
    kept = answer.isfinite().unsqueeze(-1).flatten(1).all(1)
    if isinstance(adapter, Regression):
        limit = cap * answer.new_tensor(error)
        rows = initial.unsqueeze(-1).flatten(1)
        move = (answer.reshape(rows.shape) - rows).nan_to_num(nan=0.0)
        return (rows + torch.minimum(torch.maximum(move, -limit), limit)).view(initial.shape), kept
    if not isinstance(adapter, Classification) or unit == "row" or cap >= 1:
        return answer, kept
    changed = (answer.argmax(1) != initial.argmax(1)) & kept
    doubt = 1 - initial.double().softmax(1).amax(1)
    order = torch.where(changed, doubt, -1.0).argsort(descending=True, stable=True)
    changed[order[: math.floor(cap * len(initial))]] = False
    return answer, kept & ~changed


def named(score: Any) -> str:
    """What a score is called in sentences."""
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in type(score).__name__).strip()
    return words if isinstance(score, UncertaintyScore) else "score"


def unit_scores(score: Score, inputs: Any, unit: Unit) -> Tensor:
    """The scores of rows, or of the whole batches of one size that inputs make."""
    if unit == "row":
        found = [score(x).detach().flatten().cpu() for x, _ in labelled(inputs)]
        return torch.cat(found) if found else torch.empty(0)
    parts = [part for part in batches(inputs_of(inputs), unit) if count(part) == unit]
    found = [
        _of(score, score.observe(part), unit)
        if isinstance(score, UncertaintyScore)
        else _reduced(score(part), unit)
        for part in parts
    ]
    return torch.tensor([float(one) for one in found], dtype=torch.float64)


def _of(score: UncertaintyScore, passes: Passes, unit: Unit) -> Tensor:
    return score.of(passes) if unit == "row" else score.of_batch(passes)


def _reduced(scores: Tensor, unit: Unit) -> Tensor:
    return scores if unit == "row" else scores.mean()


def _network_of(method: Any) -> tuple[Any, Adapter]:
    if not hasattr(method, "model") or not hasattr(method, "adapter"):
        raise IT3Error(f"{type(method).__name__} has no network of its own to gate")
    return method.model, method.adapter


def _errors(
    adapter: Adapter, error: float | Sequence[float] | None, cap: float, unit: Unit
) -> list[float]:
    """The errors that caps of numbers are of."""
    if not 0 < cap < math.inf:
        raise IT3Error(f"a cap is a number above 0, not {cap}")
    if not isinstance(adapter, Regression):
        if cap > 1 or (cap < 1 and (unit == "row" or not isinstance(adapter, Classification))):
            raise IT3Error("the cap of classes is a share of a batch, and 1 for rows and maps")
        return []
    found = [error] if isinstance(error, int | float) else list(error or [])
    if not found or not all(0 <= one < math.inf for one in found):
        raise IT3Error("a cap of numbers is of the source's mean absolute error: give error=…")
    return [float(one) for one in found]
