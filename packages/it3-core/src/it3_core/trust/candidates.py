"""What `tune` tries, what each candidate gained and harmed, and which of them is taken, if any."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from it3_core.errors import IT3Error
from it3_core.io.typed import as_kind
from it3_core.methods.answer_step import AnswerStep
from it3_core.methods.base import Method
from it3_core.methods.gated import AnswerRange, Gate, Gated, Observed, StatisticsShift
from it3_core.methods.it3 import IT3
from it3_core.methods.online_it3 import OnlineIT3
from it3_core.methods.source import Source
from it3_core.methods.stream_statistics import StreamStatistics
from it3_core.model.adapters import Adapter
from it3_core.model.conditioning import Conditioned

STREAMING = "StreamStatistics"
"""The method that is made with a gate, on statistics, and never without."""

STATEFUL = ("OnlineIT3", STREAMING)
"""Methods that remember: what they answer depends on the batches before."""

_METHODS: dict[str, Callable[..., Method]] = {
    "Source": Source,
    "AnswerStep": AnswerStep,
    "IT3": IT3,
    "OnlineIT3": OnlineIT3,
    STREAMING: StreamStatistics,
}

_NAMES = {
    "Source": "no adaptation",
    "AnswerStep": "answer step",
    "IT3": "IT³",
    "OnlineIT3": "online IT³",
    STREAMING: "statistics of the stream",
}
_OBSERVED = {"error": "idempotence error is unusual", "statistics": "statistics shift"}
_DEFAULTS: dict[str, Any] = {"optimizer": "Adam", "power": 1, "norm": "source"}
_DEFAULTS |= {"anchor_gradient": False, "trust_region": True}


@dataclass(frozen=True)
class Candidate:
    """A method by name and its settings: plain values, so that a checkpoint can hold them.

    Args:
        method: the name of its class.
        settings: its arguments.
        gate: where there is one, only what it picks is adapted: batches, or instances.

    Example:
        >>> print(Candidate("AnswerStep", {"alpha": -0.5}))
        answer step, α = −0.5
        >>> print(Candidate("IT3", {"lr": 0.001}, Gate(mean=0.2, std=0.1)))
        IT³, 1 step, learning rate 0.001, only on batches whose idempotence error is unusual
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    gate: Gate | AnswerRange | None = None

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise IT3Error(f"no method to tune is called {self.method!r}; there are "
                           f"{', '.join(_METHODS)}")  # fmt: skip

    def build(self, model: nn.Module, adapter: Adapter) -> Method:
        """The method, for this network."""
        gated = [self.gate] if self.method == STREAMING else []
        if gated and not isinstance(self.gate, Gate):
            raise IT3Error(f"{self.method} needs a gate on statistics, which `tune` fits")
        try:
            method = _METHODS[self.method](model, adapter, *gated, **self.settings)
        except TypeError as problem:
            raise IT3Error(f"{self.method} has no such setting: {problem}") from problem
        if gated or self.gate is None:
            return method
        if isinstance(self.gate, AnswerRange):
            return Gated(Source(model, adapter), method, self.gate)
        return Gated(observer(self.gate.of, model, adapter), method, self.gate)

    def __str__(self) -> str:
        """In words, for sentences and tables."""
        words = [_NAMES[self.method], *(_words(*pair) for pair in self.settings.items())]
        if self.method in ("IT3", "OnlineIT3") and "steps" not in self.settings:
            words.insert(1, "1 step")
        if self.method == "Source" and self.settings:
            words.pop(0)
        if isinstance(self.gate, AnswerRange):
            words.append("only on answers at an end of the training range")
        elif self.gate is not None:
            words.append(f"only on batches whose {_OBSERVED[self.gate.of]}")
        return ", ".join(word for word in words if word)

    def describe(self) -> StoredCandidate:
        """This candidate as JSON, from which `from_description` makes it again."""
        gate = None if self.gate is None else asdict(self.gate)
        return {"method": self.method, "settings": dict(self.settings), "gate": gate}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Candidate:
        """The candidate that `describe()` described."""
        stored = description.get("gate")
        gate: Gate | AnswerRange | None = None
        if stored is not None:
            gate = AnswerRange(**stored) if "high" in stored else Gate(**stored)
        return cls(str(description["method"]), dict(description["settings"]), gate)


def _words(name: str, value: Any) -> str:
    """A setting in words; none for one that is as usual."""
    minus = f"{value:g}".replace("-", "−") if isinstance(value, int | float) else str(value)
    words = {
        "steps": f"{value} step{'' if value == 1 else 's'}",
        "lr": f"learning rate {minus}",
        "alpha": f"α = {minus}",
        "optimizer": str(value),
        "power": f"gap to the power of {minus}",
        "parameters": "weights above the signal" if value == "above" else "chosen weights",
        "norm": "batch statistics" if value == "batch" else f"batch statistics, fraction {minus}",
        "anchor_gradient": "gradient through the anchor",
        "trust_region": "no trust region",
    }
    if value is None or _DEFAULTS.get(name, ...) == value:
        return ""
    return words.get(name, f"{name.replace('_', ' ')} {minus}")


def observer(of: Observed, model: nn.Module, adapter: Adapter) -> Method:
    """Answers as the source does, and shows what a gate looks at."""
    if of == "statistics":
        return StatisticsShift(model, adapter)
    # Its second pass shares what lies below the signal with the first.
    return AnswerStep(model, adapter, alpha=0.0)


def default_candidates(model: nn.Module) -> list[Candidate]:
    """What `tune` tries by default, the cheapest first.

    Answer steps of either sign; gradient steps in proportion to the gap (SGD on its square) and
    with Adam on the gap itself; of all weights and, where the network was made by
    `condition()`, of those above the signal only.
    """
    found = [Candidate("AnswerStep", {"alpha": a}) for a in (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)]
    above = isinstance(model, Conditioned) and model.embed is not None
    for parameters in ["above", None] if above else [None]:
        for lr in (0.01, 0.05):
            settings = {"lr": lr, "optimizer": "SGD", "power": 2.0, "parameters": parameters}
            found.append(Candidate("IT3", {**settings, "steps": 1}))
            found.append(Candidate("IT3", {**settings, "steps": 3}))
        found.append(Candidate("IT3", {"lr": 2e-4, "optimizer": "Adam", "parameters": parameters}))
    return found


_MIN_GAIN = 0.02  # a fraction of the source's error
_CONFIDENCE = 0.95
_RESAMPLES = 2000  # for the margin of chance
_AT_ONCE = 2**22  # numbers drawn together, which is 100 MB

AGREEING_NETWORKS = 3
"""Networks that must gain on the extrapolation split, where no shift shows a gain."""


class CandidateResult(NamedTuple):
    """How a candidate did: changes of the error, as fractions of the source's mean."""

    candidate: Candidate
    changes: dict[str, float]
    harms: dict[str, float]  # the changes as far as they count: of a shift's, what is beyond chance
    gain: float
    uncertainty: float
    groups: list[Tensor]  # changes row by row: of all shifts, and of all extrapolation splits
    splits: list[Tensor]  # of each extrapolation split alone

    @classmethod
    def of(
        cls, candidate: Candidate, relative: Mapping[str, Tensor], split_names: Sequence[str]
    ) -> CandidateResult:
        """From the changes of every row on each trial; `split_names` of the extrapolation."""
        changes = {name: float(change.mean()) for name, change in relative.items()}
        # The same rows are in all shifts, so they are averaged row by row before their spread is
        # taken, and so are those of the extrapolation splits, which have other rows, and weigh as
        # much.
        shifted = {name: c for name, c in relative.items() if name not in ("clean", *split_names)}
        splits = [relative[name] for name in split_names]
        groups = [torch.stack(rows).mean(0) for rows in (list(shifted.values()), splits) if rows]
        gain = -sum(float(group.mean()) for group in groups) / len(groups)
        variance = sum(_uncertainty(group) ** 2 for group in groups)
        z = statistics.NormalDist().inv_cdf(_CONFIDENCE)
        chance = {name: z * _uncertainty(change) for name, change in shifted.items()}
        harms = {
            name: change - chance.get(name, 0.0) if math.isfinite(change) else math.inf
            for name, change in changes.items()
        }
        return cls(candidate, changes, harms, gain, variance**0.5 / len(groups), groups, splits)

    @property
    def worst(self) -> str:
        """The trial that it harms most."""
        return max(self.harms, key=lambda name: self.harms[name])

    @property
    def harm(self) -> float:
        """How much it harms there."""
        return self.harms[self.worst]

    def describe(self) -> StoredResult:
        """What it was and what came of it, as JSON."""
        changes = {name: _json(change) for name, change in self.changes.items()}
        return {
            **self.candidate.describe(), "candidate": str(self.candidate),
            "gain": _json(self.gain), "changes": changes,
        }  # fmt: skip


class StoredCandidate(TypedDict):
    """What `Candidate.describe` gives."""

    method: str
    settings: dict[str, Any]
    gate: dict[str, Any] | None


class StoredResult(StoredCandidate):
    """What `CandidateResult.describe` gives."""

    candidate: str
    gain: float | None
    changes: dict[str, float | None]


class StoredTuning(StoredCandidate):
    """What `Tuning.describe` gives."""

    reason: str
    tried: list[StoredResult]


@dataclass(frozen=True)
class Tuning:
    """What was chosen, why, and what else was tried.

    Attributes:
        chosen: the method, `Source` where nothing was good enough.
        reason: a sentence for people.
        tried: every candidate with its change of error on each trial, as fractions: −0.02 is 2 %
            less.
    """

    chosen: Candidate
    reason: str
    tried: tuple[StoredResult, ...]

    def build(self, model: nn.Module, adapter: Adapter) -> Method:
        """The chosen method, for this network."""
        return self.chosen.build(model, adapter)

    def describe(self) -> StoredTuning:
        """This tuning as JSON, from which `from_description` makes it again."""
        return {**self.chosen.describe(), "reason": self.reason, "tried": list(self.tried)}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Tuning:
        """The tuning that `describe()` described."""
        found = as_kind(description, StoredTuning, "the description of a tuning")
        try:
            chosen = Candidate.from_description(description)
        except (TypeError, ValueError) as problem:
            raise IT3Error(f"this is no description of a tuning: {problem}") from problem
        return cls(chosen, found["reason"], tuple(found["tried"]))

    def __str__(self) -> str:
        return self.reason


def choose(results: Sequence[CandidateResult], max_harm: float) -> Tuning:
    """Of what was tried, the best that is good enough, or `Source`; see `tune` for the rule."""
    tried = tuple(one.describe() for one in results)
    if not results:
        return Tuning(Candidate("Source"), "No adaptation: there was nothing to try.", tried)
    sigmas = _sigmas(results)
    good = [one for one in results if one.harm <= max_harm and _gains(one, sigmas)]
    if not good:
        why = _why_none(results, sigmas, max_harm)
        return Tuning(Candidate("Source"), f"No adaptation: on validation data, {why}.", tried)
    # In-distribution inputs are better left alone, where that can be had.
    gated = [one for one in good if one.candidate.gate is not None]
    best = max(gated or good, key=lambda one: one.gain)
    chosen = str(best.candidate)
    reason = (
        f"{chosen[:1].upper()}{chosen[1:]}: on validation data it lowers the error by "
        f"{best.gain:.1%} (± {sigmas * best.uncertainty:.1%}) under {_trials(best)}, and changes "
        f"it by {best.changes['clean']:+.1%} on clean data; {len(results)} candidates were tried."
    )
    return Tuning(best.candidate, reason, tried)


def _why_none(results: Sequence[CandidateResult], sigmas: float, max_harm: float) -> str:
    best = max(results, key=lambda one: one.gain)
    if best.gain <= 0:
        return f"none of {len(results)} candidates lowers the error under {_trials(best)}"
    return (
        f"the best of {len(results)} candidates ({best.candidate}) lowers the error by "
        f"{best.gain:.1%} (± {sigmas * best.uncertainty:.1%}) under {_trials(best)}, and changes "
        f"it by {best.changes[best.worst]:+.1%} on {best.worst}; a choice needs a gain of "
        f"{_MIN_GAIN:.0%} and more than chance, under the shifts or on each of {AGREEING_NETWORKS} "
        f"extrapolation splits, and a harm of at most {max_harm:.0%}"
    )


def _gains(tried: CandidateResult, sigmas: float) -> bool:
    """Beyond chance and enough: on the whole, and under the shifts alone, where there are any.

    An extrapolation split is another network's, and a step that helps one network can harm the
    next: a gain there alone is enough only where several networks show it, each on its own.
    """
    if tried.gain <= sigmas * tried.uncertainty:
        return False
    if len(tried.splits) >= AGREEING_NETWORKS:
        agreed = all(_enough(rows, sigmas) for rows in tried.splits)
        if agreed or len(tried.groups) == 1:
            return agreed
    return tried.gain > _MIN_GAIN and _enough(tried.groups[0], sigmas)


def _enough(rows: Tensor, sigmas: float) -> bool:
    return -float(rows.mean()) > max(_MIN_GAIN, sigmas * _uncertainty(rows))


def _sigmas(results: Sequence[CandidateResult]) -> float:
    """Beyond how many of its standard deviations a gain is no chance, the best of so many.

    Candidates that differ little look good by luck together, which Bonferroni's correction does
    not know: rows are drawn again, and the largest deviation among all candidates is looked at.
    """
    most = statistics.NormalDist().inv_cdf(1 - (1 - _CONFIDENCE) / len(results))
    moving = [one for one in results if 0 < one.uncertainty < math.inf]
    if not moving:
        return most
    generator = torch.Generator().manual_seed(0)
    drawn = torch.zeros(len(moving), _RESAMPLES, dtype=torch.float64)
    groups = [torch.stack(rows) for rows in zip(*(one.groups for one in moving), strict=True)]
    for rows in groups:
        n, gaps = rows.shape[1], rows - rows.mean(1, keepdim=True)
        for part in torch.split(torch.arange(_RESAMPLES), max(1, _AT_ONCE // n)):
            times = torch.zeros(len(part), n, dtype=torch.float64)
            index = torch.randint(n, times.shape, generator=generator)
            times.scatter_add_(1, index, torch.ones_like(times))
            drawn[:, part] -= gaps @ times.T / n / len(groups)
    deviations = drawn / torch.tensor([[one.uncertainty] for one in moving], dtype=torch.float64)
    return min(most, float(deviations.max(0).values.quantile(_CONFIDENCE)))


def _uncertainty(changes: Tensor) -> float:
    """The standard deviation of their mean."""
    return float(changes.std()) / math.sqrt(len(changes))


def _json(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _trials(tried: CandidateResult) -> str:
    names = [name for name in tried.changes if name != "clean"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
