"""Data sets: UCI folders with their standard splits, Energy inside the package, and Boston.

The folder layout is that of the MC-dropout line of papers: `data.txt` holds all numbers,
`index_features.txt` and `index_target.txt` say which columns are what, and `index_train_K.txt` and
`index_test_K.txt` are the rows of split K.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_tabular.preparing import Floats

__all__ = ["ENERGY_COLUMNS", "UCI", "load_boston", "load_energy", "load_uci"]

ENERGY_COLUMNS = (
    "relative compactness",
    "surface area",
    "wall area",
    "roof area",
    "overall height",
    "orientation",
    "glazing area",
    "glazing area distribution",
)

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class UCI:
    """A data set with its splits.

    Attributes:
        name: of the folder.
        x: features of all rows.
        y: targets.
        splits: for each split, the rows to train on and those to test on.

    Example:
        >>> import numpy as np
        >>> data = UCI("toy", np.zeros((3, 2)), np.arange(3.0), [(np.array([0, 1]), np.array([2]))])
        >>> x, y, x_test, y_test = data.split(0)
        >>> y, y_test
        (array([0., 1.]), array([2.]))
    """

    name: str
    x: Floats
    y: Floats
    splits: list[tuple[Rows, Rows]]

    def split(self, number: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Training rows, their targets, test rows, their targets."""
        if not 0 <= number < len(self.splits):
            raise IT3Error(f"{self.name} has splits 0 to {len(self.splits) - 1}, not {number}")
        train, test = self.splits[number]
        return self.x[train], self.y[train], self.x[test], self.y[test]


def load_uci(folder: str | Path) -> UCI:
    """Reads a UCI folder.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = {"data": "1 2 3\\n4 5 6\\n", "index_features": "0\\n1", "index_target": "2",
        ...              "index_train_0": "0", "index_test_0": "1"}
        ...     for name, text in files.items():
        ...         _ = Path(folder, f"{name}.txt").write_text(text)
        ...     load_uci(folder).split(0)
        (array([[1., 2.]]), array([3.]), array([[4., 5.]]), array([6.]))
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise IT3Error(f"{folder} is no folder: give one that holds data.txt and its index files")
    data = _numbers(folder / "data.txt")
    features = _indices(folder / "index_features.txt", data.shape[1], "columns")
    target = _indices(folder / "index_target.txt", data.shape[1], "columns")
    if len(target) != 1:
        raise IT3Error(f"{folder / 'index_target.txt'} names {len(target)} columns instead of one")
    splits: list[tuple[Rows, Rows]] = []
    while (folder / f"index_train_{len(splits)}.txt").exists():
        train, test = (
            _indices(folder / f"index_{part}_{len(splits)}.txt", len(data), "rows")
            for part in ("train", "test")
        )
        if np.intersect1d(train, test).size:
            raise IT3Error(f"split {len(splits)} of {folder} tests on rows that it trains on")
        splits.append((train, test))
    if not splits:
        raise IT3Error(f"{folder} has no index_train_0.txt: there is no split to use")
    return UCI(folder.name, data[:, features], data[:, target[0]], splits)


def load_energy() -> tuple[Floats, Floats]:
    """The Energy Efficiency set that comes with the package: 768 buildings, their heating load.

    Eight features of simulated buildings (`ENERGY_COLUMNS`) and the heating load in kWh/m², by
    A. Tsanas and A. Xifara (2012), https://doi.org/10.24432/C51307, from the UCI Machine Learning
    Repository, under CC BY 4.0.

    Example:
        >>> X, y = load_energy()
        >>> X.shape, round(float(y.mean()), 2)
        ((768, 8), 22.31)
    """
    text = resources.files("it3_tabular").joinpath("energy.csv").read_text(encoding="utf-8")
    data = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1)
    return data[:, :-1], data[:, -1]


def load_boston(folder: str | Path | None = None, *, openml: bool = False) -> tuple[Floats, Floats]:
    """Boston Housing, the paper's: from a UCI folder of yours or, only when asked, from OpenML.

    scikit-learn removed its copy in 2022, because one of the columns, B, is a transformed share of
    Black residents made on the assumption that segregation raises house prices, and because the
    study that it comes from did not hold what it promised about air quality. It is here for one
    reason: to repeat what the paper measured. Don't teach or build with it.

    Args:
        folder: with `data.txt` and its index files.
        openml: whether to download it, with scikit-learn's `fetch_openml`.

    Example:
        >>> load_boston()
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: give the folder of Boston Housing, or openml=True to download it
    """
    if folder is not None:
        data = load_uci(folder)
        return data.x, data.y
    if not openml:
        raise IT3Error("give the folder of Boston Housing, or openml=True to download it")
    from sklearn.datasets import fetch_openml

    try:
        found = fetch_openml(data_id=531, as_frame=False, parser="liac-arff")
    except OSError as problem:
        raise IT3Error(f"can't download Boston Housing from OpenML: {problem}") from problem
    return np.asarray(found.data, np.float64), np.asarray(found.target, np.float64)


def _numbers(path: Path) -> Floats:
    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise IT3Error(f"{path} is empty")
        data: Floats = np.loadtxt(io.StringIO(text), dtype=np.float64, ndmin=2)
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror or problem}") from problem
    except IT3Error:
        raise
    except ValueError as problem:
        raise IT3Error(f"{path} is no table of numbers: {problem}") from problem
    return data


def _indices(path: Path, limit: int, what: str) -> Rows:
    values = _numbers(path).ravel()
    indices = values.astype(np.int64)
    if (indices != values).any() or indices.min() < 0 or indices.max() >= limit:
        raise IT3Error(f"{path} must name {what} from 0 to {limit - 1}")
    return indices
