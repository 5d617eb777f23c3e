"""What `tune` measures on the rows that choose: scores, and methods behind their gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from it3_core.batching import batches, count
from it3_core.errors import IT3Error
from it3_core.methods.gated import Unit, fewest, within_cap
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter, Regression
from it3_core.model.classes import Classification
from it3_core.trust.candidates import Candidate, ScoreKind, Tuning, Width, observed

CAPS = (0.5, 1.0, 2.0, 4.0, 8.0)
_AT_ONCE = 16  # rows that a method is tried on together, where a gate is of rows


def auroc(above: Tensor, below: Tensor) -> float | None:
    """How often the first kind of score lies above the second; ties count half."""
    if not len(above) or not len(below):
        return None
    ordered = below.sort().values
    lower, upper = (torch.searchsorted(ordered, above, right=right) for right in (False, True))
    return float((lower + upper).double().mean() / 2 / len(below))


class Trial(NamedTuple):
    """Inputs and labels, as they are or shifted, and the network that answers them."""

    name: str
    model: nn.Module
    x: Any
    y: Tensor
    train: Any
    labels: Tensor | None = None  # that this network has seen, where these are not the adapter's


@dataclass
class Seen:
    """What the source and the scores say of a trial."""

    name: str
    y: Tensor
    parts: list[Any]  # of inputs: whole batches where the unit is one
    answer: Tensor
    error: Tensor
    rows: dict[ScoreKind, Tensor]  # of each row
    units: dict[ScoreKind, Tensor]  # of each row, that of its unit
    usual: Seen | None = None  # the same network on rows as they are; None for these themselves


class Pair(NamedTuple):
    """A method behind a score's gate with a cap, and how the error changes under each shift."""

    candidate: Candidate
    opens: ScoreKind
    cap: float
    gain: float
    changes: dict[str, float]

    def describe(self) -> dict[str, Any]:
        changes = {k: v if math.isfinite(v) else None for k, v in self.changes.items()}
        return {
            "candidate": str(self.candidate), "method": self.candidate.method,
            "settings": dict(self.candidate.settings), "score": str(self.opens), "cap": self.cap,
            "gain": self.gain if math.isfinite(self.gain) else None, "changes": changes,
        }  # fmt: skip


def look(trial: Trial, adapter: Adapter, kinds: Sequence[ScoreKind], unit: Unit) -> Seen:
    whole_batches = unit != "row"
    size = unit if isinstance(unit, int) else _AT_ONCE
    parts = [p for p in batches(trial.x, size) if not whole_batches or count(p) == unit]
    parts = parts or [trial.x]  # fewer rows than one batch are one
    n = sum(map(count, parts))
    usable = [kind for kind in kinds if trial.train is not None or not kind.is_fitted]
    own = adapter  # a network without an end of the labels answers near the end that it has seen
    if trial.labels is not None and type(adapter) is Regression:
        own = Regression.fit(trial.labels)
    scores = [
        kind.fit(trial.model, own if kind.kind == "AnswerDistance" else adapter, trial.train)
        for kind in usable
    ]
    source = Source(trial.model, adapter)
    answers, rows, units = [], [], []
    for part in parts:
        made = observed(scores, part)
        answers.append(made[0].answer if made else source(part).prediction)
        each = [
            score.of(one).detach().double().cpu() for score, one in zip(scores, made, strict=True)
        ]
        rows.append(each)
        if whole_batches:
            whole = [score.of_batch(one) for score, one in zip(scores, made, strict=True)]
            each = [one.detach().double().cpu().expand(count(part)) for one in whole]
        units.append(each)
    answer, y = torch.cat(answers), trial.y[:n]
    error = _error(adapter, answer, y)
    if trial.name == "clean" and not bool(error.isfinite().all()):
        what = "labels hold" if not bool(torch.isfinite(y).all()) else "network's own answers hold"
        raise IT3Error(f"the {what} NaN or Inf: look at them first")

    def joined(found: list[list[Tensor]]) -> dict[ScoreKind, Tensor]:
        return {kind: torch.cat([one[i] for one in found]) for i, kind in enumerate(usable)}

    return Seen(trial.name, y, parts, answer, error, joined(rows), joined(units))


def _error(adapter: Adapter, answer: Tensor, y: Tensor) -> Tensor:
    """Of each row, in double precision; what is not finite is infinitely wrong."""
    found = adapter.error(answer, y.to(answer.device)).detach().double().cpu()
    return found.nan_to_num(nan=math.inf)


def typical(adapter: Adapter, clean: Seen) -> list[float]:
    """The source's mean absolute error of each output; one for all where labels are fewer."""
    if not isinstance(adapter, Regression):
        return []
    answer, y = clean.answer.double().cpu(), clean.y.double().cpu()
    if answer.numel() == y.numel():
        gap = (answer.reshape(len(y), -1) - y.reshape(len(y), -1)).abs()
        return [float(one) for one in gap.mean(0)]
    return [float(clean.error.mean())]


def questions(
    tuning: Tuning, kinds: Sequence[ScoreKind], seen: Sequence[Seen], adapter: Adapter
) -> Tuning:
    """How well each score finds wrong answers and shifted inputs, and the best for the former.

    Every network is compared with itself, and extrapolation splits weigh as much as all shifts.
    """
    table: list[dict[str, Any]] = []
    for kind in kinds:
        wrong, risk, shifted = zip(*(_asked(kind, some, adapter) for some in _networks(seen)),
                                   strict=True)  # fmt: skip
        table.append({
            "score": str(kind), "kind": kind.kind, "layer": kind.layer,
            "auroc_wrong": _weighed(wrong), "risk_coverage": _weighed(risk),
            "auroc_shifted": _weighed(shifted),
        })  # fmt: skip
    found = {kind: row["auroc_wrong"] for kind, row in zip(kinds, table, strict=True)}
    named = {kind: value for kind, value in found.items() if value is not None}
    best = max(named, key=lambda kind: named[kind], default=None)
    # Where no answer is more wrong than the others, any score has to do.
    tuning = replace(tuning, scores=table, doubt=best or next(iter(kinds), None))
    if best is None or not isinstance(adapter, Regression):
        return tuning
    every = [one for one in seen if best in one.rows]
    pooled, gap = torch.cat([one.rows[best] for one in every]), torch.cat(list(map(_gaps, every)))
    fine = pooled.isfinite() & gap.isfinite().all(1)
    return replace(tuning, widths=[Width.fit(pooled[fine], each[fine]) for each in gap.T])


def _networks(seen: Sequence[Seen]) -> list[list[Seen]]:
    """Of each network what it was seen to do, rows as they are first."""
    found: dict[int, list[Seen]] = {}
    for one in seen:
        usual = one.usual or one
        found.setdefault(id(usual), [usual]).extend([] if usual is one else [one])
    return list(found.values())


def _asked(
    kind: ScoreKind, seen: Sequence[Seen], adapter: Adapter
) -> tuple[float | None, float | None, float | None]:
    """AUROC of wrong answers, area under the risk-coverage curve, AUROC of shifted inputs."""
    if kind not in seen[0].rows:
        return None, None, None
    score, error = (torch.cat(some) for some in zip(*((s.rows[kind], s.error) for s in seen),
                                                    strict=True))  # fmt: skip
    there = score.isfinite() & error.isfinite()
    score, error = score[there], error[there]
    if not len(score):
        return None, None, None
    wrong = error > (0 if isinstance(adapter, Classification) else error.quantile(0.8))
    kept = error[score.argsort()].cumsum(0) / torch.arange(1, len(error) + 1)
    usual, *shifted = (one.units[kind][one.units[kind].isfinite()] for one in seen)
    apart = auroc(torch.cat(shifted), usual) if shifted else None
    return auroc(score[wrong], score[~wrong]), float(kept.mean()), apart


def _weighed(values: Sequence[float | None]) -> float | None:
    """The first network's and the mean of the others', one as much as the other."""
    first, rest = values[0], [one for one in values[1:] if one is not None]
    parts = ([] if first is None else [first]) + ([sum(rest) / len(rest)] if rest else [])
    return sum(parts) / len(parts) if parts else None


def between(y: Tensor, split: Tensor) -> list[int]:
    """The rows whose labels a network has seen that was trained without this end of them."""
    labels, ends = y.flatten().double(), split.flatten().double()
    middle = labels.median()
    below, above = ends[ends < middle], ends[ends >= middle]
    low = float(below.amax()) if len(below) else -math.inf
    high = float(above.amin()) if len(above) else math.inf
    rows: list[int] = ((labels > low) & (labels < high)).nonzero().flatten().tolist()
    return rows if len(rows) > 1 else list(range(len(y)))


def _gaps(one: Seen) -> Tensor:
    """Of each output the absolute error, or one for all."""
    if one.answer.numel() != one.y.numel():
        return one.error[:, None]
    n = len(one.y)
    return (one.answer.double().cpu().reshape(n, -1) - one.y.double().cpu().reshape(n, -1)).abs()


def gating(tuning: Tuning, kinds: Sequence[ScoreKind], most: int) -> list[ScoreKind]:
    """The scores that find shifted inputs best."""
    found = {kind: row["auroc_shifted"] for kind, row in zip(kinds, tuning.scores, strict=True)}
    better = [kind for kind, value in found.items() if value is not None]
    return sorted(better, key=lambda kind: -(found[kind] or 0.0))[:most]


def caps_for(
    adapter: Adapter, unit: Unit, units: int, max_harm: float, confidence: float | None
) -> list[float]:
    """Those whose rate so many threshold units allow."""
    rates = {cap: max_harm / cap for cap in possible(adapter, unit)}
    return [cap for cap, rate in rates.items() if rate < 1 and units >= fewest(rate, confidence)]


def possible(adapter: Adapter, unit: Unit) -> Sequence[float]:
    """The caps that there are for this kind of answer, the smallest first."""
    if isinstance(adapter, Regression):
        return CAPS
    return (0.5, 1.0) if isinstance(adapter, Classification) and unit != "row" else (1.0,)


def answers_of(candidate: Candidate, trial: Trial, adapter: Adapter, seen: Seen) -> Tensor:
    method = candidate.build(trial.model, adapter)
    return torch.cat([method(part).prediction.detach() for part in seen.parts])


def paired(
    candidate: Candidate, opens: ScoreKind, cap: float, answers: Sequence[Tensor],
    seen: Sequence[Seen], adapter: Adapter, tuning: Tuning, splits: Sequence[str],
) -> Pair:  # fmt: skip
    """What the gate would do on the choosing rows, with a threshold of these alone."""
    rate, unit = tuning.max_harm / cap, tuning.unit
    step = unit if isinstance(unit, int) else 1
    changes: dict[str, float] = {}
    groups: dict[bool, list[float]] = {False: [], True: []}  # of shifts, of extrapolation splits
    first_split = len(seen) - len(splits)
    for number, (one, answer) in enumerate(zip(seen, answers, strict=True)):
        error = one.error.clone()
        known = one.usual or one
        if opens in one.units:
            usual, scale = known.units[opens][::step], typical(adapter, known)
            rank = min(math.ceil((len(usual) + 1) * (1 - rate)), len(usual))
            rows = (one.units[opens] > usual.sort().values[rank - 1]).nonzero().flatten()
            after = one.answer.clone()
            for some in [rows] if unit == "row" else torch.split(rows, step):
                moved, kept = within_cap(
                    adapter, answer[some].to(after), after[some], cap, scale, unit
                )
                after[some[kept]] = moved[kept]
            error = _error(adapter, after, one.y)
        base = float(one.error.mean())
        change = (float(error.mean()) - base) / base if base > 0 else 0.0
        changes[one.name] = change if math.isfinite(change) else math.inf
        if number:
            groups[number >= first_split].append(-changes[one.name])
    means = [sum(some) / len(some) for some in groups.values() if some]
    return Pair(candidate, opens, cap, sum(means) / len(means), changes)
