"""What the paper says, asked of what was measured.

Every claim is assessed on the row "IT³ (paper)", with the trained network's statistics; where the
network has batch norm, a second time on the batch's, since the paper does not say whose it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import torch

from it3_core.experiment.tables import pooled
from paper import numbers
from paper.intervals import (
    Contrast,
    Estimate,
    Floats,
    Series,
    auroc_interval,
    contrast,
    over_seeds,
    pearson_interval,
    slope,
)  # fmt: skip
from paper.numbers import ACTMAD, IT3, ON_BATCH, ONLINE, SOURCE, STATISTICS, Verdict
from paper.records import Measured

_NEAR = 0.02  # how far from the paper's correlation an interval may end
_ROUNDED = 1.1  # the paper's costs are given to a half or a whole
POINTS = (64, 128, 256)
"""Images in a batch of the figure of accuracy against idempotence error."""


@dataclass(frozen=True)
class Outcome:
    """What was measured of a claim, and the verdict."""

    measured: str
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """A line of the table of claims."""

    task: str
    claim: str
    source: Outcome  # on the trained network's statistics
    batch: Outcome | None = None  # on the batch's own; None where there is no batch norm


NOT_MEASURED = Outcome("", "not measured")

Asked = Callable[[Measured, str], Outcome]
"""A claim, asked of a task for one of IT³'s lines."""


def findings(found: Mapping[str, Measured]) -> list[Finding]:
    """All claims of all tasks, the paper's order of sections."""
    lines: list[Finding] = []
    for task, claim, asked in _claims():
        one = found.get(task)
        if one is None:
            lines.append(Finding(task, claim, NOT_MEASURED))
            continue
        given = one if asked is _beats_others else one.part()
        # Of scores and streams there is one line, on the trained statistics.
        both = one.part().sizes(ON_BATCH) and asked not in (_online, _figure_2, _pearson)
        batch = asked(given, ON_BATCH) if both else None
        lines.append(Finding(task, claim, asked(given, IT3), batch))
    return lines


def _claims() -> Iterator[tuple[str, str, Asked]]:
    for task in numbers.TASKS:
        yield task, "IT³ lowers the error under shift", _it_helps
        if task != "imagenet":  # there the paper says no such thing
            yield task, "larger batches help", _larger_batches
        if task not in ("cifar", "imagenet"):  # kinds of corruption have no order
            yield task, "IT³ degrades more slowly with the level", _slower
        yield task, "IT³ beats ActMAD", _beats_actmad
        if baselines := numbers.BASELINES.get(task):
            yield task, f"IT³ beats {', '.join(baselines)}", _beats_others
        if task in numbers.COSTS:
            yield task, "online beats offline", _online
            most = numbers.COSTS[task][IT3]
            yield task, f"IT³ costs {most:g} forward passes at most", _cost
    most = numbers.MEMORY[IT3] / numbers.MEMORY[SOURCE]
    yield "imagenet", f"IT³ needs {most:.1f} times the base model's memory at most", _memory
    for task in ("imagenet", "cifar"):  # the paper's is on ImageNet-C
        yield task, "idempotence error and accuracy: Pearson −0.94", _pearson
    yield "wings", "the idempotence error is larger under shift, and falls", _figure_2


def _it_helps(one: Measured, it3: str) -> Outcome:
    gains = {size: contrast(one.shifted(), (it3, size), source_of(one)) for size in one.sizes(it3)}
    largest = one.largest(it3)
    found = gains.pop(largest, None)
    notes = [f"batches of {size}: {gain}" for size, gain in gains.items()]
    if (harm := contrast(one.in_distribution(), (it3, largest), source_of(one))) is not None:
        notes.append(f"in distribution {harm}")
    others: dict[str, Series] = {f"the {name}": (name, None) for name in numbers.VANILLA}
    others |= {STATISTICS: (STATISTICS, largest)} if it3 == ON_BATCH else {}
    for name, other in others.items():
        if (against := contrast(one.shifted(), (it3, largest), other)) is not None:
            notes.append(f"against {name} {against}")
    return outcome(found, *notes)


def _larger_batches(one: Measured, it3: str) -> Outcome:
    sizes = [size for size in one.sizes(it3) if size is not None]
    if len(sizes) < 2:
        return NOT_MEASURED
    found = contrast(one.shifted(), (it3, sizes[-1]), (it3, sizes[0]))
    return outcome(found, f"{sizes[-1]} against {sizes[0]}")


def _slower(one: Measured, it3: str) -> Outcome:
    levels = one.levels()
    if len(levels) < 2:
        return NOT_MEASURED
    near, far = (pooled([r for r in one.records if r["level"] in some]) for some in _ends(levels))
    ends = f"{levels[0]} to {levels[-1]}"
    sources = ([r["error"] for r in some if r["method"] == SOURCE] for some in (near, far))
    before, after = map(fmean, sources)
    if after < before:  # of roads the easy images by MSE are those of few roads, which are missed
        found = f"without adapting the error falls, {before:.3g} to {after:.3g}"
        return Outcome(found, "not shown", ends)
    return outcome(slope(near, far, (it3, one.largest(it3)), source_of(one)), ends)


def _ends(levels: list[str]) -> tuple[list[str], list[str]]:
    """The nearest and the furthest; of two sides, younger and older, those of both."""
    sides: dict[str, list[str]] = {}
    for level in levels:
        side = next((name for name in ("younger", "older") if level.startswith(name)), "")
        sides.setdefault(side, []).append(level)
    return [names[0] for names in sides.values()], [names[-1] for names in sides.values()]


def _beats_actmad(one: Measured, it3: str) -> Outcome:
    return _against(one, it3, actmad_of(one, it3))


def actmad_of(one: Measured, it3: str) -> str:
    """ActMAD on the same statistics, where there are both."""
    own = f"{ACTMAD}, source statistics"
    return own if it3 == IT3 and one.sizes(own) else ACTMAD


def _beats_others(one: Measured, it3: str) -> Outcome:
    """Several baselines: reproduced where all of them are beaten."""
    each = {name: _against(one, it3, name) for name in numbers.BASELINES[one.task]}
    shown = {name: known for name, known in each.items() if known.verdict != "not measured"}
    if not shown:
        return NOT_MEASURED
    verdicts = {known.verdict for known in shown.values()}
    if len(each) == 1:
        return next(iter(shown.values()))
    order: list[Verdict] = ["the opposite", "not shown", "reproduced"]
    worst = next(one for one in order if one in verdicts)
    measured = "; ".join(f"{name} {known.measured}" for name, known in shown.items())
    missing = [name for name in each if name not in shown]
    note = "; ".join(f"{name}: {known.verdict}" for name, known in shown.items())
    return Outcome(measured, worst, note + "".join(f"; {name}: not measured" for name in missing))


def _against(one: Measured, it3: str, baseline: str) -> Outcome:
    """The largest batch size that both have; a baseline of single images has one answer for all."""
    one = one.having(baseline)
    theirs = one.sizes(baseline)
    common = [
        (size, size if size in theirs else None)
        for size in one.sizes(it3)
        if size in theirs or None in theirs
    ]
    if not common:
        return NOT_MEASURED
    mine, other = common[-1]
    found = contrast(one.shifted(), (it3, mine), (baseline, other))
    return outcome(found, f"batches of {mine}")


def _online(one: Measured, it3: str) -> Outcome:
    largest = max(set(one.sizes(ONLINE)) & set(one.sizes(it3)), key=lambda n: n or 0, default=None)
    shifted, mine = one.shifted(), (ONLINE, largest)
    found = contrast(shifted, mine, source_of(one))
    notes = [] if found is None else [f"against source {found}"]
    if (only := contrast(shifted, (numbers.SHIFTED, largest), (it3, largest))) is not None:
        notes.append(f"a stream of shifted inputs alone {only}")
    return outcome(contrast(shifted, mine, (it3, largest)), *notes)


def _cost(one: Measured, it3: str) -> Outcome:
    mine, actmad = costs(one, it3), costs(one, ACTMAD)
    if not mine:
        return NOT_MEASURED
    most = numbers.COSTS[one.task][IT3]
    verdict: Verdict = "reproduced" if max(mine) <= _ROUNDED * most else "not shown"
    single = span(costs(one, f"{it3}, steps: 1"))
    note = f"{steps_of(one)}one step {single}; ActMAD {span(actmad)}"
    return Outcome(f"{span(mine)} passes", verdict, note)


def costs(one: Measured, method: str) -> list[float]:
    """The method's cost at each batch size under shift, the median over seeds."""
    found: dict[int | None, list[float]] = {}
    for record in one.shifted():
        if record["method"] == method and record["cost"] is not None:
            found.setdefault(record["batch_size"], []).append(record["cost"])
    return [median(some) for some in found.values()]


def steps_of(one: Measured) -> str:
    """How many steps the paper's row takes, which its cost depends on."""
    steps = {a["paper"]["source"]["steps"] for a in one.about if "source" in a.get("paper", {})}
    return f"steps {', '.join(map(str, sorted(steps)))}; " if steps else ""


def span(values: list[float]) -> str:
    """From the least to the most."""
    ends = dict.fromkeys(f"{value:.1f}" for value in (min(values), max(values))) if values else {}
    return " to ".join(ends) or "not measured"


def _memory(one: Measured, it3: str) -> Outcome:
    known = memory(one)
    if it3 not in known or SOURCE not in known:
        return NOT_MEASURED
    base, paper = known[SOURCE], numbers.MEMORY
    ratio = known[it3] / base
    most = _ROUNDED * paper[IT3] / paper[SOURCE]
    verdict: Verdict = "reproduced" if ratio <= most else "not shown"
    actmad = f"ActMAD {known[ACTMAD] / base:.2f}" if ACTMAD in known else ""
    return Outcome(f"{ratio:.2f}", verdict, actmad)


def memory(one: Measured) -> dict[str, float]:
    """Peak memory in bytes by method; the base is a pass that keeps what a gradient needs."""
    for about in one.about:
        if about.get("memory"):
            return dict(about["memory"]["bytes"])
    return {}


def _pearson(one: Measured, it3: str) -> Outcome:
    found = {size: pearson(one, "idempotence", size) for size in POINTS}
    known = {size: estimate for size, estimate in found.items() if estimate is not None}
    if not known:
        return NOT_MEASURED
    last = known[max(known)]
    verdict: Verdict = "the opposite" if last.low > 0 else "not shown"
    if last.high < 0 and last.low <= numbers.PEARSON + _NEAR:
        verdict = "reproduced"
    notes = [
        f"batches of {size}: {estimate}" for size, estimate in known.items() if size != max(known)
    ]
    notes.append(f"measured in batches of {max(known)}")
    if (entropy := pearson(one, "entropy", max(known))) is not None:
        notes.append(f"entropy {entropy}")
    return Outcome(str(last), verdict, "; ".join(notes))


def pearson(one: Measured, score: str, size: int) -> Estimate | None:
    """The correlation of a score with accuracy over batches of one level."""
    seeds = []
    for seed in one.seeds:
        levels, x, y = points(one, seed, score, size)
        if len(set(levels)) > 2:
            seeds.append((levels, x, y))
    return pearson_interval(seeds) if seeds else None


def points(one: Measured, seed: int, score: str, size: int) -> tuple[list[str], Floats, Floats]:
    """A seed's batches: their levels, mean scores and accuracies in per cent."""
    levels: list[str] = []
    x: list[float] = []
    y: list[float] = []
    for scores in one.scores:
        if scores.seed != seed or score not in scores.columns:
            continue
        values, error = scores.columns[score], scores.columns["error"]
        for start in range(0, len(error) - size + 1, size):
            rows = slice(start, start + size)
            levels.append(scores.level)
            x.append(float(values[rows].mean()))
            y.append(100 - float(error[rows].mean()))
    return levels, np.array(x), np.array(y)


def _figure_2(one: Measured, it3: str) -> Outcome:
    """Larger: AUROC above 0.5. And it falls: its mean after the step is below the one before."""
    inside, shifted, after = (split_scores(one, what) for what in ("inside", "shifted", "after"))
    if (estimate := auroc_interval(shifted, inside)) is None:
        return NOT_MEASURED
    note, falls = "", None
    if len(after) == len(shifted):
        falls = over_seeds([torch.from_numpy(b - a) for a, b in zip(shifted, after, strict=True)])
        before, now = np.concatenate(shifted), np.concatenate(after)
        note = f"mean after / before {now.mean() / before.mean():.2f}, "
        note += f"median {np.median(before):.3g} → {np.median(now):.3g}"
    verdict: Verdict = "not shown"
    if estimate.high < 0.5 or (falls is not None and falls.sign > 0):
        verdict = "the opposite"
    elif estimate.low > 0.5 and falls is not None and falls.sign < 0:
        verdict = "reproduced"
    return Outcome(f"AUROC {estimate}", verdict, note)


def split_scores(one: Measured, what: str) -> list[Floats]:
    """Each seed's idempotence errors in distribution, shifted, or shifted and `after` the step."""
    within = {r["level"] for r in one.in_distribution()}
    column = "after" if what == "after" else "idempotence"
    found = []
    for seed in one.seeds:
        some = [
            s.columns[column]
            for s in one.scores
            if s.seed == seed
            and s.level != "training"
            and (s.level in within) == (what == "inside")
            and column in s.columns
        ]
        if some:
            found.append(np.concatenate(some))
    return found


def outcome(found: Contrast | None, *notes: str) -> Outcome:
    """The verdict of a difference: its interval lies below zero, above it, or holds it."""
    if found is None:
        return NOT_MEASURED
    verdict: Verdict = "not shown"
    if found.sign:
        verdict = "reproduced" if found.sign < 0 else "the opposite"
    reason = "one value has no interval" if found.low is None else found.by_seed
    return Outcome(str(found), verdict, "; ".join(part for part in (*notes, reason) if part))


def source_of(one: Measured) -> Series:
    """The source, which is what no adaptation gives."""
    return SOURCE, one.largest(SOURCE)
