"""NeuralFoil: a network that learned XFoil's answers, for machines that have no XFoil.

It comes with `pip`, weights and all, and answers in milliseconds. Its answers are estimates of
XFoil's: they carry its name into the data, the data card and the report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import version as installed
from typing import Any

import numpy as np

from it3_aero.wings.geometry import Airfoil, Points
from it3_aero.wings.solvers.base import PolarPoint, check_flow

__all__ = ["NeuralFoil"]

_STATIONS = 32  # of the boundary layer, on each side


@dataclass(frozen=True)
class NeuralFoil:
    """The network NeuralFoil.

    Args:
        size: of the network, from "xxsmall" to "xxxlarge".
        ncrit: as XFoil's.

    Example:
        >>> from it3_aero.wings import naca
        >>> point = NeuralFoil().solve(naca("2412"), reynolds=1e6, alpha=0.0)
        >>> point.converged, round(point.lift_to_drag)
        (True, 43)
    """

    size: str = "xlarge"
    ncrit: float = 9.0

    @property
    def name(self) -> str:
        """The network's name."""
        return "NeuralFoil"

    def version(self) -> str:
        """Its version and the network's size."""
        return f"{installed('neuralfoil')} {self.size}"

    def settings(self) -> dict[str, Any]:
        """What decides its answers besides the flow."""
        return {"size": self.size, "ncrit": self.ncrit}

    def solve(
        self, airfoil: Airfoil, reynolds: float, alpha: float, mach: float = 0.0
    ) -> PolarPoint:
        """The flow about an airfoil, as the network believes XFoil would say.

        Args:
            airfoil: the outline.
            reynolds: Reynolds number by the chord.
            alpha: angle of attack in degrees.
            mach: has to be 0: the network knows no compressibility.
        """
        check_flow(reynolds, alpha, mach)
        solver = f"{self.name} {self.version()}"
        if mach:
            return PolarPoint.failed(solver, f"it knows Mach 0 only, and not {mach:g}")
        # Imported here: it brings aerosandbox, which takes seconds.
        import neuralfoil

        found: dict[str, Any] = neuralfoil.get_aero_from_coordinates(
            airfoil.points, alpha, reynolds, n_crit=self.ncrit, model_size=self.size
        )
        cl, cd, cm = (float(np.asarray(found[key]).item()) for key in ("CL", "CD", "CM"))
        if not all(map(math.isfinite, (cl, cd, cm))) or cd <= 0:
            return PolarPoint.failed(solver, "its answer is not a number")
        return PolarPoint(cl, cd, cm, True, solver, _pressures(found))


def _pressures(found: dict[str, Any]) -> Points:
    """Cp = 1 − (u/V)² at the stations of the boundary layer, once around."""
    x = (np.arange(_STATIONS) + 0.5) / _STATIONS
    upper, lower = (
        1 - np.array([found[f"{side}_bl_ue/vinf_{i}"] for i in range(_STATIONS)]).ravel() ** 2
        for side in ("upper", "lower")
    )
    return np.array([[*x[::-1], *x], [*upper[::-1], *lower]])
