"""Intervals, prediction sets and calibrated probabilities: split conformal prediction.

Numbers: Lei et al. (2018), and where the network answers quantiles Romano et al. (2019). Classes:
APS of Romano et al. (2020), RAPS of Angelopoulos et al. (2021). Temperature: Guo et al. (2017).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor

from it3_core.batching import Data, count, labelled
from it3_core.errors import IT3Error, IT3Warning
from it3_core.methods.base import Adaptation, Method
from it3_core.methods.gated import Gate
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter, Quantiles, Regression
from it3_core.model.classes import DenseMap, MultiLabel
from it3_core.scores.passes import Score, UncertaintyScore
from it3_core.trust.calibration import Trust
from it3_core.trust.candidates import Candidate, Tuned, Tuning, Width, default_scores

Number = Callable[[Tensor], Tensor]
"""One number, such as an area, for each map of class labels `(batch, *size)`; negative: unknown."""

_PLACES = 2_000  # of a map, that its temperature is learnt from


@dataclass(frozen=True, eq=False)
class CalibratedAnswer:
    """What a calibrated predictor says of a batch; None is what answers of this kind do not have.

    Attributes:
        prediction, initial: the method's answer, and the network's own before adaptation.
        lower, upper: the interval of each number; for maps, of `number`.
        prediction_set: `(batch, classes)`, whether each class is in.
        probability: calibrated, with the classes on dimension 1: no and yes, where there are two.
        number: what `calibrate(number=)` makes of each predicted map.
        percentile: more doubtful, by the predictor's score, than this percentage of calibration
            data; None where there is no score.
        flagged: whether that is beyond the false-positive rate of flags.
        adapted: for which rows the gate opened.
    """

    prediction: Tensor
    initial: Tensor
    lower: Tensor | None = None
    upper: Tensor | None = None
    prediction_set: Tensor | None = None
    probability: Tensor | None = None
    number: Tensor | None = None
    percentile: Tensor | None = None
    flagged: Tensor | None = None
    adapted: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Predictor:
    """A calibrated method: call it with a batch and a coverage. `calibrate` makes it.

    Attributes:
        method, adapter, score, number, penalty: what answers, and the choices of `calibrate`;
            `score` says which answers are doubtful.
        misses: by how much the calibration answers are off, `(rows, outputs)`, ascending; None for
            maps without a number, which have probabilities alone.
        temperature: of the probabilities.
        set_temperature: of the probabilities that prediction sets are made of.
        widths: how each output's half-widths grow with the score; none where they are equal.
        trust: the scores of the calibration rows.
    """

    method: Method
    adapter: Adapter
    score: Score | None
    number: Number | None
    penalty: float
    misses: Tensor | None = field(repr=False)
    temperature: float = 1.0
    set_temperature: float = 1.0
    widths: Sequence[Width] = ()
    trust: Trust | None = None

    @property
    def gate(self) -> Gate | None:
        """Which rows, or batches, are adapted."""
        return getattr(self.method, "gate", None)

    def __call__(self, x: Any, coverage: float = 0.9) -> CalibratedAnswer:
        """Answers a batch; at least this fraction of intervals, or sets, holds the true label.

        Raises:
            IT3Error: where that takes more calibration rows than there are; it says how many.
        """
        self._limit(coverage)  # before the work
        found = self.method(x)
        return self.of(found, self.scores(x, found), coverage)

    def scores(self, x: Any, found: Adaptation) -> Tensor | None:
        """How doubtful the network's own answers are; the passes that were made are used again."""
        passes, score = found.passes, self.score
        own = getattr(self.method, "score", None) is score and self.gate is None
        if isinstance(score, UncertaintyScore) and passes is not None and (own or score.shares):
            return score.of(passes).detach()
        return None if score is None else score(x).detach()

    def of(
        self, found: Adaptation, scores: Tensor | None, coverage: float = 0.9
    ) -> CalibratedAnswer:
        """What there is to say of an answer of the method's, with these scores."""
        limit = self._limit(coverage)
        answer = found.prediction
        made: dict[str, Tensor] = {}
        if not isinstance(self.adapter, Regression):
            log_p = _log_probabilities(self.adapter, answer)
            made["probability"] = (log_p / self.temperature).softmax(1)
            if self.misses is not None and self.number is None:
                made["prediction_set"] = _ahead(log_p / self.set_temperature, self.penalty) <= limit
        numbers = isinstance(self.adapter, Regression) or self.number is not None
        if numbers and self.misses is not None:
            low, high, shape = _ends(self.adapter, self.number, answer)
            half = limit
            if self.widths and scores is not None:
                half = _relative(self.widths, scores.cpu()) * limit
            middle = (low + high) / 2  # quantiles may be drawn in, but never cross
            made["lower"] = torch.minimum(low - half, middle).view(shape)
            made["upper"] = torch.maximum(high + half, middle).view(shape)
            if self.number is not None:
                made["number"] = middle.view(shape)
        for name, value in made.items():
            made[name] = value.to(answer if value.is_floating_point() else answer.device)
        if scores is not None and self.trust is not None:
            made |= {
                "percentile": self.trust.percentile(scores),
                "flagged": self.trust.flag(scores),
            }
        return CalibratedAnswer(answer, found.initial, **made, adapted=found.adapted)

    def _limit(self, coverage: float) -> Tensor:
        """The ⌈(n + 1) · coverage⌉-th smallest miss of each output."""
        if not 0 < coverage < 1:
            raise IT3Error(f"coverage is a fraction between 0 and 1, such as 0.9, not {coverage}")
        if self.misses is None:
            return torch.empty(0)
        n, part = len(self.misses), Fraction(str(float(coverage)))  # 0.07 · 100 is 7 exactly
        rank = math.ceil((n + 1) * part)
        if rank > n:
            raise IT3Error(
                f"a coverage of {coverage} takes {math.ceil(part / (1 - part))} calibration rows, "
                f"and there are {n}: calibrate on more, or ask for {n / (n + 1):.3f} at most"
            )
        return self.misses[rank - 1]

    def __str__(self) -> str:
        """One screen: method, bound on harm, score, coverage, and what each was measured on."""
        tuning = getattr(self.method, "tuning", None)
        rows = {"method": repr(self.method) if tuning is None else str(tuning.reason)}
        if self.gate is not None:
            rows["gate"] = str(self.gate)
        if tuning is not None and tuning.doubt is not None:
            rows["score"] = f"the {tuning.doubt}"
            for one in tuning.scores:
                if one["kind"] == tuning.doubt.kind and one["auroc_wrong"] is not None:
                    n = tuning.rows.get("choosing")
                    rows["score"] += (
                        f", AUROC for wrong answers {one['auroc_wrong']:.2f} ({n} rows)"
                    )
        if self.trust is not None:
            alarms, n = self.trust.false_alarms, self.trust.size
            rows["flags"] = f"{alarms:.0%} of data like the {n} calibration rows"
        if self.misses is not None:
            n = len(self.misses)
            what = "sets" if not isinstance(self.adapter, Regression) else "intervals"
            rows["coverage"] = f"{what} by {n} calibration rows, up to {n / (n + 1):.3f}"
        return "\n".join(["Predictor", *(f"  {name:9} {text}" for name, text in rows.items())])


def calibrate(
    method: Method, data: Data, *, choosing: Data | None = None, score: Score | None = None,
    number: Number | None = None, penalty: float = 0.0, batch_size: int | None = None,
    false_alarms: float = 0.05,
) -> Predictor:  # fmt: skip
    """A predictor of intervals for numbers, of sets for classes, of probabilities for maps.

    Args:
        method: what answers: `Source`, what `tune` chose, or any other; `reset()` is called first.
        data: inputs and labels that neither training nor tuning has seen: the more, the less the
            coverage varies with their draw.
        choosing: other rows, which half-widths and temperatures are learnt from. Without them half-
            widths are those that `tune` learnt, or equal, sets are of the network's own
            probabilities, and the temperature of `probability`, which no coverage rests on, is
            learnt from `data`.
        score: which answers are doubtful; by default what `tune` chose, or the first score that
            this network can have. Half-widths grow with it as far as `choosing` shows that errors
            do.
        number: for an interval on one number a map, such as `lambda maps: (maps == 1).sum((1, 2))`.
            Where a label is unknown the prediction is too: the coverage is then of such numbers,
            and no longer that of whole maps.
        penalty: RAPS's λ: counts as so much probability for every class that is more probable,
            so that sets hold fewer of many improbable classes.
        batch_size: of calibration; a method that adapts to a batch must be asked in such batches.
            By default the size that it was tuned for, or 64.
        false_alarms: fraction of data like the calibration rows that is flagged.

    Example:
        >>> import torch
        >>> from it3_core import Regression, Source, calibrate
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(400, 1)
        >>> y = x[:, 0] + torch.randn(400)
        >>> predictor = calibrate(Source(torch.nn.Identity(), Regression()), (x[:200], y[:200]))
        >>> p = predictor(x[200:], coverage=0.9)
        >>> inside = (p.lower[:, 0] <= y[200:]) & (y[200:] <= p.upper[:, 0])
        >>> bool(0.82 < inside.float().mean() < 0.97)
        True
    """
    if not penalty >= 0:
        raise IT3Error(f"penalty is a number from 0 up, not {penalty}")
    adapter = _adapter_of(method)
    if isinstance(method, Source) and method.norm == "source" and score is None:
        kinds = default_scores(method.model, adapter)
        tuning = Tuning(Candidate("Source"), "No adaptation.", doubt=kinds[0] if kinds else None)
        method = tuning.build(method.model, adapter)
    tuned = method.tuning if isinstance(method, Tuned) else None
    if score is None and isinstance(method, Tuned):
        score = method.score
    if batch_size is None:
        batch_size = tuned.unit if tuned is not None and isinstance(tuned.unit, int) else 64
    places = isinstance(adapter, DenseMap | MultiLabel) or getattr(adapter, "each", "") == "token"
    if number is not None and not places:
        raise IT3Error(f"number is of maps, and {type(adapter).__name__} has none: leave it out")
    method.reset()
    read = partial(_read, method, adapter, score, number, batch_size)
    rows = read(data)
    other = rows if choosing is None else read(choosing)
    temperature = set_temperature = 1.0
    misses: Tensor | None = None
    widths: list[Width] = []
    if choosing is not None and score is not None and other.miss.dim() == 2:
        widths = [Width.fit(other.score, miss) for miss in other.miss.T]
    elif tuned is not None and number is None and rows.miss.dim() == 2:
        widths = list(tuned.widths) if len(tuned.widths) == rows.miss.shape[1] else []
    if isinstance(adapter, Regression) or number is not None:
        misses = rows.miss / _relative(widths, rows.score) if widths else rows.miss
    if not isinstance(adapter, Regression):
        temperature = _temperature(other.log_p, other.label)
        set_temperature = 1.0 if choosing is None else temperature
        if rows.one_each:
            ahead = _ahead(rows.log_p / set_temperature, penalty)
            misses = ahead.gather(1, rows.label[:, None])
    if misses is not None:
        misses = misses.sort(0).values
    with warnings.catch_warnings():  # `print(predictor)` says of how many rows flags are
        warnings.simplefilter("ignore", IT3Warning)
        trust = Trust.from_errors(rows.score, false_alarms) if len(rows.score) > 1 else None
    return Predictor(
        method, adapter, score, number, penalty, misses, temperature, set_temperature, widths, trust
    )


@dataclass
class _Rows:
    """What answers to labelled rows show."""

    miss: Tensor  # of each number, how far the label lies outside the answer
    score: Tensor
    log_p: Tensor  # of the labelled places, (places, classes)
    label: Tensor
    one_each: bool  # whether each row has one class


def _read(
    method: Method, adapter: Adapter, score: Score | None, number: Number | None, size: int,
    data: Data,
) -> _Rows:  # fmt: skip
    if isinstance(data, tuple) and len(data) == 2 and count(data[0]) != len(data[1]):
        raise IT3Error(f"there are {count(data[0])} inputs and {len(data[1])} labels: give as many")
    misses, scores, log_ps, labels, one_each = [], [], [], [], False
    for x, y in labelled(data, size):
        if y is None:
            raise IT3Error("calibration needs labels: give (x, y), or a DataLoader of such pairs")
        if y.is_floating_point() and not bool(y.isfinite().all()):
            raise IT3Error("the calibration labels hold NaN or Inf: drop those rows first")
        answer = method(x).prediction
        adapter.error(answer, y)  # says where they don't fit
        if not bool(answer.isfinite().all()):
            raise IT3Error("an answer to calibration rows is not finite: look at the network first")
        truth = y
        if not isinstance(adapter, Regression):
            log_p = _log_probabilities(adapter, answer)
            one_each = log_p.dim() == 2
            truth = adapter._check(y, answer).cpu()  # type: ignore[attr-defined]
            flat = truth.reshape(len(truth), -1)
            drawn = torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(0))
            label = flat[:, drawn[:_PLACES]]
            log_p = log_p.unsqueeze(2).flatten(2)[..., drawn[:_PLACES]].movedim(1, -1)
            log_ps.append(log_p[label >= 0])
            labels.append(label[label >= 0])
        if isinstance(adapter, Regression) or number is not None:
            low, high, _ = _ends(adapter, number, answer, truth)
            true = _by_row(truth if number is None else number(truth))
            misses.append(torch.maximum(low - true, true - high))
        if score is not None:
            scores.append(score(x).detach().double().cpu())
            if not bool(scores[-1].isfinite().all()):
                raise IT3Error("a score of calibration rows is not finite: take another score")
    if not sum(map(len, misses if isinstance(adapter, Regression) else labels)):
        raise IT3Error("there are no labelled rows to calibrate on")
    empty = [torch.empty(0)]
    miss, scored, log_p, label = (torch.cat(p or empty) for p in (misses, scores, log_ps, labels))
    return _Rows(miss, scored, log_p, label, one_each)


def _adapter_of(method: Any) -> Adapter:
    while not hasattr(method, "adapter") and hasattr(method, "source"):
        method = method.source
    adapter: Any = getattr(method, "adapter", None)
    if not (isinstance(adapter, Regression) or hasattr(adapter, "log_probabilities")):
        raise IT3Error(
            f"calibrate takes a method that answers numbers or classes by its adapter, such as "
            f"Source(net, adapter), and {type(method).__name__}'s adapter is {adapter!r}"
        )
    return adapter  # type: ignore[no-any-return]


def _relative(widths: Sequence[Width], score: Tensor) -> Tensor:
    return torch.stack([width.of(score) for width in widths], 1)


def _by_row(values: Tensor) -> Tensor:
    return values.detach().reshape(len(values), -1).double().cpu()


def _log_probabilities(adapter: Any, answer: Tensor) -> Tensor:
    log_p: Tensor = adapter.log_probabilities(answer.detach().double().cpu())
    return log_p.clamp_min(-1e4)  # of a class that is ruled out: 0 · ∞ is not a number


def _ends(
    adapter: Adapter, number: Number | None, answer: Tensor, truth: Tensor | None = None
) -> tuple[Tensor, Tensor, torch.Size]:
    """Where the interval starts from, `(rows, outputs)`, and the shape that it gets.

    A map's number is of the places that `truth` knows.
    """
    if isinstance(adapter, Quantiles):
        rows = _by_row(answer)
        return rows[:, :1], rows[:, -1:], answer.shape[:1]
    if number is not None:
        found = _log_probabilities(adapter, answer).argmax(1)
        answer = number(found if truth is None else found.where(truth >= 0, -1))
    rows = _by_row(answer)
    return rows, rows, answer.shape


def _ahead(log_p: Tensor, penalty: float) -> Tensor:
    """For each class, the probability of those that are more probable, and a penalty for each.

    That of the most probable class is 0, so that it is in every set.
    """
    p, order = log_p.softmax(1).sort(dim=1, descending=True, stable=True)
    before = p.cumsum(1) - p + penalty * torch.arange(p.shape[1])
    before[:, 0] = 0.0
    return torch.empty_like(p).scatter(1, order, before)


def _temperature(log_p: Tensor, label: Tensor) -> float:
    """What log-probabilities are divided by so that the labels are most likely.

    The likelihood is concave in 1/temperature, and the zero of its slope is found by halves. One
    more row counts, whose label is as probable as the network says: if all answers are right, none
    becomes certain.
    """
    right = log_p.gather(1, label[:, None]).sum()
    wanted = (right + (log_p.exp() * log_p).sum(1).mean()) / (len(label) + 1)
    low, high = -7.0, 7.0  # of the logarithm
    for _ in range(50):
        middle = (low + high) / 2
        expected = ((log_p / math.exp(middle)).softmax(1) * log_p).sum(1).mean()
        low, high = (middle, high) if expected > wanted else (low, middle)
    return math.exp((low + high) / 2)
