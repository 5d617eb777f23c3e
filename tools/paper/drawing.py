"""The paper's figures, drawn from records in the paper's form and, where it names them, colours."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from it3_core import IT3Error
from it3_core.experiment.figures import (
    INK,
    Series,
    box_by_level,
    draw_bars,
    error_histograms,
    make_plain,
)
from paper.claims import POINTS, actmad_of, pearson, points, split_scores
from paper.intervals import ENOUGH
from paper.numbers import (
    ACTMAD,
    ACTMAD_BLUE,
    BATCH_COLOURS,
    IT3,
    NOT_OPTIMISED,
    ON_BATCH,
    SOURCE,
    STATISTICS,
    TTT_GREEN,
)  # fmt: skip
from paper.records import Measured

_BATCH = LinearSegmentedColormap.from_list("it3", BATCH_COLOURS)
_ON_BATCH = LinearSegmentedColormap.from_list("on batch", ["#a3195b", "#e79fc4"])
_BLUES = LinearSegmentedColormap.from_list("actmad", [ACTMAD_BLUE, (0.45, 0.58, 0.95)])
_GREENS = LinearSegmentedColormap.from_list("statistics", ["#0f766e", "#9bd8cc"])
_OTHERS = {"TTT": to_hex(TTT_GREEN), "Tent": "#c2410c", "ETA": "#eab308", "MEMO": "#713f12",
           SOURCE: NOT_OPTIMISED}  # fmt: skip
_NAMES = {SOURCE: "not optimised", IT3: "IT³", ON_BATCH: "IT³ on batch statistics", "Tent": "TENT"}
_SEVERITY = ("#1a9850", "#91cf60", "#fee08b", "#fdae61", "#f46d43", "#a50026")
"""Clean, and severities 1 to 5."""


def colour_of(method: str, index: int, number: int) -> str:
    """A method's colour at the index-th of so many batch sizes."""
    part = index / max(1, number - 1)
    if method in (IT3, ON_BATCH):
        return to_hex((_BATCH if method == IT3 else _ON_BATCH)(part))
    if method == STATISTICS:
        return to_hex(_GREENS(part))
    return to_hex(_BLUES(part)) if method.startswith(ACTMAD) else _OTHERS.get(method, "#999999")


def named(method: str, size: int | None) -> str:
    """A method in the figures' words."""
    name = _NAMES.get(method, method)
    return name if size is None else f"{name}, batch={size}"


def boxes(one: Measured) -> Figure:
    """Box plots of the error by level at all batch sizes; on batch statistics too, if there are."""
    main = one.part()
    colours: dict[Series, str] = {
        (named(method, size), None): colour_of(method, index, len(sizes))
        for method in (SOURCE, actmad_of(main, IT3), "TTT", IT3, ON_BATCH)
        for sizes in [main.sizes(method)]
        for index, size in enumerate(sizes)
    }
    levels, kept = main.levels(), []
    for r in main.records:
        name = named(r["method"], r["batch_size"])
        if (name, None) in colours and r["level"] in levels:
            kept.append({**r, "method": name, "batch_size": None})
    each: Literal["seed", "instance"] = "seed" if _is_of_seeds(one) else "instance"
    return box_by_level(kept, each=each, error=str(one.about[0]["unit"]), colours=colours)


def box_caption(one: Measured) -> str:
    """What a box holds."""
    what, ends = "instances of all seeds", "the 5th to the 95th percentile"
    if _is_of_seeds(one):
        what, ends = f"{len(one.seeds)} seeds, each its mean error", "the smallest to the largest"
    return f"A box is the middle half of the {what}; line: median; diamond: mean; whiskers: {ends}."


def _is_of_seeds(one: Measured) -> bool:
    """Where levels hold the same instances and seeds are enough, a box is of the seeds' means."""
    return one.same and len(one.seeds) >= ENOUGH


def corruption_bars(one: Measured) -> Figure:
    """Test error by corruption at severity 5, as the paper's CIFAR-10-C figure."""
    main = one.part()
    kinds = list(dict.fromkeys(level.rsplit(" ", 1)[0] for level in main.levels()))
    panels = [(IT3, "the trained network's statistics"), (ON_BATCH, "the batch's statistics")]
    panels = [(it3, title) for it3, title in panels if main.sizes(it3)]
    figure = Figure(figsize=(11, 3.3 * len(panels)), layout="constrained")
    for number, (it3, title) in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, number + 1)
        heights, colours = {}, {}
        others = ("TTT", actmad_of(main, it3), *((STATISTICS,) if it3 == ON_BATCH else ()))
        for method in (SOURCE, *others, it3):
            some = one.having(method)
            sizes = some.sizes(method)
            for index, size in enumerate(sizes):
                values = [_mean(some, method, size, f"{kind} 5") for kind in kinds]
                heights[named(method, size)] = [*values, _average(values)]
                colours[named(method, size)] = colour_of(method, index, len(sizes))
        shown = [*(kind.replace("_", "\n") for kind in kinds), "mean"]
        draw_bars(axes, heights, shown, quantity="error, %", colours=colours)
        _finish(axes, f"IT³ on {title}")
    return figure


def severity_bars(one: Measured) -> Figure:
    """Accuracy by severity, each the mean over the corruptions; a panel a batch size."""
    main = one.part()
    sizes = [size for size in main.sizes(IT3) if size is not None]
    severities = sorted({_severity(r["level"]) for r in main.records} - {0})
    figure = Figure(figsize=(9, 2.7 * len(sizes)), layout="constrained")
    drawn: dict[str, Any] = {}  # in all panels: some methods need more than one image
    for number, size in enumerate(sizes):
        axes = figure.add_subplot(len(sizes), 1, number + 1)
        heights, colours = {}, {}
        others = ("Tent", "ETA", "MEMO", ACTMAD, f"{ACTMAD}, source statistics", STATISTICS)
        for method in (SOURCE, *others, IT3, ON_BATCH):
            some = one.having(method)
            own = size if size in some.sizes(method) else None
            errors = [_mean(some, method, own, f" {grade}") for grade in severities]
            if any(error is not None for error in errors):
                values = [None if error is None else 100 - error for error in errors]
                heights[named(method, None)] = values
                colours[named(method, None)] = colour_of(method, "source stat" in method, 2)
        shown = [f"severity {grade}" for grade in severities]
        draw_bars(axes, heights, shown, quantity="accuracy, %", colours=colours)
        _finish(axes, f"batches of {size}", legend=False)
        bars, names = axes.get_legend_handles_labels()
        drawn |= dict(zip(names, bars, strict=True))
    where: dict[str, Any] = {"loc": "outside upper left", "ncols": 4, "frameon": False}
    figure.legend(list(drawn.values()), list(drawn), fontsize=7, **where)
    return figure


def _mean(one: Measured, method: str, size: int | None, level: str) -> float | None:
    """Over seeds, and over all levels that end so: one level, or all at a severity."""
    some = [r for r in one.records if (r["method"], r["batch_size"]) == (method, size)]
    return _average(r["error"] for r in some if r["level"].endswith(level))


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _finish(axes: Axes, title: str, legend: bool = True) -> None:
    make_plain(axes)
    axes.set_title(title, loc="left", fontsize=9)
    if legend:
        axes.legend(fontsize=7, ncols=4, frameon=False, loc="lower left", bbox_to_anchor=(0, 1.06))


def accuracy_against_scores(one: Measured) -> Figure:
    """A point a batch, coloured by its corruption level; the idempotence error above entropy."""
    sizes = [size for size in POINTS if len(points(one, one.seeds[0], "idempotence", size)[0]) > 2]
    if not sizes:
        raise IT3Error("there are no whole batches to draw")
    known = {name for scores in one.scores for name in scores.columns}
    rows = [name for name in ("idempotence", "entropy") if name in known]
    figure = Figure(figsize=(3.4 * len(sizes) + 1, 3.1 * len(rows)), layout="constrained")
    for row, score in enumerate(rows):
        for column, size in enumerate(sizes):
            axes = figure.add_subplot(len(rows), len(sizes), row * len(sizes) + column + 1)
            estimate = pearson(one, score, size)
            levels, x, y = points(one, one.seeds[0], score, size)
            shades = [_SEVERITY[_severity(level)] for level in levels]
            axes.scatter(x, y, s=12, c=shades, linewidths=0.2, edgecolors=INK)
            ends = np.array([x.min(), x.max()])
            axes.plot(ends, np.polyval(np.polyfit(x, y, 1), ends), color=INK, linewidth=1)
            axes.set_title(f"batches of {size}: Pearson {estimate or '–'}", fontsize=8)
            axes.set_xlabel("idempotence error" if score == "idempotence" else score, fontsize=8)
            axes.set_ylabel("accuracy, %", fontsize=8)
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
    there = sorted({_severity(scores.level) for scores in one.scores})
    handles = [Patch(color=_SEVERITY[n], label=f"severity {n}" if n else "clean") for n in there]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def _severity(level: str) -> int:
    end = level.rsplit(" ", 1)[-1]
    return int(end) if end.isdigit() else 0


def idempotence_histograms(one: Measured) -> Figure:
    """Idempotence errors of training and test inputs, and of shifted ones before and after."""
    inside, before, after = (split_scores(one, what) for what in ("inside", "shifted", "after"))
    training = [s.columns["idempotence"] for s in one.scores if s.level == "training"]
    if not inside or not before or not after:
        raise IT3Error("there are no idempotence errors to draw")
    return error_histograms(
        *(before[0], after[0], inside[0]),
        training=training[0] if training else (),
        error="idempotence error |y₁ − y₀|, in training standard deviations",
    )
