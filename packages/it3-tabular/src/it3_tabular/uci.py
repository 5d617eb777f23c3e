"""Data sets: UCI folders with their standard splits, and Energy inside the package.

The folder layout is that of the MC-dropout line of papers: `data.txt` holds all numbers,
`index_features.txt` and `index_target.txt` say which columns are what, and `index_train_K.txt` and
`index_test_K.txt` are the rows of split K.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from it3_core import IT3Error
from it3_tabular.fitting import Floats, Rows


@dataclass(frozen=True)
class UCI:
    """A data set, and for each of its splits the rows to train on and those to test on."""

    name: str
    x: Floats
    y: Floats
    splits: list[tuple[Rows, Rows]]

    def split(self, number: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Training rows, their targets, test rows, their targets."""
        train, test = self.splits[number]
        return self.x[train], self.y[train], self.x[test], self.y[test]


def load_uci(folder: str | Path) -> UCI:
    """Reads a UCI folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise IT3Error(f"there is no folder {folder}: name one with data.txt and its index files")
    data = _numbers(folder / "data.txt")
    features = _indices(folder / "index_features.txt", data.shape[1], "columns")
    target = _indices(folder / "index_target.txt", data.shape[1], "columns")
    if len(target) != 1:
        raise IT3Error(f"{folder / 'index_target.txt'} names {len(target)} columns instead of one")
    splits: list[tuple[Rows, Rows]] = []
    while (folder / f"index_train_{len(splits)}.txt").exists():
        names = (f"index_{part}_{len(splits)}.txt" for part in ("train", "test"))
        train, test = (_indices(folder / name, len(data), "rows") for name in names)
        if np.intersect1d(train, test).size:
            raise IT3Error(f"split {len(splits)} of {folder} tests on rows that it trains on")
        splits.append((train, test))
    if not splits:
        raise IT3Error(f"{folder} has no index_train_0.txt: there is no split to use")
    return UCI(folder.name, data[:, features], data[:, target[0]], splits)


def load_energy() -> tuple[Floats, Floats]:
    """The Energy Efficiency set that comes with the package: 768 buildings, their heating load.

    Eight features of simulated buildings and the heating load in kWh/m², by A. Tsanas and A. Xifara
    (2012), https://doi.org/10.24432/C51307, UCI Machine Learning Repository, CC BY 4.0.

    Example:
        >>> X, y = load_energy()
        >>> X.shape, X[0, :4].tolist(), float(y.min()), float(y.max())
        ((768, 8), [0.98, 514.5, 294.0, 110.25], 6.01, 43.1)
    """
    data = np.loadtxt(Path(__file__).with_name("energy.csv"), delimiter=",", skiprows=1)
    return data[:, :-1], data[:, -1]


def _numbers(path: Path) -> Floats:
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise IT3Error(f"{path} is not a file")
    try:
        text = path.read_text(encoding="utf-8")
        data: Floats = np.loadtxt(text.splitlines(), ndmin=2) if text.strip() else np.empty((0, 0))
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror or problem}") from problem
    except ValueError as problem:
        raise IT3Error(f"{path} is no table of numbers: {problem}") from problem
    if not data.size or not np.isfinite(data).all():
        what = "holds NaN or infinity: give numbers alone" if data.size else "is empty"
        raise IT3Error(f"{path} {what}")
    return data


def _indices(path: Path, limit: int, what: str) -> Rows:
    values = _numbers(path).ravel()
    indices = values.astype(np.int64)
    if (indices != values).any() or indices.min() < 0 or indices.max() >= limit:
        raise IT3Error(f"{path} must name {what} from 0 to {limit - 1}")
    return indices
