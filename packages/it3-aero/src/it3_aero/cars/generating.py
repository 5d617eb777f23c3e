"""Cars drawn at random, or from a folder of meshes, each solved: `it3-aero cars generate`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from it3_aero.cars.bodies import draw, make
from it3_aero.cars.dataset import MESH, TASK, Solved
from it3_aero.cars.foam import SPEED, solve
from it3_aero.cars.foam.files import find
from it3_aero.cars.foam.files import preset as preset_named
from it3_aero.cars.intake import check, found_meshes
from it3_aero.cars.meshes import remeshed
from it3_aero.generation.store import (
    FILES,
    Card,
    Failed,
    Record,
    Store,
    cores,
    histogram,
    make_samples,
    spread,
)
from it3_core import IT3Error
from it3_core.io.output import check_output, inside
from it3_core.io.tensors import write_tensors
from it3_core.io.typed import as_json

_ARRAYS = "arrays"  # of a record, on its way to a file of its own


def generate(
    out: str | os.PathLike[str],
    n: int | None = None,
    *,
    seed: int = 0,
    preset: str = "coarse",
    meshes: str | os.PathLike[str] | None = None,
    nodes: int = 1000,
    ranks: int = 1,
    workers: int | None = None,
    dask: str | None = None,
    progress: bool = True,
) -> Card:
    """Draw cars, or take those in a folder, solve each, and put them into a folder; its data card.

    Sample i depends on the seed and i alone. A run that was killed continues where it was, in a
    case too, and a larger `n` adds to what is there; other settings are refused. With `dask`, the
    folder is on a disk that the workers share.
    """
    if n is not None and n < 1:
        raise IT3Error(f"n must be 1 or more, but is {n}")
    if seed < 0:
        raise IT3Error(f"seed must not be negative, but is {seed}")
    check_output(Path(out), TASK, files=FILES, inputs=[] if meshes is None else [Path(meshes)])
    files: Sequence[Path] = []
    root = None
    if meshes is not None:
        if not Path(meshes).is_dir():
            raise IT3Error(f"there is no folder {meshes}")
        files, root = found_meshes(meshes), str(Path(meshes).resolve())
    n = n or (len(files) or 128)
    if files and n > len(files):
        raise IT3Error(f"{meshes} holds {len(files)} meshes, fewer than {n}")
    cases = str(inside(Path(out).resolve(), "cases"))
    work = Work(cases, seed, preset, nodes, ranks, root, tuple(map(str, files)))
    workers = workers if workers or dask else cores()
    with CarStore(Path(out), TASK, work.settings(), Solved | Failed) as store:
        make_samples(store, work, n, "cars", workers=workers, dask=dask, progress=progress)
        card = store.card(n)
        if solved := store.solved():
            card |= _numbers_of(solved)
            drags = [record["cd"] for record in solved]
            title = f"{len(drags)} cars, {card['settings']['solver']}, {preset}"
            edges = card["drag"]["histogram"]["edges"]
            picture = histogram(drags, edges, title, ("Cd", "cars"))
            store.output.write_bytes("histogram.png", picture)
        store.output.write_json("card.json", card)
    return card


def _numbers_of(solved: Sequence[Record]) -> Card:
    widths = {"cd": 0.02, "cd_std": 0.002, "cpu_seconds": 50.0, "peak_mb": 50.0, "cells": 10_000.0}
    found = {key: spread([one[key] for one in solved], width) for key, width in widths.items()}
    return {
        "families": dict(Counter(str(record["family"]) for record in solved).most_common()),
        "drag": found["cd"],
        "drag_std": found["cd_std"],
        "cost": {key: found[key]["quantiles"] for key in ("cpu_seconds", "peak_mb", "cells")},
    }


class CarStore(Store):
    """A store whose samples have a mesh each, in a file that is whole before they are put down."""

    def append(self, record: Record) -> None:
        """Put the mesh down, then the sample."""
        line = dict(record)
        arrays = line.pop(_ARRAYS, None)
        if arrays is not None and line["sample"] not in self.samples:
            path = self.output.reserve(f"raw/{line['mesh']}")
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            write_tensors(path, tensors, {}, kind=MESH)
        super().append(line)


@dataclass(frozen=True)
class Work:
    """Makes a sample from its number: draws or reads it, solves it, and says so as a record."""

    cases: str
    seed: int
    preset: str
    nodes: int
    ranks: int
    meshes: str | None
    files: tuple[str, ...]

    def __call__(self, sample: int) -> Record:
        """The sample with a number, or its `problem`."""
        record: Record = {"sample": sample}
        try:
            if self.files:
                record |= {"name": self._shown(sample), "family": "mesh", "parameters": {}}
                verdict = check(self.files[sample])
                record["verdict"] = [*verdict.notes, *(f"in doubt: {d}" for d in verdict.doubts)]
                body = verdict.admitted()
            else:
                family, parameters = draw(self.seed, sample)
                record |= {"name": f"{family} {sample}", "family": family}
                record["parameters"] = parameters
                body = make(family, **parameters)
            graph = remeshed(body, self.nodes)
        except IT3Error as problem:
            return record | {"problem": str(problem)}
        folder = inside(self.cases, f"{sample:06d}")
        flow = solve(body, folder, self.preset, ranks=self.ranks)
        if flow.problem is not None:
            return record | {"problem": flow.problem, "cpu_seconds": flow.cpu_seconds}
        return record | {
            "cd": round(flow.cd, 6),
            "cd_std": round(flow.cd_std, 6),
            "cl": round(flow.cl, 6),
            "cells": flow.cells,
            "iterations": flow.iterations,
            "cpu_seconds": flow.cpu_seconds,
            "peak_mb": flow.peak_mb,
            "frontal_area": round(flow.frontal_area, 5),
            "volume": round(flow.volume, 5),
            "mesh": f"meshes/{sample:06d}.safetensors",
            _ARRAYS: {
                "pos": np.ascontiguousarray(graph.vertices, dtype=np.float32),
                "faces": np.ascontiguousarray(graph.faces, dtype=np.int32),
                "cp": flow.pressure_on(np.asarray(graph.vertices)).astype(np.float32),
            },
        }

    def settings(self) -> dict[str, Any]:
        """All that decides what a sample is, as JSON."""
        return {
            "kind": "cars",
            "format": 1,
            "source": "drawn" if self.meshes is None else self.meshes,
            "files": [self._shown(i) for i in range(len(self.files))],
            "seed": self.seed,
            "preset": as_json(asdict(preset_named(self.preset))),
            "nodes": self.nodes,
            "speed": SPEED,
            "ranks": self.ranks,
            "solver": f"OpenFOAM {find().version}",
        }

    def _shown(self, sample: int) -> str:
        return str(Path(self.files[sample]).relative_to(self.meshes or "/"))
