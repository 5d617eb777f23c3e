"""`report`: the page of an evaluation, from its folder alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from it3_core.experiment.figures import plain_axes
from it3_core.experiment.lines import AUTO, gain_of, units
from it3_core.experiment.page import Page, Part, columns, facts, picture, table
from it3_core.experiment.statistics import Row, plain_rows
from it3_core.experiment.summary import NetworkSummary, Summary
from it3_core.experiment.tables import by_level, change_cell, error_cell, fixed, interval
from it3_core.experiment.types import Evaluation, Quantity
from it3_core.io.files import FilePath
from it3_core.methods.paper import PaperStep
from it3_core.trust.candidates import Tuning

ADAPTATION = "What adaptation does"
"""The section of the pictures that say so; all others stand with the uncertainty scores."""

_KINDS = {"source": "each batch", "batch": "each batch, batch statistics", "online": "online"}
_PAPER = (
    "What the paper leaves open, chosen without labels where none is given: what lowers the "
    "idempotence error most on shifted validation inputs."
)

_BOUND = (
    "Where the gate is shut, answers are the source's to the bit. In distribution, on average over "
    "the rows that set the threshold, the mean absolute error rises by at most the last column, or "
    "so large a share of classes or maps changes; under shift nothing is guaranteed."
)

_DPI = 160  # of the pictures, as `OutputFolder.write_figure` writes them


def report(evaluation: Evaluation, path: FilePath) -> Path:
    """Writes the HTML page; every number, sentence and picture is from the evaluation's folder."""
    summary, unit = evaluation.summary, Quantity(*evaluation.summary["columns"][0])
    page = Page(summary["title"])
    page.section("Result", *_result(evaluation, unit))
    page.section("Chosen methods", *_tuning(summary))
    page.section(ADAPTATION, *_adaptation(evaluation, unit))
    page.section("How far to believe it", *_believed(evaluation, unit))
    page.section("Uncertainty scores", *_scores(evaluation))
    page.section("Training", *map(_training, summary["networks"]))
    page.section("Data", facts(summary["provenance"]))
    page.section("Settings", facts(summary["settings"]))
    command = {"command": summary["command"], "folder": str(evaluation.folder)}
    page.section("How to make this page again", facts(command))
    return page.write(path)


def _before_and_after(evaluation: Evaluation) -> Iterator[tuple[str, Row, Row | None]]:
    """Of each headline level the source's row and the chosen method's at the largest batch."""
    for level in _levels(evaluation.summary):
        found = {
            row["method"]: row
            for row in sorted(evaluation.rows, key=lambda row: row["batch_size"] or 0)
            if row["level"] == level and row["error"] is not None
        }
        if "source" in found:
            yield level, found["source"], found.get(AUTO.name)


def _levels(summary: Summary) -> list[str]:
    return [summary["in_distribution"], *summary["headline"]]


def _result(evaluation: Evaluation, unit: Quantity) -> Iterator[Part]:
    """What was compared, and what came out."""
    summary, rows = evaluation.summary, evaluation.rows
    networks = summary["networks"]
    sizes = sorted({row["batch_size"] for row in rows if row["batch_size"]})
    levels = {record["level"]: record["n"] for record in evaluation.records}
    seeds = ", ".join(str(one["seed"]) for one in networks)
    yield (
        f"Compared: {len(summary['methods'])} methods on {sum(levels.values())} {summary['noun']}s "
        f"of {len(levels)} level{'s' * (len(levels) > 1)}"
        + (f", in batches of {', '.join(map(str, sizes))}" if sizes else "")
        + f", with {len(networks)} trained network{'s' * (len(networks) > 1)} of "
        f"{networks[0]['parameters']:,} parameters (seed {seeds})."
    )
    for level, source, auto in _before_and_after(evaluation):
        inside = level == summary["in_distribution"] and "distribution" not in level
        text = f"{level[:1].upper()}{level[1:]}{' (in distribution)' * inside}: the mean "
        text += f"{unit.name} is {source['error']:.{unit.digits}f}{unit.unit and f' {unit.unit}'}"
        text += " without adaptation"
        if auto is not None and auto["difference"] == auto["low"] == auto["high"] == 0:
            text += "; the chosen method does not change it"
        elif auto is not None and auto["difference"] is not None:
            change = interval(auto["difference"], auto["low"], auto["high"], unit.digits)
            text += f"; the chosen method changes it by {change}"
        yield f"{text}."
    for name, tuning in networks[0]["tunings"].items():
        yield f"For {units(name)}: {tuning['reason']}"
    yield from summary["notes"]


def _tuning(summary: Summary) -> Iterator[Part]:
    """The chosen methods with their settings, and of the first network all that was tried."""
    lines = [["seed", "gate of", "chosen method", "where this score is high", "cap", "at most"]]
    for network in summary["networks"]:
        for name, stored in network["tunings"].items():
            one = Tuning.from_description(stored)
            bound = f"{100 * one.max_harm:g} %" if one.gate else ""
            gate = [str(one.opens), f"{one.cap:g}", bound] if one.gate else ["", "", ""]
            lines.append([str(network["seed"]), units(name), str(one.chosen), *gate])
    if len(lines) > 1:
        yield table(lines, _BOUND)
    lines = [["seed", "paper's IT³", "steps", "learning rate", "idempotence error, after / before"]]
    for network in summary["networks"]:
        for kind, stored in network["paper"].items():
            step = PaperStep(stored["steps"], stored["lr"], tuple(map(tuple, stored["tried"])))
            numbers = [str(step.steps), f"{step.lr:g}", fixed(step.ratio, 3, "as given")]
            lines.append([str(network["seed"]), _KINDS.get(kind, kind), *numbers])
    if len(lines) > 1:
        yield table(lines, _PAPER)
    for name, tuning in summary["networks"][0]["tunings"].items():
        tried = sorted(tuning["tried"], key=gain_of, reverse=True)
        if not tried:
            continue
        trials = list(tried[0]["changes"])
        lines = [["method", "score of the gate", "cap", "gain", *trials]]
        for one in tried:
            values = [one["gain"], *(one["changes"].get(trial) for trial in trials)]
            cells = ["failed" if value is None else f"{100 * value:+.1f} %" for value in values]
            lines.append([one["candidate"], one["score"], f"{one['cap']:g}", *cells])
        yield table(lines, f"Change of the error on the rows that choose, {units(name)}.")


def _adaptation(evaluation: Evaluation, unit: Quantity) -> Iterator[Part]:
    summary, rows = evaluation.summary, evaluation.rows
    levels, digits = _levels(summary), unit.digits

    def more(found: list[Row | None]) -> list[str]:
        row = found[0]
        cells = [change_cell(row, digits) for row in (*found[1:], row)]
        cells.append(fixed(row["cost"] if row else None))
        if summary["memory"]:
            shown = row is not None and row["batch_size"] in (None, largest)
            cells.append(fixed(summary["memory"].get(row["method"]) if row and shown else None))
        return cells

    largest = max((row["batch_size"] or 0 for row in rows), default=0)
    titles = [f"{level}, against source" for level in summary["headline"]]
    titles += ["harm", "cost", *(["memory"] if summary["memory"] else [])]
    head = ["method", "batch", *levels, *titles]
    some = [row for row in rows if row["level"] in levels]
    lines = by_level(some, levels, lambda row: error_cell(row, digits), more)
    of = f" in {unit.unit}" if unit.unit else ""
    caption = (
        f"Mean {unit.name}{of}. Harm is the change in distribution. Cost is CPU time as a multiple "
        "of the source's on the same batch (the paper has 3 to 4.5 for ActMAD and 4 to 6 for IT³), "
        "memory the peak at the largest batch as a multiple of the source's."
    )
    yield table([head, *lines], caption)
    each = list(dict.fromkeys(row["level"] for row in rows))
    if len(each) > len(levels):
        every = by_level(rows, each, lambda row: error_cell(row, digits))
        yield table([["method", "batch", *each], *every], "The same for each level.")
    if further := [Quantity(*column) for column in summary["columns"][1:]]:
        yield from _further(evaluation, further)
    yield from _pictures(evaluation, adaptation=True)
    notes = [[name, why] for name, why in summary["methods"].items() if why]
    if notes:
        yield table([["method", "note"], *notes])


def _further(evaluation: Evaluation, wanted: Sequence[Quantity]) -> Iterator[Part]:
    """Tables of the other columns: means over seeds."""
    keys = ["method", "batch_size", "level"]
    means = [
        {key: record[key] for key in keys} | record["means"]
        for record in evaluation.records
        if record.get("means")
    ]
    if not means:
        return
    found = pd.DataFrame(means).groupby(keys, sort=False, dropna=False).mean().reset_index()
    levels = list(found["level"].unique())
    for one in wanted:
        rows = plain_rows(found.rename(columns={one.name: "error"}))
        lines = by_level(rows, levels, partial(error_cell, digits=one.digits))
        caption = f"Mean {one.name}{one.unit and f' in {one.unit}'}."
        yield table([["method", "batch", *levels], *lines], caption)


def _believed(evaluation: Evaluation, unit: Quantity) -> Iterator[Part]:
    """Coverage and width level by level, the flagged, and who is left when the doubtful go."""
    answers = evaluation.answers
    if "flagged" not in answers:
        return
    yield (
        f"Intervals and sets are made for a coverage of 90 %: guaranteed on average over the draw "
        f"of {evaluation.summary['in_distribution']} rows, measured elsewhere. A row is flagged "
        f"when its score is above that of 95 % of calibration rows."
    )
    means = by_level_means(answers)
    shown = [name for name in _COLUMNS if name in means]
    lines = [[str(level), *(fixed(row[name], 3, "") for name in shown)]
             for level, row in zip(means.index, plain_rows(means), strict=True)]  # fmt: skip
    yield table([["level", *(_COLUMNS[name] for name in shown)], *lines])
    if answers["percentile"].isna().all():
        return
    figure, axes = plain_axes(5.0, 3.2)
    for level, some in answers.groupby("level", sort=False):
        error = some.sort_values("percentile", kind="stable")["error"].expanding().mean()
        axes.plot([100 * (n + 1) / len(error) for n in range(len(error))], error, label=str(level))
    axes.set_xlabel("answered, the least doubtful first, %")
    axes.set_ylabel(f"mean {unit.name}{unit.unit and f', {unit.unit}'}")
    axes.legend(frameon=False, fontsize=8)
    yield picture(figure, "risk-coverage curve: the mean error of the least doubtful")


_COLUMNS = {
    "covered": "coverage", "width": "mean width", "interval_score": "interval score",
    "set_size": "classes in a set", "flagged": "flagged", "adapted": "adapted",
    "flagged_error": "error of the flagged", "usual_error": "error of the others",
}  # fmt: skip


def by_level_means(answers: pd.DataFrame) -> pd.DataFrame:
    """Of each level what intervals, sets and flags are worth; in the order of the levels."""
    found = answers[["level"]].copy()
    if {"lower", "upper", "truth"} <= set(answers):
        low, high, truth = (answers[name].astype(float) for name in ("lower", "upper", "truth"))
        found["covered"] = ((low <= truth) & (truth <= high)).astype(float)
        found["width"] = high - low
        outside = (low - truth).clip(lower=0) + (truth - high).clip(lower=0)
        found["interval_score"] = found["width"] + 2 / (1 - 0.9) * outside
    elif "prediction_set" in answers:
        pairs = zip(answers["prediction_set"], answers["truth"], strict=True)
        found["covered"] = [float(inside[int(truth)]) for inside, truth in pairs]
        found["set_size"] = [float(sum(inside)) for inside in answers["prediction_set"]]
    flagged = answers["flagged"].astype(bool)
    for name in ("flagged", "adapted"):
        if name in answers:
            found[name] = answers[name].astype(float)
    found["flagged_error"] = answers["error"].astype(float).where(flagged)
    found["usual_error"] = answers["error"].astype(float).where(~flagged)
    means: pd.DataFrame = found.groupby("level", sort=False).mean()
    return means


def _scores(evaluation: Evaluation) -> Iterator[Part]:
    keys = {
        "auroc_wrong": "finds wrong predictions",
        "auroc_shifted": "finds shifted inputs",
        "spearman": "Spearman",
        "pearson": "Pearson of batches",
    }
    scores = pd.DataFrame(evaluation.summary["scores"]).astype(dict.fromkeys(keys, float))
    means = plain_rows(scores.groupby("score", sort=False)[list(keys)].mean().reset_index())
    lines = [[one["score"], *(fixed(one[key], 2) for key in keys)] for one in means]
    yield (
        "The first two columns are AUROCs: 1 is perfect, 0.5 is chance. The others are "
        "correlations with the error, of single instances and of means over batches of 64."
    )
    yield table([["score", *keys.values()], *lines])
    yield columns(*_pictures(evaluation, adaptation=False))


def _pictures(evaluation: Evaluation, *, adaptation: bool) -> Iterator[Part]:
    for name, section, alt, caption in evaluation.summary["pictures"]:
        path = evaluation.folder / f"{name}.png"
        if (section == ADAPTATION) == adaptation and path.is_file():
            yield picture(path.read_bytes(), alt, caption, dpi=_DPI)


def _training(network: NetworkSummary) -> Part:
    """How training went, for one seed."""
    history, measured = network["history"], network["measured"]
    figure, axes = plain_axes(5.0, 3.2)
    epochs = range(1, len(history["train"]) + 1)
    axes.plot(epochs, history["train"], color="#9aa3b2", label="training, both passes")
    if history["validation"]:
        axes.plot(epochs, history["validation"], color="#5b2a9d", label="validation, first pass")
    axes.axvline(history["best_epoch"], color="#5b2a9d", linewidth=0.8, linestyle=":")
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    axes.legend(frameon=False, fontsize=8)
    course = {
        "seed": network["seed"],
        "epochs": f"{len(history['train'])}, best {history['best_epoch']}",
        "seconds": history["seconds"],
        **{k.replace("_", " "): v for k, v in measured.items() if v not in ([], {}, None)},
    }
    return columns(facts(course), picture(figure, "training curve"))
