"""What a solver is, and what it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from it3_aero.wings.geometry import Airfoil, Points
from it3_core import IT3Error

__all__ = ["PolarPoint", "Solver", "check_flow"]


@dataclass(frozen=True, eq=False)
class PolarPoint:
    """One airfoil at one angle: what the solver found, or why it found nothing.

    Attributes:
        cl: lift coefficient; NaN if not converged, as the next two.
        cd: drag coefficient.
        cm: pitching moment coefficient about a quarter of the chord.
        converged: whether there is an answer.
        solver: who answered, such as "XFoil 6.99".
        cp: pressure coefficients `(2, k)`, x and Cp, from the trailing edge over the upper side
            and back; `(2, 0)` if not converged.
        panels: XFoil's panels of the attempt that counted; 0 where there are none.
        reason: why there is no answer.

    Example:
        >>> point = PolarPoint(0.6, 0.01, -0.05, True, "XFoil 6.99")
        >>> point.lift_to_drag
        60.0
    """

    cl: float
    cd: float
    cm: float
    converged: bool
    solver: str
    cp: Points = field(default_factory=lambda: np.empty((2, 0)))
    panels: int = 0
    reason: str | None = None

    @property
    def lift_to_drag(self) -> float:
        """L/D, the ratio of lift to drag."""
        return self.cl / self.cd

    @classmethod
    def failed(cls, solver: str, reason: str) -> PolarPoint:
        """No answer, and why."""
        return cls(math.nan, math.nan, math.nan, False, solver, reason=reason)


class Solver(Protocol):
    """Anything that answers for an airfoil."""

    @property
    def name(self) -> str:
        """Such as "XFoil"."""

    def version(self) -> str:
        """Such as "6.99"; raises `SolverError` where the solver doesn't work."""

    def settings(self) -> dict[str, Any]:
        """What decides its answers besides the flow, as JSON."""

    def solve(
        self, airfoil: Airfoil, reynolds: float, alpha: float, mach: float = 0.0
    ) -> PolarPoint:
        """The flow about an airfoil; what doesn't converge is an answer too, see `PolarPoint`."""


def check_flow(reynolds: float, alpha: float, mach: float) -> None:
    """Refuse conditions that no solver here is made for.

    Example:
        >>> check_flow(1e6, 120.0, 0.0)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: alpha must lie between -30 and 30 degrees, but is 120
    """
    if not 1e3 <= reynolds <= 1e9:
        raise IT3Error(f"reynolds must lie between 1e3 and 1e9, but is {reynolds:g}")
    if not -30 <= alpha <= 30:
        raise IT3Error(f"alpha must lie between -30 and 30 degrees, but is {alpha:g}")
    if not 0 <= mach <= 0.7:
        raise IT3Error(f"mach must lie between 0 and 0.7, but is {mach:g}")
