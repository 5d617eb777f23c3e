"""Cars as pictures: in threes, coloured by pressure, for the report; alone, for predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from it3_aero.cars.render import COLOURS, paint
from it3_aero.cars.task import Car
from it3_aero.learning.shapes import Shapes

__all__ = ["gallery", "sketch"]

_LIMITS = (-1.0, 1.0)  # of the pressure coefficient: 1 where the flow is stopped


def sketch(axes: Axes, car: Car, colour: str) -> None:
    """A car in grey, from the front; only outlines have a colour."""
    paint(axes, car.mesh.vertices, car.mesh.faces)


def gallery(
    drawn: Sequence[tuple[Mapping[str, Any], Shapes, int]], colour: str, title: str
) -> Figure:
    """Up to three cars, each a line of an evaluation and where its car is, from front and rear."""
    figure = Figure(figsize=(5.0, 3.3), layout="constrained")
    figure.suptitle(title, fontsize=10.5, color=colour, fontweight="bold")
    grid = figure.add_gridspec(3, 3, height_ratios=[1, 1, 0.06])
    for place, (line, shapes, row) in enumerate(drawn):
        car = shapes.x[row]
        cp = None if shapes.cp is None else shapes.cp[row].numpy()
        for side, azimuth in enumerate((-135.0, 45.0)):
            axes = figure.add_subplot(grid[side, place])
            mesh = car.pos.numpy(), car.face.t().numpy()
            paint(axes, *mesh, values=cp, limits=_LIMITS, azimuth=azimuth)
            if not side:
                axes.set_title(
                    f"Cd {line['y']:.3f}, said {line['before']:.3f}\n"
                    f"percentile {line['percentile']:.0f}",
                    fontsize=8,
                )
    if any(shapes.cp is not None for _, shapes, _ in drawn):
        shades = ScalarMappable(Normalize(*_LIMITS), COLOURS)
        bar = figure.colorbar(shades, figure.add_subplot(grid[2, 1]), orientation="horizontal")
        bar.set_ticks([-1, 0, 1], labels=["-1", "pressure coefficient", "1"], fontsize=7)
    return figure
