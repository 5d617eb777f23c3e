"""Cars as pictures: in threes, coloured by pressure, for the report; alone, for predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from it3_aero.cars.render import paint
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
    figure = Figure(figsize=(5.0, 3.1), layout="constrained")
    figure.suptitle(title, fontsize=10.5, color=colour, fontweight="bold")
    for place, (line, shapes, row) in enumerate(drawn):
        car = shapes.x[row]
        cp = None if shapes.cp is None else shapes.cp[row].numpy()
        for side, azimuth in enumerate((-135.0, 45.0)):
            axes = figure.add_subplot(2, 3, 1 + place + 3 * side)
            mesh = car.pos.numpy(), car.face.t().numpy()
            paint(axes, *mesh, values=cp, limits=_LIMITS, azimuth=azimuth)
            if not side:
                axes.set_title(
                    f"Cd {line['y']:.3f}, said {line['before']:.3f}\n"
                    f"{line['percentile']:.0f}th percentile",
                    fontsize=8,
                )
    return figure
