"""What was found about a body."""

from __future__ import annotations

from dataclasses import dataclass

from it3_aero.cars.foam.results import on_vertices
from it3_aero.cars.loft import Array

__all__ = ["Flow"]


@dataclass(frozen=True, eq=False)
class Flow:
    """What was found about a body, or why nothing was.

    Attributes:
        cd: drag coefficient, the mean over the last 50 iterations; NaN without an answer.
        cd_std: its standard deviation over those.
        cl: lift coefficient.
        iterations: of the solver.
        cells: of the mesh.
        car_faces: cells' faces on the body.
        half: whether the half with y ≥ 0 was solved, mirrored in y = 0.
        frontal_area: that cd is based on, in m².
        volume: of the body, in m³.
        cpu_seconds: of all programs.
        peak_mb: the most memory that one of them had.
        solver: such as "OpenFOAM 1912".
        points: `(n, 3)`, middles of the cells' faces on the body.
        cp: `(n,)`, pressure coefficients there.
        problem: why there is no answer.
    """

    cd: float
    cd_std: float
    cl: float
    iterations: int
    cells: int
    car_faces: int
    half: bool
    frontal_area: float
    volume: float
    cpu_seconds: float
    peak_mb: float
    solver: str
    points: Array
    cp: Array
    problem: str | None = None

    def pressure_on(self, vertices: Array) -> Array:
        """Pressure coefficients at the vertices of a mesh of the same body."""
        return on_vertices(self.points, self.cp, vertices, self.half)
