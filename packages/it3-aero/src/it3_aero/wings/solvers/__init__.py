"""What answers for an airfoil: XFoil, the program, or NeuralFoil, which learned from it."""

from __future__ import annotations

from it3_aero.programs import SolverError
from it3_aero.wings.solvers.base import PolarPoint, Solver
from it3_aero.wings.solvers.neural import NeuralFoil
from it3_aero.wings.solvers.xfoil import XFoil
from it3_core import IT3Error

__all__ = ["SOLVERS", "NeuralFoil", "PolarPoint", "Solver", "SolverError", "XFoil", "choose"]

SOLVERS = ("auto", "xfoil", "neuralfoil")
"""Names that `choose` knows."""


def choose(name: str = "auto") -> Solver:
    """A solver that works here; "auto" is XFoil where that runs, and NeuralFoil elsewhere.

    Example:
        >>> choose("neuralfoil").name
        'NeuralFoil'
    """
    if name not in SOLVERS:
        raise IT3Error(f"there is no solver {name!r}; there are {', '.join(SOLVERS)}")
    if name == "neuralfoil":
        return NeuralFoil()
    xfoil = XFoil()
    try:
        xfoil.check()
    except SolverError:
        if name == "xfoil":
            raise
        return NeuralFoil()
    return xfoil
