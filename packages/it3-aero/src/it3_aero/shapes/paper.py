"""The paper's figures of wings and of cars: boxes by level, idempotence errors, samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from it3_aero.shapes.data import IN_DISTRIBUTION, Levels, Shapes
from it3_core.experiment.evaluate import IDEMPOTENCE
from it3_core.experiment.figures import box_by_level, error_histograms
from it3_core.experiment.lines import VANILLA
from it3_core.experiment.types import Evaluation, Picture, Quantity

_COLUMNS, _ROWS = 2, 3  # of samples, on either side
_PAPERS = "IT³ (paper)"

Sample = Callable[[Axes, Shapes, int], None]
"""Draws one of some shapes, with the pressure on it."""


def boxes(found: Evaluation, quantity: Quantity) -> Picture:
    """The error by level: without adaptation, the paper's step at each batch size, ActMAD."""
    largest = max((record["batch_size"] or 0 for record in found.records), default=0)
    once = ("source", VANILLA.name)
    shown = [
        dict(record)
        for record in found.records
        if record["method"] in (*once, _PAPERS)
        or (record["method"], record["batch_size"]) == ("ActMAD", largest)
    ]
    return Picture(
        "paper-boxes",
        box_by_level(shown, error=f"|error| in {quantity.name}"),
        "What adaptation does",
        "box plots of the error of the paper's methods by level",
        "As in the paper, with a box for each batch size: the box holds the middle half, the line "
        "is the median, the diamond the mean, whiskers from the 5th to the 95th percentile. "
        f"ActMAD in batches of {largest}.",
    )


def errors(found: Evaluation, seed: int, training: Sequence[float]) -> Picture:
    """Idempotence errors of shapes trained on, tested on, and shifted, as in its Figure 2."""
    first = found.answers[found.answers["seed"] == seed]
    inside = first["level"] == IN_DISTRIBUTION
    caption = "As in the paper's Figure 2, by its IT³ at the largest batch size"
    return Picture(
        "errors",
        error_histograms(
            first[~inside][IDEMPOTENCE].tolist(),
            first[~inside]["error_after"].tolist(),
            first[inside][IDEMPOTENCE].tolist(),
            training=training,
            error="idempotence error |y₁ − y₀|, in training standard deviations",
        ),
        "Uncertainty scores",
        "histograms of idempotence errors",
        f"{caption}, seed {seed}." if training else f"{caption}; the training data are not here.",
    )


def samples(levels: Levels, quantity: Quantity, sample: Sample, caption: str) -> Picture:
    """Shapes in distribution on the left and out of it on the right, by their labels."""
    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    sides: Any = figure.subfigures(1, 2, wspace=0.05)
    inside, *beyond = levels.test.values()
    named = {"in distribution": [inside], "out of distribution": beyond}
    for side, (title, parts) in zip(sides, named.items(), strict=True):
        side.suptitle(title, fontsize=11)
        every = [(part, row) for part in parts for row in range(len(part))]
        shown = min(_COLUMNS * _ROWS, len(every))
        for place in range(shown):
            shapes, row = every[place * (len(every) - 1) // max(1, shown - 1)]
            axes = side.add_subplot(_ROWS, _COLUMNS, place + 1)
            sample(axes, shapes, row)
            axes.set_axis_off()
            label = float(shapes.y[row])
            axes.set_title(f"{quantity.name} {label:.{quantity.digits}f}", fontsize=8)
    return Picture("samples", figure, "What adaptation does", "samples of the shapes", caption)
