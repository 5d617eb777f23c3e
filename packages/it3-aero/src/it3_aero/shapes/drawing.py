"""Pictures of an evaluation on shapes, and of predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series
from torch import Tensor

from it3_aero.shapes.data import Levels
from it3_core.experiment.figures import box_by_level, difference_by_level, plain_axes
from it3_core.experiment.types import Evaluation, Experiment, Picture, Prediction, Quantity
from it3_core.io.typed import printable

# By whether it is flagged and whether it is right: a title and a colour.
_QUADRANTS = {
    (False, True): ("trusted and right", "#0f766e"),
    (True, False): ("not trusted, and wrong", "#5b2a9d"),
    (True, True): ("not trusted, yet right", "#b7791f"),
    (False, False): ("trusted, yet wrong", "#b42318"),
}
_CP = "With Cp, if the data have it: a curve (dotted: lower side), or blue at -1 to red at 1."
_SHADES = ["#9aa3b2", "#0f766e", "#d8c7f0", "#a78bda", "#7c4dbd", "#5b2a9d", "#3b1a6d"]


class Tolerance(NamedTuple):
    """A prediction is right within a fraction of the solver's value, or within so much."""

    fraction: float
    absolute: float

    def right(self, answers: DataFrame) -> Series[bool]:
        """Whether each prediction is right."""
        off = (answers["initial"] - answers["truth"]).abs()
        return (off <= self.absolute) | (off <= self.fraction * answers["truth"].abs())


Paint = Callable[[Axes, Any, str, Tensor | None], None]
"""Draws a shape in a colour, with the pressure coefficients at its nodes, if there are some."""


def pictures(
    levels: Levels,
    quantity: Quantity,
    paint: Paint,
    tolerance: Tolerance,
    baselines: Sequence[str],
    found: Evaluation,
    experiment: Experiment,
) -> Iterator[Picture]:
    """Boxes and differences by level, the labels, and three shapes of each kind."""
    does, trust = "What adaptation does", "Uncertainty scores"
    networks = [dict(r) for r in found.records if r["method"] not in baselines]
    largest = max((r["batch_size"] or 0 for r in networks), default=0)
    shown = [r for r in networks if r["batch_size"] in (None, largest)]
    error = f"|error| in {quantity.name}"
    yield Picture(
        "boxes",
        box_by_level(shown, error=error),
        does,
        "box plots of the error of all methods by level",
        "All methods, at the largest batch: the box holds the middle half, the line is the median, "
        "the diamond the mean, whiskers from the 5th to the 95th percentile.",
    )
    kept = {(r["method"], r["batch_size"], r["level"]) for r in shown}
    rows = [dict(r) for r in found.rows if (r["method"], r["batch_size"], r["level"]) in kept]
    if any(row["method"] != "source" for row in rows):
        yield Picture(
            "differences",
            difference_by_level(rows, error=error),
            does,
            "paired differences by level",
            "Change of the error against the same network without adaptation, with 95 % intervals "
            "over seeds and shapes. Below zero is better.",
        )
    first = found.answers[found.answers["seed"] == experiment.first.seed]
    yield Picture("labels", _labels(levels, quantity), does, f"histogram of {quantity.name}")
    is_right = tolerance.right(first)
    for (flagged, correct), (words, colour) in _QUADRANTS.items():
        some = first[(first["flagged"] == flagged) & (is_right == correct)].sort_values("truth")
        if len(some):
            title = f"{words}: {len(some)} of {len(first)}"
            chosen = some.iloc[:: -(-len(some) // 3)].to_dict("records")
            figure = Figure(figsize=(5.0, 1.9), layout="constrained")
            figure.suptitle(title, fontsize=10.5, color=colour, fontweight="bold")
            for number, row in enumerate(chosen, 1):
                shapes = levels.test[row["level"]]
                axes = figure.add_subplot(1, 3, number)
                at = list(shapes.names).index(row["name"])
                paint(axes, shapes.x[at], colour, shapes.cp[at] if shapes.cp else None)
                axes.set_axis_off()
                values = [f"{row[key]:.{quantity.digits}f}" for key in ("truth", "initial")]
                text = f"{quantity.name} {values[0]}, predicted {values[1]}"
                axes.set_title(f"{text}\npercentile {row['percentile']:.0f}", fontsize=7)
            yield Picture(words.replace(",", "").replace(" ", "-"), figure, trust, title, _CP)


def _labels(levels: Levels, quantity: Quantity) -> Figure:
    figure, axes = plain_axes(5.0, 3.2)
    named = {"training": levels.train, **levels.test}
    axes.hist(
        [shapes.y.tolist() for shapes in named.values()],
        bins=40,
        stacked=True,
        label=list(named),
        color=[_SHADES[min(i, len(_SHADES) - 1)] for i in range(len(named))],
    )
    axes.set(xlabel=quantity.name, ylabel="shapes")
    axes.legend(frameon=False, fontsize=8)
    return figure


def draw(quantity: Quantity, paint: Paint, predictions: Sequence[Prediction]) -> Figure:
    """The shapes of predictions, with their numbers."""
    columns = min(3, len(predictions))
    rows = -(-len(predictions) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.1 * rows + 0.3), layout="constrained")
    for number, one in enumerate(predictions, 1):
        axes = figure.add_subplot(rows, columns, number)
        paint(axes, one.item.value, "#c2410c" if one.flagged else "#0f766e", None)
        axes.set_axis_off()
        text = f"{quantity.name} {one.values['prediction']:.{quantity.digits}f}"
        if one.truth is not None:
            text += f", {one.solver} {one.truth['prediction']:.{quantity.digits}f}"
        title = f"{printable(Path(one.item.name).name, 40)}\n{text}; {one.percentile:.1f} %"
        axes.set_title(title, fontsize=9, parse_math=False)
    return figure
