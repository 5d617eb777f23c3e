"""The pictures of an evaluation: bars by corruption, accuracy by severity, whom to believe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from it3_core.plots import error_against_accuracy

if TYPE_CHECKING:
    from it3_vision.classify.evaluate import Evaluation

__all__ = ["bars", "by_severity", "figures", "samples"]

_COLOURS = {
    "source": "#8a93a5",
    "second pass": "#c5cad4",
    "batch statistics": "#0f766e",
    "blended statistics": "#5eaaa2",
    "IT³, source statistics": "#c4b5e8",
    "IT³, batch statistics": "#8b5cf6",
    "IT³ auto": "#4c1d95",
    "online IT³": "#a21caf",
    "ActMAD": "#b7791f",
    "Tent": "#c2410c",
    "Tent, episodic": "#f0a27c",
    "ETA": "#1d4ed8",
    "EATA": "#7aa2f7",
    "MEMO": "#15803d",
    "TTT": "#713f12",
}
_BARS = ("source", "batch statistics", "blended statistics", "TTT", "ActMAD", "Tent",
         "IT³, source statistics", "IT³, batch statistics", "IT³ auto", "online IT³")  # fmt: skip


def figures(found: Evaluation) -> dict[str, Figure]:
    """All pictures that the records allow, by name."""
    sizes = sorted({r["batch_size"] for r in found.records if r["batch_size"] is not None})
    made: dict[str, Figure] = {}
    strongest = found.severities[-1]
    for size in sizes or [1]:
        made[f"bars-{size}"] = bars(found, strongest, size)
    if len(found.severities) > 1:
        made["severities"] = by_severity(found, sizes[-1] if sizes else 1)
    points = found.numbers["points"]
    if len(points) > 2:
        accuracy = [100 * point["accuracy"] for point in points]
        for key, title in (("error", "idempotence error"), ("entropy", "entropy")):
            made[f"{key}-against-accuracy"] = error_against_accuracy(
                [point[key] for point in points],
                accuracy,
                error=f"mean {title} of a batch of 64",
                quality="accuracy, %",
                title=title[0].upper() + title[1:],
            )
    return made


def bars(found: Evaluation, severity: int, batch_size: int) -> Figure:
    """Error under each corruption, a bar a method: the paper's figure on CIFAR-10-C."""
    names = list(found.shifts["corruptions"])
    levels = [*(f"{name} {severity}" for name in names), f"mean {severity}"]
    cells = _cells(found, batch_size)
    methods = [m for m in _BARS if any((m, level) in cells for level in levels)]
    figure = Figure(figsize=(max(7.0, 0.78 * len(levels)), 3.8), layout="constrained")
    axes = figure.add_subplot()
    width = 0.86 / max(1, len(methods))
    places = np.arange(len(levels))
    for number, method in enumerate(methods):
        heights = [cells.get((method, level), {}).get("error") or np.nan for level in levels]
        offset = (number - (len(methods) - 1) / 2) * width
        axes.bar(places + offset, heights, width, label=method, color=_COLOURS.get(method, "#999"))
    labels = [name.replace("_", "\n") for name in names] + ["mean"]
    axes.set_xticks(places, labels, fontsize=8)
    axes.set_ylabel("error, %")
    axes.set_title(f"severity {severity}, batches of {batch_size}", loc="left", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


def by_severity(found: Evaluation, batch_size: int) -> Figure:
    """Mean accuracy over the corruptions at each severity: the paper's figure on ImageNet-C."""
    cells = _cells(found, batch_size)
    severities = found.severities
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    methods = [m for m in _BARS if (m, f"mean {severities[0]}") in cells]
    width = 0.86 / max(1, len(methods))
    for number, method in enumerate(methods):
        errors = [cells.get((method, f"mean {s}"), {}).get("error") for s in severities]
        heights = [np.nan if error is None else 100 - error for error in errors]
        offset = (number - (len(methods) - 1) / 2) * width
        places = np.arange(len(severities)) + offset
        axes.bar(places, heights, width, label=method, color=_COLOURS.get(method, "#999"))
    axes.set_xticks(np.arange(len(severities)), [f"severity {s}" for s in severities])
    axes.set_ylabel("mean accuracy, %")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def samples(
    lines: Sequence[Mapping[str, Any]], pixels: Sequence[Any], classes: Sequence[str]
) -> Figure:
    """Images with the answer before and after, green where it is right."""
    columns = 8
    rows = -(-len(lines) // columns)
    figure = Figure(figsize=(1.35 * columns, 2.15 * rows))
    # A row's last line must not look like the next one's title.
    figure.set_layout_engine("constrained", hspace=0.12)
    for index, (line, image) in enumerate(zip(lines, pixels, strict=True)):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.imshow(image, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        right = line["after"] == line["truth"]
        for spine in axes.spines.values():
            spine.set_color("#0f766e" if right else "#b42318")
            spine.set_linewidth(1.6)
        before, after = (classes[line[key]][:12] for key in ("before", "after"))
        said = before if before == after else f"{before}\n→ {after}"
        axes.set_title(line["level"].replace("_", " "), fontsize=6.5, parse_math=False)
        axes.set_xlabel(f"{said}\n{line['percentile']:.0f} %", fontsize=6.5, parse_math=False)
    return figure


def _cells(found: Evaluation, batch_size: int) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {
        (row["method"], row["level"]): row
        for row in found.rows
        if row["batch_size"] in (None, batch_size)
    }
