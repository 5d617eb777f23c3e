"""The paper's figures, from records and summaries. They need matplotlib: `it3-core[plots]`.

Each function returns a `matplotlib.figure.Figure` and, given a path, saves it as what its name ends
in: .png, .svg or .pdf. None of them touches pyplot or the caller's settings. The colours can be
told apart with any kind of colour blindness: greenish is the reference, purples are IT³ with
growing batch size, blue is ActMAD, vermilion is online; the rest come in order.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from it3_core.errors import IT3Error
from it3_core.files import write_figure
from it3_core.metrics import Values, correlation, numbers
from it3_core.records import Record
from it3_core.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["box_by_level", "difference_by_level", "error_against_accuracy", "error_histograms"]

Series = tuple[str, int | None]
"""A method and a batch size: what gets a colour of its own."""

_REFERENCE = "#8fd0b8"
_GREEN = "#4fae90"  # the same, darker, for lines
_PURPLES = ("#2a0845", "#8a2b9c", "#c0a3dc")
_BLUE = "#2b90e6"
_VERMILION = "#d0590a"
_OTHERS = ("#f7c325", "#5f564c", "#004d61", "#ffffff")
_INK = "#222222"
_MARKERS = "osD^vPX<>"


def box_by_level(
    records: Iterable[Record],
    *,
    each: Literal["instance", "seed"] = "instance",
    error: str = "error",
    title: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Box plots of the error by level, one for each method and batch size, as in the paper.

    A box holds the middle half, with the median as a line and the mean as a diamond. Whiskers
    reach from the 5th to the 95th percentile of instances, or to the first and the last seed.

    Args:
        records: of `evaluate`, with the numbers of each instance.
        each: what a box is made of: the errors of each `"instance"`, or the mean error of each
            `"seed"`, which suits errors that are 0 or 1.
        error: the axis' name, with its unit.
        title: of the figure.
        path: where to save it.

    Example:
        >>> from it3_core.plots import box_by_level
        >>> cell = {"seed": 0, "level": "clean", "batch_size": None, "reference": "source", "n": 3}
        >>> figure = box_by_level([cell | {"method": "source", "errors": [1.0, 2.0, 3.0]}])
        >>> figure.axes[0].get_ylabel()
        'error'
    """
    from_cells: dict[tuple[str, Series], list[float]] = {}
    kept = list({_key(record): record for record in records}.values())
    for record in kept:
        if record.get("problem") is not None:
            continue
        values = [record["error"]] if each == "seed" else record.get("errors")
        if values is None:
            raise IT3Error(
                'these records don\'t hold the errors of each instance: give each="seed", or '
                "evaluate with instances=True"
            )
        from_cells.setdefault((record["level"], _series(record)), []).extend(values)
    levels, colours = _levels(kept), _colours(kept)
    figure, axes = _figure(1.2 + len(levels) * (0.3 + 0.14 * len(colours)), title)
    for offset, (series, colour) in _beside(colours):
        places = [i for i, level in enumerate(levels) if (level, series) in from_cells]
        if not places:
            continue
        line = {"color": _INK, "linewidth": 0.8}
        axes.boxplot(
            [from_cells[levels[place], series] for place in places],
            positions=[place + offset for place in places],
            widths=0.72 / len(colours),
            whis=(0, 100) if each == "seed" else (5, 95),
            showfliers=False,
            showmeans=True,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour, "edgecolor": _INK, "linewidth": 0.8},
            medianprops={"color": _contrast(colour), "linewidth": 1.5},
            meanprops={
                "marker": "D",
                "markersize": 3.5,
                "markerfacecolor": "#ffffff",
                "markeredgecolor": _INK,
                "markeredgewidth": 0.7,
            },
            whiskerprops=line,
            capprops=line,
        )
    axes.set_ylabel(error)
    _name_levels(figure, axes, levels)
    _legend(figure, colours)
    return _saved(figure, path)


def difference_by_level(
    rows: Iterable[Row],
    *,
    error: str = "error",
    title: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Paired differences against the reference by level, with intervals; below zero is better.

    Args:
        rows: of `summarise`.
        error: what differs, with its unit.
        title: of the figure.
        path: where to save it.

    Example:
        >>> from it3_core.plots import difference_by_level
        >>> row = {"level": "noise", "method": "IT3", "batch_size": 4, "reference": "source",
        ...        "difference": -0.2, "low": -0.3, "high": -0.1, "confidence": 0.95}
        >>> figure = difference_by_level([row])
        >>> figure.axes[0].get_ylabel()
        'error minus source'
    """
    kept = [row for row in rows if row["method"] != row["reference"]]
    if not kept:
        raise IT3Error("there is no method besides the reference to draw")
    levels, colours = _levels(kept), _colours(kept)
    figure, axes = _figure(1.2 + len(levels) * (0.3 + 0.14 * len(colours)), title)
    axes.axhline(0, color=_INK, linewidth=1)
    for number, (offset, (series, colour)) in enumerate(_beside(colours)):
        own = [r for r in kept if _series(r) == series and r["difference"] is not None]
        whole = [(r["difference"], r["low"], r["high"]) for r in own]
        below = [0.0 if low is None else value - low for value, low, _ in whole]
        above = [0.0 if high is None else high - value for value, _, high in whole]
        axes.errorbar(
            [levels.index(row["level"]) + offset for row in own],
            [row["difference"] for row in own],
            # Rounded values may lie a hair outside of their interval.
            yerr=[[max(0.0, length) for length in below], [max(0.0, length) for length in above]],
            fmt=_MARKERS[number % len(_MARKERS)],
            markersize=5.5,
            markerfacecolor=colour,
            markeredgecolor=_INK,
            markeredgewidth=0.7,
            ecolor="#555555",
            elinewidth=1.0,
            capsize=2,
            label=_label(series),
        )
    axes.set_ylabel(f"{error} minus {kept[0]['reference']}")
    axes.margins(y=0.08)
    _name_levels(figure, axes, levels)
    share = f"{100 * kept[0]['confidence']:g} %"
    axes.set_xlabel(f"below zero is better; bars are {share} intervals", fontsize=9)
    _legend(figure)
    return _saved(figure, path)


def error_histograms(
    before: Values,
    after: Values,
    in_distribution: Values | None = None,
    *,
    error: str = "idempotence error",
    title: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Idempotence errors before and after adaptation, the paper's Figure 2; dashes are medians.

    Args:
        before: of shifted data, before adaptation.
        after: of the same after it.
        in_distribution: of data without a shift.
        error: the axis' name, with its unit.
        title: of the figure.
        path: where to save it.

    Example:
        >>> import torch
        >>> from it3_core.plots import error_histograms
        >>> figure = error_histograms(torch.rand(50) + 1, torch.rand(50))
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['shifted, before', 'shifted, after']
    """
    named = {"shifted, before": (before, _VERMILION), "shifted, after": (after, _PURPLES[1])}
    if in_distribution is not None:
        named = {"in distribution": (in_distribution, _GREEN), **named}
    parts = {name: (_some(values, name), colour) for name, (values, colour) in named.items()}
    edges, scale = _bins([values for values, _ in parts.values()])
    figure, axes = _figure(6.4, title)
    axes.set_xscale(scale)
    for name, (values, colour) in parts.items():
        # What lies outside the axis counts in the bin at its end: nothing is left out.
        inside = values.clamp(edges[0], edges[-1]).tolist()
        weights = [100 / len(inside)] * len(inside)
        axes.hist(
            inside,
            bins=edges,
            weights=weights,
            histtype="stepfilled",
            facecolor=(colour, 0.3),
            edgecolor=colour,
            linewidth=1.4,
            label=name,
        )
        middle = float(values.median())
        axes.axvline(middle, color=colour, linestyle=(0, (4, 2)), linewidth=1.8)
    axes.set_xlabel(error)
    axes.set_ylabel("share of instances, %")
    _legend(figure)
    return _saved(figure, path)


def error_against_accuracy(
    idempotence: Values,
    accuracy: Values,
    *,
    error: str = "idempotence error",
    quality: str = "accuracy",
    title: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Accuracy against idempotence error, a point each, with Pearson's correlation in the title.

    Args:
        idempotence: mean idempotence errors, of batches or levels.
        accuracy: what they are to foretell, of the same.
        error: the horizontal axis' name.
        quality: the vertical axis' name.
        title: what comes before the correlation.
        path: where to save it.

    Example:
        >>> from it3_core.plots import error_against_accuracy
        >>> figure = error_against_accuracy([0.1, 0.2, 0.4], [0.9, 0.8, 0.7])
        >>> figure.axes[0].get_title(loc="left")
        'Pearson −0.98, n = 3'
    """
    pearson = correlation(idempotence, accuracy)
    x, y = _some(idempotence, "idempotence"), _some(accuracy, "accuracy")
    measured = f"Pearson {pearson:.2f}, n = {len(x)}".replace("-", "−")
    figure, axes = _figure(5.4, measured if title is None else f"{title}: {measured}")
    crowded = len(x) > 300
    axes.scatter(
        x.tolist(),
        y.tolist(),
        s=10 if crowded else 30,
        color=_PURPLES[1],
        alpha=0.35 if crowded else 0.75,
        linewidths=0,
    )
    if math.isfinite(pearson):
        slope = float(pearson * y.std() / x.std())
        ends = [float(x.min()), float(x.max())]
        fitted = [float(y.mean()) + slope * (end - float(x.mean())) for end in ends]
        axes.plot(ends, fitted, color=_INK, linewidth=1.4)
    axes.set_xlabel(error)
    axes.set_ylabel(quality)
    return _saved(figure, path)


def _figure(width: float, title: str | None) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise IT3Error('plots need matplotlib: pip install "it3-core[plots]"') from problem
    # Wider than a page is not readable in print, narrower has no room for the legend.
    figure = Figure(figsize=(max(5.0, min(width, 10.0)), 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    return figure, axes


def _saved(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        write_figure(path, figure, dpi=200)
    return figure


def _key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["seed"], record["level"], record["method"], record["batch_size"]


def _series(record: Mapping[str, Any]) -> Series:
    return record["method"], record["batch_size"]


def _label(series: Series) -> str:
    method, batch_size = series
    return method if batch_size is None else f"{method}, batch {batch_size}"


def _levels(records: Sequence[Mapping[str, Any]]) -> list[str]:
    if not records:
        raise IT3Error("there is nothing to draw")
    return list(dict.fromkeys(record["level"] for record in records))


def _colours(records: Sequence[Mapping[str, Any]]) -> dict[Series, str]:
    """A colour for each method and batch size; the reference first, then as they come."""
    reference = records[0]["reference"]
    methods = list(dict.fromkeys([reference, *(record["method"] for record in records)]))
    found = sorted(
        {_series(record) for record in records},
        key=lambda series: (methods.index(series[0]), series[1] or 0),
    )
    kinds = {series: _kind(series[0], reference) for series in found}
    colours: dict[Series, str] = {}
    for kind, shades in _SHADES.items():
        alike = [series for series in found if kinds[series] == kind]
        colours |= zip(alike, _spread(shades, len(alike)), strict=True)
    return {series: colours[series] for series in found}


_SHADES = {
    "reference": (_REFERENCE, "#d5efe6"),
    "online": (_VERMILION, "#f6b98c"),
    "actmad": (_BLUE, "#bfe0fb"),
    "it3": _PURPLES,
    "other": _OTHERS,
}


def _kind(method: str, reference: str) -> str:
    if method == reference:
        return "reference"
    name = method.lower().replace("³", "3")
    return next((kind for kind in ("online", "actmad", "it3") if kind in name), "other")


def _spread(shades: Sequence[str], number: int) -> list[str]:
    """So many colours from a scale: its first ones, or as many between its ends as needed."""
    if number <= len(shades):
        return list(shades[:number])
    mixed = []
    for index in range(number):
        place = index * (len(shades) - 1) / (number - 1)
        low = min(int(place), len(shades) - 2)
        pair = zip(_channels(shades[low]), _channels(shades[low + 1]), strict=True)
        mixed.append("#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pair))
    return mixed


def _channels(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]


def _contrast(colour: str) -> str:
    red, green, blue = _channels(colour)
    return "#ffffff" if 0.3 * red + 0.59 * green + 0.11 * blue < 120 else _INK


def _beside(colours: Mapping[Series, str]) -> list[tuple[float, tuple[Series, str]]]:
    """Where each series stands within a level, symmetric about its tick."""
    step = 0.8 / len(colours)
    middle = (len(colours) - 1) / 2
    return [((index - middle) * step, item) for index, item in enumerate(colours.items())]


def _name_levels(figure: Figure, axes: Axes, levels: Sequence[str]) -> None:
    # About twelve letters fit on an inch; where they don't, the names are turned.
    room = int(figure.get_figwidth() * 10.5 / len(levels))
    texts = [textwrap.fill(level, max(room, 8), break_long_words=False) for level in levels]
    axes.set_xticks(range(len(levels)), texts)
    if max(len(line) for text in texts for line in text.splitlines()) > room:
        axes.set_xticks(range(len(levels)), levels, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.55, len(levels) - 0.45)
    axes.tick_params(axis="x", length=0)
    for place in range(1, len(levels)):
        axes.axvline(place - 0.5, color="#dddddd", linewidth=0.7, zorder=0)


def _legend(figure: Figure, colours: Mapping[Series, str] | None = None) -> None:
    """Above the axes, in as many columns as fit."""
    from matplotlib.patches import Patch

    if colours is None:
        handles, labels = figure.axes[0].get_legend_handles_labels()
    else:
        labels = [_label(series) for series in colours]
        handles = [Patch(facecolor=c, edgecolor=_INK, linewidth=0.8) for c in colours.values()]
    longest = max(len(label) for label in labels)
    most = max(1, int(figure.get_figwidth() / (0.55 + 0.075 * longest)))
    columns = math.ceil(len(labels) / math.ceil(len(labels) / most))  # rows of one length
    figure.legend(
        handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=9
    )


def _some(values: Values, name: str) -> Tensor:
    flat = numbers(values, name)
    if not len(flat):
        raise IT3Error(f"{name!r} holds no value to draw")
    return flat


def _bins(parts: Sequence[Tensor]) -> tuple[list[float], Literal["linear", "log"]]:
    """Edges from the lowest 0.5th to the highest 99.5th percentile of the parts."""
    ordered = [values.sort().values for values in parts]
    low = min(float(values[len(values) // 200]) for values in ordered)
    high = max(float(values[-1 - len(values) // 200]) for values in ordered)
    if high == low:
        low, high = low - 0.5, high + 0.5
    number = max(12, min(40, round(1.5 * min(map(len, parts)) ** 0.5)))
    # Where a part would be squeezed into a corner, bins are spaced by factors.
    if low > 0 and high > 30 * min(float(values.median()) for values in parts):
        return torch.logspace(math.log10(low), math.log10(high), number + 1).tolist(), "log"
    return torch.linspace(min(low, 0.0), high, number + 1).tolist(), "linear"
