"""From a closed body to its drag coefficient: the entry to OpenFOAM."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import trimesh

from it3_aero.cars.foam.flow import Flow
from it3_aero.cars.foam.install import find
from it3_aero.cars.foam.presets import Preset, preset
from it3_aero.cars.foam.steps import Case
from it3_aero.cars.shape import is_symmetric
from it3_aero.programs import SolverError
from it3_core import IT3Error

__all__ = ["SPEED", "rehearse", "solve"]

SPEED = 40.0
"""Of the wind, in m/s: as in Lienhart's and Becker's measurements of the Ahmed body."""

_PROGRAMS = ("blockMesh", "surfaceFeatureExtract", "snappyHexMesh", "checkMesh", "simpleFoam")


def solve(
    mesh: trimesh.Trimesh,
    folder: str | os.PathLike[str],
    settings: str | Preset = "coarse",
    *,
    speed: float = SPEED,
    ranks: int = 1,
    symmetric: bool | None = None,
) -> Flow:
    """The flow about a closed body that stands on, or hovers over, the ground at z = 0.

    Args:
        mesh: in metres, the wind along x, z up; `it3_aero.cars.intake` makes such a mesh.
        folder: for the case. One that was begun goes on; one that is done is read.
        settings: "smoke", "coarse" or "medium", or a preset of your own.
        speed: of the wind, in m/s.
        ranks: processes of MPI. On few cores, cases side by side are much faster.
        symmetric: solve one half only; found out if not given.

    Example:
        >>> solve(trimesh.Trimesh(), "/tmp/nothing")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: the mesh is not a closed body: run it through intake first
    """
    if not len(mesh.faces) or not mesh.is_volume:
        raise IT3Error("the mesh is not a closed body: run it through intake first")
    if ranks < 1:
        raise IT3Error(f"ranks must be 1 or more, but is {ranks}")
    if not 1.0 <= speed <= 100.0:
        raise IT3Error(f"speed must lie between 1 and 100 m/s, but is {speed:g}")
    chosen = preset(settings) if isinstance(settings, str) else settings
    half = is_symmetric(mesh) if symmetric is None else symmetric
    install = find()
    with _locked(Path(folder).resolve()) as place:
        return Case(place, mesh, chosen, speed, ranks, half, install).run()


def rehearse() -> tuple[str, float]:
    """OpenFOAM's version, and how long it takes to make an empty domain; `SolverError` if it can't.

    Example:
        >>> from unittest.mock import patch
        >>> with patch.dict("os.environ", PATH="/nowhere"):
        ...     rehearse()
        Traceback (most recent call last):
        ...
        it3_aero.programs.SolverError: there is no program simpleFoam: run apt-get install ...
    """
    install = find()
    for name in _PROGRAMS:
        install.program(name)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="it3-openfoam-") as place:
        body = trimesh.creation.box(bounds=[[0.0, -0.5, 0.1], [2.0, 0.5, 1.0]])
        case = Case(Path(place), body, preset("smoke"), SPEED, 1, True, install)
        problem = case.rehearsed()
    if problem:
        raise SolverError(f"OpenFOAM {install.version} is here, but doesn't work: {problem}")
    return install.version, time.perf_counter() - began


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """A case's folder, for one process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as problem:
        raise IT3Error(f"can't write into {folder}: {problem.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except BlockingIOError:
        raise IT3Error(f"another run is working in {folder}: wait for it") from None
    finally:
        os.close(lock)
