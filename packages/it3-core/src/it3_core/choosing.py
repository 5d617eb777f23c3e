"""How `tune` chooses: what each candidate gained and harmed, and which of them is taken, if any."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from it3_core.adapters import Adapter
from it3_core.candidates import Candidate
from it3_core.errors import IT3Error
from it3_core.methods import Method

__all__ = ["WITNESSES", "Tried", "Tuning", "choose"]

_RESAMPLES = 2000  # for the margin of chance
_AT_ONCE = 2**22  # numbers drawn together, which is 100 MB

WITNESSES = 3
"""Networks that must gain on the tail of the labels, where nothing else tells of a gain."""


class Tried(NamedTuple):
    """How a candidate did: changes of the error, as shares of the source's mean.

    Example:
        >>> import torch
        >>> change = {"clean": torch.zeros(9), "noise": torch.full((9,), -0.5)}
        >>> Tried.of(Candidate("AnswerStep", {"alpha": 1.0}), change, [], 0.95).gain
        0.5
    """

    candidate: Candidate
    changes: dict[str, float]
    harms: dict[str, float]
    """The changes as far as they count against it: of a shift's, what is beyond chance."""
    gain: float
    uncertainty: float
    groups: list[Tensor]
    """Changes row by row: of the shifts together, and of the tails together."""
    tails: list[Tensor]
    """Of each tail alone."""

    @classmethod
    def of(
        cls,
        candidate: Candidate,
        relative: Mapping[str, Tensor],
        beyond: Sequence[str],
        confidence: float,
    ) -> Tried:
        """From the changes of every row on each trial; `beyond` are those that are label tails."""
        changes = {name: float(change.mean()) for name, change in relative.items()}
        # The same rows are in all shifts, so they are averaged row by row before their spread is
        # taken, and so are those of the tails, which have other rows, and weigh as much.
        shifted = {name: c for name, c in relative.items() if name not in ("clean", *beyond)}
        tails = [relative[name] for name in beyond]
        groups = [torch.stack(rows).mean(0) for rows in (list(shifted.values()), tails) if rows]
        gain = -sum(float(group.mean()) for group in groups) / len(groups)
        variance = sum(_uncertainty(group) ** 2 for group in groups)
        z = statistics.NormalDist().inv_cdf(confidence)
        chance = {name: z * _uncertainty(change) for name, change in shifted.items()}
        harms = {
            name: change - chance.get(name, 0.0) if math.isfinite(change) else math.inf
            for name, change in changes.items()
        }
        return cls(candidate, changes, harms, gain, variance**0.5 / len(groups), groups, tails)

    @property
    def worst(self) -> str:
        """The trial that it harms most."""
        return max(self.harms, key=lambda name: self.harms[name])

    @property
    def harm(self) -> float:
        """How much it harms there."""
        return self.harms[self.worst]

    def describe(self) -> dict[str, Any]:
        """What it was and what came of it, as JSON."""
        return {
            "candidate": repr(self.candidate),
            **self.candidate.describe(),
            "gain": _json(self.gain),
            "changes": {name: _json(change) for name, change in self.changes.items()},
        }


@dataclass(frozen=True)
class Tuning:
    """What was chosen, why, and what else was tried.

    Attributes:
        chosen: the method, `Source()` where nothing was good enough.
        reason: a sentence for people.
        tried: every candidate with its change of error on each trial, as shares: −0.02 is 2 % less.

    Example:
        >>> print(Tuning(Candidate("Source"), "no candidate gained", ()))
        no candidate gained
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
            **self.chosen.describe(),
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
            chosen = Candidate.from_description(description)
            return cls(chosen, str(description["reason"]), tuple(description["tried"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise IT3Error(f"this is no description of a tuning: {problem}") from problem

    def __str__(self) -> str:
        return self.reason


def choose(results: Sequence[Tried], worth: float, harm: float, confidence: float) -> Tuning:
    """Of what was tried, the best that is good enough, or `Source()`; see `tune` for the rule.

    Example:
        >>> import torch
        >>> change = {"clean": torch.zeros(9), "noise": torch.full((9,), -0.5)}
        >>> one = Tried.of(Candidate("AnswerStep", {"alpha": 1.0}), change, [], 0.95)
        >>> choose([one], worth=0.02, harm=0.01, confidence=0.95).chosen
        AnswerStep(alpha=1.0)
        >>> choose([one], worth=0.6, harm=0.01, confidence=0.95).chosen
        Source()
    """
    tried = tuple(one.describe() for one in results)
    if not results:
        return Tuning(Candidate("Source"), "No adaptation: there was nothing to try.", tried)
    sigmas = _sigmas(results, confidence)
    good = [one for one in results if one.harm <= harm and _gains(one, sigmas, worth)]
    if not good:
        why = f"{_why_none(results, sigmas, worth, harm)}, on held-out training data"
        return Tuning(Candidate("Source"), f"No adaptation: {why}.", tried)
    # What the network knows is better left alone, where that can be had.
    gated = [one for one in good if one.candidate.gate is not None]
    best = max(gated or good, key=lambda one: one.gain)
    reason = (
        f"{best.candidate!r}: on held-out training data it lowers the error by "
        f"{best.gain:.1%} (± {sigmas * best.uncertainty:.1%}) under {_trials(best)}, and changes "
        f"it by {best.changes['clean']:+.1%} on clean data; {len(results)} candidates were tried."
    )
    return Tuning(best.candidate, reason, tried)


def _why_none(results: Sequence[Tried], sigmas: float, worth: float, harm: float) -> str:
    best = max(results, key=lambda one: one.gain)
    if best.gain <= 0:
        return f"none of {len(results)} candidates lowers the error under {_trials(best)}"
    most = (
        f"of {len(results)} candidates, {best.candidate!r} gains most under {_trials(best)} "
        f"({best.gain:.1%})"
    )
    if best.harm > harm:
        return (
            f"{most} but raises the error by {best.changes[best.worst]:.1%} on {best.worst}, "
            f"and no harmless one gains enough"
        )
    margin = sigmas * best.uncertainty
    if best.gain <= max(worth, margin):
        return f"{most}, which may be chance (± {margin:.1%}) or is less than {worth:.0%}"
    asked = f"where {worth:.0%} and more than chance are asked"
    if _witnessed(best):
        doubtful = next(rows for rows in best.tails if not _enough(rows, sigmas, worth))
        return (
            f"{most}, but the networks trained without the label tail do not agree: one of "
            f"{len(best.tails)} gains {_gain(doubtful, sigmas)}, {asked} of each"
        )
    own = _gain(best.groups[0], sigmas)
    return f"{most}, but under shifts, on this network itself, by {own}, {asked} for"


def _gains(tried: Tried, sigmas: float, worth: float) -> bool:
    """Beyond chance and enough: on the whole, and under the shifts alone, where there are any.

    The tail is another network's, and a step that helps one network can harm the next: what is
    seen there alone is enough only where several networks see it, each on its own.
    """
    if tried.gain <= sigmas * tried.uncertainty:
        return False
    if _witnessed(tried):
        agreed = all(_enough(rows, sigmas, worth) for rows in tried.tails)
        if agreed or len(tried.groups) == 1:
            return agreed
    return tried.gain > worth and _enough(tried.groups[0], sigmas, worth)


def _enough(rows: Tensor, sigmas: float, worth: float) -> bool:
    return -float(rows.mean()) > max(worth, sigmas * _uncertainty(rows))


def _witnessed(tried: Tried) -> bool:
    """Whether enough networks' tails can tell."""
    return len(tried.tails) >= WITNESSES


def _sigmas(results: Sequence[Tried], confidence: float) -> float:
    """Beyond how many of its standard deviations a gain is no chance, the best of so many.

    Candidates that differ little look good by luck together, which Bonferroni's correction does
    not know: rows are drawn again, and the largest deviation among all candidates is looked at.
    """
    most = statistics.NormalDist().inv_cdf(1 - (1 - confidence) / len(results))
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
    return min(most, float(deviations.max(0).values.quantile(confidence)))


def _uncertainty(changes: Tensor) -> float:
    """The standard deviation of their mean."""
    return float(changes.std()) / math.sqrt(len(changes))


def _gain(changes: Tensor, sigmas: float) -> str:
    return f"{-float(changes.mean()):.1%} (± {sigmas * _uncertainty(changes):.1%})"


def _json(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _trials(tried: Tried) -> str:
    names = [name for name in tried.changes if name != "clean"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
