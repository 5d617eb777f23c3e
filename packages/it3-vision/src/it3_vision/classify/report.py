"""The page of a RUN: what corruptions do, what adaptation does about it, and what it costs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from it3_core.report import Page, cards, columns, picture, table, text
from it3_core.tables import label
from it3_vision import reporting
from it3_vision.classify.evaluate import Evaluation, Shifts
from it3_vision.classify.pictures import samples
from it3_vision.classify.runs import Run
from it3_vision.comparing import WITH_GRAPH
from it3_vision.reporting import drawn, find_row

__all__ = ["write_report"]


def write_report(
    run: Run, shifts: Shifts, found: Evaluation, path: str | Path, command: str = ""
) -> Path:
    """Writes the page and returns its path.

    Args:
        run: the trained network.
        shifts: what it was tested on, for the pictures.
        found: its evaluation.
        path: the page.
        command: what made it, for the last section.
    """
    sizes = sorted({r["batch_size"] for r in found.records if r["batch_size"] is not None}) or [1]
    page = Page("Images: classification under corruption", _subtitle(run, found))
    page.section(
        "In short",
        text(*_verdict(run, found, sizes[-1])),
        cards(_cards(found, sizes[-1])),
        text(*_missing(shifts)),
    )
    for severity in found.severities[-1:]:
        page.section(
            f"What adaptation does, severity {severity}",
            table(found.summary(severity), _CAPTION),
            *(drawn(found.folder, f"bars-{size}", f"error by corruption, batches of {size}")
              for size in sizes),
        )  # fmt: skip
        page.section(
            "Corruption by corruption",
            *(table(found.by_corruption(severity, size), f"Error in %, batches of {size}.")
              for size in sizes),
        )  # fmt: skip
    if len(found.severities) > 1:
        bars = drawn(found.folder, "severities", "mean accuracy by severity")
        page.section("By severity", bars)
    page.section("Whom to believe", *_trust(found))
    page.section("What it sees", *_samples(run, shifts, found))
    page.section("Costs", text(*_costs(found)))
    page.section("How each method was run", reporting.settings(found.numbers["settings"]))
    page.section("What tuning chose", reporting.tunings(run))
    held_out = {"held-out error, %": round(100 * run.settings["held_out_error"], 2)}
    page.section("Training", reporting.training(run, held_out))
    told = command or "it3-vision classify evaluate"
    page.section("How this was made", reporting.made(run, found.folder, told))
    return page.write(path)


_CAPTION = (
    "Error in %, lower is better; in brackets 95 % intervals of the paired difference over images. "
    "Cost is CPU time and memory the peak of all tensors, in units of source at this batch size; a "
    "method without a batch size looks at one image at a time."
)


def _subtitle(run: Run, found: Evaluation) -> str:
    network = run.settings["training"]["network"]
    return (
        f"{network['name']}, {network['preset']} preset, {network['norm']} norm, training seed "
        f"{run.seed}; {found.numbers['images']:,} test images, "
        f"{len(found.shifts['corruptions'])} corruptions."
    )


def _missing(shifts: Shifts) -> list[str]:
    said = shifts.unmeasured()
    return [f"{said[0].upper()}{said[1:]}."] if said else []


def _verdict(run: Run, found: Evaluation, size: int) -> list[str]:
    level = f"mean {found.severities[-1]}"
    clean, source = (
        find_row(found.rows, "clean", "source", size),
        find_row(found.rows, level, "source", size),
    )
    auto = find_row(found.rows, level, "IT³ auto", size)
    if clean is None or source is None:
        return [run.tuning(size).reason]
    said = [
        f"The network is wrong on {clean['error']:.1f} % of clean images and on "
        f"{source['error']:.1f} % of corrupted ones (severity {found.severities[-1]})."
    ]
    if auto is not None and run.tuning(size).chosen.method != "Source":
        said.append(
            f"What was chosen on held-out training images changes the latter by "
            f"{auto['difference']:+.1f} points at batches of {size}."
        )
    best = min(
        (row for row in found.rows if row["level"] == level and row["error"] is not None),
        key=lambda row: row["error"],
    )
    said.append(
        f"The lowest error under corruption is that of "
        f"{label(best['method'], best['batch_size'])}: {best['error']:.1f} %."
    )
    return [" ".join(said), run.tuning(size).reason]


def _cards(found: Evaluation, size: int) -> list[tuple[str, str, str]]:
    made = []
    for level, what in (("clean", "clean images"), (f"mean {found.severities[-1]}", "corrupted")):
        source, auto = (find_row(found.rows, level, name, size) for name in ("source", "IT³ auto"))
        if source and auto:
            number = f"{source['error']:.1f} → {auto['error']:.1f} %"
            made.append((what, number, f"error, before → after, batches of {size}"))
    for key, name in (("error", "idempotence error"), ("entropy", "entropy")):
        value = found.numbers["trust"][key]["pearson"]
        if value is not None:
            made.append((f"{name} and accuracy", f"{value:.2f}", "Pearson over batches of 64"))
    return made


def _trust(found: Evaluation) -> list[str]:
    trust = found.numbers["trust"]
    lines = [["measure", "Pearson with accuracy, batches of 64", "Spearman with being wrong",
              "AUROC, wrong against right", "AUROC, corrupted against clean"]]  # fmt: skip
    for key, name in (("error", "idempotence error"), ("entropy", "entropy")):
        values = [trust[key][k] for k in ("pearson", "spearman", "auroc_wrong", "auroc_corrupted")]
        lines.append([name, *("–" if value is None else f"{value:.2f}" for value in values)])
    pictures = [
        drawn(found.folder, f"{key}-against-accuracy", f"{key} against accuracy")
        for key in ("error", "entropy")
        if len(found.numbers["points"]) > 2
    ]
    return [
        text(
            "The gap between the first and the second answer should grow where the network is "
            "wrong. Plain entropy of the first answer costs half as much and is the rival to beat."
        ),
        table(lines),
        text(
            f"At the threshold that flags 5 % of held-out training images, "
            f"{100 * trust['flagged_clean']:.1f} % of the clean test images and "
            f"{100 * trust['flagged_corrupted']:.1f} % of the corrupted ones are flagged."
        ),
        columns(*pictures) if pictures else "",
    ]


def _samples(run: Run, shifts: Shifts, found: Evaluation) -> list[str]:
    lines = [line for line in found.samples if line["row"] < 2][:32]
    if not lines:
        return []
    size = run.prepare.size
    loaded: dict[str, Any] = {}
    for line in lines:
        if line["level"] not in loaded:
            loaded[line["level"]] = shifts.pixels(size, line["level"], 2)
    pixels = [loaded[line["level"]][line["row"]] for line in lines]
    note = (
        "The answer, after → where adaptation changed it; green is right. Below, the share of "
        "training images that are less unusual."
    )
    with warnings.catch_warnings():
        # A class may be called what no font at hand can write: boxes will do.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        return [picture(samples(lines, pixels, run.classes), "sample images with answers", note)]


def _costs(found: Evaluation) -> list[str]:
    graph = found.numbers["memory"].get(WITH_GRAPH)
    return [
        "Cost and memory are columns of the table above.",
        f"A plain forward pass that keeps what a backward pass needs takes {graph} times the "
        f"memory of one that does not: divide by it to compare with the paper's figures, "
        f"whose base is the former.",
    ]
