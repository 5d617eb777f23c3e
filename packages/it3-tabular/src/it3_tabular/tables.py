"""CSV and Parquet: read whole for training, in chunks for prediction, in bounded memory.

A cell that is empty, or says NA, NaN, null or ?, is missing. Every other cell must be a number;
one that is not is named with its column and its line.
"""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_tabular.preparing import Floats

__all__ = ["CHUNK", "Chunk", "Table", "column_names", "read_chunks", "read_table", "select"]

CHUNK = 16_384  # rows that are read together

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_DELIMITERS = ",;\t|"


@dataclass(frozen=True)
class Table:
    """A table for training.

    Attributes:
        names: of the features.
        x: features, NaN where one is missing.
        y: the target's cells: numbers, or text where some are no numbers.

    Example:
        >>> import numpy as np
        >>> Table(("a",), np.array([[1.0]]), np.array([2.0])).names
        ('a',)
    """

    names: tuple[str, ...]
    x: Floats
    y: NDArray[Any]


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a file, column by column, as they stand there.

    Attributes:
        columns: the cells by name of their column: text from a CSV, anything from Parquet.
        lines: where each of them stands in the file: its line, or its row in Parquet.
        position: how far the file has been read after them, from 0 to 1.

    Example:
        >>> Chunk({"a": ["1", "2"]}, lines=[2, 3], position=1.0).rows
        2
    """

    columns: dict[str, Sequence[Any]]
    lines: Sequence[int]
    position: float

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values())))


def read_table(path: str | Path, target: str) -> Table:
    """A whole file, with one of its columns as the target.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "houses.csv")
        ...     _ = file.write_text("rooms,age,price\\n3,10,200\\n5,,400\\n")
        ...     table = read_table(file, target="price")
        >>> table.names, table.x.tolist(), table.y.tolist()
        (('rooms', 'age'), [[3.0, 10.0], [5.0, nan]], [200.0, 400.0])
    """
    names = column_names(path)
    if target not in names:
        raise IT3Error(f"{path} has no column {target!r}; it has {_listed(names)}")
    features = tuple(name for name in names if name != target)
    if not features:
        raise IT3Error(f"{path} has no column besides the target {target!r}")
    parts: list[Floats] = []
    answers: list[Any] = []
    for chunk in read_chunks(path):
        parts.append(select(chunk, features, path))
        answers += _answers(chunk, target, path)
    if not parts:
        raise IT3Error(f"{path} has a header but no rows")
    return Table(features, np.concatenate(parts), _targets(answers))


def column_names(path: str | Path) -> list[str]:
    """The names of a file's columns, each of them once.

    Example:
        >>> column_names("no such file.csv")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: can't read no such file.csv: No such file or directory
    """
    if _is_parquet(path):
        with _parquet(path) as file:
            names = list(file.schema_arrow.names)
    else:
        with _csv(path) as (_, names, _):
            pass
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise IT3Error(f"{path} has several columns called {_listed(sorted(twice))}: rename them")
    return names


def read_chunks(path: str | Path, size: int = CHUNK) -> Iterator[Chunk]:
    """A file's rows, `size` at a time; no more than that is in memory.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "rows.csv")
        ...     _ = file.write_text("a;b\\n1;2\\n3;4\\n5;6\\n")
        ...     [chunk.columns for chunk in read_chunks(file, size=2)]
        [{'a': ('1', '3'), 'b': ('2', '4')}, {'a': ('5',), 'b': ('6',)}]
    """
    return _parquet_chunks(path, size) if _is_parquet(path) else _csv_chunks(path, size)


def select(chunk: Chunk, names: Sequence[str], path: str | Path = "the table") -> Floats:
    """Columns of a chunk as numbers, in this order; NaN where one is missing.

    Example:
        >>> select(Chunk({"a": ["1", ""], "b": ["x", "y"]}, [2, 3], 1.0), ["a"])
        array([[ 1.],
               [nan]])
        >>> select(Chunk({"a": ["1", ""], "b": ["x", "y"]}, [2, 3], 1.0), ["b"])
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: column 'b' of the table is text ('x' in line 2): leave it out or
        turn it into numbers
    """
    return np.column_stack([_column(chunk, name, path) for name in names])


def _column(chunk: Chunk, name: str, path: str | Path) -> Floats:
    cells = chunk.columns[name]
    try:
        found = np.array(list(map(float, cells)))
    except (TypeError, ValueError):  # something is missing, or is no number
        found = np.array(
            [_number(cell, line, name, path) for cell, line in zip(cells, chunk.lines, strict=True)]
        )
    infinite = np.isinf(found)
    if infinite.any():
        line = chunk.lines[int(np.argmax(infinite))]
        raise IT3Error(f"column {name!r} of {path} is infinite in line {line}: mend or empty it")
    return found


def _number(cell: Any, line: int, name: str, path: str | Path) -> float:
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in _MISSING):
        return math.nan
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise IT3Error(
            f"column {name!r} of {path} is text ({str(cell)[:40]!r} in line {line}): leave it out "
            f"or turn it into numbers"
        ) from None


def _answers(chunk: Chunk, target: str, path: str | Path) -> list[Any]:
    """The target's cells, none of them missing."""
    cells = [cell.strip() if isinstance(cell, str) else cell for cell in chunk.columns[target]]
    for index, cell in enumerate(cells):
        absent = cell is None or (isinstance(cell, float) and math.isnan(cell))
        if absent or (isinstance(cell, str) and cell.lower() in _MISSING):
            raise IT3Error(
                f"the target {target!r} of {path} is missing in line {chunk.lines[index]}: "
                f"drop that row"
            )
    return cells


def _targets(cells: list[Any]) -> NDArray[Any]:
    """Numbers where all cells are, else text."""
    try:
        return np.array(list(map(float, cells)))
    except (TypeError, ValueError):
        return np.array([str(cell) for cell in cells])


def _is_parquet(path: str | Path) -> bool:
    return Path(path).suffix.lower() in (".parquet", ".pq")


def _csv_chunks(path: str | Path, size: int) -> Iterator[Chunk]:
    with _csv(path) as (file, names, reader):
        total = max(1, Path(path).stat().st_size)
        width = len(names)
        rows: list[list[str]] = []
        lines: list[int] = []
        for row in reader:
            if not row:  # an empty line
                continue
            line = reader.line_num + 1  # the header was read before
            if len(row) != width:
                raise IT3Error(f"line {line} of {path} has {len(row)} cells instead of {width}")
            rows.append(row)
            lines.append(line)
            if len(rows) == size:
                yield _transposed(names, rows, lines, min(1.0, file.buffer.tell() / total))
                rows, lines = [], []
        if rows:
            yield _transposed(names, rows, lines, 1.0)


def _transposed(
    names: Sequence[str], rows: list[list[str]], lines: list[int], position: float
) -> Chunk:
    return Chunk(dict(zip(names, zip(*rows, strict=True), strict=True)), lines, position)


@contextlib.contextmanager
def _csv(path: str | Path) -> Iterator[tuple[Any, list[str], Any]]:
    """An open CSV file, the names in its header, and the reader of its rows."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            if not header.strip():
                raise IT3Error(f"{path} is empty: its first line must name the columns")
            delimiter = max(_DELIMITERS, key=header.count)
            names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
            reader = csv.reader(file, delimiter=delimiter)
            yield file, names, reader
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise IT3Error(f"{path} is no text in UTF-8: {problem.reason}") from problem
    except csv.Error as problem:
        raise IT3Error(f"{path} is no CSV file: {problem}") from problem


@contextlib.contextmanager
def _parquet(path: str | Path) -> Iterator[Any]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as problem:
        raise IT3Error(
            'Parquet files need pyarrow: pip install "it3-tabular[parquet]", or give a CSV'
        ) from problem
    try:
        with ParquetFile(path) as file:
            yield file
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror or problem}") from problem
    except ArrowInvalid as problem:
        raise IT3Error(f"{path} is no Parquet file: {str(problem).splitlines()[0]}") from problem


def _parquet_chunks(path: str | Path, size: int) -> Iterator[Chunk]:
    with _parquet(path) as file:
        total = max(1, file.metadata.num_rows)
        done = 0
        for batch in file.iter_batches(batch_size=size):
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            lines = range(done + 1, done + batch.num_rows + 1)
            done += batch.num_rows
            yield Chunk(columns, lines, done / total)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown
