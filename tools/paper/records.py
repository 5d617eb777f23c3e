"""What was measured, in a file for each task and training seed: compressed JSON lines.

The first line says what made it; a line for each method, level and batch size follows with the
error of each instance, and one for each level with each instance's scores. All numbers have four
significant digits, scores three; errors of 0 and 100 alone are kept as a text of 0 and 1.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_core.evaluation.records import Record
from it3_core.experiment.statistics import IDEMPOTENCE
from it3_core.experiment.tables import pooled
from it3_core.io.files import write_bytes
from it3_core.io.typed import to_line

ENDING = ".jsonl.xz"
MAIN = "main"
"""The evaluation that the claims are about; others are smaller or larger ones of the same task."""

STEM = "stem"
"""The evaluation of a network whose signal enters at the input layer."""

_SCORES = {IDEMPOTENCE: "idempotence", "error_after": "after", "entropy": "entropy"}
_NOT_COLUMNS = {"errors", "differences", "means"}


@dataclass(frozen=True)
class Scores:
    """A level's instances: error, idempotence error, the one after the step, entropy."""

    seed: int
    level: str
    columns: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Measured:
    """What is known of a task: of one seed as it was measured, or of all seeds together."""

    task: str
    about: list[dict[str, Any]]  # one for each seed, with `seed`, `data`, `network`, `commit` ...
    records: list[Record]  # with `part`
    scores: list[Scores] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether all levels hold the same instances, shifted more and more."""
        return bool(self.about[0]["same"])

    @cached_property
    def seeds(self) -> list[int]:
        """The training seeds."""
        return [one["seed"] for one in self.about]

    def part(self, name: str = MAIN) -> Measured:
        """The records of one evaluation alone."""
        return replace(self, records=[r for r in self.records if r["part"] == name])

    def having(self, method: str) -> Measured:
        """The records of the evaluation that has this method, the main one if it does."""
        parts = dict.fromkeys([MAIN, *(r["part"] for r in self.records if r["method"] == method)])
        found = [self.part(name) for name in parts]
        return next((one for one in found if one.sizes(method)), found[0])

    def levels(self) -> list[str]:
        """The shifted levels of every seed, from near to far."""
        by_seed: dict[int, dict[str, None]] = {}
        for r in self.records:
            if not r["in_distribution"]:
                by_seed.setdefault(r["seed"], {})[r["level"]] = None
        first, *others = by_seed.values() or [{}]
        return [level for level in first if all(level in one for one in others)]

    def shifted(self) -> list[Record]:
        """The records of all shifted levels together."""
        levels = set(self.levels())
        kept = [r for r in self.records if r["level"] in levels]
        return pooled(kept, same_instances=self.same)

    def in_distribution(self) -> list[Record]:
        """The records in distribution."""
        return [record for record in self.records if record["in_distribution"]]

    def sizes(self, method: str) -> list[int | None]:
        """The batch sizes that a method was measured at."""
        found = {r["batch_size"] for r in self.records if r["method"] == method}
        return sorted(found, key=lambda size: size or 0)

    def largest(self, method: str) -> int | None:
        """The largest batch size of a method, None where there is but one, or no such method."""
        return next(iter(self.sizes(method)[::-1]), None)


def measured(
    about: Mapping[str, Any],  # with `task`, `seed` and `same`
    parts: Mapping[str, Iterable[Mapping[str, Any]]],  # of each evaluation its records
    answers: pd.DataFrame | None = None,  # of the evaluation whose scores are kept
) -> Measured:
    """What evaluations of one seed found."""
    records = [{**record, "part": part} for part, some in parts.items() for record in some]
    scores = []
    for level, rows in [] if answers is None else answers.groupby("level", sort=False):
        names = {"error": "error", **{k: v for k, v in _SCORES.items() if k in rows}}
        columns = {new: rows[old].to_numpy(np.float64) for old, new in names.items()}
        scores.append(Scores(int(about["seed"]), str(level), columns))
    return Measured(str(about["task"]), [dict(about)], records, scores)


def path_of(folder: Path, task: str, seed: int) -> Path:
    """The file of a task's seed."""
    return folder / f"{task}-{seed}{ENDING}"


def write(folder: Path, one: Measured) -> Path:
    """Keeps one seed."""
    lines: list[dict[str, Any]] = [dict(one.about[0])]
    lines += map(_packed, one.records)
    for scores in one.scores:
        columns = {name: _rounded(values, 3) for name, values in scores.columns.items()}
        lines.append({"scores": scores.level, **columns})
    content = lzma.compress(b"".join(map(to_line, lines)), preset=9 | lzma.PRESET_EXTREME)
    return write_bytes(path_of(folder, one.task, one.seeds[0]), content)


def read(folder: Path) -> dict[str, Measured]:
    """All tasks in a folder, each with all of its seeds."""
    found: dict[str, Measured] = {}
    for path in sorted(folder.glob(f"*{ENDING}"), key=lambda path: (len(path.name), path.name)):
        one = read_file(path)
        known = found.setdefault(one.task, Measured(one.task, [], []))
        parts = known.about + one.about, known.records + one.records, known.scores + one.scores
        found[one.task] = Measured(one.task, *parts)
    return found


def read_file(path: Path) -> Measured:
    """One seed."""
    try:
        lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
        about, seed = lines[0], int(lines[0]["seed"])
        cells = [line for line in lines[1:] if "scores" not in line]
        scores = [
            Scores(seed, line.pop("scores"), {k: _array(v) for k, v in line.items()})
            for line in lines[1:]
            if "scores" in line
        ]
        return Measured(str(about["task"]), [about], _unpacked(seed, cells), scores)
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, IndexError) as problem:
        raise IT3Error(f"{path} holds no records ({problem}): measure that seed again") from None


def _packed(record: Record) -> dict[str, Any]:
    """A record's line; what follows from other lines is left out."""
    kept = {k: record[k] for k in ("part", "level", "method", "batch_size", "in_distribution")}
    if record.get("problem"):
        return {**kept, "problem": record["problem"]}
    kept |= {k: float(f"{record[k]:.4g}") for k in ("cost", "cpu_seconds") if record.get(k)}
    errors = np.asarray(record["errors"], dtype=np.float64)
    further = {k: v for k, v in record.items() if isinstance(v, list) and k not in _NOT_COLUMNS}
    columns = {k: _rounded(v, 4) for k, v in further.items()}
    if not columns and set(np.unique(errors)) <= {0.0, 100.0}:
        return {**kept, "wrong": "".join("1" if one else "0" for one in errors)}
    return {**kept, "errors": _rounded(errors, 4), **({"columns": columns} if columns else {})}


def _unpacked(seed: int, lines: Sequence[dict[str, Any]]) -> list[Record]:
    """Records as an evaluation gives them, each with its differences to the source."""
    found: list[Record] = []
    for line in lines:
        wrong = line.pop("wrong", None)
        errors = line.get("errors") if wrong is None else [100.0 * (one == "1") for one in wrong]
        columns = line.pop("columns", {})
        record = {"seed": seed, "reference": "source", "problem": None, "fallbacks": 0}
        record |= {"cost": None, "cpu_seconds": 0.0, **line, "errors": errors, **columns}
        record["means"] = {k: _mean(v) for k, v in columns.items()}
        record |= {"n": len(errors or ()), "error": _mean(errors), "difference": None}
        found.append(record)
    sources: dict[tuple[Any, ...], Record] = {}
    for one in found:
        if one["method"] == "source":
            sources |= {(one["part"], one["level"], size): one for size in (one["batch_size"], 0)}
    for one in found:
        keys = [(one["part"], one["level"], size) for size in (one["batch_size"], None, 0)]
        source = next((sources[key] for key in keys if key in sources), None)
        if source is not None and one["errors"] and len(one["errors"]) == source["n"]:
            pairs = zip(one["errors"], source["errors"], strict=True)
            one["differences"] = [mine - other for mine, other in pairs]
            one["difference"] = _mean(one["differences"])
    return found


def _mean(values: Sequence[float | None] | None) -> float | None:
    known = [value for value in values or () if value is not None]
    return fmean(known) if known and len(known) == len(values or ()) else None


def _rounded(values: Iterable[float | None], digits: int) -> list[float | None]:
    return [
        None if one is None or not math.isfinite(one) else float(f"{one:.{digits}g}")
        for one in values
    ]


def _array(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if one is None else one for one in values], dtype=np.float64)
