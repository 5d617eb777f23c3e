"""How fine a case is: `smoke`, `coarse` and `medium`."""

from __future__ import annotations

from dataclasses import dataclass

from it3_core import IT3Error

__all__ = ["PRESETS", "Preset", "preset"]


@dataclass(frozen=True)
class Preset:
    """Numbers that decide what a case costs and how good it is.

    Cells are cubes whose edge is the body's length divided by `base` far away, and half of that
    with each level.

    Attributes:
        name: such as "coarse".
        surface: lowest and highest level on the body.
        edges: level along its sharp edges.
        boxes: level in the box around the body and its wake, in the near wake, and just at it.
        layers: cells that are grown on the body, 0 for none.
        base: cells along the body's length, far away.
        most_cells: limit that the mesher keeps to.
        most_iterations: after which a case that hasn't converged is given up.
        volume_error: largest share by which the body's volume in the mesh may be off.
        cpu_limit: seconds of CPU that one program may take.
        turbulence: OpenFOAM's name of the model, one of k and epsilon. Cases of another one are
            refused, as of any other setting, so that no data set mixes two.

    Example:
        >>> preset("coarse").surface
        (4, 5)
    """

    name: str
    surface: tuple[int, int]
    edges: int
    boxes: tuple[int, int, int]
    layers: int
    most_cells: int
    most_iterations: int
    volume_error: float
    cpu_limit: int
    base: int = 4
    turbulence: str = "realizableKE"


PRESETS = {
    "smoke": Preset("smoke", (3, 4), 4, (1, 2, 3), 0, 60_000, 500, 0.08, 600),
    "coarse": Preset("coarse", (4, 5), 5, (2, 3, 4), 0, 300_000, 500, 0.04, 3_600, base=5),
    "medium": Preset("medium", (5, 6), 6, (3, 4, 5), 3, 1_500_000, 1_000, 0.03, 36_000),
}


def preset(name: str) -> Preset:
    """A preset by name.

    Example:
        >>> preset("fine")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: there is no preset 'fine'; there are smoke, coarse, medium
    """
    if name not in PRESETS:
        raise IT3Error(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
