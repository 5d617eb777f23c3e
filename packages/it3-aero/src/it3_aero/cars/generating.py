"""Cars drawn at random, or from a folder of meshes, each solved: `it3-aero cars generate`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import trimesh

from it3_aero.cards import Card, card_head, histogram, spread
from it3_aero.cars.bodies import draw, make
from it3_aero.cars.foam import SPEED, Flow, solve
from it3_aero.cars.foam.install import find
from it3_aero.cars.foam.presets import preset as preset_named
from it3_aero.cars.intake import check
from it3_aero.cars.reading import found_meshes
from it3_aero.cars.shape import decimated
from it3_aero.executors import Where, cores
from it3_aero.generation import Record, Store, make_samples, write_whole
from it3_core import IT3Error

__all__ = ["NODES", "CarStore", "Work", "generate"]

NODES = 1000
"""Vertices that a decimated mesh may have."""

_ARRAYS = "arrays"  # of a record, on its way to a file of its own


def generate(
    out: str | os.PathLike[str],
    n: int | None = None,
    *,
    seed: int = 0,
    preset: str = "coarse",
    meshes: str | os.PathLike[str] | None = None,
    nodes: int = NODES,
    speed: float = SPEED,
    ranks: int = 1,
    workers: int | None = None,
    dask: str | None = None,
    executor: Executor | None = None,
    progress: bool = True,
) -> Card:
    """Draw cars, or take those in a folder, solve each, and put them into a folder for training.

    Sample i depends on the seed and i alone. A run that was killed goes on where it was, within a
    case too, and a larger `n` adds to what is there; other settings are refused.

    Args:
        out: the folder.
        n: cars; 128, or all meshes, if not given.
        seed: which ones are drawn.
        preset: "smoke", "coarse" or "medium".
        meshes: a folder of meshes to take instead, each through `check`; ShapeNet's layout too.
        nodes: most vertices of the decimated mesh that goes with each sample.
        speed: of the wind, in m/s.
        ranks: processes of MPI for one case.
        workers: cases at a time; as many as there are cores if not given.
        dask: address of a Dask scheduler, to use its cluster instead; `out` has to be on a disk
            that its workers share.
        executor: any other executor; `workers` says how many it has.
        progress: show a bar.

    Returns:
        The data card, which is also in `card.json`, beside `histogram.png`.

    Example:
        >>> generate("/tmp/cars", n=0)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: n must be 1 or more, but is 0
    """
    if n is not None and n < 1:
        raise IT3Error(f"n must be 1 or more, but is {n}")
    if seed < 0:
        raise IT3Error(f"seed must not be negative, but is {seed}")
    preset_named(preset)
    files: tuple[str, ...] = ()
    if meshes is not None:
        files = tuple(str(path) for path in found_meshes(meshes))
    n = n or (len(files) or 128)
    if files and n > len(files):
        raise IT3Error(f"{meshes} holds {len(files)} meshes, fewer than {n}")
    place = str(Path(out).resolve() / "cases")
    root = str(Path(meshes).resolve()) if meshes is not None else None
    work = Work(place, seed, preset, nodes, speed, ranks, root, files)
    where = Where(workers if workers or dask else cores(), dask, executor)
    with CarStore(out, work.settings()) as store:
        make_samples(store, work, n, "cars", where, progress)
        card = _card(store, n)
        write_whole(Path(out, "card.json"), (json.dumps(card, indent=2) + "\n").encode())
        if card["counts"]["answered"]:
            write_whole(Path(out, "histogram.png"), _histogram(card, store))
    return card


class CarStore(Store):
    """A store whose samples have a mesh each, in a file that is whole before they are put down."""

    def append(self, record: Record) -> None:
        """Put the mesh down, then the sample."""
        line = dict(record)
        arrays = line.pop(_ARRAYS, None)
        if arrays is not None and line["sample"] not in self.samples:
            path = self.folder / "raw" / line["mesh"]
            try:
                path.parent.mkdir(exist_ok=True)
            except OSError as problem:
                raise IT3Error(f"can't write into {path.parent}: {problem.strerror}") from None
            write_whole(path, safetensors.numpy.save(arrays))
        super().append(line)


@dataclass(frozen=True)
class Work:
    """Makes a sample from its number: draws or reads it, solves it, and says so as a record.

    Example:
        >>> work = Work("cases", 0, "smoke", nodes=1000, speed=40.0, ranks=1)
        >>> work.preset  # work(7) would solve car 7 in the folder cases/000007
        'smoke'
    """

    cases: str
    seed: int
    preset: str
    nodes: int
    speed: float
    ranks: int
    meshes: str | None = None
    files: tuple[str, ...] = ()

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
            graph = decimated(body, self.nodes)
        except IT3Error as problem:
            return record | {"problem": str(problem)}
        folder = Path(self.cases, f"{sample:06d}")
        flow = solve(body, folder, self.preset, speed=self.speed, ranks=self.ranks)
        if flow.problem is not None:
            return record | {"problem": flow.problem, "cpu_seconds": flow.cpu_seconds}
        return record | _numbers(flow, sample) | {_ARRAYS: _arrays(graph, flow)}

    def settings(self) -> dict[str, Any]:
        """All that decides what a sample is, as JSON."""
        return {
            "kind": "cars",
            "format": 1,
            "source": "drawn" if self.meshes is None else self.meshes,
            "files": [self._shown(i) for i in range(len(self.files))],
            "seed": self.seed,
            "preset": json.loads(json.dumps(asdict(preset_named(self.preset)))),
            "nodes": self.nodes,
            "speed": self.speed,
            "ranks": self.ranks,
            "solver": f"OpenFOAM {find().version}",
        }

    def _shown(self, sample: int) -> str:
        return str(Path(self.files[sample]).relative_to(self.meshes or "/"))


def _numbers(flow: Flow, sample: int) -> Record:
    return {
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
    }


def _arrays(graph: trimesh.Trimesh, flow: Flow) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "pos": np.ascontiguousarray(graph.vertices, dtype=np.float32),
        "faces": np.ascontiguousarray(graph.faces, dtype=np.int32),
        "cp": np.ascontiguousarray(flow.pressure_on(np.asarray(graph.vertices)), dtype=np.float32),
    }


def _card(store: Store, n: int) -> Card:
    card = card_head(store, n)
    answered = _answered(store)
    if not answered:
        return card
    families = Counter(str(record["family"]) for record in answered)
    cost = {
        key: spread([record[key] for record in answered], 50.0 if key != "cells" else 10_000.0)
        for key in ("cpu_seconds", "peak_mb", "cells")
    }
    return card | {
        "families": dict(families.most_common()),
        "drag": spread([record["cd"] for record in answered], 0.02),
        "drag_std": spread([record["cd_std"] for record in answered], 0.002),
        "cost": {key: {**value["quantiles"]} for key, value in cost.items()},
    }


def _answered(store: Store) -> Sequence[Record]:
    return [record for record in store.samples.values() if "problem" not in record]


def _histogram(card: Card, store: Store) -> bytes:
    drags = [record["cd"] for record in _answered(store)]
    settings = card["settings"]
    title = f"{len(drags)} cars, {settings['solver']}, {settings['preset']['name']}"
    return histogram(drags, card["drag"]["histogram"]["edges"], title, ("Cd", "cars"))
