"""Choosing a method, its settings, or none, on validation data and never on test labels.

A step that helps one network harms the next, and so does its sign (docs: the README's "Does it
help?"). So every candidate is tried on rows that the network was not fitted to, as they are and
under shifts that the caller names; and for regression, where labels may lie outside the training
range, on an extrapolation split: an end of the labels that a second network was trained without.
A candidate must gain there by more than chance and by 2 %, and harm nowhere by more than 1 %, on a
single shift: beyond chance. If none does, no adaptation is the choice.

Each is tried on all batches, and with gates: on those batches alone whose idempotence error, or
whose batch norms' statistics, are unusual, and where there is an extrapolation split, on answers at
an end of the training range. What helps under shift at some cost on in-distribution data passes
with such a gate, and a choice with one comes first.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from it3_core.batching import Data, batches, count, take, whole
from it3_core.engine.inner_optimizer import has_batch_norm
from it3_core.errors import IT3Error, IT3Warning
from it3_core.io.progress import Progress
from it3_core.methods.base import Adaptation, Method
from it3_core.methods.gated import AnswerRange, Gate, Observed, ShiftObservation
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter, Regression
from it3_core.trust.candidates import (
    STATEFUL,
    STREAMING,
    Candidate,
    CandidateResult,
    Tuning,
    choose,
    default_candidates,
    observer,
)

_SPLIT = "extrapolation split"


class Trial(NamedTuple):
    """What candidates are tried on: a network, inputs and their labels."""

    model: nn.Module
    x: Any
    y: Tensor


class ExtrapolationSplit(Trial):
    """A network like the one to tune, trained without an end of the labels, and that end."""


def tune(
    model: nn.Module,
    adapter: Adapter,
    data: Data,
    *,
    shifts: Mapping[str, Callable[[Any], Any]],
    extrapolation: ExtrapolationSplit | Sequence[ExtrapolationSplit] | None = None,
    candidates: Sequence[Candidate] | None = None,
    batch_size: int = 32,
    max_harm: float = 0.01,
    false_alarms: float | None = 0.1,
    progress: bool = True,
) -> Tuning:
    """Chooses a method and its settings, or none, on validation data.

    A candidate is chosen if it lowers the error under the shifts (and on the extrapolation split,
    which weighs as much as all of them) by more than chance at 95 % confidence, corrected for the
    number of candidates, and by 2 %; under the shifts alone too, since the split is another
    network's. It may raise the error by `max_harm` on clean data and on the split, and under no
    shift by more beyond chance. Among those, the one that gains most. Each is tried for all
    batches, and behind a gate (`Gated`), which is preferred: in-distribution inputs then stay as
    they are. A gate looks at the shift of several instances' statistics where the network has batch
    norm, and else at idempotence errors.

    What helps outside the range of labels need not help where inputs are shifted: a gain on the
    extrapolation splits of three networks, by more than chance and by 2 % on each, is enough
    in place of one under shifts; over all trials, chance alone must then be beaten.

    Args:
        model: the conditioned and trained network.
        adapter: what kind of answer it gives; its `error` is what counts.
        data: validation data, which the network was not fitted to.
        shifts: what might happen to inputs, by name: each takes `x` and returns it shifted. Each
            is applied once, so that all candidates see the same inputs.
        extrapolation: for regression, an `ExtrapolationSplit`, or several networks' of the same
            rows.
        candidates: what to try; by default `default_candidates(model)`.
        batch_size: how many instances come at once at test time.
        max_harm: the harm that is allowed on any trial, as a fraction of the source's error.
        false_alarms: fraction of in-distribution batches that a gate may adapt, and on each side
            half of it of in-distribution answers; None tries no gates, for methods whose answer to
            a row must not depend on its neighbours.
        progress: whether to show on standard error how far it is.

    Example:
        >>> import torch
        >>> from it3_core import Regression, tune, widen
        >>> _ = torch.manual_seed(0)
        >>> adapter, x = Regression(), torch.randn(64, 3)
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> _ = torch.nn.init.normal_(model.model.weight)  # stands in for training
        >>> noise = lambda x: x + 0.3 * torch.randn_like(x)
        >>> y = model(x, adapter.neutral(x)).detach()  # its own answers: nothing can be better
        >>> tuning = tune(model, adapter, (x, y), shifts={"noise": noise}, progress=False)
        >>> tuning.chosen.method
        'Source'
    """
    if isinstance(extrapolation, ExtrapolationSplit):
        extrapolation = [extrapolation]
    splits, (x, y) = list(extrapolation or ()), whole(data)
    _check_rows(x, y, splits)
    if not shifts and not splits:
        raise IT3Error("name at least one shift to tune for, or give an extrapolation split")
    if any(name == "clean" or name.startswith(_SPLIT) for name in shifts):
        raise IT3Error(f'"clean" and "{_SPLIT}" are names of trials of their own')
    tries = list(default_candidates(model) if candidates is None else candidates)
    trials = {"clean": Trial(model, x, y)}
    for name, shift in shifts.items():
        trials[name] = Trial(model, shift(x), y)
    split_names = [_SPLIT if n == 0 else f"{_SPLIT} {n + 1}" for n in range(len(splits))]
    trials |= dict(zip(split_names, splits, strict=True))
    base = {name: _base(name, trial, adapter, batch_size) for name, trial in trials.items()}
    gates: list[Picking] = []
    shift_gates: dict[nn.Module, Gate] = {}
    if false_alarms is not None:
        with _silent():
            allowed = Gates(trials, adapter, batch_size, false_alarms)
            gates = list(allowed.pickings(split_names))
            if any(one.method == STREAMING for one in tries):
                shift_gates = allowed.by_statistics()
    if not shift_gates:
        tries = [one for one in tries if one.method != STREAMING]
    # A fraction of almost nothing means nothing: no scale below a hundredth of the largest.
    largest = max(float(errors.mean()) for errors in base.values())
    results: list[CandidateResult] = []
    with closing(Progress(len(trials) * (len(tries) + 1), "tune", progress)) as bar:
        for number, candidate in enumerate(tries):
            relative = {}
            for done, (name, trial) in enumerate(trials.items()):
                # Of a network that was trained for this alone, nobody wants to be warned.
                with _silent() if name in split_names else nullcontext():
                    one = _for(trial.model, candidate, shift_gates)
                    errors = _errors(one, trial, adapter, batch_size)
                scale = max(float(base[name].mean()), 0.01 * largest) or 1.0
                relative[name] = (errors - base[name]) / scale
                bar.show((number + 1) * len(trials) + done + 1, f"{candidate}, on {name}")
            ungated = _for(model, candidate, shift_gates)
            results.append(CandidateResult.of(ungated, relative, split_names))
            if candidate.gate is not None or candidate.method in STATEFUL:
                continue
            for gate, picked in gates:
                some = {name: change.where(picked[name], 0.0) for name, change in relative.items()}
                gated = replace(candidate, gate=gate)
                results.append(CandidateResult.of(gated, some, split_names))
    return choose(results, max_harm)


def extrapolation_split(
    y: Tensor, fraction: float = 0.2, side: str = "upper"
) -> tuple[Tensor, Tensor]:
    """The rows to train on and the rows of the split, for `tune(extrapolation=…)`.

    Train a second network like the first on the former, and give it with the latter as an
    `ExtrapolationSplit`.

    Args:
        y: labels, one number a row.
        fraction: of the rows that are split off.
        side: `"upper"`, `"lower"` or `"both"` ends of the labels.
    """
    if not 0 < fraction < 1:
        raise IT3Error(f"fraction is between 0 and 1, not {fraction}")
    if y.numel() != len(y):
        raise IT3Error("an extrapolation split needs one number a row: pick one of the answers")
    if not bool(torch.isfinite(y).all()):
        raise IT3Error("the labels hold NaN or Inf: drop those rows first")
    order = y.flatten().argsort(stable=True)
    size = round(fraction * len(y))
    if not 0 < size < len(y):
        raise IT3Error(f"a split of {fraction:.0%} of {len(y)} rows is empty or everything")
    if side not in ("upper", "lower", "both"):
        raise IT3Error(f'side must be "upper", "lower" or "both", not {side!r}')
    lower = {"upper": 0, "lower": size, "both": size // 2}[side]
    inside = order[lower : len(y) - (size - lower)]
    outside = torch.cat([order[:lower], order[len(y) - (size - lower) :]])
    return inside.sort().values, outside.sort().values


def _for(network: nn.Module, candidate: Candidate, gates: Mapping[nn.Module, Gate]) -> Candidate:
    """A stream's candidate with the gate of this network: each is fitted to its own statistics."""
    return replace(candidate, gate=gates[network]) if candidate.method == STREAMING else candidate


@contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IT3Warning)
        yield


def _check_rows(x: Any, y: Tensor, splits: Sequence[ExtrapolationSplit]) -> None:
    if count(x) != len(y):
        raise IT3Error(f"there are {count(x)} inputs to tune on but {len(y)} labels")
    if len(y) < 8:
        raise IT3Error(f"tuning on {len(y)} rows would choose by chance: give at least 8")
    for _, inputs, labels in splits:
        if count(inputs) != len(labels):
            raise IT3Error(f"a split has {count(inputs)} inputs but {len(labels)} labels")
        if len(labels) < 2:
            raise IT3Error("an extrapolation split of one row can't tell a gain from chance")
    if len({len(one.y) for one in splits}) > 1:
        raise IT3Error("the extrapolation splits are of different rows: give all the same")


def _base(name: str, trial: Trial, adapter: Adapter, size: int) -> Tensor:
    """The errors that candidates are compared with."""
    errors = _errors(Candidate("Source"), trial, adapter, size)
    if bool(torch.isfinite(errors).all()):
        return errors
    if not bool(torch.isfinite(trial.y).all()):
        raise IT3Error(f"the labels hold NaN or Inf on trial {name!r}: drop those rows first")
    raise IT3Error(f"the network's own answers are not finite on trial {name!r}")


def _errors(candidate: Candidate, trial: Trial, adapter: Adapter, size: int) -> Tensor:
    """Per instance, in double precision; answers that are not finite count as infinitely wrong."""
    method = candidate.build(trial.model, adapter)
    found = []
    for part, label in zip(batches(trial.x, size), batches(trial.y, size), strict=True):
        found.append(adapter.error(method(part).prediction, label).detach().double().cpu())
    errors = torch.cat(found)
    return torch.where(errors.isnan(), float("inf"), errors)


class Picking(NamedTuple):
    """A gate of the network that is tuned, and what it (or another network's) picks in a trial."""

    gate: Gate | AnswerRange
    picked: Mapping[str, Tensor]


@dataclass(frozen=True)
class Gates:
    """The gates that these networks and trials allow; the first trial is of clean data."""

    trials: Mapping[str, Trial]
    adapter: Adapter
    size: int
    false_alarms: float

    @property
    def clean(self) -> Trial:
        return next(iter(self.trials.values()))

    def pickings(self, split_names: Sequence[str]) -> Iterator[Picking]:
        """Every gate, and what it picks, the cheapest first."""
        adapter = self.adapter
        if split_names and isinstance(adapter, Regression) and len(adapter.mean) == 1:
            # Some in-distribution answers are picked; or none, but only those outside their range.
            for fraction in (self.false_alarms / 2, 0.0):
                yield self._by_answer(split_names, fraction)
        # Several instances' statistics show a shift far better than their errors do, where a
        # network has batch norms; one instance's do not (docs/experiments.md).
        of: Observed = (
            "statistics" if self.size > 1 and has_batch_norm(self.clean.model) else "error"
        )
        gates = self._fitted(of)
        if gates:
            picked = {
                name: self._picked(trial, gates[trial.model], observer(of, trial.model, adapter))
                for name, trial in self.trials.items()
            }
            yield Picking(gates[self.clean.model], picked)

    def by_statistics(self) -> dict[nn.Module, Gate]:
        """Of each network the gate on its statistics; none where one has no batch norm."""
        normed = all(has_batch_norm(trial.model) for trial in self.trials.values())
        return self._fitted("statistics") if normed else {}

    def _fitted(self, of: Observed) -> dict[nn.Module, Gate]:
        """Each network's gate; none where something is not finite."""
        gates: dict[nn.Module, Gate] = {}
        for network in dict.fromkeys(trial.model for trial in self.trials.values()):
            source = observer(of, network, self.adapter)
            scores = torch.cat([_alone(source(part)) for part in batches(self.clean.x, self.size)])
            if not bool(torch.isfinite(scores).all()):
                return {}
            gates[network] = Gate.fit(scores, self.false_alarms, of)
        return gates

    def _by_answer(self, split_names: Sequence[str], fraction: float) -> Picking:
        clean, split = self.clean, self.trials[split_names[0]]
        labels = clean.y.flatten().double()
        low, high = _trained_between(labels, split.y.flatten().double())
        sides = {"lower": low > -math.inf, "upper": high < math.inf}
        # A network that was trained without the split answers the other labels as in-distribution.
        rows = ((labels > low) & (labels < high)).nonzero().flatten().tolist()
        ranges: dict[nn.Module, AnswerRange] = {}
        picked = {}
        for name, trial in self.trials.items():
            source = Source(trial.model, self.adapter)
            if trial.model not in ranges:
                inside = take(clean.x, rows) if name in split_names else clean.x
                answers = [source(part).prediction.cpu() for part in batches(inside, self.size)]
                ranges[trial.model] = AnswerRange.fit(torch.cat(answers), fraction, **sides)
            picked[name] = self._picked(trial, ranges[trial.model], source)
        return Picking(ranges[clean.model], picked)

    def _picked(self, trial: Trial, gate: Gate | AnswerRange, source: Method) -> Tensor:
        """The rows of a trial that a gate picks, by what this method says of them."""
        parts = [gate.picks(source(part)).cpu() for part in batches(trial.x, self.size)]
        return torch.cat(parts)


def _alone(answer: Adaptation) -> Tensor:
    """What a gate looks at, of each instance alone, in double precision."""
    found = answer.each if isinstance(answer, ShiftObservation) else answer.error_before
    return found.double().cpu()


def _trained_between(labels: Tensor, split: Tensor) -> tuple[float, float]:
    """Between which labels a network was trained without this split."""
    middle = labels.median()
    below, above = split[split < middle], split[split >= middle]
    return (
        float(below.max()) if len(below) else -math.inf,
        float(above.min()) if len(above) else math.inf,
    )
