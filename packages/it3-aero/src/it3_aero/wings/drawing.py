"""Airfoils as pictures: with pressure, in threes, for the report; alone, for predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from it3_aero.learning.shapes import Shapes
from it3_aero.wings.geometry import Airfoil

__all__ = ["gallery", "sketch"]


def sketch(axes: Axes, airfoil: Airfoil, colour: str) -> None:
    """An outline, filled."""
    points = airfoil.points
    axes.fill(points[:, 0], points[:, 1], facecolor=f"{colour}22", edgecolor=colour)
    axes.set_aspect("equal")
    axes.margins(0.02, 0.25)


def gallery(
    drawn: Sequence[tuple[Mapping[str, Any], Shapes, int]], colour: str, title: str
) -> Figure:
    """Up to three shapes, each a line of an evaluation and where its shape is, with pressure."""
    figure = Figure(figsize=(5.0, 2.9), layout="constrained")
    figure.suptitle(title, fontsize=10.5, color=colour, fontweight="bold")
    grid = figure.add_gridspec(2, 3, height_ratios=[2.2, 1])
    for place, (line, shapes, row) in enumerate(drawn):
        x, y = shapes.x[row].T.tolist()
        above, below = figure.add_subplot(grid[0, place]), figure.add_subplot(grid[1, place])
        if shapes.cp is not None:
            half = len(x) // 2
            cp = shapes.cp[row].tolist()
            above.plot(x[:half], cp[:half], color=colour, linewidth=1.2)
            above.plot(x[half:], cp[half:], color=colour, linewidth=1.2, linestyle=(0, (4, 2)))
            above.invert_yaxis()
            above.set_xticks([])
            above.tick_params(labelsize=7)
            above.spines[["top", "right", "bottom"]].set_visible(False)
            if place == 0:
                above.set_ylabel("Cp", fontsize=8)
        else:
            above.set_axis_off()
        above.set_title(
            f"L/D {line['y']:.1f}, said {line['before']:.1f}\npercentile {line['percentile']:.0f}",
            fontsize=8,
        )
        below.fill(x, y, facecolor=f"{colour}22", edgecolor=colour, linewidth=1.2)
        below.set_aspect("equal")
        below.set_ylim(-0.14, 0.2)
        below.set_axis_off()
    return figure
