"""What `tune` may choose: methods and scores by name, so that files can hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.engine.inner_optimizer import has_batch_norm
from it3_core.errors import IT3Error
from it3_core.io.typed import as_kind
from it3_core.methods.answer_step import AnswerStep
from it3_core.methods.base import Adaptation, Method, answered
from it3_core.methods.gated import Gate, Gated, Unit
from it3_core.methods.it3 import IT3
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter, Regression
from it3_core.model.conditioning import Conditioned
from it3_core.model.networks import takes_signal
from it3_core.scores import answers, uncertainty
from it3_core.scores.passes import Passes, UncertaintyScore
from it3_core.scores.statistics import StatisticsShift

_METHODS: dict[str, Callable[..., Method]] = {
    "Source": Source,
    "AnswerStep": AnswerStep,
    "IT3": IT3,
}
_NAMES = {"Source": "no adaptation", "AnswerStep": "answer step", "IT3": "IT³"}
_DEFAULTS: dict[str, Any] = {"optimizer": "Adam", "power": 1, "norm": "source"}
_DEFAULTS |= {"anchor_gradient": False, "trust_region": True, "per_instance": False}

_SCORES: dict[str, type[UncertaintyScore]] = {
    "Idempotence": answers.Idempotence,
    "Sensitivity": answers.Sensitivity,
    "AnswerDistance": answers.AnswerDistance,
    "LargestProbability": answers.LargestProbability,
    "Energy": answers.Energy,
    "Entropy": uncertainty.Entropy,
    "Mahalanobis": uncertainty.Mahalanobis,
    "NearestNeighbours": uncertainty.NearestNeighbours,
    "StatisticsShift": StatisticsShift,
}
_IN_WORDS = {
    "Idempotence": "idempotence error",
    "AnswerDistance": "the answer's distance from the training labels",
    "LargestProbability": "1 − the largest probability",
    "Mahalanobis": "Mahalanobis distance of features",
    "NearestNeighbours": "distance of features from the nearest training rows",
    "StatisticsShift": "shift of batch statistics",
}
_FITTED = {"Mahalanobis": ("means", "precision"), "NearestNeighbours": ("bank",)}


@dataclass(frozen=True)
class Candidate:
    """A method by name and its settings: plain values, so that a checkpoint can hold them.

    Args:
        method: the name of its class.
        settings: its arguments.

    Example:
        >>> print(Candidate("AnswerStep", {"alpha": -0.5}))
        answer step, α = −0.5
        >>> print(Candidate("IT3", {"lr": 0.001, "per_instance": True}))
        IT³, 1 step, learning rate 0.001, each row alone
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise IT3Error(f"no method to tune is called {self.method!r}; there are "
                           f"{', '.join(_METHODS)}")  # fmt: skip

    def build(self, model: nn.Module, adapter: Adapter) -> Method:
        """The method, for this network."""
        try:
            return _METHODS[self.method](model, adapter, **self.settings)
        except TypeError as problem:
            raise IT3Error(f"{self.method} has no such setting: {problem}") from problem

    def __str__(self) -> str:
        """In words, for sentences and tables."""
        words = [_NAMES[self.method], *(_words(*pair) for pair in self.settings.items())]
        if self.method == "IT3" and "steps" not in self.settings:
            words.insert(1, "1 step")
        if self.method == "Source" and self.settings:
            words.pop(0)
        return ", ".join(word for word in words if word)


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
        "per_instance": "each row alone",
    }
    if value is None or _DEFAULTS.get(name, ...) == value:
        return ""
    return words.get(name, f"{name.replace('_', ' ')} {minus}")


@dataclass(frozen=True)
class ScoreKind:
    """An uncertainty score by name, and the layer that it looks at, if it needs one.

    Example:
        >>> print(ScoreKind("Idempotence"))
        idempotence error
    """

    kind: str
    layer: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in _SCORES:
            raise IT3Error(f"no score is called {self.kind!r}; there are {', '.join(_SCORES)}")

    @property
    def is_fitted(self) -> bool:
        """Whether it learns from training rows."""
        return self.kind in _FITTED

    def build(
        self, model: nn.Module, adapter: Adapter, tensors: Mapping[str, Tensor] | None = None
    ) -> UncertaintyScore:
        """The score, for this network; a fitted one from the `tensors` that it had."""
        kind: Any = _SCORES[self.kind]
        if not self.is_fitted:
            score: UncertaintyScore = kind(model, adapter)
            return score
        try:
            found = {name: (tensors or {})[name] for name in _FITTED[self.kind]}
        except KeyError as problem:
            raise IT3Error(f"the score {self} lacks its tensors: tune again") from problem
        fitted: UncertaintyScore = kind(model, adapter, self.layer, **found)
        return fitted

    def fit(self, model: nn.Module, adapter: Adapter, train: Any) -> UncertaintyScore:
        """The same, fitted to training rows where it has to be."""
        if not self.is_fitted:
            return self.build(model, adapter)
        fitted: UncertaintyScore = _SCORES[self.kind].fit(model, adapter, train, self.layer)  # type: ignore[attr-defined]
        return fitted

    def tensors(self, score: UncertaintyScore) -> dict[str, Tensor]:
        """What has to be kept of a fitted score."""
        return {name: getattr(score, name) for name in _FITTED.get(self.kind, ())}

    def __str__(self) -> str:
        return _IN_WORDS.get(self.kind, self.kind.lower())


def default_scores(model: nn.Module, adapter: Adapter, layer: str | None = None) -> list[ScoreKind]:
    """Those that this network can have; `layer`: features, for scores that training rows fit."""
    names = ["Idempotence"] if takes_signal(model) else []
    if isinstance(adapter, Regression):
        names += ["AnswerDistance", *(["Sensitivity"] if takes_signal(model) else [])]
    if hasattr(adapter, "log_probabilities"):
        names += ["Entropy", "LargestProbability"]
    if hasattr(adapter, "logits"):
        names.append("Energy")
    if has_batch_norm(model):
        names.append("StatisticsShift")
    found = [ScoreKind(name) for name in names]
    return found if layer is None else [*found, *(ScoreKind(name, layer) for name in _FITTED)]


def default_candidates(model: nn.Module, unit: Unit = "row") -> list[Candidate]:
    """What `tune` tries by default: steps of single rows, or of batches and their statistics."""
    above = {"parameters": "above"} if isinstance(model, Conditioned) and model.embed else {}
    signal, normed = takes_signal(model), has_batch_norm(model)
    steps = [Candidate("AnswerStep", {"alpha": a}) for a in (-0.5, 0.5, 1.0, 2.0)] if signal else []
    adam = {"steps": 3, "lr": 1e-4, "anchor_gradient": True, "trust_region": False}
    if unit == "row":
        plain = {"steps": 3, "lr": 0.05, "optimizer": "SGD", "power": 2.0}
        gradients = [{**one, "per_instance": True} for one in (adam, {**plain, **above})]
        return [*steps, *(Candidate("IT3", one) for one in gradients if signal)]
    found = [Candidate("Source", {"norm": norm}) for norm in ("batch", _blend(unit)) if normed]
    if normed and signal:
        found.append(Candidate("IT3", {**above, "norm": "batch", "lr": 1e-3}))
    return [*found, *steps] if normed else [*steps, *([Candidate("IT3", adam)] if signal else [])]


def _blend(size: int) -> float:
    """The batch's fraction, where training data count as sixteen instances, and at least half."""
    return round(max(0.5, size / (size + 16)) if size >= 16 else size / (size + 8), 3)


@dataclass(frozen=True)
class Width:
    """How half-widths grow with a score s: as 1 + slope · ((s − lowest) / unit) ^ power."""

    lowest: float = 0.0
    unit: float = 1.0
    slope: float = 0.0
    power: float = 1.0

    @classmethod
    def fit(cls, score: Tensor, error: Tensor) -> Width:
        """The most likely one, if errors have Laplace's distribution."""
        lowest = float(score.min())
        unit = float(score.median()) - lowest or float(score.mean()) - lowest or 1.0
        best, least = cls(), math.inf
        for slope, power in product((0, *(2.0**n for n in range(-4, 9))), (0.5, 1.0, 2.0)):
            width = cls(lowest, unit, slope, power)
            relative = width.of(score)
            loss = float((error.abs() / relative).mean().log() + relative.log().mean())
            if loss < least:
                best, least = width, loss
        return best

    def of(self, score: Tensor) -> Tensor:
        """The relative half-width of each row; infinite where the score is NaN."""
        above = ((score.double() - self.lowest) / self.unit).clamp_min(0).nan_to_num(nan=math.inf)
        return 1 + self.slope * above.pow(self.power) if self.slope else torch.ones_like(above)


@dataclass(frozen=True)
class Tuning:
    """What was chosen, for which units, why, and what was measured.

    Attributes:
        chosen: the method; `Source` where none gained.
        opens: the score that opens its gate; None without a gate.
        doubt: the score that finds wrong answers.
        gate: the threshold, and how many units it is of.
        cap, error, max_harm: how far an answer may go, and the bound on the harm.
        widths: how half-widths of intervals grow with the doubt, of each number.
        reason: a sentence for people.
        tried: every pair of method and score with its cap, and its change of error under each shift
            as a fraction: −0.02 is 2 % less.
        scores: how well each score found wrong answers and shifted inputs.
        rows: how many rows chose, and how many units set the threshold.
        tensors: of fitted scores.
        method: the chosen method, for the network that was tuned.
    """

    chosen: Candidate
    reason: str
    unit: Unit = "row"
    opens: ScoreKind | None = None
    doubt: ScoreKind | None = None
    gate: Gate | None = None
    cap: float = 1.0
    error: Sequence[float] = ()
    max_harm: float = 0.02
    widths: Sequence[Width] = ()
    tried: Sequence[Mapping[str, Any]] = ()
    scores: Sequence[Mapping[str, Any]] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    method: Tuned | None = field(default=None, repr=False, compare=False)

    def build(self, model: nn.Module, adapter: Adapter) -> Tuned:
        """The chosen method, for this network."""
        return Tuned(model, adapter, self)

    def describe(self) -> dict[str, Any]:
        """This tuning as JSON, from which `from_description` makes it again, with its tensors."""
        kept = {k: v for k, v in vars(self).items() if k not in ("tensors", "method")}
        for name in ("chosen", "opens", "doubt", "gate"):
            kept[name] = None if kept[name] is None else asdict(kept[name])
        kept["widths"] = [asdict(one) for one in self.widths]
        return kept | {"error": list(self.error), "tried": list(self.tried),
                       "scores": list(self.scores), "rows": dict(self.rows)}  # fmt: skip

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
    ) -> Tuning:
        """The tuning that `describe()` described."""
        found = as_kind(dict(description), _Stored, "the description of a tuning")
        return cls(**vars(found), tensors=dict(tensors or {}))

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class _Stored:
    """What `Tuning.describe` gives."""

    chosen: Candidate
    reason: str
    unit: Unit
    opens: ScoreKind | None
    doubt: ScoreKind | None
    gate: Gate | None
    cap: float
    error: list[float]
    max_harm: float
    widths: list[Width]
    tried: list[dict[str, Any]]
    scores: list[dict[str, Any]]
    rows: dict[str, int]


class Tuned:
    """The method that `tune` chose, behind its gate, and the score that finds wrong answers.

    Attributes:
        tuning: what was chosen, and why.
        score: the score that finds wrong answers; None where there was none to choose.
        gate: which rows, or batches, are adapted; None for none.
    """

    def __init__(self, model: nn.Module, adapter: Adapter, tuning: Tuning) -> None:
        self.model, self.adapter, self.tuning, self.gate = model, adapter, tuning, tuning.gate
        self.score = _scored(model, adapter, tuning, tuning.doubt, "doubt")
        self._method: Method = Source(model, adapter)
        opens = _scored(model, adapter, tuning, tuning.opens, "opens")
        if tuning.gate is not None and opens is not None:
            self._method = Gated(
                tuning.chosen.build(model, adapter), opens, tuning.gate, cap=tuning.cap,
                error=tuning.error, unit=tuning.unit,
            )  # fmt: skip

    def __call__(self, x: Any) -> Adaptation:
        if self.gate is None and self.score is not None:
            return answered(self.score.observe(x))  # with what its score needs
        return self._method(x)

    def reset(self) -> None:
        """Forgets what the method has learnt."""
        self._method.reset()

    def __repr__(self) -> str:
        return f"Tuned({self.tuning.chosen}: {self.gate or 'no gate'})"


def _scored(
    model: nn.Module, adapter: Adapter, tuning: Tuning, kind: ScoreKind | None, name: str
) -> UncertaintyScore | None:
    if kind is None:
        return None
    kept = {k[len(name) + 1 :]: v for k, v in tuning.tensors.items() if k.startswith(f"{name}.")}
    return kind.build(model, adapter, kept)


def observed(scores: Sequence[UncertaintyScore], x: Any) -> list[Passes]:
    """The passes that each score needs, made once for all that can share them."""
    made: dict[Any, Passes] = {}
    for score in sorted(scores, key=lambda one: one.shares):
        key = score.layer or score.shares
        if key not in made and not (score.shares and made):
            made[key] = score.observe(x)
    first = next(iter(made.values()), None)
    found = [made.get(one.layer or one.shares, first) for one in scores]
    return [passes for passes in found if passes is not None]
