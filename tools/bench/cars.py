"""What a case of OpenFOAM costs: time, memory, disk; and whether two at once get twice as far.

    python tools/bench/cars.py [--preset smoke] [--rounds 3] [--family sedan]

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import trimesh

from it3_aero.cars.bodies import FAMILIES, make
from it3_aero.cars.foam import PRESETS, Flow, solve
from it3_aero.executors import cores
from it3_core import IT3Error


@dataclass(frozen=True)
class Round:
    """One case alone and two side by side: what they found, and seconds of the clock."""

    flows: Sequence[Flow]
    alone: float
    beside: float
    kept_kb: float
    most_mb: float

    @property
    def rate(self) -> float:
        """Cases a second of two side by side, by those of one alone."""
        return 2 * self.alone / self.beside


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--preset", choices=list(PRESETS), default="smoke")
    parser.add_argument("--rounds", type=int, default=3, help="each of three cases")
    parser.add_argument("--family", choices=list(FAMILIES), default="sedan")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    body = make(options.family)
    rounds = [measured(body, options.preset) for _ in range(options.rounds)]
    flows = [flow for one in rounds for flow in one.flows]
    first = flows[0]
    print(f"{options.family} at {options.preset}: {first.cells:,} cells, {first.solver}")
    print(f"{cores()} cores, load {load:.1f} before it began\n")
    print("| of a case | median | from | to |")
    print("| --- | ---: | ---: | ---: |")
    row("CPU s", [flow.cpu_seconds for flow in flows])
    row("s of the clock, alone", [one.alone for one in rounds])
    row("s of the clock, two side by side", [one.beside for one in rounds])
    row("peak MB of memory", [flow.peak_mb for flow in flows])
    row("most MB on disk, while it runs", [one.most_mb for one in rounds])
    row("kB on disk, kept", [one.kept_kb for one in rounds])
    row("rate of two / rate of one", [one.rate for one in rounds], digits=2)


def measured(body: trimesh.Trimesh, preset: str) -> Round:
    """One case alone, then two at a time."""
    with tempfile.TemporaryDirectory(prefix="it3-bench-") as place:
        folders = [Path(place, name) for name in ("alone", "left", "right")]
        began = time.perf_counter()
        first, most = watched(body, folders[0], preset)
        alone = time.perf_counter() - began
        began = time.perf_counter()
        with ThreadPoolExecutor(2) as executor:
            others = list(executor.map(lambda folder: solve(body, folder, preset), folders[1:]))
        beside = time.perf_counter() - began
        kept = size(folders[0]) / 1e3
    flows = [first, *others]
    for flow in flows:
        if flow.problem is not None:
            raise IT3Error(f"a case had no answer: {flow.problem}")
    if len({flow.cd for flow in flows}) > 1:
        raise IT3Error("the same case had different answers: side by side they disturb each other")
    return Round(flows, alone, beside, kept, most)


def watched(body: trimesh.Trimesh, folder: Path, preset: str) -> tuple[Flow, float]:
    """A case, and the most MB that its folder had meanwhile."""
    most = 0.0
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(solve, body, folder, preset)
        while not running.done():
            most = max(most, size(folder) / 1e6)
            time.sleep(0.5)
        return running.result(), most


def size(folder: Path) -> int:
    """Bytes of all files in a folder, also while they come and go."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(place, name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def row(name: str, values: Sequence[float], digits: int = 1) -> None:
    """A line of the table."""
    shown = (statistics.median(values), min(values), max(values))
    print(f"| {name} | {' | '.join(f'{value:,.{digits}f}' for value in shown)} |")


if __name__ == "__main__":
    main()
