"""The page of a RUN: data, training, whom to believe, what adaptation does, and what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from it3_aero.learning.evaluate import DPI, Evaluation
from it3_aero.learning.origins import data_section, made_section, training_section
from it3_aero.learning.quadrants import is_right, trust_section
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import WITHIN, Levels
from it3_aero.learning.task import Task
from it3_core import IT3Error
from it3_core.report import Page, cards, picture, table, text
from it3_core.tables import BEYOND, label

__all__ = ["write_report"]


def write_report(
    run: Run, levels: Levels, found: Evaluation, path: str | Path, command: str = ""
) -> Path:
    """Writes the page and returns its path.

    Args:
        run: the trained network.
        levels: the shapes it was trained and tested on.
        found: its evaluation.
        path: the page.
        command: what made it, for the last section.
    """
    if not found.shapes:
        raise IT3Error("the evaluation holds no shape to report on: evaluate again")
    page = Page(run.task.title, _subtitle(run))
    page.section("In short", text(*_verdict(run, found)), cards(_cards(run, found)))
    page.section("Whom to believe", *trust_section(levels, found))
    page.section("What adaptation does", *_adaptation(found))
    page.section(f"Online, on the stream of {_way(run.task)}", *_online(found))
    page.section("Costs", *_costs(found))
    page.section("What tuning chose", *_tuning(run, found))
    page.section("Data", *data_section(run, levels))
    page.section("Training", *training_section(run, found))
    page.section("How this was made", made_section(run, found, command))
    return page.write(path)


def _way(task: Task) -> str:
    return f"{'growing' if task.beyond == 'upper' else 'falling'} {task.quantity}"


def _subtitle(run: Run) -> str:
    solver = run.settings["about"].get("solver", "a solver")
    return (
        f"Idempotent test-time training, {run.settings['preset']} preset, training seed "
        f"{run.seed}; labels by {solver}."
    )


def _row(found: Evaluation, level: str, method: str) -> Mapping[str, Any] | None:
    rows = [row for row in found.rows if row["level"] == level and row["method"] == method]
    return max(rows, key=lambda row: row["batch_size"] or 0) if rows else None


def _beyond(found: Evaluation) -> str:
    """The level that stands for all that is out of distribution."""
    levels = list(dict.fromkeys(row["level"] for row in found.rows))
    return BEYOND if BEYOND in levels else levels[-1]


def _verdict(run: Run, found: Evaluation) -> list[str]:
    task = run.task
    source = _row(found, _beyond(found), "source")
    auto = _row(found, _beyond(found), "IT³ auto")
    within = _row(found, WITHIN, "source")
    if source is None or within is None or auto is None or source["error"] is None:
        return [run.tuning.reason]
    said = (
        f"On shapes like those it was trained on the network is off by "
        f"{task.said(within['error'])} in {task.quantity} on average; on shapes beyond, by "
        f"{task.said(source['error'])}.{_too_few_right(task, found)}"
    )
    if run.tuning.chosen.method == "Source":
        return [said, run.tuning.reason]
    low, high = auto["low"], auto["high"]
    interval = (
        ""
        if low is None or high is None
        else (f" (95 % interval {task.said(low, 1, '+')} to {task.said(high, 1, '+')})")
    )
    return [
        said,
        f"The adaptation that was chosen on held-out training shapes changes the latter by "
        f"{task.said(auto['difference'], 1, '+')}{interval}. {run.tuning.reason}",
    ]


def _too_few_right(task: Task, found: Evaluation) -> str:
    """A warning where the network can't even be believed about what it was trained for."""
    known = [line for line in found.shapes if line["level"] == WITHIN]
    right = sum(is_right(task, line) for line in known)
    if not known or right >= len(known) / 2:
        return ""
    return (
        f" Only {right} of {len(known)} of the former are right, within {task.tolerance:.0%} or "
        f"{task.slack:g}: before anything else, it needs more {task.thing}s to train on."
    )


def _cards(run: Run, found: Evaluation) -> list[tuple[str, str, str]]:
    made, task = [], run.task
    for level, what in ((WITHIN, "error on known shapes"), (_beyond(found), "error beyond")):
        source, auto = _row(found, level, "source"), _row(found, level, "IT³ auto")
        if source and auto and source["error"] is not None and auto["error"] is not None:
            number = f"{task.said(source['error'])} → {task.said(auto['error'])}"
            made.append((what, number, f"mean |error| in {task.quantity}, before → after"))
    numbers = found.numbers
    aurocs = [line["auroc"] for line in numbers if line["auroc"] is not None]
    if aurocs:
        note = "AUROC of the idempotence error, beyond against known"
        made.append(("tells the unknown apart", f"{statistics.fmean(aurocs):.2f}", note))
    ranks = [line["spearman"] for line in numbers if line["spearman"] is not None]
    if ranks:
        note = "Spearman, idempotence error against true error"
        made.append(("foretells mistakes", f"{statistics.fmean(ranks):.2f}", note))
    heard = statistics.fmean(line["sensitivity"] for line in numbers)
    made.append(("listens to its signal", f"{heard:.2f}", "|dF/dy|: 0 deaf, 1 a copy"))
    return made


def _adaptation(found: Evaluation) -> list[str]:
    parts = [
        table(
            found.table(),
            f"Mean absolute error in {found.task.quantity}. “Harm” is the change on known shapes.",
        ),
        picture(
            found.picture("boxes"),
            "box plots of the error by level",
            "Errors by level at the largest batch: the box holds the middle half, the line is the "
            "median, the diamond the mean, whiskers from the 5th to the 95th percentile.",
            dpi=DPI,
        ),
        picture(
            found.picture("differences"),
            "paired differences by level",
            "Change of the error against the same network without adaptation, with 95 % intervals "
            "over seeds and shapes. Below zero is better.",
            dpi=DPI,
        ),
    ]
    return [*parts, _practitioner(found)]


def _practitioner(found: Evaluation) -> str:
    names = {row["method"] for row in found.rows if row["level"] == WITHIN}
    others = {name: why for name, why in found.task.references.items() if name in names}
    if not others:
        return ""
    return text(
        f"{' and '.join(others)}: what a practitioner would ask first. {' '.join(others.values())}"
    )


def _online(found: Evaluation) -> list[str]:
    wanted = ("source", "IT³ paper", "online IT³")
    kept = [row for row in found.rows if row["method"] in wanted]
    levels = list(dict.fromkeys(row["level"] for row in kept))
    series = list(dict.fromkeys((row["method"], row["batch_size"]) for row in kept))
    cells = {(row["level"], row["method"], row["batch_size"]): row for row in kept}
    lines, digits = [["method", *levels]], max(2, found.task.digits + 1)
    for name, size in series:
        errors = [cells.get((level, name, size)) for level in levels]
        lines.append(
            [
                label(name, size),
                *(
                    "" if r is None or r["error"] is None else f"{r['error']:.{digits}f}"
                    for r in errors
                ),
            ]
        )
    return [
        text(
            f"The same levels as one stream, of {_way(found.task)}: online IT³ keeps what it has "
            "learnt from batch to batch and follows a moving average of itself; the others start "
            "anew."
        ),
        table(lines),
    ]


def _costs(found: Evaluation) -> list[str]:
    level = _beyond(found)
    rows = [row for row in found.rows if row["level"] == level and row["cost"] is not None]
    names = list(dict.fromkeys(row["method"] for row in rows))
    sizes: list[int | None] = sorted({row["batch_size"] for row in rows if row["batch_size"]})
    cells = {(row["method"], row["batch_size"]): row["cost"] for row in rows}
    largest = f"any (measured at {sizes[-1]})" if sizes else "any"
    lines = [["method", *(f"batch {size}" for size in sizes), largest]]
    for name in names:
        costs = [cells.get((name, size)) for size in [*sizes, None]]
        lines.append([name, *("" if cost is None else f"{cost:.1f}" for cost in costs)])
    return [
        text(
            "CPU time as a multiple of a plain answer to the same batch. The paper has 3 to 4 for "
            "ActMAD and 4 to 5 for IT³."
        ),
        table(lines),
    ]


def _tuning(run: Run, found: Evaluation) -> list[str]:
    tried = sorted(run.tuning.tried, key=lambda one: -one["gain"])
    if not tried:
        return [text(run.tuning.reason)]
    trials = list(tried[0]["changes"])
    lines = [["candidate", "gain", *trials]]
    for one in tried:
        changes = [f"{100 * one['changes'][trial]:+.1f} %" for trial in trials]
        lines.append([one["candidate"], f"{100 * one['gain']:+.1f} %", *changes])
    chosen = [f"seed {line['seed']}: {line['chosen']}" for line in found.numbers]
    caption = "Change of the error on held-out training shapes: as they are, under shifts, and on "
    return [
        text(run.tuning.reason),
        text(f"Over the training seeds: {'; '.join(chosen)}.") if len(chosen) > 1 else "",
        table(lines, f"{caption}labels that a second network was trained without."),
    ]
