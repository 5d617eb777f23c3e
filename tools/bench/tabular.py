"""How fast it3-tabular adapts each row on its own, and what a CSV of a million rows takes.

Run it with it3-tabular installed: `python tools/bench/tabular.py`. It prints CPU-seconds and peak
memory of `it3-tabular predict` on a CSV of 1,000,000 × 13, then rows per CPU-second in memory.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from it3_tabular import IT3Regressor
from it3_tabular.commands import MODEL, predict_file

COLUMNS = 13


def main(rows: int = 1_000_000) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    imports = peak()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40_000, COLUMNS))
    y = x[:, 0] + x[:, 1] * x[:, 2]
    model = IT3Regressor(adapt="instance", random_state=0).fit(x[:3000], y[:3000])
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "rows.csv")
        write(table, rows, generator)
        model.save(Path(folder, MODEL))
        began = time.process_time()
        done = predict_file(Path(folder), table, Path(folder, "out.csv"))
        seconds = time.process_time() - began
    print(f"CSV: {done.rows:,} rows in {seconds:.0f} CPU-seconds", end="; ")
    print(f"peak {peak():.0f} MB, {imports:.0f} of which are imports")
    speeds = []
    for _ in range(3):
        began = time.process_time()
        model.predict(x)
        speeds.append(len(x) / (time.process_time() - began))
    print(f"in memory: {max(speeds):,.0f} rows per CPU-second")


def write(path: Path, rows: int, generator: np.random.Generator) -> None:
    """A CSV of normal numbers with 1 % gaps."""
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join(f"c{index}" for index in range(COLUMNS)) + "\n")
        for start in range(0, rows, 10_000):
            values = generator.normal(size=(min(10_000, rows - start), COLUMNS))
            cells = np.char.mod("%.5f", values)
            cells[generator.random(cells.shape) < 0.01] = ""
            file.writelines(",".join(row) + "\n" for row in cells.tolist())


def peak() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
