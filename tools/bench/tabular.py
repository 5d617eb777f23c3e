"""How fast it3-tabular adapts each row on its own, and what a CSV of a million rows takes.

Run it with it3-tabular[cli] installed: `python tools/bench/tabular.py`. It prints rows per
CPU-second in memory, then CPU-seconds and peak memory, each in a process of its own, of reading a
CSV of 1,000,000 × 14 whole, as training does, and of `it3-tabular predict` on it.
"""

import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

COLUMNS = 13


def main(rows: int = 1_000_000) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "rows.csv", rows, np.random.default_rng(0))
        for work in (memory, read, predict):
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                print(process.submit(work, folder).result())


def memory(folder: Path) -> str:
    """The estimator alone, which is saved for the command."""
    import torch

    from it3_tabular import IT3Regressor

    torch.set_num_threads(1)
    x = np.random.default_rng(1).normal(size=(40_000, COLUMNS))
    y = x[:, 0] + x[:, 1] * x[:, 2]
    model = IT3Regressor(adapt="instance", random_state=0).fit(x[:3000], y[:3000])
    speeds = []
    for _ in range(3):
        began = time.process_time()
        model.predict(x)
        speeds.append(len(x) / (time.process_time() - began))
    model.feature_names_in_ = np.array([f"c{index}" for index in range(COLUMNS)], dtype=object)
    model.save(folder / "model")
    return f"in memory: {max(speeds):,.0f} rows per CPU-second"


def read(folder: Path) -> str:
    """A whole table."""
    import it3_tabular.estimators  # noqa: F401  `train` imports scikit-learn too
    from it3_tabular.tables import read_table

    began = time.process_time()
    rows = len(read_table(folder / "rows.csv", "y").y)
    return f"read {rows:,} rows: {time.process_time() - began:.1f} CPU-seconds, {peak_mb():.0f} MB"


def predict(folder: Path) -> str:
    """A file of any length."""
    from it3_tabular.__main__ import main as command

    began = time.process_time()
    arguments = ["predict", folder / "model", folder / "rows.csv", "--out", folder / "out.csv"]
    assert command([*map(str, arguments), "--quiet"]) == 0
    return f"it3-tabular predict: {time.process_time() - began:.0f} CPU-seconds, {peak_mb():.0f} MB"


def peak_mb() -> float:
    """The most memory that this process has had; getrusage would count its parent's too."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def write(path: Path, rows: int, generator: np.random.Generator) -> None:
    """A CSV of normal numbers with 1 % gaps, and a target without."""
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join(f"c{index}" for index in range(COLUMNS)) + ",y\n")
        for start in range(0, rows, 10_000):
            values = generator.normal(size=(min(10_000, rows - start), COLUMNS + 1))
            cells = np.char.mod("%.5f", values)
            cells[:, :-1][generator.random(values[:, :-1].shape) < 0.01] = ""
            file.writelines(",".join(row) + "\n" for row in cells.tolist())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
