"""Profiles drawn at random and solved: `it3-aero wings generate`, and the data card."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from it3_aero.cards import Card, card_head, histogram, spread
from it3_aero.executors import Where
from it3_aero.generation import Record, Store, make_samples, read_settings, write_whole
from it3_aero.wings.families import FAMILIES, Range, checked_ranges, draw
from it3_aero.wings.solvers import Solver, choose
from it3_aero.wings.solvers.base import check_flow
from it3_core import IT3Error

__all__ = ["Card", "generate"]

_BEYOND = 60.0  # the paper's threshold, as a line in the histogram


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
    executor: Executor | None = None,
    progress: bool = True,
) -> Card:
    """Draw profiles, solve each, and put them into a folder for `WingDataset`.

    Sample i depends on the seed and i alone. A run that was killed goes on where it was, and a
    larger `n` adds to what is there; other settings into the same folder are refused.

    Args:
        out: the folder.
        n: profiles.
        seed: which ones.
        family: "naca4" or "naca5".
        ranges: of the family's parameters, where they differ from `FAMILIES`.
        reynolds: Reynolds number.
        alpha: angle of attack in degrees.
        mach: Mach number.
        solver: a name for `choose`, or a solver.
        workers: how many at a time; one more than there are cores if not given.
        dask: address of a Dask scheduler, to use its cluster instead.
        executor: any other executor; `workers` says how many it has.
        progress: show a bar.

    Returns:
        The data card, which is also in `card.json`, beside `histogram.png`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     card = generate(folder, n=3, solver="neuralfoil", progress=False)
        >>> card["counts"]
        {'asked': 3, 'answered': 3, 'failed': 0}
    """
    if n < 1:
        raise IT3Error(f"n must be 1 or more, but is {n}")
    if seed < 0:
        raise IT3Error(f"seed must not be negative, but is {seed}")
    check_flow(reynolds, alpha, mach)
    drawn = checked_ranges(family, ranges or {})
    who = _solver(out, solver)
    work = Work(family, tuple(drawn.items()), seed, reynolds, alpha, mach, who)
    with Store(out, work.settings()) as store:
        where = Where(workers, dask, executor)
        make_samples(store, work, n, "profiles", where, progress)
        card = _card(store, n)
        folder = Path(out)
        write_whole(folder / "card.json", (json.dumps(card, indent=2) + "\n").encode())
        if card["counts"]["answered"]:
            write_whole(folder / "histogram.png", _histogram(store.samples.values(), card))
    return card


@dataclass(frozen=True)
class Work:
    """Makes a sample from its number: draws it, solves it, and says so as a record.

    Example:
        >>> from it3_aero.wings.solvers import NeuralFoil
        >>> ranges = tuple(FAMILIES["naca4"].ranges.items())
        >>> record = Work("naca4", ranges, 0, 1e6, 0.0, 0.0, NeuralFoil())(5)
        >>> list(record)
        ['sample', 'name', 'parameters', 'cl', 'cd', 'cm', 'panels', 'cp']
    """

    family: str
    ranges: tuple[tuple[str, Range], ...]
    seed: int
    reynolds: float
    alpha: float
    mach: float
    solver: Solver

    def __call__(self, sample: int) -> Record:
        """The sample with a number, or its `problem`."""
        parameters = draw(self.family, self.seed, sample, dict(self.ranges))
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
    """The solver that was asked for; "auto" stays with the one that a folder was begun with."""
    if not isinstance(solver, str):
        return solver
    if solver == "auto" and Path(out, "raw", "settings.json").exists():
        solver = str(read_settings(out).get("solver", "")).split(" ")[0].lower()
    return choose(solver)


def _card(store: Store, n: int) -> Card:
    card = card_head(store, n)
    answered = [record for record in store.samples.values() if "problem" not in record]
    if not answered:
        return card
    ratios = [record["cl"] / record["cd"] for record in answered]
    found = spread(ratios, 5.0)
    counts = found.pop("histogram")
    found[f"share_beyond_{_BEYOND:g}"] = round(float((np.array(ratios) > _BEYOND).mean()), 4)
    return card | {
        "panels": dict(Counter(str(record["panels"]) for record in answered).most_common()),
        "lift_to_drag": found | {"histogram": counts},
    }


def _histogram(records: Iterable[Record], card: Card) -> bytes:
    ratios = [record["cl"] / record["cd"] for record in records if "problem" not in record]
    settings = card["settings"]
    share = card["lift_to_drag"][f"share_beyond_{_BEYOND:g}"]
    title = (
        f"{len(ratios)} profiles, {settings['solver']}, Re {settings['reynolds']:g}, "
        f"α {settings['alpha']:g}°: {100 * share:.1f} % beyond {_BEYOND:g}"
    )
    edges = card["lift_to_drag"]["histogram"]["edges"]
    return histogram(ratios, edges, title, ("lift-to-drag ratio", "profiles"), _BEYOND)
