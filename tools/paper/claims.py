"""What the paper says, and what our own default promises: each asked of each outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from it3_core.contrast import Contrast, Series, contrast, slope
from paper.outcomes import Outcome
from paper.trust import advantage

__all__ = ["PAPER", "Default", "Finding", "Verdict", "defaults", "findings"]

Verdict = Literal[
    "reproduced", "not reproduced", "the opposite", "not measured", "kept", "not shown", "broken"
]
"""Of the paper's claims the first four; of our own promises the last three."""

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


@dataclass(frozen=True)
class Finding:
    """A claim and what was measured.

    Attributes:
        task: the experiment.
        claim: in words.
        measured: in numbers.
        verdict: one word or two.
        why: what else there is to say.
    """

    task: str
    claim: str
    measured: str
    verdict: Verdict
    why: str = ""


def findings(outcome: Outcome) -> list[Finding]:
    """All claims about one outcome, the paper's first."""
    asked: list[Callable[[Outcome], Iterator[Finding]]] = [
        _it_helps,
        _larger_batches,
        _online,
        _slower,
        _actmad,
        _trust,
        _default,
    ]
    return [finding for ask in asked for finding in ask(outcome)]


def _it_helps(outcome: Outcome) -> Iterator[Finding]:
    roles, beyond, within = outcome.roles, outcome.beyond(), outcome.within()
    for size in outcome.sizes(roles.it3):
        mine: Series = (roles.it3, size)
        gain = contrast(beyond, mine, _source(outcome))
        harm = contrast(within, mine, _source(outcome))
        also = "" if harm is None else f"in distribution {harm}"
        claim = f"IT³ lowers the error under shift, batches of {size}"
        yield _paper(outcome, claim, gain, also)


def _larger_batches(outcome: Outcome) -> Iterator[Finding]:
    sizes = [size for size in outcome.sizes(outcome.roles.it3) if size is not None]
    if len(sizes) > 1:
        it3 = outcome.roles.it3
        found = contrast(outcome.beyond(), (it3, sizes[-1]), (it3, sizes[0]))
        claim = f"larger batches help: {sizes[-1]} against {sizes[0]}"
        yield _paper(outcome, claim, found)


def _online(outcome: Outcome) -> Iterator[Finding]:
    roles = outcome.roles
    common = set(outcome.sizes(roles.online)) & set(outcome.sizes(roles.it3))
    for size in sorted(common, key=lambda size: size or 0)[-1:]:
        found = contrast(outcome.beyond(), (str(roles.online), size), (roles.it3, size))
        plain = contrast(outcome.beyond(), (str(roles.online), size), _source(outcome))
        yield _paper(outcome, "online beats offline", found, f"against source {plain}")


def _slower(outcome: Outcome) -> Iterator[Finding]:
    levels, it3 = outcome.levels(), outcome.roles.it3
    sizes = outcome.sizes(it3)
    if len(levels) < 2 or not sizes or outcome.task in ("cifar", "imagenet"):
        return  # kinds of corruption have no order
    near, far = (
        [record for record in outcome.records if record["level"] == level]
        for level in (levels[0], levels[-1])
    )
    found = slope(near, far, (it3, sizes[-1]), _source(outcome))
    yield _paper(outcome, "IT³ degrades more slowly with the level", found)


def _actmad(outcome: Outcome) -> Iterator[Finding]:
    roles = outcome.roles
    common = set(outcome.sizes(roles.it3)) & set(outcome.sizes(roles.actmad))
    for size in sorted(common, key=lambda size: size or 0)[-1:]:
        found = contrast(outcome.beyond(), (roles.it3, size), (str(roles.actmad), size))
        yield _paper(outcome, "IT³ beats ActMAD", found)


def _trust(outcome: Outcome) -> Iterator[Finding]:
    """The paper's picture: the idempotence error is larger where the input is shifted."""
    coin = [{**line, "score": "a coin", "auroc": 0.5} for line in outcome.trust if line["auroc"]]
    found = advantage([*outcome.trust, *coin], "a coin")
    if found is None:
        return
    measured = f"{0.5 - found.value:.2f}"
    if found.low is not None and found.high is not None:
        measured += f" ({0.5 - found.high:.2f} to {0.5 - found.low:.2f})"
    claim = "the idempotence error is larger under shift: AUROC above 0.5"
    yield replace(_paper(outcome, claim, found), measured=measured)


@dataclass(frozen=True)
class Default:
    """What the default is worth at a batch size; None where there is nothing to compare with.

    Attributes:
        size: of the batches.
        known: against the source, in distribution.
        shifted: against the source, under shift; as are the others.
        vanilla: against the network that was trained without a signal.
        statistics: against the statistics of as many instances alone.
    """

    size: int | None
    known: Contrast | None
    shifted: Contrast | None
    vanilla: Contrast | None
    statistics: Contrast | None


def defaults(outcome: Outcome) -> list[Default]:
    """The default against all that it should beat, for each batch size."""
    roles, beyond, within = outcome.roles, outcome.beyond(), outcome.within()
    found = []
    for size in outcome.sizes(roles.auto):
        auto: Series = (roles.auto, size)
        found.append(
            Default(
                size,
                contrast(within, auto, _source(outcome)),
                contrast(beyond, auto, _source(outcome)),
                contrast(beyond, auto, (str(roles.vanilla), None)),
                contrast(beyond, auto, (str(roles.statistics), size)),
            )
        )
    return found


def _default(outcome: Outcome) -> Iterator[Finding]:
    """Ours: the default is never worse than doing nothing, and is worth its place."""
    for found in defaults(outcome):
        at = "" if found.size is None else f", batches of {found.size}"
        for where, change in (("under shift", found.shifted), ("known", found.known)):
            claim = f"the default is not worse than source, {where}{at}"
            yield _promise(outcome, claim, change, "kept")
        for name, change in (
            (outcome.roles.vanilla, found.vanilla),
            (outcome.roles.statistics, found.statistics),
        ):
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
