"""What the paper says, and what our own default promises: each asked of each outcome."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from it3_core.experiment.tables import pooled
from paper.contrasts import Contrast, Series, contrast, score_above, slope
from paper.outcomes import Outcome

Verdict = Literal[
    "reproduced", "not reproduced", "the opposite", "not measured", "kept", "not shown", "broken"
]
"""Of the paper's claims the first four; of our own promises "not measured" and the last three."""

ANSWERS: dict[Verdict, str] = {
    "reproduced": "yes",
    "not reproduced": "not shown",
    "the opposite": "the opposite",
}
"""Whether a claim of the paper that was measured holds, in a table's words."""

PAPER: dict[str, str] = {
    "tabular": "box plots on Boston Housing, batches 1, 4, 8: IT³ degrades less",
    "cifar": "bars on CIFAR-10-C, severity 5: IT³ below none, TTT and ActMAD",
    "imagenet": "bars on ImageNet-C: IT³ above TENT, ETA, MEMO, ActMAD; Pearson −0.94",
    "age": "box plots on UTKFace, batches 4, 8, 16: IT³ degrades less",
    "roads": "quality 39.5 → 46.4 (4), 48.5 (8), 48.7 (16), online 69.8",
    "wings": "MAE 38.2 → 37.6 (1), 37.5 (4), 37.4 (16), online 34.1",
    "cars": "MAE 0.501 → 0.446 (1), 0.424 (2), 0.412 (4), online 0.385",
}
"""The paper's own figures by task."""

BASELINES: dict[str, tuple[str, ...]] = {"cifar": ("TTT",), "imagenet": ("Tent", "ETA", "MEMO")}
"""What the paper compares with besides ActMAD, which it has in every task."""

COSTS: dict[str, float] = {"wings": 4.0, "cars": 5.0, "roads": 6.0}
"""Forward passes that an answer by IT³ takes in the paper."""

MEMORY = 7.4 / 4.5
"""Of IT³ on ImageNet-C, as a multiple of the network's own, in the paper."""

SLOW = ("MEMO", "TTT")
"""Baselines that take many passes for each image, or another training, which `full` alone has."""

_ROUNDED = 1.1  # the paper's costs are given to a half or a whole


@dataclass(frozen=True)
class Finding:
    """A claim and what was measured."""

    task: str
    claim: str  # in words
    measured: str  # in numbers
    verdict: Verdict
    why: str = ""  # what else there is to say

    @property
    def kind(self) -> str:
        """The claim without its figures and batch sizes: the same in every task."""
        return re.split("[,:]", self.claim)[0]


def findings(outcome: Outcome) -> list[Finding]:
    """All claims about one outcome, the paper's first."""
    asked = (_it_helps, _larger_batches, _online, _slower, _beats, _cost, _memory, _trust, _default)
    return [finding for ask in asked for finding in ask(outcome)]


def _it_helps(outcome: Outcome) -> Iterator[Finding]:
    roles, shifted, inside = outcome.roles, outcome.shifted(), outcome.in_distribution()
    for size in outcome.sizes(roles.it3):
        mine: Series = (roles.it3, size)
        gain = contrast(shifted, mine, _source(outcome))
        harm = contrast(inside, mine, _source(outcome))
        also = "" if harm is None else f"in distribution {harm}"
        claim = f"IT³ lowers the error under shift, batches of {size}"
        yield _paper(outcome, claim, gain, also)


def _larger_batches(outcome: Outcome) -> Iterator[Finding]:
    sizes = [size for size in outcome.sizes(outcome.roles.it3) if size is not None]
    if len(sizes) > 1:
        it3 = outcome.roles.it3
        found = contrast(outcome.shifted(), (it3, sizes[-1]), (it3, sizes[0]))
        claim = f"larger batches help: {sizes[-1]} against {sizes[0]}"
        yield _paper(outcome, claim, found)


def _online(outcome: Outcome) -> Iterator[Finding]:
    roles = outcome.roles
    common = set(outcome.sizes(roles.online)) & set(outcome.sizes(roles.it3))
    for size in sorted(common, key=lambda size: size or 0)[-1:]:
        found = contrast(outcome.shifted(), (str(roles.online), size), (roles.it3, size))
        plain = contrast(outcome.shifted(), (str(roles.online), size), _source(outcome))
        yield _paper(outcome, "online beats offline", found, f"against source {plain}")


def _slower(outcome: Outcome) -> Iterator[Finding]:
    claim, it3 = "IT³ degrades more slowly with the level", outcome.roles.it3
    levels, sizes = outcome.levels(), outcome.sizes(it3)
    if outcome.task == "cifar" or len(levels) < 2 or not sizes:
        return  # kinds of corruption have no order, and of CIFAR-10-C the paper has severity 5
    if outcome.task == "imagenet":
        near, far = pooled(outcome.mild, same_instances=True), outcome.shifted()
    else:
        near, far = (
            [record for record in outcome.records if record["level"] == level]
            for level in (levels[0], levels[-1])
        )
    yield _paper(outcome, claim, slope(near, far, (it3, sizes[-1]), _source(outcome)))


def _beats(outcome: Outcome) -> Iterator[Finding]:
    it3 = outcome.roles.it3
    sizes = outcome.sizes(it3)
    for baseline in (str(outcome.roles.actmad), *BASELINES.get(outcome.task, ())):
        theirs = outcome.sizes(baseline)
        if not theirs and baseline in SLOW:
            yield _paper(outcome, f"IT³ beats {baseline}", None, "--preset full has it")
        # Those that look at one image at a time have the same answers in batches of any size.
        common = [(size, size if size in theirs else None) for size in sizes
                  if size in theirs or None in theirs]  # fmt: skip
        for mine, other in common[-1:]:
            found = contrast(outcome.shifted(), (it3, mine), (baseline, other))
            yield _paper(outcome, f"IT³ beats {baseline}", found)


def _cost(outcome: Outcome) -> Iterator[Finding]:
    mine, actmad = (_costs(outcome, name) for name in (outcome.roles.it3, outcome.roles.actmad))
    if outcome.task not in COSTS or not mine:
        return
    most = COSTS[outcome.task]
    claim = f"IT³ costs what the paper says: {most:g} forward passes at most"
    verdict: Verdict = "reproduced" if max(mine) <= _ROUNDED * most else "not reproduced"
    yield Finding(outcome.task, claim, _span(mine), verdict, f"ActMAD: {_span(actmad)}")


def _costs(outcome: Outcome, method: str | None) -> list[float]:
    """The method's cost at each batch size, the median over seeds."""
    found: dict[int | None, list[float]] = {}
    for record in outcome.shifted():
        if record["method"] == method and record["cost"] is not None:
            found.setdefault(record["batch_size"], []).append(record["cost"])
    return [median(costs) for costs in found.values()]


def _span(values: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{value:.1f}" for value in (min(values), max(values))) if values else {}
    return " to ".join(ends)


def _memory(outcome: Outcome) -> Iterator[Finding]:
    mine, actmad = (outcome.memory.get(str(name)) for name in (outcome.roles.it3, "ActMAD"))
    if outcome.task != "imagenet" or mine is None:
        return
    verdict: Verdict = "reproduced" if mine <= _ROUNDED * MEMORY else "not reproduced"
    also = "" if actmad is None else f"ActMAD: {actmad:.2f}"
    claim = f"IT³ needs the memory that the paper says: {MEMORY:.1f} forward passes' at most"
    yield Finding(outcome.task, claim, f"{mine:.2f}", verdict, also)


def _trust(outcome: Outcome) -> Iterator[Finding]:
    """The paper's pictures: the idempotence error is larger where the input, or answer, is off."""
    claim = "the idempotence error is larger under shift: AUROC above 0.5"
    yield from _above(outcome, claim, "auroc", chance=0.5)
    if outcome.task == "imagenet":
        claim = "a batch's idempotence error goes with its mistakes: Pearson above 0"
        yield from _above(outcome, claim, "pearson", chance=0.0, also="the paper: 0.94")


def _above(
    outcome: Outcome, claim: str, key: str, *, chance: float, also: str = ""
) -> Iterator[Finding]:
    found = score_above(outcome.trust, key, chance)
    if found is None:
        return
    measured = f"{chance + found.value:.2f}"
    less = replace(found, value=-found.value)  # which is what `_paper` takes for better
    if found.low is not None and found.high is not None:
        measured += f" ({chance + found.low:.2f} to {chance + found.high:.2f})"
        less = replace(less, low=-found.high, high=-found.low)
    yield replace(_paper(outcome, claim, less, also), measured=measured)


def defaults(outcome: Outcome) -> dict[int | None, dict[str, Contrast | None]]:
    """The default's changes at each batch size; None where there is nothing to compare with."""
    roles, source = outcome.roles, _source(outcome)
    found = {}
    for size in outcome.sizes(roles.auto):
        compared = {
            "in distribution, against source": (outcome.in_distribution(), source),
            "under shift, against source": (outcome.shifted(), source),
            "against the vanilla net": (outcome.shifted(), (str(roles.vanilla), None)),
            "against batch statistics": (outcome.shifted(), (str(roles.statistics), size)),
        }
        found[size] = {
            name: contrast(records, (roles.auto, size), other)
            for name, (records, other) in compared.items()
        }
    return found


def _default(outcome: Outcome) -> Iterator[Finding]:
    """Ours: the default is never worse than no adaptation, and better than the baselines."""
    for size, changes in defaults(outcome).items():
        inside, shifted, *others = changes.values()
        at = "" if size is None else f", batches of {size}"
        for where, change in (("under shift", shifted), ("in distribution", inside)):
            claim = f"the default is not worse than source, {where}{at}"
            yield _promise(outcome, claim, change, "kept")
        names = (outcome.roles.vanilla, outcome.roles.statistics)
        for name, change in zip(names, others, strict=True):
            if change is not None:
                yield _promise(outcome, f"the default beats {name}{at}", change, "not shown")


def _source(outcome: Outcome) -> Series:
    sizes = outcome.sizes(outcome.roles.source)
    return outcome.roles.source, sizes[-1] if sizes else None


def _paper(outcome: Outcome, claim: str, found: Contrast | None, also: str = "") -> Finding:
    if found is None:
        return Finding(outcome.task, claim, "", "not measured", also)
    if found.sign == 0:
        reason = "one value has no interval" if found.low is None else "may be chance"
        why = "; ".join(part for part in (reason, also) if part)
        return Finding(outcome.task, claim, str(found), "not reproduced", why)
    verdict: Verdict = "reproduced" if found.sign < 0 else "the opposite"
    return Finding(outcome.task, claim, str(found), verdict, also)


def _promise(outcome: Outcome, claim: str, found: Contrast | None, by_chance: Verdict) -> Finding:
    """`by_chance` is the verdict where the interval holds zero."""
    if found is None:
        return Finding(outcome.task, claim, "", "not measured")
    if not found.sign:
        return Finding(outcome.task, claim, str(found), by_chance, "no difference beyond chance")
    return Finding(outcome.task, claim, str(found), "kept" if found.sign < 0 else "broken")
