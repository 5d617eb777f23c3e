"""What was found, as one HTML page and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from it3_core.files import write_figure, write_text
from it3_core.report import Page, picture, table, text
from it3_core.summary import summarise
from it3_core.tables import compact, label, markdown_table
from paper.claims import ANSWERS, PAPER, Finding, defaults, findings
from paper.outcomes import Outcome
from paper.picture import Line, forest
from paper.trust import trust_table

__all__ = ["write"]

_HOW = (
    "A difference is of the same network on the same inputs, instance by instance, over all "
    "training seeds, as a share of the other's error; negative is better. In brackets its 95 % "
    "interval over seeds and instances. A claim of the paper is reproduced where that interval "
    "lies below zero, the opposite holds where it lies above, and where it holds zero the claim is "
    "not reproduced. The promises are ours: the default, auto, is what held-out training data "
    "chose. Scores of trust are of the same network on the same inputs, too: the AUROC is the "
    "chance that a shifted instance scores higher than a known one; dropout is put before the last "
    "layer of networks that have none of their own."
)

_SHORT = (
    "What the default does in each task: the change of the error, in distribution and under shift, "
    "against doing nothing; and under shift against the network that was trained without a signal "
    "and against batch statistics alone, where there is batch norm. The last column says whether "
    "it beats all of them beyond chance."
)


PICTURE = "default.png"
"""The file beside `results.md` that it shows."""

_ALT = "The default against source, vanilla net and batch statistics, task by task"

_GLANCE = (
    "Does it hold? Each claim of the paper by task, at the largest batch size that it was measured "
    "with, and the figure; the table below has intervals and all batch sizes."
)


def write(
    folder: Path,
    outcomes: Sequence[Outcome],
    missing: Mapping[str, str],
    about: Mapping[str, Any],
) -> tuple[Path, Path]:
    """Write `report.html` and `results.md` with its picture, and return where the two are.

    Args:
        folder: to write into.
        outcomes: what was measured.
        missing: tasks that were not measured, and why not.
        about: command, commit, machine and the like.
    """
    found = [finding for outcome in outcomes for finding in findings(outcome)]
    found += [
        Finding(task, PAPER.get(task, ""), "", "not measured", why) for task, why in missing.items()
    ]
    claims = _claims(found)
    page = Page("IT³: the paper, measured", ", ".join(f"{k} {v}" for k, v in about.items()))
    changes, shown, linked = _changes(outcomes), [], []
    if changes:
        write_figure(folder / PICTURE, forest(changes))
        shown, linked = [picture(forest(changes), _ALT)], [f"![{_ALT}]({PICTURE})"]
    page.section("In short", text(_SHORT), *shown, table(_short(outcomes)))
    page.section("The paper at a glance", text(_GLANCE), table(_glance(found)))
    page.section("Claim by claim", text(_HOW), table(claims))
    for one in outcomes:
        page.section(_title(one), _facts(one), *_tables(one))
    html = page.write(folder / "report.html")
    parts = [
        "# The paper, measured",
        "\n".join(f"- {name}: {value}" for name, value in about.items()),
        _HOW,
        "## In short",
        _SHORT,
        *linked,
        markdown_table(_short(outcomes)),
        "## The paper at a glance",
        _GLANCE,
        markdown_table(_glance(found)),
        "## Claim by claim",
        markdown_table(claims),
    ]
    for one in outcomes:
        parts += [f"## {_title(one)}", f"The paper: {PAPER[one.task]}.", _about(one)]
        parts += [markdown_table(lines) for lines in _lines(one)]
    results = folder / "results.md"
    write_text(results, "\n\n".join(parts) + "\n")
    return html, results


def _short(outcomes: Sequence[Outcome]) -> list[list[str]]:
    lines = [["task", "seeds", "batch", "known", "under shift", "against the vanilla net",
              "against batch statistics", "beats all"]]  # fmt: skip
    for outcome in outcomes:
        seeds = len({record["seed"] for record in outcome.records})
        for one in defaults(outcome):
            changes = [one.known, one.shifted, one.vanilla, one.statistics]
            rivals = [change for change in changes[1:] if change is not None]
            beats = len(rivals) > 1 and all(change.sign < 0 for change in rivals)
            told = ["" if change is None else str(change) for change in changes]
            size = "" if one.size is None else str(one.size)
            lines.append([outcome.task, str(seeds), size, *told, "yes" if beats else "no"])
    return lines


def _changes(outcomes: Sequence[Outcome]) -> list[Line]:
    """What the table in short has, to be drawn."""
    lines: list[Line] = []
    for outcome in outcomes:
        for one in defaults(outcome):
            named = {
                "under shift, against source": one.shifted,
                "against the vanilla net": one.vanilla,
                "against batch statistics": one.statistics,
                "on known data, against source": one.known,
            }
            told = {name: None if change is None else change.percent
                    for name, change in named.items()}  # fmt: skip
            lines.append((label(outcome.task, one.size), told))
    return lines


def _glance(found: Sequence[Finding]) -> list[list[str]]:
    """A line a claim of the paper, a column a task."""
    asked = [one for one in found if one.verdict in ANSWERS]
    tasks = list(dict.fromkeys(one.task for one in asked))
    cells: dict[str, dict[str, str]] = {}
    for one in asked:  # the largest batch size comes last
        figure = one.measured.partition(" (")[0]
        cells.setdefault(one.kind, {})[one.task] = f"{ANSWERS[one.verdict]}, {figure}"
    lines = [[kind, *(by.get(task, "") for task in tasks)] for kind, by in cells.items()]
    return [["claim", *tasks], *lines]


def _claims(found: Sequence[Finding]) -> list[list[str]]:
    header = ["task", "claim", "measured", "verdict", "and"]
    return [header, *([f.task, f.claim, f.measured, f.verdict, f.why] for f in found)]


def _title(outcome: Outcome) -> str:
    return f"{outcome.task}: {outcome.about.get('data', '')}"


def _about(outcome: Outcome) -> str:
    told = ", ".join(f"{name} {value}" for name, value in outcome.about.items() if name != "data")
    return f"{outcome.unit}; {told}."


def _facts(outcome: Outcome) -> str:
    return text(f"The paper: {PAPER[outcome.task]}.", _about(outcome))


def _tables(outcome: Outcome) -> list[str]:
    return [table(lines) for lines in _lines(outcome)]


def _lines(outcome: Outcome) -> list[list[list[str]]]:
    """The main table, and trust where it was measured."""
    records = [*outcome.within(), *outcome.beyond()]
    main = compact(summarise(records))
    return [main, trust_table(outcome.trust)] if outcome.trust else [main]
