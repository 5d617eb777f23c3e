"""What is installed, whether it works, and how to get the rest: `it3-aero doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from it3_aero.cars.foam import rehearse
from it3_aero.wings import NeuralFoil, Solver, XFoil, naca
from it3_core import IT3Error

__all__ = ["Finding", "examine", "try_openfoam", "try_solver"]

KNOWN = {"cl": 0.4276, "cd": 0.00728}
"""NACA 0012 at Re 1e6, 4 degrees, Ncrit 9, by XFoil 6.96: airfoiltools.com, xf-n0012-il-1000000."""

_TOLERANCE = {"XFoil": 0.01, "NeuralFoil": 0.05}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's.

    Example:
        >>> print(Finding("Dask", False, "not installed"))
        --  Dask: not installed
    """

    name: str
    works: bool
    told: str
    solver: bool = False

    def __str__(self) -> str:
        return f"{'ok' if self.works else '--'}  {self.name}: {self.told}"


def examine() -> Iterator[Finding]:
    """Look at everything that it3-aero can use; each finding as soon as it is there.

    Example:
        >>> [finding.name for finding in examine()]
        ['torch', 'torch-geometric', 'trimesh', 'XFoil', 'NeuralFoil', 'OpenFOAM', 'Dask']
    """
    for name in ("torch", "torch-geometric", "trimesh"):
        yield _installed(name, "it comes with it3-aero: install that again")
    yield try_solver(XFoil())
    yield try_solver(NeuralFoil())
    yield try_openfoam()
    dask = _installed("distributed", 'for --dask: pip install "it3-aero[dask]"')
    yield Finding("Dask", dask.works, dask.told)


def try_solver(solver: Solver) -> Finding:
    """Run a solver on a NACA 0012 at 4 degrees, and compare with what XFoil is known to say.

    Example:
        >>> print(try_solver(XFoil("/nowhere/xfoil")))
        --  XFoil: there is no program /nowhere/xfoil: ...
        >>> try_solver(NeuralFoil()).works
        True
    """
    try:
        solver.version()  # and whatever a first run has to find out
        began = time.perf_counter()
        point = solver.solve(naca("0012"), reynolds=1e6, alpha=4.0)
        seconds = time.perf_counter() - began
    except IT3Error as problem:
        return Finding(solver.name, False, str(problem), solver=True)
    if not point.converged:
        return Finding(solver.name, False, f"a NACA 0012 at 4°: {point.reason}", solver=True)
    found = {"cl": point.cl, "cd": point.cd}
    off = max(abs(found[key] / KNOWN[key] - 1) for key in KNOWN)
    told = (
        f"{point.solver}; a NACA 0012 at 4° and Re 1e6 has CL {point.cl:.4f}, CD {point.cd:.5f} "
        f"(known: {KNOWN['cl']:.4f}, {KNOWN['cd']:.5f}), in {seconds:.2f} s"
    )
    right = off <= _TOLERANCE[solver.name]
    return Finding(solver.name, right, told if right else f"wrong answer: {told}", solver=True)


def try_openfoam() -> Finding:
    """Ask OpenFOAM for its version, and have it make the space about a car.

    Example:
        >>> try_openfoam().name
        'OpenFOAM'
    """
    try:
        version, seconds = rehearse()
    except IT3Error as problem:
        return Finding("OpenFOAM", False, f"for cars: {problem}", solver=True)
    told = f"OpenFOAM {version}; all programs that a car needs are there, tried in {seconds:.1f} s"
    return Finding("OpenFOAM", True, told, solver=True)


def _installed(name: str, otherwise: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, f"not installed; {otherwise}")
