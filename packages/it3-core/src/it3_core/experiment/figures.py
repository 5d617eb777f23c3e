"""The paper's figures, from records and summary rows, as `matplotlib.figure.Figure`.

`error` and `quantity` name the axis, with its unit. None of them touches pyplot or the caller's
settings. The colours suit any kind of colour blindness: green is the reference, purples are IT³
with growing batch size, blue is ActMAD, vermilion is online; the rest come in order.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from it3_core.errors import IT3Error
from it3_core.evaluation.records import Record
from it3_core.experiment.statistics import CONFIDENCE, Row, Values, correlation, numbers
from it3_core.experiment.tables import label

Series = tuple[str, int | None]
"""A method and a batch size: what gets a colour of its own."""

INK = "#222222"
_SHADES = {
    "reference": ("#8fd0b8", "#d5efe6"),
    "online": ("#d0590a", "#f6b98c"),
    "actmad": ("#2b90e6", "#bfe0fb"),
    "it3": ("#2a0845", "#8a2b9c", "#c0a3dc"),
    "other": ("#f7c325", "#5f564c", "#004d61", "#ffffff"),
}
_MARKERS = "osD^vPX<>"


def box_by_level(
    records: Iterable[Record],
    *,
    each: Literal["instance", "seed"] = "instance",
    error: str = "error",
    title: str | None = None,
    colours: Mapping[Series, str] | None = None,
) -> Figure:
    """Box plots of the error by level, one for each method and batch size, as in the paper.

    A box holds the middle half, with the median as a line and the mean as a diamond. Whiskers
    reach from the 5th to the 95th percentile of instances, or to the first and the last seed: of
    errors that are 0 or 1, a box of each seed's mean error says more. `colours` takes the place of
    this module's own, and its order is that of the boxes.
    """
    cells: dict[tuple[str, Series], list[float]] = {}
    last = {(r["seed"], r["level"], *_series(r)): r for r in records}
    for record in last.values():
        if record.get("problem") is not None:
            continue
        values = [record["error"]] if each == "seed" else record.get("errors")
        if values is None:
            raise IT3Error(
                'these records don\'t hold the errors of each instance: give each="seed", or '
                "evaluate with instances=True"
            )
        cells.setdefault((record["level"], _series(record)), []).extend(values)
    levels, colours = _levels(last.values()), colours or _colours([*last.values()])
    figure, axes = _axes_by_level(levels, len(colours), title)
    line = {"color": INK, "linewidth": 0.8}
    for offset, (series, colour) in zip(_offsets(len(colours)), colours.items(), strict=True):
        places = [i for i, level in enumerate(levels) if (level, series) in cells]
        if not places:
            continue
        dark = float(np.dot(to_rgb(colour), (0.3, 0.59, 0.11))) < 0.47
        axes.boxplot(
            [cells[levels[place], series] for place in places],
            positions=[place + offset for place in places],
            widths=0.72 / len(colours),
            whis=(0, 100) if each == "seed" else (5, 95),
            showfliers=False,
            showmeans=True,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour, "edgecolor": INK, "linewidth": 0.8},
            medianprops={"color": "#ffffff" if dark else INK, "linewidth": 1.5},
            meanprops={"marker": "D", "markersize": 3.5, "markerfacecolor": "#ffffff",
                       "markeredgecolor": INK, "markeredgewidth": 0.7},
            whiskerprops=line,
            capprops=line,
        )  # fmt: skip
    axes.set_ylabel(error)
    patches = [Patch(facecolor=c, edgecolor=INK, linewidth=0.8) for c in colours.values()]
    _legend(figure, patches, [label(*series) for series in colours])
    return figure


def difference_by_level(
    rows: Iterable[Row], *, error: str = "error", title: str | None = None
) -> Figure:
    """Paired differences of `summarise` by level, with intervals; below zero is better."""
    kept = [row for row in rows if row["method"] != row["reference"]]
    if not kept:
        raise IT3Error("there is no method besides the reference to draw")
    levels, colours = _levels(kept), _colours(kept)
    figure, axes = _axes_by_level(levels, len(colours), title)
    axes.axhline(0, color=INK, linewidth=1)
    offsets = _offsets(len(colours))
    for number, (series, colour) in enumerate(colours.items()):
        own = [r for r in kept if _series(r) == series and r["difference"] is not None]
        places = [levels.index(row["level"]) + offsets[number] for row in own]
        values = [(row["difference"], row["low"], row["high"]) for row in own]
        _with_intervals(axes, places, values, number, colour, label(*series))
    axes.set_ylabel(f"{error} minus {kept[0]['reference']}")
    axes.margins(y=0.08)
    axes.set_xlabel(f"below zero is better; bars are {100 * CONFIDENCE:g} % intervals", fontsize=9)
    _legend(figure, *axes.get_legend_handles_labels())
    return figure


def _with_intervals(
    axes: Axes,
    places: Sequence[float],
    values: Sequence[tuple[float, float | None, float | None]],
    number: int,
    colour: str,
    name: str,
) -> None:
    """Draws values with the ends of their intervals, where they have them, as marks with bars."""
    # Rounded values may lie a hair outside of their interval.
    below = [0.0 if low is None else max(0.0, value - low) for value, low, _ in values]
    above = [0.0 if high is None else max(0.0, high - value) for value, _, high in values]
    axes.errorbar(
        places,
        [value for value, _, _ in values],
        yerr=[below, above],
        fmt=_MARKERS[number % len(_MARKERS)],
        markersize=5.5,
        markerfacecolor=colour,
        markeredgecolor=INK,
        markeredgewidth=0.7,
        ecolor="#555555",
        elinewidth=1.0,
        capsize=2,
        label=name,
    )


def bars(
    heights: Mapping[str, Sequence[float | None]],
    levels: Sequence[str],
    *,
    quantity: str,
    colours: Mapping[str, str],
    title: str | None = None,
    width: float = 7.0,
) -> Figure:
    """Bars side by side: a group a level, a bar a method; where a height is None, a gap."""
    figure, axes = plain_axes(width, 3.7, title)
    draw_bars(axes, heights, levels, quantity=quantity, colours=colours)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


def draw_bars(
    axes: Axes,
    heights: Mapping[str, Sequence[float | None]],
    levels: Sequence[str],
    *,
    quantity: str,
    colours: Mapping[str, str],
) -> None:
    """The same on axes that are there."""
    thickness = 0.86 / max(1, len(heights))
    places = np.arange(len(levels))
    for offset, (method, values) in zip(_offsets(len(heights), 0.86), heights.items(), strict=True):
        lengths = np.array(values, dtype=float)  # None becomes NaN, which is a gap
        colour = colours.get(method, "#999999")
        axes.bar(places + offset, lengths, thickness, label=method, color=colour)
    axes.set_xticks(places, list(levels), fontsize=8)
    axes.set_ylabel(quantity)
    axes.margins(x=0.01)


def error_histograms(
    before: Values,
    after: Values,
    in_distribution: Values,
    *,
    training: Values = (),
    error: str = "idempotence error",
    title: str | None = None,
) -> Figure:
    """Idempotence errors of shifted data before and after adaptation, and of data without a shift.

    With those of training data, where they are given, the paper's Figure 2; dashes are medians.
    """
    named = {
        **({"training": (training, "#2b90e6")} if len(training) else {}),
        "in distribution": (in_distribution, "#4fae90"),
        "shifted, before": (before, "#d0590a"),
        "shifted, after": (after, "#8a2b9c"),
    }
    parts = {name: (_some(values, name), colour) for name, (values, colour) in named.items()}
    edges, scale = _bins([values for values, _ in parts.values()])
    figure, axes = plain_axes(6.4, title=title)
    axes.set_xscale(scale)
    for name, (values, colour) in parts.items():
        axes.hist(
            # What lies outside the axis counts in the bin at its end: nothing is left out.
            values.clip(edges[0], edges[-1]),
            bins=edges.tolist(),
            weights=np.full(len(values), 100 / len(values)),
            histtype="stepfilled",
            facecolor=(colour, 0.3),
            edgecolor=colour,
            linewidth=1.4,
            label=name,
        )
        middle = float(np.median(values))
        axes.axvline(middle, color=colour, linestyle=(0, (4, 2)), linewidth=1.8)
    axes.set_xlabel(error)
    axes.set_ylabel("fraction of instances, %")
    _legend(figure, *axes.get_legend_handles_labels())
    return figure


def error_against_accuracy(
    idempotence: Values,
    accuracy: Values,
    *,
    error: str = "idempotence error",
    quality: str = "accuracy",
    title: str | None = None,
) -> Figure:
    """Accuracy against mean idempotence error, of batches or levels, and their correlation."""
    pearson = correlation(idempotence, accuracy)
    x, y = _some(idempotence, "idempotence"), _some(accuracy, "accuracy")
    measured = f"Pearson {pearson:.2f}, n = {len(x)}".replace("-", "−")
    figure, axes = plain_axes(5.4, title=measured if title is None else f"{title}: {measured}")
    few = len(x) <= 300
    axes.scatter(x, y, s=30 if few else 10, color="#8a2b9c", alpha=0.75 if few else 0.35, lw=0)
    if math.isfinite(pearson):
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, np.polyval(np.polyfit(x, y, 1), ends), color=INK, linewidth=1.4)
    axes.set_xlabel(error)
    axes.set_ylabel(quality)
    return figure


def plain_axes(width: float, height: float = 4.0, title: str | None = None) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, with no more lines than it needs."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    make_plain(axes)
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    return figure, axes


def make_plain(axes: Axes) -> None:
    """Takes the lines away that nobody reads, and adds those that help to read heights."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def _series(record: Mapping[str, Any]) -> Series:
    return record["method"], record["batch_size"]


def _levels(records: Iterable[Mapping[str, Any]]) -> list[str]:
    levels = list(dict.fromkeys(record["level"] for record in records))
    if not levels:
        raise IT3Error("there is nothing to draw")
    return levels


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
        if len(alike) > len(shades):
            scale = LinearSegmentedColormap.from_list("", shades)
            shades = tuple(map(to_hex, scale(np.linspace(0, 1, len(alike)))))
        colours |= zip(alike, shades, strict=False)
    return {series: colours[series] for series in found}


def _kind(method: str, reference: str) -> str:
    if method == reference:
        return "reference"
    name = method.lower().replace("³", "3")
    return next((kind for kind in ("online", "actmad", "it3") if kind in name), "other")


def _offsets(number: int, width: float = 0.8) -> list[float]:
    """Where each of so many series stands within a level, symmetric about its tick."""
    return [(index - (number - 1) / 2) * width / number for index in range(number)]


def _axes_by_level(
    levels: Sequence[str], series: int, title: str | None = None
) -> tuple[Figure, Axes]:
    """Axes with the levels' names below, which are turned where they do not fit."""
    # Wider than a page is not readable in print, narrower has no room for the legend.
    width = max(5.0, min(10.0, 1.2 + len(levels) * (0.3 + 0.14 * series)))
    figure, axes = plain_axes(width, title=title)
    room = int(width * 10.5 / len(levels))  # letters
    texts = [textwrap.fill(level, max(room, 8), break_long_words=False) for level in levels]
    axes.set_xticks(range(len(levels)), texts)
    if max(len(line) for text in texts for line in text.splitlines()) > room:
        axes.set_xticks(range(len(levels)), levels, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.55, len(levels) - 0.45)
    axes.tick_params(axis="x", length=0)
    for place in range(1, len(levels)):
        axes.axvline(place - 0.5, color="#dddddd", linewidth=0.7, zorder=0)
    return figure, axes


def _legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Above the axes, in as many columns as fit."""
    longest = max(map(len, names))
    most = max(1, int(figure.get_figwidth() / (0.55 + 0.075 * longest)))
    columns = math.ceil(len(names) / math.ceil(len(names) / most))  # rows of one length
    figure.legend(
        handles, names, loc="outside upper center", ncols=columns, frameon=False, fontsize=9
    )


def _some(values: Values, name: str) -> NDArray[np.float64]:
    flat = numbers(values, name)
    if not len(flat):
        raise IT3Error(f"{name!r} holds no value to draw")
    return flat


def _bins(
    parts: Sequence[NDArray[np.float64]],
) -> tuple[NDArray[np.float64], Literal["linear", "log"]]:
    """Edges from the lowest 0.5th to the highest 99.5th percentile of the parts."""
    low = min(float(np.quantile(values, 0.005, method="lower")) for values in parts)
    high = max(float(np.quantile(values, 0.995, method="higher")) for values in parts)
    number = max(12, min(40, round(1.5 * min(map(len, parts)) ** 0.5)))
    # Where a part would be squeezed into a corner, bins are spaced by factors.
    if low > 0 and high > 30 * min(float(np.median(values)) for values in parts):
        return np.geomspace(low, high, number + 1), "log"
    return np.linspace(min(low, 0.0), high if high > low else low + 1.0, number + 1), "linear"
