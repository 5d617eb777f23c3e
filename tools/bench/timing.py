"""What the benchmarks share: CPU time with everything taken in turns, and peak memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def cpu_seconds(runs: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median CPU time of each run, in blocks of about 20 ms taken in turns for `seconds` in all.

    Machines are noisy, ratios of what was taken in turns less so. Five turns at least.
    """
    repeats = {}
    for name, run in runs.items():
        run()  # warm up: the first optimiser of a process takes seconds
        start = time.process_time()
        run()
        repeats[name] = max(1, int(0.02 / max(time.process_time() - start, 1e-5)))
    spent: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(spent.values()))) < 5:
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                run()
            spent[name].append((time.process_time() - start) / repeats[name])
    return {name: statistics.median(times) for name, times in spent.items()}


def peak_mb() -> float:
    """The most memory that this process has had; getrusage would count its parent's too."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
