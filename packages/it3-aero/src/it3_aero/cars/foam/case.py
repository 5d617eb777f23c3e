"""One body in the wind: mesh, iterations in short runs, and little left behind.

The solver runs in pieces of `WINDOW` iterations, each from the state that the one before wrote.
That is also how a case continues after kill -9: what a piece left unfinished is thrown away, and it
begins again from the same bytes. So a case that was killed has the result of one that wasn't.

All that OpenFOAM reads and writes is in the case's folder `openfoam`, which is ours alone.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trimesh

from it3_aero.cars.foam.files import (
    NO_DRAG,
    PROGRAMS,
    SPEED,
    WINDOW,
    Domain,
    Drag,
    Flow,
    Install,
    Preset,
    assess,
    coefficients,
    dictionaries,
    find,
    measures,
    preset,
    pressure,
)
from it3_aero.cars.meshes import frontal_area, is_symmetric
from it3_aero.generation.programs import run
from it3_aero.generation.store import only_one
from it3_core import IT3Error
from it3_core.io.files import make_folder, write_bytes, write_text
from it3_core.io.output import check_output, open_output, read_marker
from it3_core.io.tensors import read_tensors, write_tensors
from it3_core.io.typed import read_json

TASK = "cars solve"  # the command, as a folder's marker names it
_FOOT = 0.004  # of the length: what is nearer to the ground than this stands on it
_WORK = "openfoam/ours"  # names the folder as ours in the marker
_PRESSURE = "it3-aero pressure"  # what a file is
_FILES = ("case.json", "coefficients.csv", "pressure.safetensors", "pressure.png")


@dataclass
class State:
    """How far a case is, as in `case.json`; it is done when it has a drag or a problem."""

    cells: int = 0
    car_faces: int = 0
    iterations: int = 0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    cd: float | None = None
    cd_std: float | None = None
    cl: float | None = None
    problem: str | None = None


class Case:
    """A case's folder."""

    def __init__(
        self,
        folder: Path,
        mesh: trimesh.Trimesh,
        chosen: Preset,
        ranks: int,
        half: bool,
        install: Install,
    ) -> None:
        self.folder, self.preset, self.ranks, self.install = folder, chosen, ranks, install
        low, high = (tuple(map(float, corner)) for corner in mesh.bounds)
        self.domain = Domain(low, high, half, chosen.base)  # type: ignore[arg-type]
        self.area, self.volume = frontal_area(mesh), float(mesh.volume)
        self.surface = _standing(mesh)
        self.stl: bytes = trimesh.exchange.stl.export_stl(self.surface)
        self.solver = f"OpenFOAM {install.version}"
        self.settings = {
            "preset": asdict(chosen),
            "speed": SPEED,
            "ranks": ranks,
            "half": half,
            "solver": self.solver,
            "surface": hashlib.sha256(self.stl).hexdigest(),
        }
        self.work = folder / "openfoam"
        self.state = State()

    def run(self) -> Flow:
        """Continue from where the folder is, to the end."""
        check_case(self.folder, self.preset, self.ranks)
        self.output = open_output(self.folder, TASK, self.settings, files=_FILES)
        with only_one(self.output.reserve(".lock"), self.folder):
            self.output.reserve(_WORK)
            path = self.folder / "case.json"
            if path.exists():
                self.state = read_json(path, State, "name another folder")
            if self.state.cd is None and self.state.problem is None:
                problem = self._meshed()
                drag = None if problem else self._iterated()
                self._finish(drag, problem if drag is None else drag.problem)
            return self._flow()

    def _meshed(self) -> str | None:
        """Make the mesh, unless it is there; why it isn't to be trusted, if so."""
        if self.state.cells:
            return None
        self._remove("constant", "system", "0", "logs")
        self._write(WINDOW)
        write_bytes(make_folder(self.work / "constant" / "triSurface") / "car.stl", self.stl)
        options = {"snappyHexMesh": ["-overwrite"], "checkMesh": ["-constant"]}
        for name in PROGRAMS[:-1]:
            if problem := self._call(name, [self.install.program(name), *options.get(name, [])]):
                return problem
        if problem := self._checked():
            return problem
        problem = None
        if self.ranks > 1:
            program = self.install.program("decomposePar")
            problem = self._call("decomposePar", [program, "-force"])
        if not problem:
            self._save()
        return problem

    def _checked(self) -> str | None:
        """Whether the mesh has the body in it: the mesher says that all is well regardless."""
        log = (self.work / "logs" / "checkMesh").read_text(errors="replace")
        found = measures(log)
        if found is None:
            return "the mesh has no faces on the body, or can't be read"
        if found.regions != 1:
            return f"the mesh falls into {found.regions} parts"
        sides = 2.0 if self.domain.half else 1.0
        inside = sides * (self.domain.volume - found.volume)
        if abs(inside / self.volume - 1) > self.preset.volume_error:
            return (
                f"the mesh leaves out {inside:.4g} m³ for a body of {self.volume:.4g} m³: it is "
                "not closed, or too thin for these cells"
            )
        least = 0.5 * self.surface.area / sides / (self.domain.length / self.preset.base) ** 2
        if found.car_faces < least * 4 ** self.preset.surface[0] / 2:
            return f"the mesh has only {found.car_faces} faces on the body"
        self.state.cells, self.state.car_faces = found.cells, found.car_faces
        return None

    def _iterated(self) -> Drag:
        """Run the solver, piece by piece, until it has converged or has to be given up."""
        while True:
            done = self.state.iterations
            self._forget_after(done)
            drag = assess(coefficients(self.work))
            if drag.converged or drag.problem:
                return drag
            if done >= self.preset.most_iterations:
                reached = f"Cd {drag.cd:.4f} ± {drag.std:.4f}"
                return drag._replace(problem=f"not converged after {done} iterations: {reached}")
            self._write(done + WINDOW)
            problem = self._call(f"simpleFoam.{done}", self._solver(), watch=self._diverging)
            if not problem and pressure(self.work, done + WINDOW) is None:
                problem = "the solver wrote no pressure on the body"
            if problem:
                return NO_DRAG._replace(problem=problem)
            self.state.iterations = done + WINDOW
            self._save()

    def _solver(self) -> list[str]:
        program = self.install.program("simpleFoam")
        if self.ranks == 1:
            return [program]
        mpirun = self.install.program("mpirun")
        return [mpirun, "--oversubscribe", "-np", str(self.ranks), program, "-parallel"]

    def _diverging(self) -> str | None:
        return assess(coefficients(self.work)).problem

    def _forget_after(self, iteration: int) -> None:
        """Remove what a piece that was killed has left, and states that are no longer needed."""
        work = self.work
        states = [*work.glob("[0-9]*"), *work.glob("processor*/[0-9]*")]
        gone = [path for path in states if int(path.name) not in (0, iteration)]
        rows = work.glob("postProcessing/forceCoeffs1/*")
        gone += [path for path in rows if float(path.name) >= iteration]
        surfaces = work.glob("postProcessing/surfaces1/*")
        gone += [path for path in surfaces if float(path.name) != iteration]
        for path in gone:
            shutil.rmtree(path)

    def _call(
        self, name: str, arguments: list[str], watch: Callable[[], str | None] = lambda: None
    ) -> str | None:
        """Run a program of OpenFOAM's; what went wrong, if something did."""
        ended = run(
            arguments,
            self.work,
            make_folder(self.work / "logs") / name,
            environment=self.install.environment,
            cpu_limit=self.preset.cpu_limit,
            watch=watch,
        )
        self.state.cpu_seconds = round(self.state.cpu_seconds + ended.cpu_seconds, 2)
        self.state.peak_mb = round(max(self.state.peak_mb, ended.peak_mb), 1)
        if ended.problem == "interrupted":
            raise KeyboardInterrupt
        if ended.problem is None:
            return None
        return self._diverging() or f"{name.partition('.')[0]}: {ended.problem}"

    def _finish(self, drag: Drag | None, problem: str | None) -> None:
        """Keep what is small and worth keeping, then say that the case is done."""
        found = drag and pressure(self.work, self.state.iterations)
        if found:
            tensors = {
                name: torch.from_numpy(values.astype(np.float32))
                for name, values in zip(("points", "cp"), found, strict=True)
            }
            with self.output.writing("pressure.safetensors") as path:
                write_tensors(path, tensors, {}, kind=_PRESSURE)
        rows = coefficients(self.work).tolist()
        text = "".join(f"{int(n)},{cd:.9g},{cl:.9g}\n" for n, cd, cl in rows)
        self.output.write_text("coefficients.csv", f"iteration,cd,cl\n{text}")
        if problem:
            self.state.problem = problem
        elif drag is not None:
            self.state.cd, self.state.cd_std, self.state.cl = drag.cd, drag.std, drag.cl
        self._save()
        for log in (self.work / "logs").glob("*[!z]"):
            write_bytes(log.with_name(f"{log.name}.gz"), gzip.compress(log.read_bytes(), mtime=0))
            log.unlink()
        states = [*self.work.glob("[0-9]*"), *self.work.glob("processor*")]
        meshes = ("constant/polyMesh", "constant/triSurface", "constant/extendedFeatureEdgeMesh")
        self._remove(*(path.name for path in states), *meshes, "postProcessing")

    def _flow(self) -> Flow:
        points, cp = np.empty((0, 3)), np.empty(0)
        path = self.folder / "pressure.safetensors"
        if path.exists():
            found = read_tensors(path, kind=_PRESSURE, metadata=dict[str, Any]).tensors
            points, cp = found["points"].double().numpy(), found["cp"].double().numpy()
        state: dict[str, Any] = {
            name: np.nan if v is None else v for name, v in asdict(self.state).items()
        }
        return Flow(
            **state | {"problem": self.state.problem},
            half=self.domain.half,
            frontal_area=self.area,
            volume=self.volume,
            solver=self.solver,
            points=points,
            cp=cp,
        )

    def _write(self, end: int) -> None:
        given = self.domain, self.preset, self.area, end, self.ranks
        for path, text in dictionaries(*given).items():
            if not (path.startswith("0/") and self.state.cells):
                write_text(make_folder((self.work / path).parent) / Path(path).name, text)

    def _save(self) -> None:
        self.output.write_json("case.json", asdict(self.state))

    def _remove(self, *names: str) -> None:
        for name in names:
            shutil.rmtree(self.work / name, ignore_errors=True)


def _standing(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    """The mesh with its feet sunk into the ground, so that no cell is squeezed beneath them."""
    foot = _FOOT * float(mesh.extents[0])
    vertices = np.array(mesh.vertices)
    vertices[vertices[:, 2] < foot, 2] -= 2 * foot
    return trimesh.Trimesh(vertices, mesh.faces, process=False)


def check_case(folder: Path, chosen: Preset, ranks: int) -> None:
    """Refuse what a case can't be solved in or with, before any work."""
    if ranks < 1:
        raise IT3Error(f"ranks must be 1 or more, but is {ranks}")
    check_output(folder, TASK, {"preset": asdict(chosen), "ranks": ranks}, files=_FILES)
    work = folder / "openfoam"
    for link in filter(Path.is_symlink, (work, *work.rglob("*"))):
        raise IT3Error(f"{link} is a link, which is not followed: move it away")
    if work.exists() and _WORK not in read_marker(folder).files:
        raise IT3Error(f"{work} is not ours: move it away or name another folder")


def solve(
    mesh: trimesh.Trimesh,
    folder: str | os.PathLike[str],
    settings: str | Preset = "coarse",
    *,
    ranks: int = 1,
) -> Flow:
    """The flow about a closed body that stands on, or hovers over, the ground at z = 0.

    Args:
        mesh: in metres, the wind along x, z up; `it3_aero.cars.intake` makes such a mesh.
        folder: for the case. One that was begun continues; one that is done is read.
        settings: "smoke", "coarse" or "medium", or a preset of your own.
        ranks: processes of MPI. On few cores, cases side by side are much faster.

    Example:
        >>> solve(trimesh.Trimesh(), "/tmp/nothing")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: the mesh is not a closed body: run it through intake first
    """
    if not len(mesh.faces) or not mesh.is_volume:
        raise IT3Error("the mesh is not a closed body: run it through intake first")
    chosen = preset(settings) if isinstance(settings, str) else settings
    return Case(Path(folder).resolve(), mesh, chosen, ranks, is_symmetric(mesh), find()).run()
