"""CSV and Parquet tables, read a chunk at a time by pyarrow (it comes with `it3-tabular[cli]`).

A cell that is empty, or says NA, N/A, NaN, null, none or ?, is missing. Every other cell of a
feature must be a number; one that is not is named with its column and its line.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute, parquet
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, open_csv

from it3_core import IT3Error
from it3_core.io.typed import printable
from it3_tabular.fitting import MOST_COLUMNS, Floats

CHUNK = 16_384  # rows that are read at once

_FEWEST_ROWS = 10  # to train on
_MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
_DELIMITERS = ",;\t|"
_BLOCK = 2**20  # bytes that pyarrow parses at once; a row must fit in


class Table(NamedTuple):
    """A table to train on."""

    names: Sequence[str]  # of the features
    x: Floats
    y: NDArray[Any]
    classes: bool  # whether the target is a class


class Chunk(NamedTuple):
    """Consecutive rows of a file, as they stand there: text from a CSV, any type from Parquet."""

    cells: pa.Table
    start: int  # rows of the file before them
    position: float  # how far the file has been read after them, from 0 to 1


def read_table(path: Path, target: str, task: str = "auto") -> Table:
    """A whole file, with one of its columns as the target; `task` as in `it3-tabular train`."""
    names = column_names(path)
    if target not in names:
        raise IT3Error(f"{path} has no column {target!r}; it has {_listed(names)}")
    names.remove(target)
    if not 0 < len(names) <= MOST_COLUMNS:
        count = f"{path} has {len(names):,} columns besides the target {target!r}"
        raise IT3Error(f"{count}: give it 1 to {MOST_COLUMNS:,} features")
    values, targets = bytearray(), []  # grows in place: a table is never in memory twice
    for chunk in read_chunks(path):
        values += numbers(chunk, names, path).data
        targets.append(chunk.cells.column(target).combine_chunks())
    x = np.frombuffer(values).reshape(-1, len(names))
    if len(x) < _FEWEST_ROWS:
        raise IT3Error(f"{path} has {len(x)} rows: training needs at least {_FEWEST_ROWS}")
    empty = np.isnan(x).all(0)
    if empty.any():
        name = names[int(np.argmax(empty))]
        raise IT3Error(f"column {name!r} of {path} has no value in any row: leave it out")
    return Table(names, x, *_targets(pa.chunked_array(targets), target, task, path))


def column_names(path: Path) -> list[str]:
    """The names of a file's columns, each of them once."""
    with _reading(path):
        if _is_parquet(path):
            names: list[str] = parquet.read_schema(path).names
        else:
            with _csv_rows(path) as rows:
                names = [name.strip() for name in next(rows)]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise IT3Error(f"{path} has several columns called {_listed(repeated)}: rename them")
    return names


def model_columns(model: Any, path: Path, present: Sequence[str]) -> Sequence[str]:
    """The columns that a model takes, by name; in their order if it was fitted without names."""
    wanted = list(map(str, getattr(model, "feature_names_in_", present)))
    if missing := sorted(set(wanted) - set(present), key=wanted.index):
        unknown = [name for name in present if name not in wanted]
        also = f"; it has {_listed(unknown)}, which the model does not use" if unknown else ""
        raise IT3Error(f"{path} lacks {_listed(missing)}, which the model was trained on{also}")
    if len(wanted) != model.n_features_in_:
        count = f"{model.n_features_in_} columns without names"
        raise IT3Error(f"the model was trained on {count}, but {path} has {len(wanted)}")
    return wanted


def read_chunks(path: Path, size: int = CHUNK) -> Iterator[Chunk]:
    """A file's rows, `size` at a time; little more than that is in memory."""
    names, start, position = column_names(path), 0, 0.0
    rest: list[pa.RecordBatch] = []
    with _reading(path):
        for batch, position in _parquet(path, size) if _is_parquet(path) else _csv(path, names):
            rest.append(batch)
            while sum(part.num_rows for part in rest) >= size:
                table = pa.Table.from_batches(rest)
                yield Chunk(table.slice(0, size), start, position)
                start, rest = start + size, table.slice(size).to_batches()
        if rest:
            yield Chunk(pa.Table.from_batches(rest), start, position)


def numbers(chunk: Chunk, names: Sequence[str], path: Path) -> Floats:
    """Columns of a chunk as numbers, in this order; NaN where one is missing."""
    found = np.empty((chunk.cells.num_rows, len(names)))
    for index, name in enumerate(names):
        cells = chunk.cells.column(name)
        found[:, index], wrong = _floats(cells)
        infinite = np.isinf(found[:, index])
        if wrong is None and infinite.any():
            wrong = int(np.argmax(infinite))
        if wrong is not None:
            cell = f"{str(cells[wrong])[:40]!r} in line {_line(path, chunk.start + wrong)}"
            advice = "turn the column into finite numbers, or leave it out"
            raise IT3Error(f"column {name!r} of {path} holds {cell}: {advice}")
    return found


def _floats(cells: pa.ChunkedArray) -> tuple[Floats, int | None]:
    """Cells as numbers, NaN where one is missing, and the first row whose cell is neither."""
    try:
        values = cells
        if not (pa.types.is_primitive(cells.type) or pa.types.is_decimal(cells.type)):
            values = compute.utf8_trim_whitespace(cells.cast(pa.string()))
            missing = compute.is_in(compute.utf8_lower(values), pa.array(_MISSING))
            values = compute.if_else(missing, None, values)
        return values.cast(pa.float64(), safe=False).to_numpy(), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # text, or a number as Python writes it
        found = np.full(len(cells), math.nan)
    for row, cell in enumerate(cells.to_pylist()):
        if cell is None or (isinstance(cell, str) and cell.strip().lower() in _MISSING):
            continue
        try:
            found[row] = float(cell)
        except (TypeError, ValueError):
            return found, row
    return found, None


def _targets(
    cells: pa.ChunkedArray, target: str, task: str, path: Path
) -> tuple[NDArray[Any], bool]:
    """The target's values, numbers where all cells are, else text; and whether they are classes."""
    found: NDArray[Any]
    found, wrong = _floats(cells)
    missing, text = np.isnan(found), wrong is not None
    if text:
        found = np.array(["" if cell is None else str(cell).strip() for cell in cells.to_pylist()])
        missing = np.isin(np.char.lower(found), _MISSING)
    if missing.any():
        line = _line(path, int(np.argmax(missing)))
        raise IT3Error(f"the target {target!r} of {path} is missing in line {line}: drop that row")
    classes = text if task == "auto" else task == "classification"
    if text and not classes:
        raise IT3Error(f"the target {target!r} holds text: use --task classification")
    if not text and not (np.abs(found) < 1e150).all():  # whose squares are numbers too
        raise IT3Error(f"the target {target!r} holds infinite or huge values: drop those rows")
    if classes and not text and (np.abs(found) < 2**53).all() and (found % 1 == 0).all():
        found = found.astype(np.int64)
    values = np.unique(found)
    if len(values) == 1:
        value = printable(values[0], 40)
        raise IT3Error(f"the target {target!r} is {value} in every row: nothing to learn")
    if classes and len(values) > len(found) // 2:
        count = f"the target {target!r} has {len(values)} classes in {len(found)} rows"
        raise IT3Error(f"{count}: name another column, or use --task regression")
    return found, classes


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def _parquet(path: Path, size: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    with parquet.ParquetFile(path) as file:
        done = 0
        for batch in file.iter_batches(batch_size=size):
            done += batch.num_rows
            yield batch, done / file.metadata.num_rows


def _csv(path: Path, names: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, float]]:
    with _csv_rows(path) as rows:
        next(rows)
        lines, delimiter = rows.line_num, rows.dialect.delimiter
        if not any(rows):
            return
    block = max(_BLOCK, 64 * len(names))
    options = (
        ReadOptions(use_threads=False, block_size=block, skip_rows=lines, column_names=names),
        ParseOptions(delimiter=delimiter, newlines_in_values=True),
        ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    total = path.stat().st_size
    try:
        with pa.OSFile(str(path)) as file, open_csv(file, *options) as reader:
            for batch in reader:
                yield batch, min(1.0, file.tell() / total)
    except pa.ArrowInvalid:  # of a ragged row, it does not know the line
        with _csv_rows(path) as rows:
            for row in filter(None, rows):
                if len(row) != len(names):
                    found = f"line {rows.line_num} of {path} has {len(row)} cells"
                    raise IT3Error(f"{found} instead of {len(names)}") from None
        raise


def _line(path: Path, row: int) -> int:
    """Where a row stands in its file: its line, or in Parquet its number."""
    if _is_parquet(path):
        return row + 1
    with _reading(path), _csv_rows(path) as rows:
        next(rows)
        return int(next(islice((rows.line_num for cells in rows if cells), row, None)))


@contextmanager
def _csv_rows(path: Path) -> Iterator[Any]:
    """Python's reader of a CSV file: slow, but it knows the header and the lines."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        if not first.strip():
            raise IT3Error(f"{path} is empty: its first line must name the columns")
        file.seek(0)
        yield csv.reader(file, delimiter=max(_DELIMITERS, key=first.count))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        if path.exists() and not path.is_file():
            raise IT3Error(f"{path} is {'a folder' if path.is_dir() else 'no file'}: name a table")
        yield
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror or problem}") from problem
    except (UnicodeDecodeError, UnicodeEncodeError) as problem:
        raise IT3Error(f"{path}, or its name, is no text in UTF-8: {problem.reason}") from problem
    except (csv.Error, pa.ArrowException) as problem:
        kind = "Parquet" if _is_parquet(path) else "CSV"
        raise IT3Error(f"{path} is no {kind} file: {str(problem).splitlines()[0]}") from problem


def _listed(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
