"""The paper's figures, drawn from records in the paper's form and, where it names them, colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from it3_core import IT3Error
from it3_core.experiment.figures import INK, plain_axes
from paper.claims import POINTS, actmad_of, pearson, points, split_scores
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
)
from paper.records import Measured

_BATCH = LinearSegmentedColormap.from_list("it3", BATCH_COLOURS)
_BLUES = LinearSegmentedColormap.from_list("actmad", [ACTMAD_BLUE, (0.45, 0.58, 0.95)])
_OTHERS = {"TTT": to_hex(TTT_GREEN), "Tent": "#c2410c", "ETA": "#eab308", "MEMO": "#713f12",
           STATISTICS: "#0f766e", SOURCE: NOT_OPTIMISED}  # fmt: skip
_NAMES = {SOURCE: "not optimised", IT3: "IT³", ON_BATCH: "IT³ on batch statistics", "Tent": "TENT"}
_SEVERITY = ("#1a9850", "#91cf60", "#fee08b", "#fdae61", "#f46d43", "#a50026")
"""Clean, and severities 1 to 5."""
_FEW = 5  # from so many seeds on a box may be of seeds' means


def colour_of(method: str, index: int, number: int) -> str:
    """A method's colour at the index-th of so many batch sizes."""
    part = index / max(1, number - 1)
    if method in (IT3, ON_BATCH):
        return to_hex(_BATCH(part))
    return to_hex(_BLUES(part)) if method.startswith(ACTMAD) else _OTHERS.get(method, "#999999")


def named(method: str, size: int | None) -> str:
    """A method in the figures' words."""
    name = _NAMES.get(method, method)
    return name if size is None else f"{name}, batch={size}"


def boxes(one: Measured) -> Figure:
    """Box plots of the error by level, all batch sizes; on batch statistics too where they count.

    Where levels hold the same instances and seeds are enough, a box is of the seeds' means.
    """
    main = one.part()
    panels = [(IT3, "the trained network's statistics")]
    if main.sizes(ON_BATCH):
        panels.append((ON_BATCH, "the batch's statistics"))
    figure = Figure(figsize=(7.6, 3.6 * len(panels)), layout="constrained")
    for number, (it3, title) in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, number + 1)
        _box_panel(axes, main, [SOURCE, actmad_of(main, it3), "TTT", it3])
        if len(panels) > 1:
            axes.set_title(f"IT³ on {title}", loc="left", fontsize=9)
        axes.set_ylabel(str(one.about[0]["unit"]), fontsize=9)
    return figure


def _box_panel(axes: Any, one: Measured, methods: Sequence[str]) -> None:
    series = [(name, size) for name in methods for size in one.sizes(name)]
    levels = one.levels()
    if not levels or not series:
        raise IT3Error("there is nothing to draw")
    by_seed = one.same and len(one.seeds) >= _FEW
    cells: dict[tuple[str, str, int | None], list[float]] = {}
    for r in one.records:
        if r["errors"]:
            values = [r["error"]] if by_seed else r["errors"]
            cells.setdefault((r["level"], r["method"], r["batch_size"]), []).extend(values)
    handles = []
    for index, (method, size) in enumerate(series):
        sizes = one.sizes(method)
        colour = colour_of(method, sizes.index(size), len(sizes))
        offset = (index - (len(series) - 1) / 2) * 0.84 / len(series)
        places = [n for n, level in enumerate(levels) if (level, method, size) in cells]
        if not places:
            continue
        axes.boxplot(
            [cells[levels[n], method, size] for n in places],
            positions=[n + offset for n in places],
            widths=0.74 / len(series),
            whis=(5, 95),
            showfliers=False,
            showmeans=True,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour, "edgecolor": INK, "linewidth": 0.7},
            medianprops={"color": "#ffffff", "linewidth": 1.3},
            meanprops={"marker": "D", "markersize": 3, "markerfacecolor": "#ffffff",
                       "markeredgecolor": INK, "markeredgewidth": 0.6},
            whiskerprops={"linewidth": 0.7},
            capprops={"linewidth": 0.7},
        )  # fmt: skip
        handles.append(Patch(facecolor=colour, edgecolor=INK, label=named(method, size)))
    axes.set_xticks(range(len(levels)), [level.replace(" by ", "\nby ") for level in levels])
    axes.tick_params(axis="x", length=0, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.legend(handles=handles, fontsize=7, ncols=min(4, len(handles)), frameon=False,
                loc="lower left", bbox_to_anchor=(0, 1.05))  # fmt: skip


def corruption_bars(one: Measured) -> Figure:
    """Test error by corruption at severity 5, as the paper's CIFAR-10-C figure."""
    main = one.part()
    kinds = list(dict.fromkeys(level.rsplit(" ", 1)[0] for level in main.levels()))
    panels = [(IT3, "the trained network's statistics"), (ON_BATCH, "the batch's statistics")]
    panels = [(it3, title) for it3, title in panels if main.sizes(it3)]
    figure = Figure(figsize=(11, 3.3 * len(panels)), layout="constrained")
    for number, (it3, title) in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, number + 1)
        heights: dict[str, tuple[str, list[float | None]]] = {}
        for method in (SOURCE, "TTT", ACTMAD, *((STATISTICS,) if it3 == ON_BATCH else ()), it3):
            some = main if main.sizes(method) else one.part("rotation")
            sizes = some.sizes(method)
            for index, size in enumerate(sizes):
                values = [_mean(some, method, size, f"{kind} 5") for kind in kinds]
                colour = colour_of(method, index, len(sizes))
                heights[named(method, size)] = (colour, [*values, _average(values)])
        _bars(axes, heights, [*(kind.replace("_", "\n") for kind in kinds), "mean"])
        axes.set_ylabel("error, %")
        axes.set_title(f"IT³ on {title}", loc="left", fontsize=9)
    return figure


def severity_bars(one: Measured) -> Figure:
    """Accuracy by severity, each the mean over the corruptions; a panel a batch size."""
    main, slow = one.part(), one.part("slow")
    sizes = [size for size in main.sizes(IT3) if size is not None]
    severities = sorted({int(r["level"].rsplit(" ", 1)[1]) for r in main.records
                         if not r["in_distribution"]})  # fmt: skip
    figure = Figure(figsize=(9, 2.7 * len(sizes)), layout="constrained")
    for number, size in enumerate(sizes):
        axes = figure.add_subplot(len(sizes), 1, number + 1)
        heights: dict[str, tuple[str, list[float | None]]] = {}
        for method in (SOURCE, "Tent", "ETA", "MEMO", ACTMAD, STATISTICS, IT3, ON_BATCH):
            some = main if main.sizes(method) else slow
            own = size if size in some.sizes(method) else None
            values = [_accuracy(some, method, own, one) for one in severities]
            if any(value is not None for value in values):
                index = 0 if method == IT3 else 2
                heights[named(method, None)] = (colour_of(method, index, 3), values)
        _bars(axes, heights, [f"severity {one}" for one in severities], legend=number == 0)
        axes.set_ylabel("accuracy, %")
        axes.set_title(f"batches of {size}", loc="left", fontsize=9)
    return figure


def _accuracy(one: Measured, method: str, size: int | None, severity: int) -> float | None:
    levels = {r["level"] for r in one.records if r["level"].endswith(f" {severity}")}
    found = _average([_mean(one, method, size, level) for level in sorted(levels)])
    return None if found is None else 100 - found


def _mean(one: Measured, method: str, size: int | None, level: str) -> float | None:
    """Over seeds."""
    return _average(
        [
            r["error"]
            for r in one.records
            if (r["method"], r["batch_size"], r["level"]) == (method, size, level)
        ]
    )


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _bars(
    axes: Any,
    heights: dict[str, tuple[str, list[float | None]]],
    names: Sequence[str],
    legend: bool = True,
) -> None:
    thickness = 0.86 / max(1, len(heights))
    places = np.arange(len(names))
    for index, (name, (colour, values)) in enumerate(heights.items()):
        offset = (index - (len(heights) - 1) / 2) * thickness
        known = np.array(values, dtype=float)  # None becomes NaN, which is a gap
        axes.bar(places + offset, known, thickness, label=name, color=colour)
    axes.set_xticks(places, names, fontsize=8)
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    if legend:
        axes.legend(fontsize=7, ncols=6, frameon=False, loc="lower left", bbox_to_anchor=(0, 1.06))


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
            worth = pearson(one, score, size)
            for seed in one.seeds[:1]:
                levels, x, y = points(one, seed, score, size)
                shades = [_SEVERITY[_severity(level)] for level in levels]
                axes.scatter(x, y, s=12, c=shades, linewidths=0.2, edgecolors=INK)
                axes.plot(*_line(x, y), color=INK, linewidth=1)
            axes.set_title(f"batches of {size}: Pearson {worth}", fontsize=8)
            axes.set_xlabel("idempotence error" if score == "idempotence" else score, fontsize=8)
            axes.set_ylabel("accuracy, %", fontsize=8)
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
    there = sorted({_severity(level) for scores in one.scores for level in [scores.level]})
    handles = [Patch(color=_SEVERITY[n], label=f"severity {n}" if n else "clean") for n in there]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def _severity(level: str) -> int:
    end = level.rsplit(" ", 1)[-1]
    return int(end) if end.isdigit() else 0


def _line(x: Any, y: Any) -> tuple[Any, Any]:
    ends = np.array([x.min(), x.max()])
    return ends, np.polyval(np.polyfit(x, y, 1), ends)


def idempotence_histograms(one: Measured) -> Figure:
    """Densities of idempotence errors: training, test, and shifted before and after the step."""
    seed = one.seeds[0]
    training = [s.columns["idempotence"] for s in one.scores
                if s.seed == seed and s.level == "training"]  # fmt: skip
    named_parts = {
        "training": (training, "#9aa3b2"),
        "test, in distribution": (split_scores(one, "inside")[:1], "#4fae90"),
        "OOD, before": (split_scores(one, "shifted")[:1], "#d0590a"),
        "OOD, after": (split_scores(one, "after")[:1], to_hex(BATCH_COLOURS[0])),
    }
    parts = {k: (v[0], colour) for k, (v, colour) in named_parts.items() if v and len(v[0])}
    if not parts:
        raise IT3Error("there are no idempotence errors to draw")
    positive = np.concatenate([np.maximum(v, 1e-6) for v, _ in parts.values()])
    low, high = np.quantile(positive, [0.01, 0.995])
    edges = np.geomspace(max(low, high / 1e4), high, 28)
    figure, axes = plain_axes(6.6, 3.6)
    axes.set_xscale("log")
    for name, (values, colour) in parts.items():
        clipped = np.clip(values, edges[0], edges[-1])
        share = np.full(len(values), 100 / len(values))
        axes.hist(clipped, bins=edges.tolist(), weights=share, histtype="stepfilled",
                  facecolor=(colour, 0.25), edgecolor=colour, linewidth=1.4,
                  label=f"{name}, median {np.median(values):.2g}")  # fmt: skip
        axes.axvline(float(np.median(values)), color=colour, linestyle=(0, (4, 2)), linewidth=1.5)
    axes.set_xlabel("idempotence error |y₁ − y₀|, in training standard deviations")
    axes.set_ylabel("fraction, %")
    axes.legend(fontsize=8, frameon=False)
    return figure
