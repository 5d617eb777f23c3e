"""What is installed, whether it works, and how to get the rest: `it3-aero doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from it3_aero.cars.foam.files import PROGRAMS, find
from it3_aero.wings import NeuralFoil, Solver, XFoil, naca
from it3_core import IT3Error

# NACA 0012 at Re 1e6, 4 degrees, Ncrit 9, by XFoil 6.96: airfoiltools.com, xf-n0012-il-1000000.
_CL, _CD = 0.4276, 0.00728
_TOLERANCE = {"XFoil": 0.01, "NeuralFoil": 0.05}


class Finding(NamedTuple):
    """One line of the doctor's."""

    name: str
    works: bool
    message: str
    solver: bool = True

    def __str__(self) -> str:
        return f"{'ok' if self.works else '--'}  {self.name}: {self.message}"


def examine() -> Iterator[Finding]:
    """Look at everything that it3-aero can use; each finding as soon as it is there."""
    for name in ("torch", "torch-geometric", "trimesh"):
        yield _installed(name, name, "it comes with it3-aero: install that again")
    yield _try_solver(XFoil())
    yield _try_solver(NeuralFoil())
    try:
        install = find()
        for name in PROGRAMS:
            install.program(name)
        yield Finding("OpenFOAM", True, f"OpenFOAM {install.version}, with all that a car needs")
    except IT3Error as problem:
        yield Finding("OpenFOAM", False, f"for cars: {problem}")
    yield _installed("Dask", "distributed", 'for --dask: pip install "it3-aero[dask]"')


def _try_solver(solver: Solver) -> Finding:
    """Run a solver on a NACA 0012 at 4 degrees, and compare with what XFoil gives."""
    try:
        solver.version()  # and whatever a first run has to find out
        began = time.perf_counter()
        point = solver.solve(naca("0012"), reynolds=1e6, alpha=4.0)
        seconds = time.perf_counter() - began
    except IT3Error as problem:
        return Finding(solver.name, False, str(problem))
    if not point.converged:
        return Finding(solver.name, False, f"a NACA 0012 at 4°: {point.reason}")
    off = max(abs(point.cl / _CL - 1), abs(point.cd / _CD - 1))
    message = (
        f"{point.solver}; a NACA 0012 at 4° and Re 1e6 has CL {point.cl:.4f}, CD {point.cd:.5f} "
        f"(published: {_CL:.4f}, {_CD:.5f}), in {seconds:.2f} s"
    )
    right = off <= _TOLERANCE[solver.name]
    return Finding(solver.name, right, message if right else f"wrong result: {message}")


def _installed(name: str, package: str, otherwise: str) -> Finding:
    try:
        return Finding(name, True, version(package), solver=False)
    except PackageNotFoundError:
        return Finding(name, False, f"not installed; {otherwise}", solver=False)
