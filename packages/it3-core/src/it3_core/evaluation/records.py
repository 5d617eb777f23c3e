"""Records, the outcome of an evaluation: plain dicts, one JSON line each.

A record is one *cell*: one method on one level, at one batch size, for one training seed:

- `seed`, `level`, `method`, `batch_size` (None where answers don't depend on it), `reference` (the
  method that it is compared with), `in_distribution` (of the level), `n` instances.
- `error` and `difference`: the mean error, and the mean of error minus the reference's on the same
  instance (negative is better); None where an answer was not finite.
- `fallbacks`: batches whose answer fell back to the source's; `problem`: why a method could not
  finish, or None.
- `cpu_seconds` is process time, `cost` its ratio to the reference's on the same batches.
- `errors`, `differences` and further columns: per instance, to six digits; `means` holds the means
  of further columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from it3_core.errors import IT3Error
from it3_core.io.files import FilePath, write_bytes
from it3_core.io.typed import as_kind, mend, read_lines, to_line
from it3_core.methods.base import Adaptation

_NUMBERS = {int, float, type(None)}

Record = dict[str, Any]
"""One cell of an evaluation; this module's docstring lists its keys."""

Cell = tuple[int, str, str, int | None]
"""Seed, level, method and batch size."""


@dataclass
class Tally:
    """What one method did on one level, batch by batch."""

    seconds: float = 0.0
    fallbacks: int = 0
    errors: list[Tensor] = field(default_factory=list)
    columns: dict[str, list[Tensor]] = field(default_factory=dict)
    problem: str | None = None

    def add(
        self,
        answer: Adaptation | Tensor,
        errors: Tensor,
        seconds: float,
        columns: Mapping[str, Tensor],
    ) -> None:
        """A batch that was answered, with the error of each instance, and further columns."""
        self.seconds += seconds
        for name, values in columns.items():
            self.columns.setdefault(name, []).append(values.double().cpu())
        self.errors.append(errors.double().cpu())
        if isinstance(answer, Adaptation):
            self.fallbacks += answer.fallback is not None

    def measured(self, reference: Tally) -> Record:
        """A record's numbers, beside the reference's on the same batches."""
        record: Record = {
            "error": None,
            "difference": None,
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
        further = {name: torch.cat(parts) for name, parts in self.columns.items()}
        if further:
            record["means"] = {name: _mean(values) for name, values in further.items()}
            lists |= further
        return record | {key: [_rounded(one) for one in v.tolist()] for key, v in lists.items()}


def cell_of(record: Record) -> Cell:
    """What names the cell."""
    return record["seed"], record["level"], record["method"], record["batch_size"]


@dataclass(frozen=True)
class _Name:
    """What every record must have, and what its numbers must be; the rest differs."""

    seed: int
    level: str
    method: str
    batch_size: int | None
    n: int
    reference: str
    in_distribution: bool
    error: float | None = None
    difference: float | None = None
    cost: float | None = None
    fallbacks: int | None = None
    problem: str | None = None
    means: dict[str, float | None] = field(default_factory=dict)


def read_records(path: FilePath) -> list[Record]:
    """The records in a file; where a cell was tried again, the last try.

    A last line that was cut off in the middle, as a killed run leaves it, is passed over.
    """
    records: dict[Cell, Record] = {}
    for number, record in enumerate(read_lines(path, dict[str, Any]), 1):
        as_kind(record, _Name, f"line {number} of {path}")
        for key in ("errors", "differences"):  # long: not value by value
            values = record.get(key, [])
            if not isinstance(values, list) or not set(map(type, values)) <= _NUMBERS:
                raise IT3Error(f"line {number} of {path} is damaged: {key} should be numbers")
        records[cell_of(record)] = record
    return list(records.values())


def replace_records(records: Iterable[Record], path: FilePath) -> None:
    """Writes these records in place of what a file holds, which stays until they are whole."""
    write_bytes(path, b"".join(map(to_line, records)))


def continue_records(path: FilePath) -> list[Record]:
    """What a file holds, after mending its end, so that the next record starts on a new line.

    A file of something else is refused as it is. Where there is none, an empty one is made: a path
    that can't be written is reported before any work is done.
    """
    records = read_records(path) if Path(path).exists() else []
    mend(path)
    return records


def _mean(values: Tensor) -> float | None:
    mean = float(values.mean())
    return mean if math.isfinite(mean) else None


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
