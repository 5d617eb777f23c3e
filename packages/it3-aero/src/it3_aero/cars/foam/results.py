"""What OpenFOAM wrote: coefficients, the mesh's measures, the pressure on the body."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

from it3_aero.cars.loft import Array

__all__ = ["Drag", "MeshMeasures", "coefficients", "judge", "measures", "on_vertices", "pressure"]

WINDOW = 50
"""Iterations that are averaged, and between two restart points."""

_AGREE = 0.001  # two windows' means
_STEADY = 0.01  # standard deviation within the last
_BLOWN_UP = 5.0  # |Cd| that no car has
_SETTLED = 60  # iterations after which that counts


@dataclass(frozen=True)
class Drag:
    """The drag coefficient after some iterations.

    Attributes:
        cd: mean of the last window.
        std: its standard deviation there.
        cl: mean lift coefficient.
        drift: change of the mean from the window before.
        problem: why no more iterations would help.
    """

    cd: float
    std: float
    cl: float
    drift: float
    problem: str | None = None

    @property
    def converged(self) -> bool:
        """Two windows agree, and the last is steady."""
        return self.problem is None and abs(self.drift) < _AGREE and self.std < _STEADY


def coefficients(case: Path) -> Array:
    """Rows of iteration, Cd and Cl. After a restart there are several files: the newest wins.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for start, text in {"0": "1 9 0 0\\n2 8 0 0\\n", "1": "2 7 0 0\\n"}.items():
        ...         path = Path(folder, "postProcessing/forceCoeffs1", start, "coefficient.dat")
        ...         path.parent.mkdir(parents=True)
        ...         _ = path.write_text("# Time Cd Cs Cl\\n" + text)
        ...     coefficients(Path(folder)).tolist()
        [[1.0, 9.0, 0.0], [2.0, 7.0, 0.0]]
    """
    rows: dict[int, tuple[float, float, float]] = {}
    starts = case.glob("postProcessing/forceCoeffs1/*/coefficient*.dat")
    for path in sorted(starts, key=lambda path: float(path.parent.name)):
        columns = ["Time", "Cd", "Cs", "Cl"]
        for line in path.read_text(errors="replace").splitlines():
            fields = line.split()
            if line.startswith("#"):
                columns = fields[1:] if "Cd" in fields else columns
                continue
            try:
                row = dict(zip(columns, map(float, fields), strict=False))
                rows[int(row["Time"])] = (row["Time"], row["Cd"], row["Cl"])
            except (ValueError, KeyError):
                continue  # torn by a kill
    return np.array([rows[number] for number in sorted(rows)]).reshape(-1, 3)


def judge(rows: Array) -> Drag:
    """What the coefficients say so far.

    Example:
        >>> steady = np.column_stack([np.arange(100), np.full(100, 0.3), np.zeros(100)])
        >>> judge(steady).converged
        True
        >>> judge(steady * [1, -1e30, 1]).problem
        'diverged: Cd reached -3e+29'
    """
    worst = blown_up(rows)
    if worst is not None:
        return Drag(math.nan, math.nan, math.nan, math.nan, f"diverged: Cd reached {worst:.3g}")
    if len(rows) < 2 * WINDOW:
        return Drag(math.nan, math.nan, math.nan, math.inf)
    last, before = rows[-WINDOW:], rows[-2 * WINDOW : -WINDOW]
    cd = float(last[:, 1].mean())
    drift = cd - float(before[:, 1].mean())
    return Drag(cd, float(last[:, 1].std()), float(last[:, 2].mean()), drift)


def blown_up(rows: Array) -> float | None:
    """A Cd that isn't a number, or that no car has after the first iterations."""
    late = rows[_SETTLED:, 1]
    bad = late[~(np.abs(late) <= _BLOWN_UP)]
    broken = rows[~np.isfinite(rows[:, 1]), 1]
    found = [*bad.tolist(), *broken.tolist()]
    return found[0] if found else None


@dataclass(frozen=True)
class MeshMeasures:
    """What `checkMesh` says.

    Attributes:
        cells: their number.
        car_faces: faces on the body.
        volume: of all cells.
        regions: parts that aren't connected.
    """

    cells: int
    car_faces: int
    volume: float
    regions: int


def measures(log: str) -> MeshMeasures | None:
    """The measures in a log of `checkMesh`; None if they aren't there.

    Example:
        >>> measures("cells: 9\\n car 5 6 ok\\n Total volume = 2.5. Cell\\n Number of regions: 1 ")
        MeshMeasures(cells=9, car_faces=5, volume=2.5, regions=1)
    """
    number = r"([-+.\deE]*\d)"
    patterns = {
        "cells": r"cells:\s+(\d+)",
        "car_faces": r"\bcar\s+(\d+)\s+\d+",
        "volume": rf"Total volume = {number}",
        "regions": r"Number of regions: (\d+)",
    }
    found = {name: re.search(pattern, log) for name, pattern in patterns.items()}
    values = {name: match.group(1) for name, match in found.items() if match}
    if values.keys() < patterns.keys():
        return None
    return MeshMeasures(
        int(values["cells"]),
        int(values["car_faces"]),
        float(values["volume"]),
        int(values["regions"]),
    )


def pressure(case: Path, iteration: int, speed: float) -> tuple[Array, Array] | None:
    """Middles of the body's faces and their pressure coefficients, at an iteration."""
    folder = case / "postProcessing" / "surfaces1" / str(iteration)
    for path in sorted(folder.rglob("*.raw")):
        try:
            rows = np.loadtxt(path, comments="#", ndmin=2)
        except ValueError:
            continue
        if rows.shape[1] == 4 and len(rows) and np.isfinite(rows).all():
            return rows[:, :3], rows[:, 3] / (0.5 * speed**2)
    return None


def on_vertices(points: Array, values: Array, vertices: Array, half: bool) -> Array:
    """Values at points, at other points nearby: the four nearest, weighted by their distance.

    Args:
        points: `(n, 3)`, where the values are.
        values: `(n,)`.
        vertices: `(m, 3)`, where they are wanted.
        half: the points are those with y ≥ 0 of something symmetric.

    Example:
        >>> points = np.array([[0.0, 1.0, 0.0], [5.0, 1.0, 0.0]])
        >>> on_vertices(points, np.array([1.0, 2.0]), np.array([[0.0, -1.0, 0.0]]), half=True)
        array([1.])
    """
    wanted = np.array(vertices, dtype=float)
    if half:
        wanted[:, 1] = np.abs(wanted[:, 1])
    distance, nearest = cKDTree(points).query(wanted, k=min(4, len(points)))
    distance, nearest = distance.reshape(len(wanted), -1), nearest.reshape(len(wanted), -1)
    weights = 1 / np.maximum(distance, 1e-12) ** 2
    return np.asarray((values[nearest] * weights).sum(axis=1) / weights.sum(axis=1))
