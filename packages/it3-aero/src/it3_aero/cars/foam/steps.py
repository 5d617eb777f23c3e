"""One body in the wind: mesh, iterations in short runs, a verdict, and little left behind.

The solver runs in pieces of `WINDOW` iterations, each from the state that the one before wrote.
That is also how a case goes on after kill -9: what a piece left unfinished is thrown away, and it
begins again from the same bytes. So a case that was killed has the answer of one that wasn't.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import trimesh

from it3_aero.cars.foam.dictionaries import Domain, dictionaries
from it3_aero.cars.foam.flow import Flow
from it3_aero.cars.foam.install import Install
from it3_aero.cars.foam.presets import Preset
from it3_aero.cars.foam.results import (
    WINDOW,
    Drag,
    coefficients,
    judge,
    measures,
    pressure,
)
from it3_aero.cars.shape import frontal_area
from it3_aero.generation import write_whole
from it3_aero.programs import Ended, run
from it3_core import IT3Error

__all__ = ["Case"]

_FOOT = 0.004  # of the length: what is nearer to the ground than this stands on it


class Case:
    """A case's folder: `case.json` says how far it is."""

    def __init__(
        self,
        folder: Path,
        mesh: trimesh.Trimesh,
        chosen: Preset,
        speed: float,
        ranks: int,
        half: bool,
        install: Install,
    ) -> None:
        self.folder, self.preset, self.ranks, self.install = folder, chosen, ranks, install
        self.speed = speed
        low, high = (tuple(map(float, corner)) for corner in mesh.bounds)
        self.domain = Domain(low, high, half, chosen.base)  # type: ignore[arg-type]
        self.area, self.volume = frontal_area(mesh), float(mesh.volume)
        self.surface = _standing(mesh)
        self.stl: bytes = trimesh.exchange.stl.export_stl(self.surface)
        self.state: dict[str, Any] = {
            "settings": {
                "preset": asdict(chosen),
                "speed": speed,
                "ranks": ranks,
                "half": half,
                "solver": f"OpenFOAM {install.version}",
                "surface": hashlib.sha256(self.stl).hexdigest(),
            },
            "cells": 0,
            "car_faces": 0,
            "iterations": 0,
            "cpu_seconds": 0.0,
            "peak_mb": 0.0,
        }

    def run(self) -> Flow:
        """Go on from where the folder is, to the end."""
        self._settle()
        if "cd" not in self.state and "problem" not in self.state:
            problem = self._meshed()
            drag = None if problem else self._iterated()
            self._finish(drag, problem if drag is None else drag.problem)
        return self._flow()

    def rehearsed(self) -> str | None:
        """Make the domain without the body, only to see whether that works."""
        self._write(WINDOW)
        return self._call("blockMesh", [self.install.program("blockMesh")])

    def _settle(self) -> None:
        """Take up what is there, if it is this case."""
        path = self.folder / "case.json"
        mine = json.loads(json.dumps(self.state))
        if not path.exists():
            self._remove("constant", "system", "0", "postProcessing", "logs")
            self._save()
            return
        try:
            there = json.loads(path.read_bytes())
            same = there["settings"] == mine["settings"]
        except (ValueError, KeyError, TypeError):
            raise IT3Error(f"{path} is damaged: give another folder") from None
        if not same:
            raise IT3Error(f"{self.folder} holds another case: give another folder")
        self.state = there

    def _meshed(self) -> str | None:
        """Make the mesh, unless it is there; why it isn't to be trusted, if so."""
        if self.state["cells"]:
            return None
        self._remove("constant", "system", "0", "logs")
        self._write(WINDOW)
        surface = self.folder / "constant" / "triSurface" / "car.stl"
        surface.parent.mkdir(parents=True)
        surface.write_bytes(self.stl)
        steps = {
            "blockMesh": [],
            "surfaceFeatureExtract": [],
            "snappyHexMesh": ["-overwrite"],
            "checkMesh": ["-constant"],
        }
        for name, options in steps.items():
            if problem := self._call(name, [self.install.program(name), *options]):
                return problem
        if problem := self._checked():
            return problem
        if self.ranks > 1:
            program = self.install.program("decomposePar")
            if problem := self._call("decomposePar", [program, "-force"]):
                return problem
        self._save()
        return None

    def _checked(self) -> str | None:
        """Whether the mesh has the body in it: the mesher says that all is well regardless."""
        log = (self.folder / "logs" / "checkMesh").read_text(errors="replace")
        found = measures(log)
        if found is None:
            return "the mesh has no faces on the body, or can't be read"
        if found.regions != 1:
            return f"the mesh falls into {found.regions} parts"
        share = 2.0 if self.domain.half else 1.0
        inside = share * (self.domain.volume - found.volume)
        if abs(inside / self.volume - 1) > self.preset.volume_error:
            return (
                f"the mesh leaves out {inside:.4g} m³ for a body of {self.volume:.4g} m³: it is "
                "not closed, or too thin for these cells"
            )
        least = 0.5 * self.surface.area / share / (self.domain.length / self.preset.base) ** 2
        if found.car_faces < least * 4 ** self.preset.surface[0] / 2:
            return f"the mesh has only {found.car_faces} faces on the body"
        self.state |= {"cells": found.cells, "car_faces": found.car_faces}
        return None

    def _iterated(self) -> Drag:
        """Run the solver, piece by piece, until it has converged or has to be given up."""
        while True:
            done = int(self.state["iterations"])
            self._forget_after(done)
            drag = judge(coefficients(self.folder))
            if drag.converged or drag.problem:
                return drag
            if done >= self.preset.most_iterations:
                told = f"not converged after {done} iterations: Cd {drag.cd:.4f} ± {drag.std:.4f}"
                return Drag(drag.cd, drag.std, drag.cl, drag.drift, told)
            self._write(done + WINDOW)
            problem = self._call(f"simpleFoam.{done}", self._solver(), watch=self._diverging)
            if problem:
                return Drag(np.nan, np.nan, np.nan, np.nan, problem)
            if pressure(self.folder, done + WINDOW, self.speed) is None:
                told = "the solver wrote no pressure on the body"
                return Drag(np.nan, np.nan, np.nan, np.nan, told)
            self.state["iterations"] = done + WINDOW
            self._save()

    def _solver(self) -> list[str]:
        program = self.install.program("simpleFoam")
        if self.ranks == 1:
            return [program]
        mpirun = self.install.program("mpirun")
        return [mpirun, "--oversubscribe", "-np", str(self.ranks), program, "-parallel"]

    def _diverging(self) -> str | None:
        return judge(coefficients(self.folder)).problem

    def _forget_after(self, iteration: int) -> None:
        """Remove what a piece that was killed has left, and states that are no longer needed."""
        for part in [self.folder, *self.folder.glob("processor*")]:
            for path in part.iterdir():
                if path.name.isdigit() and int(path.name) not in (0, iteration):
                    shutil.rmtree(path)
        for path in self.folder.glob("postProcessing/forceCoeffs1/*"):
            if float(path.name) >= iteration:
                shutil.rmtree(path)
        for path in self.folder.glob("postProcessing/surfaces1/*"):
            if float(path.name) != iteration:
                shutil.rmtree(path)

    def _call(self, name: str, arguments: list[str], watch: Any = None) -> str | None:
        """Run a program of OpenFOAM's; what went wrong, if something did."""
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        ended: Ended = run(
            arguments,
            self.folder,
            logs / name,
            environment=self.install.environment,
            cpu_limit=self.preset.cpu_limit,
            watch=watch,
        )
        self.state["cpu_seconds"] = round(self.state["cpu_seconds"] + ended.cpu_seconds, 2)
        self.state["peak_mb"] = round(max(self.state["peak_mb"], ended.peak_mb), 1)
        if ended.problem == "interrupted":
            raise KeyboardInterrupt
        if ended.problem is None:
            return None
        diverged = judge(coefficients(self.folder)).problem
        return diverged or f"{name.partition('.')[0]}: {ended.problem}"

    def _finish(self, drag: Drag | None, problem: str | None) -> None:
        """Keep what is small and worth keeping, then say that the case is done."""
        found = (
            None
            if drag is None
            else pressure(self.folder, int(self.state["iterations"]), self.speed)
        )
        if found is not None:
            arrays = {
                "points": found[0].astype(np.float32),
                "cp": found[1].astype(np.float32),
            }
            write_whole(self.folder / "pressure.safetensors", safetensors.numpy.save(arrays))
        rows = coefficients(self.folder)
        text = "".join(f"{int(n)},{cd:.9g},{cl:.9g}\n" for n, cd, cl in rows.tolist())
        write_whole(self.folder / "coefficients.csv", f"iteration,cd,cl\n{text}".encode())
        if problem:
            self.state["problem"] = problem
        elif drag is not None:
            self.state |= {"cd": drag.cd, "cd_std": drag.std, "cl": drag.cl}
        self._save()
        for log in (self.folder / "logs").glob("*[!z]"):
            write_whole(log.with_name(f"{log.name}.gz"), gzip.compress(log.read_bytes(), mtime=0))
            log.unlink()
        numbered = [path.name for path in self.folder.iterdir() if path.name.isdigit()]
        processors = [path.name for path in self.folder.glob("processor*")]
        meshes = ("constant/polyMesh", "constant/triSurface", "constant/extendedFeatureEdgeMesh")
        self._remove(*numbered, *processors, *meshes, "postProcessing")

    def _flow(self) -> Flow:
        state = self.state
        points, cp = np.empty((0, 3)), np.empty(0)
        path = self.folder / "pressure.safetensors"
        if path.exists():
            arrays = safetensors.numpy.load_file(path)
            points, cp = arrays["points"].astype(float), arrays["cp"].astype(float)
        return Flow(
            cd=state.get("cd", np.nan),
            cd_std=state.get("cd_std", np.nan),
            cl=state.get("cl", np.nan),
            iterations=state["iterations"],
            cells=state["cells"],
            car_faces=state["car_faces"],
            half=self.domain.half,
            frontal_area=self.area,
            volume=self.volume,
            cpu_seconds=state["cpu_seconds"],
            peak_mb=state["peak_mb"],
            solver=state["settings"]["solver"],
            points=points,
            cp=cp,
            problem=state.get("problem"),
        )

    def _write(self, end: int) -> None:
        files = dictionaries(
            self.domain, self.preset, self.area, self.speed, end, WINDOW, self.ranks
        )
        for path, text in files.items():
            if path.startswith("0/") and self.state["cells"]:
                continue
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="ascii")

    def _save(self) -> None:
        content = json.dumps(self.state, indent=1, allow_nan=False) + "\n"
        write_whole(self.folder / "case.json", content.encode())

    def _remove(self, *names: str) -> None:
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)


def _standing(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    """The mesh with its feet sunk into the ground, so that no cell is squeezed beneath them."""
    foot = _FOOT * float(mesh.extents[0])
    vertices = np.array(mesh.vertices)
    vertices[vertices[:, 2] < foot, 2] -= 2 * foot
    return trimesh.Trimesh(vertices, mesh.faces, process=False)
