"""Records, the outcome of an evaluation: plain dicts, one JSON line each.

A record is one *cell*: what one method did on one level, at one batch size, for one training
seed. It stands alone, so that files can be cut, joined and read by anything:

- `seed`, `level`, `method`, `batch_size` name the cell; `batch_size` is None for methods whose
  answers don't depend on it. `reference` and `in_distribution` say what it is compared with, and
  whether the level is the training data's own distribution. `n` counts instances.
- `error` is the mean error, `difference` the mean of error minus the reference's error on the same
  instance: negative is better. Both are None where an answer was not finite.
- `before` and `after` are mean idempotence errors, None unless asked for.
- `fallbacks` counts the batches whose answer fell back to the source's, wholly or in part.
- `cpu_seconds` is process time; `cost` is its ratio to the reference's on the same batches, taken
  in turn. Compare costs, not seconds. On a GPU neither means much.
- `errors`, `differences`, `befores` and `afters` are the same per instance, to six digits.
- `problem` says why a method could not finish, or is None.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from it3_core.errors import IT3Error
from it3_core.files import write_text
from it3_core.methods.base import Adaptation

__all__ = [
    "Cell",
    "Record",
    "Tally",
    "cell_of",
    "continue_records",
    "read_records",
    "replace_records",
    "write_records",
]

Record = dict[str, Any]
"""One cell of an evaluation; this module's docstring lists its keys."""

Cell = tuple[int, str, str, int | None]
"""Seed, level, method and batch size."""


@dataclass
class Tally:
    """What one method did on one level, batch by batch.

    Example:
        >>> import torch
        >>> source, other = Tally(), Tally()
        >>> source.add(torch.zeros(2), torch.tensor([1.0, 3.0]), seconds=0.5)
        >>> other.add(torch.zeros(2), torch.tensor([1.0, 2.0]), seconds=1.0)
        >>> found = other.measured(source)
        >>> found["error"], found["difference"], found["cost"]
        (1.5, -0.5, 2.0)
    """

    seconds: float = 0.0
    fallbacks: int = 0
    errors: list[Tensor] = field(default_factory=list)
    befores: list[Tensor] = field(default_factory=list)
    afters: list[Tensor] = field(default_factory=list)
    problem: str | None = None

    def add(
        self,
        answer: Adaptation | Tensor,
        errors: Tensor,
        seconds: float,
        idempotence: bool = False,
    ) -> None:
        """A batch that was answered, with the error of each instance."""
        self.seconds += seconds
        self.errors.append(errors.double().cpu())
        if isinstance(answer, Adaptation):
            self.fallbacks += answer.fallback is not None
            if idempotence:
                self.befores.append(answer.error_before.detach().double().cpu())
                self.afters.append(answer.error_after.detach().double().cpu())

    def measured(self, reference: Tally, instances: bool = True) -> Record:
        """A record's numbers, beside the reference's on the same batches."""
        record: Record = {
            "error": None,
            "difference": None,
            "before": None,
            "after": None,
            "fallbacks": self.fallbacks,
            "cpu_seconds": None,
            "cost": None,
            "problem": self.problem,
        }
        if self.problem is not None:
            return record
        errors = torch.cat(self.errors)
        differences = errors - torch.cat(reference.errors)
        bad = int((~torch.isfinite(differences)).sum())
        if bad:
            record["problem"] = f"the errors of {bad} of {len(errors)} instances are not finite"
        record["error"], record["difference"] = _mean(errors), _mean(differences)
        record["cpu_seconds"] = round(self.seconds, 6)
        # No clock is so coarse that it sees no time at all in a pass; a fake one may be.
        record["cost"] = round(self.seconds / max(reference.seconds, 1e-9), 4)
        lists = {"errors": errors, "differences": differences}
        if self.befores:
            lists |= {"befores": torch.cat(self.befores), "afters": torch.cat(self.afters)}
            record["before"], record["after"] = _mean(lists["befores"]), _mean(lists["afters"])
        if instances:
            record |= {key: [_rounded(value) for value in v.tolist()] for key, v in lists.items()}
        return record


def cell_of(record: Record) -> Cell:
    """What names the cell.

    Example:
        >>> cell_of({"seed": 0, "level": "clean", "method": "IT3", "batch_size": 4, "n": 9})
        (0, 'clean', 'IT3', 4)
    """
    return record["seed"], record["level"], record["method"], record["batch_size"]


def read_records(path: str | Path) -> list[Record]:
    """The records in a file; where a cell was tried again, the last try.

    A last line that was cut off in the middle, as a killed run leaves it, is passed over.

    Example:
        >>> import pathlib, tempfile
        >>> from it3_core.records import read_records
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = pathlib.Path(folder.name, "records.jsonl")
        >>> _ = file.write_text("not a record\\n")
        >>> read_records(file)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: line 1 of ...records.jsonl is not a record of it3_core.evaluation
        >>> folder.cleanup()
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror}") from problem
    records: dict[Cell, Record] = {}
    for number, line in enumerate(lines, 1):
        record = _parsed(line)
        if record is not None:
            records[cell_of(record)] = record
        elif line.strip() and not (number == len(lines) and _is_torn(line)):
            raise IT3Error(f"line {number} of {path} is not a record of it3_core.evaluation")
    return list(records.values())


def write_records(records: Iterable[Record], path: str | Path) -> None:
    """Appends records to a file, for instance to join what several processes have measured.

    Example:
        >>> import pathlib, tempfile
        >>> from it3_core.records import read_records, write_records
        >>> record = {"seed": 0, "level": "clean", "method": "source", "batch_size": None, "n": 1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_records([record], pathlib.Path(folder, "all.jsonl"))
        ...     read_records(pathlib.Path(folder, "all.jsonl")) == [record]
        True
    """
    data = _lines(records)
    try:
        with Path(path).open("ab") as file:
            file.write(data.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise IT3Error(f"can't write {path}: {problem.strerror}") from problem


def replace_records(records: Iterable[Record], path: str | Path) -> None:
    """Writes these records in place of what a file holds, which stays until they are whole.

    Example:
        >>> import pathlib, tempfile
        >>> record = {"seed": 0, "level": "clean", "method": "source", "batch_size": None, "n": 1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "all.jsonl")
        ...     replace_records([record], path)
        ...     replace_records([record], path)
        ...     len(read_records(path))
        1
    """
    write_text(path, _lines(records))


def _lines(records: Iterable[Record]) -> str:
    return "".join(f"{json.dumps(record, allow_nan=False)}\n" for record in records)


def continue_records(path: str | Path) -> list[Record]:
    """What a file holds, after mending its end, so that the next record starts on a new line.

    Where there is no file, an empty one is made, and its folder: a path that can't be written is
    told before any work is done.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     continue_records(pathlib.Path(folder, "new", "records.jsonl"))
        []
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        records = read_records(path)
        with path.open("r+b") as file:
            data = file.read()
            tail = data.rpartition(b"\n")[2]
            if _parsed(tail) is not None:
                file.write(b"\n")
            elif _is_torn(tail):
                file.truncate(len(data) - len(tail))
    except OSError as problem:
        raise IT3Error(f"can't write {path}: {problem.strerror}") from problem
    return records


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    kinds = {"seed": int, "level": str, "method": str, "batch_size": int | None, "n": int}
    fits = all(key in record and isinstance(record[key], kind) for key, kind in kinds.items())
    return record if fits else None


def _is_torn(line: bytes) -> bool:
    """Whether this is the beginning of a record; what is whole, or no JSON at all, is foreign."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith(b"{")
    return False


def _mean(values: Tensor) -> float | None:
    mean = float(values.mean())
    return mean if math.isfinite(mean) else None


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
