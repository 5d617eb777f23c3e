"""The paper's figure on faces: every method on younger and older ones, beside doing nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from it3_core.evaluation import Record, read_records
from it3_core.summary import Row, markdown, summarise
from it3_core.tables import BEYOND, markdown_table, pooled
from it3_vision.age.answers import ask, believe, sample
from it3_vision.age.levels import Levels
from it3_vision.age.lineup import ONCE, STREAMS, lineup
from it3_vision.age.runs import Run
from it3_vision.comparing import against, cell, compare, memories, size_cell
from it3_vision.evaluations import folder_for, gathering_file, read_summary, write_evaluation

__all__ = ["OLDER", "YOUNGER", "Evaluation", "Levels", "evaluate_run", "load_evaluation"]

YOUNGER, OLDER = "all younger", "all older"
"""The levels that join all levels of a side."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, as it lies in its folder.

    Attributes:
        folder: where `records.jsonl`, `table.md`, `summary.json` and the pictures are.
        records: of `it3_core.evaluation`; errors are in years.
        rows: the summary of the records, with joined levels for younger, older and all of them.
        numbers: trust, memory, settings and data, as JSON.
        samples: a line for some faces: level, name, age, answers, percentile.
    """

    folder: Path
    records: Sequence[Record]
    rows: Sequence[Row]
    numbers: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def levels(self) -> list[str]:
        """The levels' names, the trained ages first."""
        return list(dict.fromkeys(record["level"] for record in self.records))

    def summary(self) -> list[list[str]]:
        """A line a method: mean error, and against the source on either side, with intervals."""
        within = self.levels[0]
        sides = [side for side in (YOUNGER, OLDER) if any(r["level"] == side for r in self.rows)]
        header = ["method", "batch", within, *(side.split()[1] for side in sides)]
        header += [f"{side.split()[1]}, against source" for side in sides]
        lines = [[*header, f"{within}, against source", "cost"]]
        cells = self._cells()
        for method, size in self._series():
            found = [cells.get((level, method, size)) for level in (within, *sides)]
            changes = [against(row, 2) for row in (*found[1:], found[0])]
            cost = None if found[0] is None else found[0]["cost"]
            lines.append(
                [
                    method,
                    size_cell(size),
                    *(cell(row, 2) for row in found),
                    *changes,
                    f"{cost:.1f}" if cost else "",
                ]
            )
        return lines

    def by_level(self) -> list[list[str]]:
        """A line a method, a column a level: mean error in years."""
        cells, levels = self._cells(), [*self.levels, BEYOND]
        return [["method", "batch", *levels]] + [
            [
                method,
                size_cell(size),
                *(cell(cells.get((level, method, size)), 2) for level in levels),
            ]
            for method, size in self._series()
        ]

    def _cells(self) -> dict[tuple[str, str, int | None], Row]:
        return {(row["level"], row["method"], row["batch_size"]): row for row in self.rows}

    def _series(self) -> list[tuple[str, int | None]]:
        series = dict.fromkeys((row["method"], row["batch_size"]) for row in self.rows)
        return sorted(series, key=lambda one: one[1] or 0)


def evaluate_run(
    run: Run,
    levels: Levels,
    *,
    out: str | Path | None = None,
    batch_sizes: Sequence[int] = (4, 8, 16),
    only: Sequence[str] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Runs all methods on all levels and writes records, tables and pictures.

    Args:
        run: the trained network.
        levels: the faces to test on.
        out: the folder to write to; `evaluation` in the RUN by default. A killed evaluation
            goes on where it was.
        batch_sizes: how many faces the methods get at a time.
        only: names of methods; all by default. The source is always there.
        progress: whether to show how far it is.
    """
    folder = folder_for(run, out)
    known = {}
    for number, part in enumerate(levels.parts.values()):
        known[f"labels.{number}"] = torch.from_numpy(part.labels)
        known[f"pixels.{number}"] = torch.tensor(part.batch(slice(64), run.prepare.size))
    names = {name: list(part.names) for name, part in levels.parts.items()}
    compared = compare(
        run,
        partial(lineup, run),
        {name: partial(levels.load, run, name) for name in levels.parts},
        run.adapter.error,
        batch_sizes=batch_sizes,
        in_distribution=levels.within,
        once=ONCE,
        streams=STREAMS,
        path=gathering_file(folder, run, known, names=names),
        only=only,
        progress=progress,
    )
    answers = {name: ask(run, levels, name, max(batch_sizes)) for name in levels.parts}
    x = levels.load(run, levels.within)[0][: max(batch_sizes)]
    numbers = {
        "settings": compared.settings,
        "memory": memories(run, x, compared.largest),
        "trust": believe(run, levels, answers),
        "about": run.settings["about"],
        "faces": {name: len(part) for name, part in levels.parts.items()},
        "errors": {
            name: {
                key: [round(value, 6) for value in said[key].tolist()]
                for key in ("error", "error_after")
            }
            for name, said in answers.items()
        },
    }
    samples = [line for name in levels.parts for line in sample(levels, name, answers[name])]
    records = compared.records
    found = Evaluation(folder, records, _rows(records), numbers, samples)
    _write(found)
    return found


def load_evaluation(folder: str | Path) -> Evaluation:
    """Reads what `evaluate_run` wrote.

    Example:
        >>> load_evaluation("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no evaluation: make one with 'it3-vision age ...'
    """
    numbers, samples = read_summary(folder, "age", "numbers", "samples")
    records = read_records(Path(folder) / "records.jsonl")
    return Evaluation(Path(folder), records, _rows(records), numbers, samples)


def _rows(records: Sequence[Record]) -> list[Row]:
    """The summary, with joined levels for each side and for both."""
    joined = list(pooled(records))
    for side in (YOUNGER, OLDER):
        word = side.split()[1]
        joined += pooled([r for r in records if str(r["level"]).startswith(word)], side)
    return summarise([*records, *joined])


def _write(found: Evaluation) -> None:
    from it3_vision.age.pictures import figures

    tables = [markdown_table(found.summary()), markdown_table(found.by_level())]
    write_evaluation(
        found.folder,
        found.records,
        {"table.md": "\n\n".join([*tables, markdown(found.rows)])},
        {"numbers": found.numbers, "samples": found.samples},
        figures(found),
    )
