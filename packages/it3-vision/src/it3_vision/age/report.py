"""The page of a RUN: what other ages do, what adaptation does about it, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from it3_core.files import write_figure
from it3_core.report import Page, cards, columns, picture, table, text
from it3_core.tables import BEYOND, label
from it3_vision import reporting
from it3_vision.age.evaluate import OLDER, YOUNGER, Evaluation, Levels
from it3_vision.age.pictures import samples
from it3_vision.age.runs import Run
from it3_vision.reporting import drawn, find_row

__all__ = ["write_report"]

_CAPTION = (
    "Mean absolute error in years, lower is better; in brackets 95 % intervals of the paired "
    "difference over faces. Cost is CPU time in units of source at this batch size; a method "
    "without a batch size answers each face alone."
)


def write_report(
    run: Run, levels: Levels, found: Evaluation, path: str | Path, command: str = ""
) -> Path:
    """Writes the page, and the picture of sample faces beside it, and returns its path.

    Args:
        run: the trained network.
        levels: what it was tested on, for the pictures.
        found: its evaluation.
        path: the page.
        command: what made it, for the last section.
    """
    sizes = sorted({r["batch_size"] for r in found.records if r["batch_size"] is not None}) or [1]
    page = Page("Faces: ages outside the trained interval", _subtitle(run, found))
    page.section(
        "In short", text(*_verdict(run, found, sizes[-1])), cards(_cards(found, sizes[-1]))
    )
    page.section(
        "What adaptation does",
        table(found.summary(), _CAPTION),
        drawn(found.folder, "boxes", "error by level and batch size", _BOXES),
        drawn(found.folder, "methods", "error by level and method", _BOXES),
        drawn(found.folder, "differences", "difference to source by level"),
    )
    page.section("Level by level", table(found.by_level(), "Mean absolute error in years."))
    page.section(
        "Whom to believe", *_trust(found), drawn(found.folder, "errors", "idempotence errors")
    )
    sheet = samples(found.samples, _pixels(levels, found))
    write_figure(found.folder / "samples.png", sheet)
    page.section("What it sees", picture(sheet, "sample faces with answers", _SAMPLES))
    memory = [[name, f"{value:.1f}"] for name, value in found.numbers["memory"].items()]
    about = f"Peak memory of a batch of {sizes[-1]}, with the weights, in units of source."
    page.section("Memory", table([["method", "memory"], *memory], about))
    page.section("How each method was run", reporting.settings(found.numbers["settings"]))
    page.section("What tuning chose", reporting.tunings(run))
    page.section("Training", reporting.training(run, _held_out(run)))
    told = command or "it3-vision age evaluate"
    page.section("How this was made", reporting.made(run, found.folder, told))
    return page.write(path)


_BOXES = (
    "A box holds the middle half of the faces, with the median as a line and the mean as a "
    "diamond; whiskers reach from the 5th to the 95th percentile."
)
_SAMPLES = (
    "Above a face its age, below it the answer, after → where adaptation changed it, and the share "
    "of training faces that are less unusual."
)


def _subtitle(run: Run, found: Evaluation) -> str:
    network = run.settings["training"]["network"]
    number = sum(found.numbers["faces"].values())
    return (
        f"{network['preset']} preset, {network['norm']} norm, trained on {run.interval.name} "
        f"years, training seed {run.seed}; {number:,} test faces."
    )


def _verdict(run: Run, found: Evaluation, size: int) -> list[str]:
    within = found.levels[0]
    source, mean = (find_row(found.rows, within, name, size) for name in ("source", "mean age"))
    beyond = find_row(found.rows, BEYOND, "source", size)
    reason = run.tuning(size).reason
    if source is None or beyond is None:
        return [reason]
    said = [
        f"The network is wrong by {source['error']:.1f} years on faces of the trained ages and by "
        f"{beyond['error']:.1f} on younger and older ones."
    ]
    if mean is not None:
        share = 100 * (1 - source["error"] / mean["error"])
        said.append(
            f"To say the mean age of the training faces is wrong by {mean['error']:.1f} years on "
            f"the former: {share:.0f} % of that is gone."
        )
    trained = [
        r for r in found.rows if r["level"] == BEYOND and r["error"] and r["method"] != "mean age"
    ]
    best = min(trained, key=lambda row: float(row["error"]))
    said.append(
        f"The lowest error beyond them is that of {label(best['method'], best['batch_size'])}: "
        f"{best['error']:.1f} years."
    )
    return [" ".join(said), reason]


def _cards(found: Evaluation, size: int) -> list[tuple[str, str, str]]:
    made = []
    for level, what in ((found.levels[0], "trained ages"), (YOUNGER, "younger"), (OLDER, "older")):
        source, auto = (find_row(found.rows, level, name, size) for name in ("source", "IT³ auto"))
        if source and auto:
            number = f"{source['error']:.1f} → {auto['error']:.1f}"
            made.append((what, number, f"years wrong, before → after, batches of {size}"))
    if (auroc := found.numbers["trust"]["auroc"]) is not None:
        made.append(("other ages told apart", f"{auroc:.2f}", "AUROC of the idempotence error"))
    return made


def _trust(found: Evaluation) -> list[str]:
    trust = found.numbers["trust"]

    def told(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    lines = [
        ["Spearman with the mistake, all faces", told(trust["spearman"])],
        ["the same, trained ages", told(trust["spearman_within"])],
        ["AUROC, other ages against trained ones", told(trust["auroc"])],
        ["flagged of the trained ages, %", f"{100 * trust['flagged_within']:.1f}"],
        ["flagged of the others, %", f"{100 * trust['flagged_beyond']:.1f}"],
    ]
    bias = [["level", "answer − age, mean"]]
    bias += [[f"{name} years", f"{value:+.1f}"] for name, value in trust["bias"].items()]
    return [
        text(
            "The gap between the first and the second answer should grow where the network is "
            "wrong. Flagged is what lies above the threshold that 5 % of held-out training faces "
            "lie above."
        ),
        columns(table([["idempotence error", "value"], *lines]), table(bias)),
    ]


def _pixels(levels: Levels, found: Evaluation) -> list[Any]:
    return [levels.parts[line["level"]].image(line["row"]) for line in found.samples]


def _held_out(run: Run) -> Mapping[str, Any]:
    return {
        "held-out error, years": round(run.settings["held_out_error"], 2),
        "the mean age's": round(run.settings["held_out_error_of_the_mean"], 2),
    }
