"""Choosing a method, its settings, or none, on held-out training data and never on test labels.

A step that helps on one network harms on the next, and so does its sign (docs: the README's
"Does it help?"). So nothing is taken on faith: every candidate is tried on rows that the network
was not fitted to, as they are and under shifts that the caller names; and for regression, where
labels may lie beyond all that was seen, on a tail of the labels that a second network was
trained without. A candidate must gain there by more than chance, and harm nowhere by more than
1 %. If none does, doing nothing is the choice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from it3_core.adapters import Adapter
from it3_core.batching import batches, count
from it3_core.conditioning import Conditioned
from it3_core.errors import IT3Error
from it3_core.methods import IT3, AnswerStep, Method, OnlineIT3, Source
from it3_core.progress import Progress

__all__ = ["Candidate", "Tail", "Tuning", "default_candidates", "split_tail", "tune"]

_METHODS: dict[str, Callable[..., Method]] = {
    "Source": Source,
    "AnswerStep": AnswerStep,
    "IT3": IT3,
    "OnlineIT3": OnlineIT3,
}


@dataclass(frozen=True)
class Candidate:
    """A method by name and its settings: plain values, so that a checkpoint can hold them.

    Example:
        >>> Candidate("AnswerStep", {"alpha": 0.5})
        AnswerStep(alpha=0.5)
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise IT3Error(f"no method to tune is called {self.method!r}; there are "
                           f"{', '.join(_METHODS)}")  # fmt: skip

    def build(self, model: nn.Module, adapter: Adapter) -> Method:
        """The method, for this network.

        Example:
            >>> import torch
            >>> from it3_core import Candidate, Regression, widen
            >>> adapter = Regression()
            >>> Candidate("Source").build(widen(torch.nn.Linear(3, 1), adapter), adapter)
            <it3_core.methods.source.Source object at ...>
        """
        try:
            return _METHODS[self.method](model, adapter, **self.settings)
        except TypeError as problem:
            raise IT3Error(f"{self!r} has a setting that {self.method} does not know") from problem

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.method}({settings})"


class Tail(NamedTuple):
    """A network like the one to tune, trained without a tail of the labels, and that tail."""

    model: nn.Module
    x: Any
    y: Tensor


class Tried(NamedTuple):
    """How a candidate did: changes of the mean error, as shares of the source's."""

    candidate: Candidate
    changes: dict[str, float]
    gain: float
    uncertainty: float


@dataclass(frozen=True)
class Tuning:
    """What was chosen, why, and what else was tried.

    Attributes:
        chosen: the method, `Source()` where nothing was good enough.
        reason: a sentence for people.
        tried: every candidate with its change of error on each trial, as shares: −0.02 is 2 % less.

    Example:
        >>> Tuning(Candidate("Source"), "no candidate gained", ()).build
        <bound method Tuning.build of ...>
    """

    chosen: Candidate
    reason: str
    tried: tuple[dict[str, Any], ...]

    def build(self, model: nn.Module, adapter: Adapter) -> Method:
        """The chosen method, for this network."""
        return self.chosen.build(model, adapter)

    def describe(self) -> dict[str, Any]:
        """This tuning as JSON, from which `from_description` makes it again."""
        return {
            "method": self.chosen.method,
            "settings": dict(self.chosen.settings),
            "reason": self.reason,
            "tried": list(self.tried),
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Tuning:
        """The tuning that `describe()` described.

        Example:
            >>> told = Tuning(Candidate("AnswerStep", {"alpha": 1.0}), "why", ()).describe()
            >>> Tuning.from_description(told).chosen
            AnswerStep(alpha=1.0)
        """
        try:
            chosen = Candidate(description["method"], dict(description["settings"]))
            return cls(chosen, str(description["reason"]), tuple(description["tried"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise IT3Error(f"this is no description of a tuning: {problem}") from problem

    def __str__(self) -> str:
        return self.reason


def tune(
    model: nn.Module,
    adapter: Adapter,
    x: Any,
    y: Tensor,
    *,
    shifts: Mapping[str, Callable[[Any], Any]],
    tail: Tail | None = None,
    candidates: Sequence[Candidate] | None = None,
    batch_size: int = 32,
    harm: float = 0.01,
    confidence: float = 0.95,
    progress: bool = True,
) -> Tuning:
    """Chooses a method and its settings, or none, on held-out training data.

    A candidate is chosen if it lowers the error under the shifts (and on the tail, which weighs
    as much as all of them) by more than chance at this confidence, corrected for the number of
    candidates, and raises it nowhere, clean data included, by more than `harm`. Among those, the
    one that gains most.

    Args:
        model: the conditioned and trained network.
        adapter: what kind of answer it gives; its `error` is what counts.
        x: held-out training inputs, which the network was not fitted to.
        y: their labels.
        shifts: what might happen to inputs, by name: each takes `x` and returns it shifted. Each
            is applied once, so that all candidates see the same inputs.
        tail: for regression, see `Tail` and `split_tail`.
        candidates: what to try; by default `default_candidates(model)`.
        batch_size: how many instances come together at test time.
        harm: the loss that is allowed on any trial, as a share of the source's error.
        confidence: of the gain.
        progress: whether to show on standard error how far it is.

    Example:
        >>> import torch
        >>> from it3_core import Regression, tune, widen
        >>> _ = torch.manual_seed(0)
        >>> adapter, x = Regression(), torch.randn(64, 3)
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> _ = torch.nn.init.normal_(model.model.weight)  # stands in for training
        >>> noise = lambda x: x + 0.3 * torch.randn_like(x)
        >>> tuning = tune(model, adapter, x, model(x, adapter.neutral(x)).detach(),
        ...               shifts={"noise": noise}, progress=False)
        >>> tuning.chosen  # the labels are the network's own answers: nothing can be better
        Source()
    """
    if count(x) != len(y):
        raise IT3Error(f"there are {count(x)} inputs to tune on but {len(y)} labels")
    if len(y) < 8:
        raise IT3Error(f"tuning on {len(y)} rows would choose by chance: hold out at least 8")
    if not shifts and tail is None:
        raise IT3Error("name at least one shift to tune for, or give a label tail")
    if "clean" in shifts or "label tail" in shifts:
        raise IT3Error('"clean" and "label tail" are names of trials of their own')
    tries = list(default_candidates(model) if candidates is None else candidates)
    trials = {"clean": (model, x, y)}
    for name, shift in shifts.items():
        trials[name] = (model, shift(x), y)
    if tail is not None:
        trials["label tail"] = tail
    bar = Progress(len(trials) * (len(tries) + 1), "tune", progress)
    base = {
        name: _errors(Source(trial[0], adapter), adapter, *trial[1:], batch_size)
        for name, trial in trials.items()
    }
    for name, errors in base.items():
        if not bool(torch.isfinite(errors).all()):
            raise IT3Error(f"the network's own answers are not finite on trial {name!r}")
    # A share of almost nothing means nothing: no scale below a hundredth of the largest.
    largest = max(float(errors.mean()) for errors in base.values())
    results: list[Tried] = []
    for number, candidate in enumerate(tries):
        relative = {}
        for done, (name, (network, inputs, labels)) in enumerate(trials.items()):
            method = candidate.build(network, adapter)
            errors = _errors(method, adapter, inputs, labels, batch_size)
            scale = max(float(base[name].mean()), 0.01 * largest) or 1.0
            relative[name] = (errors - base[name]) / scale
            bar.show((number + 1) * len(trials) + done + 1, f"{candidate!r} on {name}")
        results.append(_tried(candidate, relative, tail is not None))
    bar.close()
    return _chosen(results, harm, confidence)


def default_candidates(model: nn.Module) -> list[Candidate]:
    """What `tune` tries unless told otherwise, the cheapest first.

    Answer steps of either sign; gradient steps in proportion to the gap (SGD on its square) and
    the paper's (Adam on the gap itself); of all weights and, where the network was made by
    `condition()`, of those above the signal only.

    Example:
        >>> import torch
        >>> from it3_core import Regression, widen
        >>> default_candidates(widen(torch.nn.Linear(3, 1), Regression()))[0]
        AnswerStep(alpha=-1.0)
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


def split_tail(y: Tensor, share: float = 0.2, side: str = "upper") -> tuple[Tensor, Tensor]:
    """The rows to train on and the rows of the label tail, for `tune(tail=…)`.

    Train a second network like the first on the former, and give it with the latter as `Tail`.

    Args:
        y: labels, one number a row.
        share: how much of the rows is the tail.
        side: `"upper"`, `"lower"` or `"both"`.

    Example:
        >>> import torch
        >>> split_tail(torch.tensor([5.0, 1.0, 9.0, 3.0]), share=0.25)
        (tensor([0, 1, 3]), tensor([2]))
    """
    if not 0 < share < 1:
        raise IT3Error(f"share is between 0 and 1, not {share}")
    if y.numel() != len(y):
        raise IT3Error("a label tail needs one number a row: pick one of the answers")
    if not bool(torch.isfinite(y).all()):
        raise IT3Error("the labels hold NaN or Inf: drop those rows first")
    order = y.flatten().argsort(stable=True)
    size = round(share * len(y))
    if not 0 < size < len(y):
        raise IT3Error(f"a tail of {share:.0%} of {len(y)} rows is empty or everything")
    if side == "upper":
        tail = order[-size:]
    elif side == "lower":
        tail = order[:size]
    elif side == "both":
        lower = size // 2
        tail = torch.cat([order[:lower], order[len(y) - (size - lower) :]])
    else:
        raise IT3Error(f'side must be "upper", "lower" or "both", not {side!r}')
    inside = torch.ones(len(y), dtype=torch.bool)
    inside[tail] = False
    return inside.nonzero().flatten(), tail.sort().values


def _errors(method: Method, adapter: Adapter, x: Any, y: Tensor, size: int) -> Tensor:
    """Per instance, in double precision; answers that are not finite count as infinitely wrong."""
    found = []
    for part, label in zip(batches(x, size), batches(y, size), strict=True):
        found.append(adapter.error(method(part).prediction, label).detach().double().cpu())
    errors = torch.cat(found)
    return torch.where(errors.isnan(), float("inf"), errors)


def _tried(candidate: Candidate, relative: dict[str, Tensor], has_tail: bool) -> Tried:
    changes = {name: float(change.mean()) for name, change in relative.items()}
    # The same rows are in all shifts, so they are averaged row by row before their spread is
    # taken; the tail has other rows, and weighs as much.
    shifted = [c for name, c in relative.items() if name not in ("clean", "label tail")]
    groups = [torch.stack(shifted).mean(0)] if shifted else []
    if has_tail:
        groups.append(relative["label tail"])
    gain = -sum(float(group.mean()) for group in groups) / len(groups)
    variance = sum(float(group.var()) / len(group) for group in groups)
    return Tried(candidate, changes, gain, variance**0.5 / len(groups))


def _chosen(results: list[Tried], harm: float, confidence: float) -> Tuning:
    tried = tuple(
        {
            "candidate": repr(one.candidate),
            "method": one.candidate.method,
            "settings": dict(one.candidate.settings),
            "gain": _json(one.gain),
            "changes": {name: _json(change) for name, change in one.changes.items()},
        }
        for one in results
    )
    if not results:
        return Tuning(Candidate("Source"), "No adaptation: there was nothing to try.", tried)
    # So many candidates, so many chances to look good by luck: Bonferroni's correction.
    sigmas = statistics.NormalDist().inv_cdf(1 - (1 - confidence) / len(results))
    harmless = [one for one in results if max(one.changes.values()) <= harm]
    good = [one for one in harmless if one.gain - sigmas * one.uncertainty > 0]
    if good:
        best = max(good, key=lambda one: one.gain)
        margin = sigmas * best.uncertainty
        reason = (
            f"{best.candidate!r}: on held-out training data it lowers the error by "
            f"{best.gain:.1%} (± {margin:.1%}) under {_trials(best)}, and changes it by "
            f"{best.changes['clean']:+.1%} on clean data; {len(results)} candidates were tried."
        )
        return Tuning(best.candidate, reason, tried)
    best = max(results, key=lambda one: one.gain)
    if best.gain <= 0:
        why = f"none of {len(results)} candidates lowers the error under {_trials(best)}"
    elif best not in harmless:
        worst = max(best.changes, key=lambda name: best.changes[name])
        why = (
            f"of {len(results)} candidates, {best.candidate!r} gains most under {_trials(best)} "
            f"({best.gain:.1%}) but raises the error by {best.changes[worst]:.1%} on {worst}, "
            f"and no harmless one gains more than chance"
        )
    else:
        why = (
            f"of {len(results)} candidates, {best.candidate!r} gains most under {_trials(best)} "
            f"({best.gain:.1%}), which may be chance (± {sigmas * best.uncertainty:.1%})"
        )
    return Tuning(Candidate("Source"), f"No adaptation: {why}, on held-out training data.", tried)


def _json(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _trials(tried: Tried) -> str:
    names = [name for name in tried.changes if name != "clean"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
