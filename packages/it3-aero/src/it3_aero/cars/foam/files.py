"""OpenFOAM: what it reads, filled into templates, what it wrote, where it is and which it is."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from scipy.spatial import cKDTree

from it3_aero.cars.meshes import Array
from it3_aero.generation.programs import SolverError
from it3_core import IT3Error


@dataclass(frozen=True)
class Preset:
    """Numbers that decide what a case costs and how good it is.

    Cells are cubes whose edge is the body's length divided by `base` far away, and half of that
    with each level.
    """

    name: str  # such as "coarse"
    surface: tuple[int, int]  # lowest and highest level on the body
    edges: int  # level along its sharp edges
    # level in the box around the body and its wake, in the near wake, and just at it
    boxes: tuple[int, int, int]
    layers: int  # cells that are grown on the body, 0 for none
    most_cells: int  # limit that the mesher keeps to
    most_iterations: int  # after which a case that hasn't converged is given up
    volume_error: float  # largest fraction by which the body's volume in the mesh may be off
    cpu_limit: int  # seconds of CPU that one program may take
    base: int = 4  # cells along the body's length, far away


PRESETS = {
    "smoke": Preset("smoke", (3, 4), 4, (1, 2, 3), 0, 60_000, 500, 0.08, 600),
    "coarse": Preset("coarse", (4, 5), 5, (2, 3, 4), 0, 300_000, 500, 0.04, 3_600, base=5),
    "medium": Preset("medium", (5, 6), 6, (3, 4, 5), 3, 1_500_000, 1_000, 0.03, 36_000),
}


def preset(name: str) -> Preset:
    """A preset by name."""
    if name not in PRESETS:
        raise IT3Error(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


TEMPLATES = Path(__file__).parent / "templates"
"""Of the files of a case; OpenFOAM 1912's reader needs a space before an opening parenthesis."""

SPEED = 40.0
"""Of the wind, in m/s: as in Lienhart's and Becker's measurements of the Ahmed body."""

_VISCOSITY = 1.5e-5  # of air, in m²/s

_INTENSITY, _RATIO = 0.005, 10.0  # turbulence of the wind: of its speed, and of the viscosity
_UPSTREAM, _DOWNSTREAM, _SIDE = 2.0, 5.0, 1.75  # in lengths of the body


class Domain(NamedTuple):
    """The space about a body, in cubes of a body's length over `base`."""

    low: tuple[float, float, float]  # the body's smallest x, y and z
    high: tuple[float, float, float]  # the body's largest
    half: bool  # whether y < 0 is left out, for a body that is symmetric
    base: int  # cells along the body's length, far away

    @property
    def length(self) -> float:
        """The body's length, by which all is measured."""
        return self.high[0] - self.low[0]

    @property
    def cells(self) -> tuple[int, int, int]:
        """Cells along x, y and z, far away."""
        across = math.ceil(_SIDE * self.base)
        along = math.ceil((_UPSTREAM + 1 + _DOWNSTREAM) * self.base)
        return along, across if self.half else 2 * across, across

    @property
    def corners(self) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
        """Where it begins and ends along x, y and z."""
        edge = self.length / self.base
        nx, ny, nz = self.cells
        x0 = self.low[0] - _UPSTREAM * self.length
        y0 = 0.0 if self.half else -ny // 2 * edge
        return (x0, x0 + nx * edge), (y0, y0 + ny * edge), (0.0, nz * edge)

    @property
    def volume(self) -> float:
        """With the body in it."""
        return math.prod(end - start for start, end in self.corners)


def dictionaries(
    domain: Domain, preset: Preset, area: float, end: int, ranks: int
) -> dict[str, str]:
    """Every file of a case but the surface, by path; the solver stops at the iteration `end`."""
    energy = 1.5 * (_INTENSITY * SPEED) ** 2
    values: dict[str, object] = {
        **_space(domain),
        **_refinement(domain, preset),
        "end": end,
        "every": WINDOW,
        "ranks": ranks,
        "speed": f"{SPEED:.8g}",
        "length": f"{domain.length:.8g}",
        "area": f"{area / (2 if domain.half else 1):.8g}",
        "viscosity": f"{_VISCOSITY:g}",
        "k": f"{energy:.8g}",
        "epsilon": f"{0.09 * energy**2 / (_RATIO * _VISCOSITY):.8g}",  # 0.09 is k-epsilon's C_mu
    }
    paths = [path for path in TEMPLATES.rglob("*") if path.is_file()]
    return {str(path.relative_to(TEMPLATES)): _filled(path, values) for path in sorted(paths)}


def _space(domain: Domain) -> dict[str, object]:
    (x0, x1), (y0, y1), (_, z1) = domain.corners
    named = {"x0": x0, "x1": x1, "y0": y0, "y1": y1, "z1": z1}
    right = {"right": "patch", "right_field": "slip", "right_nut": "calculated"}
    return {
        **{name: f"{value:.10g}" for name, value in named.items()},
        **dict(zip(("nx", "ny", "nz"), domain.cells, strict=True)),
        **(dict.fromkeys(right, "symmetryPlane") if domain.half else right),
        # Well away from the body and from the faces of any cell.
        "inside": _point((x0 + 0.1237 * domain.length, y1 - 0.1171 * domain.length, 0.9113 * z1)),
    }


def _refinement(domain: Domain, preset: Preset) -> dict[str, object]:
    """Boxes about the body, its wake and its base, each within the one before."""
    length = domain.length
    (x0, y0, _), (x1, y1, z1) = domain.low, domain.high
    boxes = {  # ahead, behind, beside and above, in lengths of the body
        "around": (0.4, 1.5, 0.25, 0.25),
        "wake": (0.15, 0.8, 0.1, 0.1),
        "base": (-0.9, 0.3, 0.02, 0.02),
    }
    filled: dict[str, object] = {
        "low": preset.surface[0],
        "high": preset.surface[1],
        "edges": preset.edges,
        "layers": preset.layers,
        "add_layers": "true" if preset.layers else "false",
        "most_cells": preset.most_cells,
    }
    for (name, (ahead, behind, beside, above)), level in zip(
        boxes.items(), preset.boxes, strict=True
    ):
        wide = beside * length
        filled[f"{name}_min"] = _point((x0 - ahead * length, y0 - wide, -length))
        filled[f"{name}_max"] = _point((x1 + behind * length, y1 + wide, z1 + above * length))
        filled[f"level_{name}"] = level
    return filled


def _point(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:.8g}" for number in numbers)


def _filled(path: Path, values: dict[str, object]) -> str:
    fields = "volVectorField" if path.name == "U" else "volScalarField"
    kind = fields if path.parent.name == "0" else "dictionary"
    head = f"FoamFile {{ version 2.0; format ascii; class {kind}; object {path.name}; }}"
    return f"{head}\n{Template(path.read_text(encoding='ascii')).substitute(values)}"


WINDOW = 50
"""Iterations that are averaged, and between two restart points."""

_AGREE = 0.001  # two windows' means
_STEADY = 0.01  # standard deviation within the last
_BLOWN_UP = 5.0  # |Cd| that no car has
_SETTLED = 60  # iterations after which that counts


class Drag(NamedTuple):
    """The drag coefficient after some iterations."""

    cd: float  # mean of the last window
    std: float  # its standard deviation there
    cl: float  # mean lift coefficient
    drift: float  # change of the mean from the window before
    problem: str | None = None  # why no more iterations would help

    @property
    def converged(self) -> bool:
        """Two windows agree, and the last is steady."""
        return self.problem is None and abs(self.drift) < _AGREE and self.std < _STEADY


NO_DRAG = Drag(math.nan, math.nan, math.nan, math.inf)


def coefficients(case: Path) -> Array:
    """Rows of iteration, Cd and Cl. After a restart there are several files: the newest wins."""
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


def assess(rows: Array) -> Drag:
    """What the coefficients say so far."""
    drags, late = rows[:, 1], np.arange(len(rows)) >= _SETTLED
    broken = drags[~np.isfinite(drags) | (late & ~(np.abs(drags) <= _BLOWN_UP))]
    if len(broken):
        return NO_DRAG._replace(problem=f"diverged: Cd reached {broken[0]:.3g}")
    if len(rows) < 2 * WINDOW:
        return NO_DRAG
    last, before = rows[-WINDOW:], rows[-2 * WINDOW : -WINDOW]
    cd = float(last[:, 1].mean())
    drift = cd - float(before[:, 1].mean())
    return Drag(cd, float(last[:, 1].std()), float(last[:, 2].mean()), drift)


class MeshMeasures(NamedTuple):
    """What `checkMesh` says."""

    cells: int
    car_faces: int  # faces on the body
    volume: float  # of all cells
    regions: int  # parts that aren't connected


def measures(log: str) -> MeshMeasures | None:
    """The measures in a log of `checkMesh`; None if they aren't there."""
    patterns = (
        r"cells:\s+(\d+)",
        r"\bcar\s+(\d+)\s+\d+",
        r"Total volume = ([-+.\deE]*\d)",
        r"Number of regions: (\d+)",
    )
    found = [match.group(1) for pattern in patterns if (match := re.search(pattern, log))]
    if len(found) < len(patterns):
        return None
    cells, faces, volume, regions = found
    return MeshMeasures(int(cells), int(faces), float(volume), int(regions))


def pressure(case: Path, iteration: int) -> tuple[Array, Array] | None:
    """Middles of the body's faces and their pressure coefficients, at an iteration."""
    folder = case / "postProcessing" / "surfaces1" / str(iteration)
    for path in sorted(folder.rglob("*.raw")):
        try:
            rows = np.loadtxt(path, comments="#", ndmin=2)
        except ValueError:
            continue
        if rows.shape[1] == 4 and len(rows) and np.isfinite(rows).all():
            return rows[:, :3], rows[:, 3] / (0.5 * SPEED**2)
    return None


@dataclass(frozen=True, eq=False)
class Flow:
    """The flow about a body, or why there is none."""

    cd: float  # drag coefficient, the mean over the last 50 iterations; NaN without one
    cd_std: float  # its standard deviation over those
    cl: float  # lift coefficient
    iterations: int  # of the solver
    cells: int  # of the mesh
    car_faces: int  # cells' faces on the body
    half: bool  # whether the half with y ≥ 0 was solved, mirrored in y = 0
    frontal_area: float  # that cd is based on, in m²
    volume: float  # of the body, in m³
    cpu_seconds: float  # of all programs
    peak_mb: float  # the most memory that one of them had
    solver: str  # such as "OpenFOAM 1912"
    points: Array  # `(n, 3)`, middles of the cells' faces on the body
    cp: Array  # `(n,)`, pressure coefficients there
    problem: str | None = None  # why there is no flow

    def pressure_on(self, vertices: Array) -> Array:
        """Pressure coefficients at the vertices of a mesh of the same body.

        Means over the four nearest faces' middles, weighted by their distance.
        """
        wanted = np.array(vertices, dtype=float)
        if self.half:
            wanted[:, 1] = np.abs(wanted[:, 1])
        many = min(4, len(self.points))
        distance, nearest = cKDTree(self.points).query(wanted, k=range(1, many + 1))
        weights = 1 / np.maximum(distance, 1e-12) ** 2
        return np.asarray((self.cp[nearest] * weights).sum(axis=1) / weights.sum(axis=1))


_OLDEST, _TESTED = 1806, 1912  # the first of openfoam.com's that has these dictionaries
_BUILD = re.compile(r"OpenFOAM\S*\s+\(?(\d{4})\b|OPENFOAM=v?(\d{4})|OpenFOAM-v(\d{4})")
_OTHER = re.compile(r"OpenFOAM-(\d{1,2}|dev)\b|openfoam\.org", re.IGNORECASE)
_ADVICE = (
    "run apt-get install openfoam (Debian's 1912), or set PATH to where OpenFOAM's programs are"
)


PROGRAMS = ("blockMesh", "surfaceFeatureExtract", "snappyHexMesh", "checkMesh", "simpleFoam")
"""In the order in which a case runs them."""


class Install(NamedTuple):
    """OpenFOAM as it is installed here."""

    version: str  # such as "1912"
    environment: dict[str, str]  # that its programs need

    @staticmethod
    def program(name: str) -> str:
        """The full path of one of its programs, or `SolverError`."""
        found = shutil.which(name)
        if found is None:
            raise SolverError(f"there is no program {name}: {_ADVICE}")
        return os.path.abspath(found)  # noqa: PTH100 - links stay links: argv[0] may matter


def find() -> Install:
    """OpenFOAM, or a `SolverError` that says how to get it."""
    environment = _environment()
    return Install(_version(Install.program("simpleFoam"), tuple(environment.items())), environment)


def _environment() -> dict[str, str]:
    """What a program of OpenFOAM's sees of this process's variables: as little as works."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in kept or name.startswith(("WM_", "FOAM_"))
    }
    if "WM_PROJECT_DIR" not in environment and Path("/usr/share/openfoam/etc").is_dir():
        environment["WM_PROJECT_DIR"] = "/usr/share/openfoam"  # Debian's
    environment["OMP_NUM_THREADS"] = "1"
    # A rank of MPI that waits lets others work: on busy cores that halves the CPU it takes.
    environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if os.getuid() == 0:  # mpirun asks root twice
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environment


@cache
def _version(program: str, environment: tuple[tuple[str, str], ...]) -> str:
    try:
        answer = subprocess.run(
            [program, "-help"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise SolverError(f"{program} doesn't answer as OpenFOAM does: {problem}") from None
    return _parsed(program, (answer.stdout + answer.stderr).decode(errors="replace"))


def _parsed(program: str, text: str) -> str:
    found = _BUILD.search(text)
    if found is None:
        other = _OTHER.search(text)
        which = f"is {other.group(0)}" if other else "does not say which OpenFOAM it is"
        raise SolverError(
            f"{program} {which}: it3-aero's cases are written for openfoam.com's, {_OLDEST} or "
            f"later (tested with {_TESTED}), not for openfoam.org's; {_ADVICE}"
        )
    version = next(group for group in found.groups() if group)
    if int(version) < _OLDEST:
        raise SolverError(
            f"{program} is OpenFOAM {version}, but it has to be {_OLDEST} or later: {_ADVICE}"
        )
    return version
