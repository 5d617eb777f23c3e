"""The paper's tables on images: every method under every corruption, beside doing nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from it3_core.evaluation import Record, read_records
from it3_core.summary import Row, markdown, summarise
from it3_core.tables import averaged, markdown_table
from it3_vision.classify.answers import believe, sample
from it3_vision.classify.lineup import ONCE, lineup
from it3_vision.classify.runs import Run
from it3_vision.classify.shifts import CLEAN, Shifts
from it3_vision.comparing import against, cell, checked_sizes, compare, memories, size_cell
from it3_vision.evaluations import folder_for, gathering_file, read_summary, write_evaluation

__all__ = ["CLEAN", "Evaluation", "Shifts", "evaluate_run", "load_evaluation"]

MEAN = "mean"
"""Of the level that stands for all corruptions of a severity, image by image."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, as it lies in its folder.

    Attributes:
        folder: where `records.jsonl`, `table.md`, `summary.json` and the pictures are.
        shifts: corruptions and severities, by name.
        records: of `it3_core.evaluation`; errors are percentages.
        rows: the summary of the records, with a level `mean N` for each severity N.
        numbers: trust, memory, settings and data, as JSON.
        samples: a line for some images: level, name, truth, answers, percentile.
    """

    folder: Path
    shifts: Mapping[str, Any]
    records: Sequence[Record]
    rows: Sequence[Row]
    numbers: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def severities(self) -> list[int]:
        """From mild to strong."""
        return [int(severity) for severity in self.shifts["severities"]]

    def summary(self, severity: int) -> list[list[str]]:
        """A line a method: clean, mean over the corruptions, the change with its interval."""
        return _summary(self.rows, severity, self.numbers["memory"])

    def by_corruption(self, severity: int, batch_size: int) -> list[list[str]]:
        """A line a method, a column a corruption: error in per cent."""
        names = self.shifts["corruptions"]
        header = ["method", CLEAN, *(name.replace("_", " ") for name in names), MEAN]
        levels = [CLEAN, *(f"{name} {severity}" for name in names), f"{MEAN} {severity}"]
        cells = {
            (row["method"], row["level"]): row
            for row in self.rows
            if row["batch_size"] in (None, batch_size)
        }
        methods = dict.fromkeys(method for method, _ in cells)
        lines = [
            [method, *(cell(cells.get((method, level)), 1) for level in levels)]
            for method in methods
        ]
        return [header, *lines]


def evaluate_run(
    run: Run,
    shifts: Shifts,
    *,
    out: str | Path | None = None,
    batch_sizes: Sequence[int] = (1, 16, 64),
    slow: bool = True,
    only: Sequence[str] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Runs all methods on all levels and writes records, tables and pictures.

    Args:
        run: the trained network.
        shifts: test images and corruptions.
        out: the folder to write to; `evaluation` in the RUN by default. A killed evaluation
            goes on where it was.
        batch_sizes: how many images the methods get at a time.
        slow: whether to have MEMO and TTT, which take many passes for each image.
        only: names of methods; all by default. The source is always there.
        progress: whether to show how far it is.
    """
    largest = checked_sizes(batch_sizes)[0]
    shifts.check()
    folder, clean = folder_for(run, out), shifts.pixels(run.prepare.size, CLEAN, max(64, largest))
    # Other images may have the same names; the first ones give them away.
    known = {"labels": torch.from_numpy(shifts.images.labels), "pixels": torch.tensor(clean[:64])}
    gathered = gathering_file(
        folder,
        run,
        known,
        names=list(shifts.images.names),
        seed=shifts.seed,
        folder=str(shifts.folder),
    )
    compared = compare(
        run,
        lambda size: lineup(run, size, slow=slow and size == largest),
        shifts.levels(run),
        partial(_percent_wrong, run),
        batch_sizes=batch_sizes,
        in_distribution=CLEAN,
        once=ONCE,
        path=gathered,
        only=only,
        progress=progress,
    )
    trust, points = believe(run, shifts, progress)
    x = run.tensor(clean[:largest])
    numbers = {
        "settings": compared.settings,
        "memory": memories(run, x, compared.largest, alone=("MEMO", "TTT")),
        "trust": trust,
        "points": points,
        "about": run.settings["about"],
        "images": len(shifts.images),
        "unmeasured": shifts.unmeasured(),
    }
    described = {"corruptions": list(shifts.corruptions), "severities": list(shifts.severities)}
    records = compared.records
    rows = _rows(records, described)
    found = Evaluation(folder, described, records, rows, numbers, sample(run, shifts, largest))
    _write(found)
    return found


def load_evaluation(folder: str | Path) -> Evaluation:
    """Reads what `evaluate_run` wrote.

    Example:
        >>> load_evaluation("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no evaluation: make one with 'it3-vision ...'
    """
    shifts, numbers, samples = read_summary(folder, "classify", "shifts", "numbers", "samples")
    place = Path(folder)
    records = read_records(place / "records.jsonl")
    return Evaluation(place, shifts, records, _rows(records, shifts), numbers, samples)


def _percent_wrong(run: Run, output: Tensor, y: Tensor) -> Tensor:
    return 100 * run.adapter.error(output, y)


def _rows(records: Sequence[Record], shifts: Mapping[str, Any]) -> list[Row]:
    """The summary, with the mean over the corruptions of each severity."""
    means: list[Record] = []
    for severity in shifts["severities"]:
        wanted = {f"{name} {severity}" for name in shifts["corruptions"]}
        group = [record for record in records if record["level"] in wanted]
        means += averaged(group, f"{MEAN} {severity}")
    return summarise([*records, *means])


def _summary(rows: Iterable[Row], severity: int, memory: Mapping[str, float]) -> list[list[str]]:
    wanted = [row for row in rows if row["level"] == f"{MEAN} {severity}"]
    clean = {(r["method"], r["batch_size"]): r for r in rows if r["level"] == CLEAN}
    header = ["method", "batch", "clean", "corrupted", "against source", "clean against source",
              "cost", "memory"]  # fmt: skip
    lines = [header]
    largest = max((row["batch_size"] or 0 for row in wanted), default=0)
    for row in sorted(wanted, key=lambda row: row["batch_size"] or 0):
        plain = clean.get((row["method"], row["batch_size"]))
        # Measured at the largest batch size, where it matters.
        used = memory.get(row["method"]) if row["batch_size"] in (None, largest) else None
        lines.append(
            [
                row["method"],
                size_cell(row["batch_size"]),
                cell(plain, 1),
                cell(row, 1),
                against(row, 1),
                against(plain, 1),
                "" if row["cost"] is None else f"{row['cost']:.1f}",
                "" if used is None else f"{used:.1f}",
            ]
        )
    return lines


def _write(found: Evaluation) -> None:
    from it3_vision.classify.pictures import figures

    sizes = sorted({r["batch_size"] for r in found.records if r["batch_size"] is not None})
    parts = []
    for severity in found.severities:
        parts.append(f"## Severity {severity}\n\n{markdown_table(found.summary(severity))}\n")
        for size in sizes or [1]:
            table = markdown_table(found.by_corruption(severity, size))
            parts.append(f"### Error in per cent, batches of {size}\n\n{table}\n")
    write_evaluation(
        found.folder,
        found.records,
        {"table.md": "\n".join(parts), "rows.md": markdown(found.rows)},
        {"shifts": found.shifts, "numbers": found.numbers, "samples": found.samples},
        figures(found),
    )
