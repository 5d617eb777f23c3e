"""What a case of OpenFOAM costs: time, memory, disk; and whether two at once get twice as far.

    python tools/bench/cars.py [--preset smoke] [--rounds 3]
    python tools/bench/cars.py --ahmed FOLDER [--preset coarse]

With --ahmed the Ahmed body at four slants beside the experiment instead; a run that was killed goes
on from what lies in FOLDER.

Needs OpenFOAM, and two idle cores for the last line to mean something: the load before it began is
printed with it. A round is one case alone, then two side by side, as `generate --workers 2` has
them. All are of the same car, so that the work is the same to the last iteration.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import trimesh

from it3_aero.cars.bodies import ahmed, make
from it3_aero.cars.foam import PRESETS, solve
from it3_aero.generation.store import cores
from it3_core import IT3Error
from it3_core.experiment.tables import fixed, markdown_table

EXPERIMENT = {0.0: 0.250, 12.5: 0.230, 25.0: 0.285, 35.0: 0.260}
"""Cd by slant: Ahmed, Ramm and Faltin (1984)."""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--preset", choices=list(PRESETS), default="smoke")
    parser.add_argument("--rounds", type=int, default=3, help="each of three cases")
    parser.add_argument("--ahmed", type=Path, metavar="FOLDER", help="of the Ahmed body's cases")
    options = parser.parse_args()
    if options.ahmed:
        slants(options.ahmed, options.preset)
        return
    print(f"sedan at {options.preset}, {cores()} cores, load {os.getloadavg()[0]:.1f}\n")
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, values in measured(make("sedan"), options.preset).items():
            found.setdefault(name, []).extend(values)
    ends = {name: (statistics.median(v), min(v), max(v)) for name, v in found.items()}
    lines = [[name, *(fixed(value, 2) for value in values)] for name, values in ends.items()]
    print(markdown_table([["of a case", "median", "from", "to"], *lines]))


def slants(folder: Path, preset: str) -> None:
    """A row for each slant of the Ahmed body."""
    lines = [["slant", "experiment", "Cd", "difference", "cells", "iterations", "CPU s", "peak MB"]]
    for slant, measured in EXPERIMENT.items():
        flow = solve(ahmed(slant=slant), folder / f"{preset}-{slant:g}", preset)
        cells = [f"{slant:g}°", fixed(measured, 3)]
        if flow.problem is not None:
            lines.append([*cells, flow.problem, "", "", "", "", ""])
            continue
        cells += [f"{flow.cd:.3f} ± {flow.cd_std:.3f}", f"{flow.cd - measured:+.3f}"]
        cells += [f"{flow.cells:,}", str(flow.iterations)]
        lines.append([*cells, fixed(flow.cpu_seconds, 0), fixed(flow.peak_mb, 0)])
    print(markdown_table(lines))


def measured(body: trimesh.Trimesh, preset: str) -> dict[str, list[float]]:
    """One case alone, whose folder is watched, then two at a time."""
    with tempfile.TemporaryDirectory(prefix="it3-bench-") as place, ThreadPoolExecutor(2) as pool:
        folders, most = [Path(place, name) for name in ("alone", "left", "right")], 0.0
        began = time.perf_counter()
        running = pool.submit(solve, body, folders[0], preset)
        while not running.done():
            most = max(most, size(folders[0]) / 1e6)
            time.sleep(0.5)
        alone, began = time.perf_counter() - began, time.perf_counter()
        others = list(pool.map(lambda folder: solve(body, folder, preset), folders[1:]))
        beside, kept = time.perf_counter() - began, size(folders[0]) / 1e3
    flows = [running.result(), *others]
    for flow in flows:
        if flow.problem is not None:
            raise IT3Error(f"a case had no answer: {flow.problem}")
    if len({flow.cd for flow in flows}) > 1:
        raise IT3Error("the same case had different answers: side by side they disturb each other")
    return {
        "cells": [flows[0].cells],
        "CPU s": [flow.cpu_seconds for flow in flows],
        "s of the clock, alone": [alone],
        "s of the clock, two side by side": [beside],
        "peak MB of memory": [flow.peak_mb for flow in flows],
        "most MB on disk, while it runs": [most],
        "kB on disk, kept": [kept],
        "rate of two / rate of one": [2 * alone / beside],
    }


def size(folder: Path) -> int:
    """Bytes of all files in a folder, also while they come and go."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size * path.is_file()
    return total


if __name__ == "__main__":
    main()
