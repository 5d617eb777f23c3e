"""Profiles drawn at random and solved: `it3-aero wings generate`, and the data card."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from it3_aero.generation.store import (
    FILES,
    Card,
    Failed,
    Record,
    Store,
    histogram,
    make_samples,
    spread,
)
from it3_aero.wings.geometry import FAMILIES, FamilyName, Range, checked_ranges, draw
from it3_aero.wings.solvers import SOLVERS, Solver, check_flow, choose
from it3_core import IT3Error
from it3_core.io.output import MARKER, check_output, read_marker

TASK = "wings generate"  # the command, as a folder's marker names it
_THRESHOLD = 60.0  # the paper's, as a line in the histogram


class Settings(TypedDict):
    """What a folder of profiles says about them; there is more in it."""

    family: FamilyName
    solver: str
    reynolds: float
    alpha: float
    mach: float


class Solved(TypedDict):
    """A profile with a solution."""

    sample: int
    name: str
    parameters: dict[str, float]
    cl: float
    cd: float
    cm: float
    panels: int
    cp: tuple[list[float], list[float]]


def generate(
    out: str | os.PathLike[str],
    n: int = 2000,
    *,
    seed: int = 0,
    family: str = "naca4",
    ranges: Mapping[str, Range] | None = None,
    reynolds: float = 1e6,
    alpha: float = 0.0,
    mach: float = 0.0,
    solver: str | Solver = "auto",
    workers: int | None = None,
    dask: str | None = None,
    progress: bool = True,
) -> Card:
    """Draw profiles, solve each, and put them into a folder for `WingDataset`; its data card.

    Sample i depends on the seed and i alone. A run that was killed continues where it was, and a
    larger `n` adds to what is there; other settings into the same folder are refused.
    """
    if n < 1:
        raise IT3Error(f"n must be 1 or more, but is {n}")
    if seed < 0:
        raise IT3Error(f"seed must not be negative, but is {seed}")
    check_flow(reynolds, alpha, mach)
    drawn = checked_ranges(family, ranges or {})
    check_output(Path(out), TASK, files=FILES)
    who = _solver(out, solver)
    work = Work(family, tuple(drawn.items()), seed, reynolds, alpha, mach, who)
    with Store(Path(out), TASK, work.settings(), Solved | Failed) as store:
        make_samples(store, work, n, "profiles", workers=workers, dask=dask, progress=progress)
        card = store.card(n)
        if solved := store.solved():
            ratios = [record["cl"] / record["cd"] for record in solved]
            above = float((np.array(ratios) > _THRESHOLD).mean())
            card["panels"] = dict(Counter(str(record["panels"]) for record in solved).most_common())
            fraction = {f"fraction_above_{_THRESHOLD:g}": round(above, 4)}
            card["lift_to_drag"] = fraction | spread(ratios, 5.0)
            title = (
                f"{len(ratios)} profiles, {card['settings']['solver']}, Re {reynolds:g}, "
                f"α {alpha:g}°: {100 * above:.1f} % above {_THRESHOLD:g}"
            )
            edges, labels = card["lift_to_drag"]["histogram"]["edges"], ("L/D", "profiles")
            picture = histogram(ratios, edges, title, labels, _THRESHOLD)
            store.output.write_bytes("histogram.png", picture)
        store.output.write_json("card.json", card)
    return card


@dataclass(frozen=True)
class Work:
    """Makes a sample from its number: draws it, solves it, and says so as a record."""

    family: str
    ranges: tuple[tuple[str, Range], ...]
    seed: int
    reynolds: float
    alpha: float
    mach: float
    solver: Solver

    def __call__(self, sample: int) -> Record:
        """The sample with a number, or its `problem`."""
        parameters = draw(dict(self.ranges), self.seed, sample)
        record: Record = {"sample": sample, "name": f"{self.family} {sample}"}
        record["parameters"] = parameters
        try:
            airfoil = FAMILIES[self.family].make(**parameters)
        except IT3Error as problem:  # a corner of the ranges in which there is no such profile
            return record | {"problem": str(problem)}
        record["name"] = airfoil.name
        point = self.solver.solve(airfoil, self.reynolds, self.alpha, self.mach)
        if not point.converged:
            return record | {"problem": point.reason}
        numbers = {"cl": point.cl, "cd": point.cd, "cm": point.cm, "panels": point.panels}
        return record | numbers | {"cp": point.cp.round(5).tolist()}

    def settings(self) -> dict[str, Any]:
        """All that decides what a sample is, as JSON."""
        return {
            "kind": "wings",
            "format": 1,
            "family": self.family,
            "ranges": {name: list(pair) for name, pair in self.ranges},
            "seed": self.seed,
            "reynolds": self.reynolds,
            "alpha": self.alpha,
            "mach": self.mach,
            "solver": f"{self.solver.name} {self.solver.version()}",
            "solver_settings": self.solver.settings(),
        }


def _solver(out: str | os.PathLike[str], solver: str | Solver) -> Solver:
    """The solver with a name; "auto" stays with the one that a folder was begun with."""
    if not isinstance(solver, str):
        return solver
    if solver == "auto" and Path(out, MARKER).is_file():
        begun = str(read_marker(Path(out)).settings.get("solver", "")).split(" ")[0].lower()
        solver = begun if begun in SOLVERS else solver
    return choose(solver)
