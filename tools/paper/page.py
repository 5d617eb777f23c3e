"""What was found, as one HTML page and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from it3_core.experiment.figures import INK, plain_axes, with_intervals
from it3_core.experiment.page import Page, picture, table
from it3_core.experiment.statistics import summarise
from it3_core.experiment.tables import compact, fixed, label, markdown_table
from it3_core.io.files import write_figure, write_text
from paper.claims import ANSWERS, PAPER, Finding, defaults, findings
from paper.contrasts import Contrast, trust_table
from paper.outcomes import Outcome

_HOW = (
    "A difference is of the same network on the same inputs, instance by instance, over all "
    "training seeds, as a fraction of the other's error; negative is better. In brackets its 95 % "
    "interval over seeds and instances. A claim of the paper is reproduced where that interval "
    "lies below zero, the opposite holds where it lies above, and where it holds zero the claim is "
    "not reproduced. The promises are ours: the default, auto, is the method chosen on validation "
    "data. Uncertainty scores are of the same network on the same inputs, too: the AUROC is the "
    "chance that a shifted instance scores higher than one in distribution."
)

_SHORT = (
    "What the default does in each task: the change of the error, in distribution and under shift, "
    "against doing nothing; and under shift against the network that was trained without a signal "
    "and against batch statistics alone, where there is batch norm. The last column says whether "
    "it beats all of them beyond chance."
)

_COLOURS = ("#2a0845", "#2b90e6", "#f7c325", "#8fd0b8")
PICTURE = "default.png"  # beside `results.md`, which shows it
_ALT = "The default against source, vanilla net and batch statistics, task by task"

_GLANCE = (
    "Does it hold? Each claim of the paper by task, at the largest batch size that it was measured "
    "with, and the figure; the table below has intervals and all batch sizes."
)


def write(
    folder: Path, outcomes: Sequence[Outcome], missing: Mapping[str, str], about: Mapping[str, Any]
) -> tuple[Path, Path]:
    """Write `report.html` and `results.md` with its picture, and return where the two are."""
    found = [finding for outcome in outcomes for finding in findings(outcome)]
    found += [
        Finding(task, PAPER.get(task, ""), "", "not measured", why) for task, why in missing.items()
    ]
    header = ["task", "claim", "measured", "verdict", "note"]
    sections: dict[str, list[str | list[list[str]]]] = {
        "In short": [_SHORT, _short(outcomes)],
        "The paper at a glance": [_GLANCE, _glance(found)],
        "Claim by claim": [_HOW, [header, *(list(astuple(one)) for one in found)]],
    }
    for one in outcomes:
        title = f"{one.task}: {one.about.get('data', '')}"
        sections[title] = [f"The paper: {PAPER[one.task]}.", _about(one), *_lines(one)]
    page = Page("IT³: the paper, measured", ", ".join(f"{k} {v}" for k, v in about.items()))
    text = ["# The paper, measured", "\n".join(f"- {k}: {v}" for k, v in about.items())]
    changes: list[Line] = []
    for one in outcomes:
        changes += [(label(one.task, size), found) for size, found in defaults(one).items()]
    for title, parts in sections.items():
        shown: list[Any] = [part if isinstance(part, str) else table(part) for part in parts]
        lines = [part if isinstance(part, str) else markdown_table(part) for part in parts]
        if title == "In short" and changes:
            write_figure(folder / PICTURE, forest(changes))
            shown.insert(1, picture(forest(changes), _ALT))
            lines.insert(1, f"![{_ALT}]({PICTURE})")
        page.section(title, *shown)
        text += [f"## {title}", *lines]
    results = write_text(folder / "results.md", "\n\n".join(text) + "\n")
    return page.write(folder / "report.html"), results


Line = tuple[str, Mapping[str, Contrast | None]]
"""A task and batch size, and the default's changes, each by what it is against."""


def forest(lines: Sequence[Line]) -> Figure:
    """A row a line, a mark for each change with its interval; left of zero is better."""
    figure, axes = plain_axes(8, 1.6 + 0.42 * len(lines))
    axes.axvline(0, color=INK, linewidth=1)
    names = list(dict.fromkeys(name for _, changes in lines for name in changes))
    for number, name in enumerate(names):
        found = [(row, changes.get(name)) for row, (_, changes) in enumerate(lines)]
        kept = [(row, change.percent) for row, change in found if change is not None]
        places = [row + 0.17 * (number - (len(names) - 1) / 2) for row, _ in kept]
        values = [(one.value, one.low, one.high) for _, one in kept]
        with_intervals(axes, places, values, number, _COLOURS[number % 4], name, sideways=True)
    axes.set_yticks(range(len(lines)), [name for name, _ in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel("change of the error in per cent, with 95 % intervals; left is better")
    axes.grid(axis="x", color="#dddddd")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _short(outcomes: Sequence[Outcome]) -> list[list[str]]:
    lines = [["task", "seeds", "batch", "in distribution, against source",
              "under shift, against source", "against the vanilla net", "against batch statistics",
              "beats all"]]  # fmt: skip
    for outcome in outcomes:
        seeds = len({record["seed"] for record in outcome.records})
        for size, changes in defaults(outcome).items():
            _, *others = changes.values()
            signs = [change.sign for change in others if change is not None]
            beats = "yes" if len(signs) > 1 and set(signs) == {-1} else "no"
            cells = ["" if change is None else str(change) for change in changes.values()]
            lines.append([outcome.task, str(seeds), fixed(size, 0), *cells, beats])
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


def _about(outcome: Outcome) -> str:
    known = ", ".join(f"{name} {value}" for name, value in outcome.about.items() if name != "data")
    return f"{outcome.unit}; {known}."


def _lines(outcome: Outcome) -> list[list[list[str]]]:
    """The main table, and trust where it was measured."""
    main = compact(summarise([*outcome.in_distribution(), *outcome.shifted()]))
    return [main, trust_table(outcome.trust)] if outcome.trust else [main]
