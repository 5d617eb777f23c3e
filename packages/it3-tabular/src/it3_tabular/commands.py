"""What the command line's commands do, without the command line."""

from __future__ import annotations

import contextlib
import csv
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_tabular.estimators import Detailed, IT3Classifier, IT3Regressor
from it3_tabular.storage import load
from it3_tabular.tables import CHUNK, Chunk, Table, column_names, read_chunks, read_table, select

__all__ = ["MODEL", "Predicted", "predict_file", "train_file"]

MODEL = "model.safetensors"
COLUMNS = ("prediction", "before", "error", "flag")
_FEWEST_ROWS = 10


@dataclass(frozen=True)
class Predicted:
    """How a prediction went.

    Example:
        >>> Predicted(rows=200, flagged=10, seconds=0.1, ignored=("price",)).flagged
        10
    """

    rows: int
    flagged: int
    seconds: float
    ignored: tuple[str, ...]


def train_file(
    file: Path, target: str, run: Path, task: str, settings: dict[str, Any]
) -> tuple[IT3Regressor | IT3Classifier, Table]:
    """Trains on a table and saves the model as `RUN/model.safetensors`.

    Args:
        file: CSV or Parquet.
        target: name of the column to predict.
        run: a folder to make, or to write into.
        task: `"regression"`, `"classification"`, or `"auto"`: classification where the target is
            text.
        settings: of the estimator.

    Example:
        >>> train_file(Path("no.csv"), "price", Path("run"), "auto", {})
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: can't read no.csv: No such file or directory
    """
    if run.exists() and not run.is_dir():
        raise IT3Error(f"{run} is a file: give a folder for the run")
    table = read_table(file, target)
    if len(table.y) < _FEWEST_ROWS:
        rows = "one row" if len(table.y) == 1 else f"{len(table.y)} rows"
        raise IT3Error(f"{file} has {rows}: training needs at least {_FEWEST_ROWS}")
    empty = np.isnan(table.x).all(0)
    if empty.any():
        name = table.names[int(np.argmax(empty))]
        raise IT3Error(f"column {name!r} of {file} has no value in any row: leave it out")
    y, classes = _as_targets(table.y, target, task)
    model = (IT3Classifier if classes else IT3Regressor)(**settings).fit(table.x, y)
    model.feature_names_in_ = np.array(table.names, dtype=object)
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise IT3Error(f"can't make {run}: {problem.strerror}") from problem
    model.save(run / MODEL)
    return model, table


def predict_file(
    run: Path,
    file: Path,
    out: Path,
    *,
    adapt: str | None = "",
    keep: bool = False,
    show: Callable[[float, int], None] = lambda position, rows: None,
) -> Predicted:
    """Predicts a file of any length into a CSV, a chunk at a time, whole or not at all.

    Args:
        run: a folder that `train_file` made, or a model file.
        file: CSV or Parquet with the columns that the model was trained on, in any order.
        out: the CSV to write.
        adapt: instead of the model's own setting; "" leaves that.
        keep: whether to copy the file's own columns too.
        show: called after each chunk with the share of the file and the rows that are done.
    """
    model: IT3Regressor | IT3Classifier = load(run / MODEL if run.is_dir() else run)
    if adapt != "":
        model.set_params(adapt=adapt)
        if adapt == "auto" and model.tuning_ is None:
            raise IT3Error(f"{run} was not trained with adapt=auto, so that nothing was chosen")
    present = column_names(file)
    names = _wanted(model, present, file)
    if out.exists() and out.samefile(file):
        raise IT3Error(f"{out} is the file to read: write somewhere else")
    copied = present if keep else []
    if clash := [name for name in copied if name in COLUMNS]:
        raise IT3Error(f"{file} has a column {clash[0]!r} of its own: leave out --keep")
    method = model.method()
    size = CHUNK // model.batch_size_adapt * model.batch_size_adapt or model.batch_size_adapt
    rows = flagged = 0
    began = time.monotonic()
    with _written(out) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*copied, *COLUMNS])
        for chunk in read_chunks(file, size):
            answers = model.detailed(model.answer(select(chunk, names, file), method))
            writer.writerows(_lines(chunk, copied, answers))
            rows += chunk.rows
            flagged += int(answers.flag.sum())
            show(chunk.position, rows)
        if not rows:
            raise IT3Error(f"{file} has a header but no rows")
    ignored = tuple(name for name in present if name not in names)
    return Predicted(rows, flagged, time.monotonic() - began, ignored)


def _as_targets(cells: NDArray[Any], target: str, task: str) -> tuple[NDArray[Any], bool]:
    """The target's values, and whether they are classes."""
    text = cells.dtype.kind == "U"
    classes = text if task == "auto" else task == "classification"
    if text and not classes:
        raise IT3Error(f"the target {target!r} holds text: use --task classification")
    if not text and not np.isfinite(cells).all():
        raise IT3Error(f"the target {target!r} holds infinities: mend or drop those rows")
    if classes and not text and (cells == cells.astype(np.int64)).all():
        cells = cells.astype(np.int64)
    values = np.unique(cells)
    if len(values) == 1:
        raise IT3Error(f"the target {target!r} is {values[0]} in every row: nothing to learn")
    if classes and len(values) > len(cells) // 2:
        raise IT3Error(
            f"the target {target!r} has {len(values)} classes in {len(cells)} rows: is it the "
            f"right column?"
        )
    return cells, classes


def _wanted(
    model: IT3Regressor | IT3Classifier, present: Sequence[str], file: Path
) -> Sequence[str]:
    """The columns that the model takes, by name; by place where it never learnt their names."""
    if not hasattr(model, "feature_names_in_"):
        if len(present) == model.n_features_in_:
            return present
        raise IT3Error(
            f"the model was trained on {model.n_features_in_} columns without names, but {file} "
            f"has {len(present)}"
        )
    wanted = [str(name) for name in model.feature_names_in_]
    missing = [name for name in wanted if name not in present]
    if not missing:
        return wanted
    unknown = [name for name in present if name not in wanted]
    also = f"; it has {_named(unknown)}, which the model does not know" if unknown else ""
    raise IT3Error(f"{file} lacks {_named(missing)}, which the model was trained on{also}")


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _lines(chunk: Chunk, copied: Sequence[str], answers: Detailed) -> Iterator[list[Any]]:
    own = [chunk.columns[name] for name in copied]
    found = (
        _shown(answers.after),
        _shown(answers.before),
        _shown(answers.error),
        answers.flag.astype(int).tolist(),
    )
    return map(list, zip(*own, *found, strict=True))


def _shown(values: NDArray[Any]) -> list[Any]:
    return [f"{v:.9g}" for v in values] if values.dtype.kind == "f" else values.tolist()


@contextlib.contextmanager
def _written(path: Path) -> Iterator[IO[str]]:
    """A file that appears under its name when it is whole; until then it has another."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as stream:
            yield stream
        part.replace(path)
    except OSError as problem:
        raise IT3Error(f"can't write {path}: {problem.strerror}") from problem
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
