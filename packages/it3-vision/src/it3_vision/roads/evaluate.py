"""The paper's table of roads: every method on every image, beside doing nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from it3_core import IT3Error
from it3_core.evaluation import Record, read_records
from it3_core.progress import Progress
from it3_core.summary import Row, markdown, summarise
from it3_core.tables import markdown_table
from it3_vision.comparing import against, checked_sizes, size_cell
from it3_vision.evaluations import (
    finite,
    folder_for,
    gathering_file,
    read_summary,
    write_evaluation,
)
from it3_vision.roads.ccq import SLACK
from it3_vision.roads.lineup import ONCE, STREAM, lineup
from it3_vision.roads.records import ALL, HELD_OUT, SCORES, Work, key, level_names
from it3_vision.roads.runs import Run
from it3_vision.roads.tiling import TILE
from it3_vision.roads.views import Views, views_of

__all__ = ["ALL", "HELD_OUT", "Evaluation", "Order", "Views", "evaluate_run", "load_evaluation",
           "views_of"]  # fmt: skip

Order = Literal["mse", "given"]
"""The stream of images: from the source's best to its worst, as in the paper, or as it comes."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, as it lies in its folder.

    Attributes:
        folder: where `records.jsonl`, `table.md`, `summary.json` and the pictures are.
        records: of `it3_core.evaluation`, with a list for each of the five scores; the error is
            100 × (1 − quality).
        rows: the summary of the records.
        numbers: settings, order, images and the like, as JSON.
    """

    folder: Path
    records: Sequence[Record]
    rows: Sequence[Row]
    numbers: Mapping[str, Any]

    def table(self, level: str = ALL) -> list[list[str]]:
        """A line a method: CCQ, IoU, MSE, the change of quality with its interval, cost."""
        header = ["method", "images at once", "correctness", "completeness", "quality",
                  "against source", "IoU", "MSE", "cost", "quality on held-out crops"]  # fmt: skip
        harm = {key(row): row for row in self.rows if row["level"] == HELD_OUT}
        records = {key(r): r for r in self.records if r["level"] == level}
        lines = [header]
        for row in (row for row in self.rows if row["level"] == level):
            record = records[key(row)]
            if record["problem"] is not None:
                lines.append([row["method"], _size(row), f"failed: {record['problem']}"] + [""] * 7)
                continue
            lines.append([row["method"], _size(row), *(_mean(record, s, 1) for s in SCORES[:3]),
                          _gain(row), _mean(record, "iou", 1), _mean(record, "mse", 2),
                          f"{row['cost']:.1f}", _gain(harm.get(key(row)))])  # fmt: skip
        return lines

    def by_quartile(self) -> list[list[str]]:
        """A line a method, a column a level: quality."""
        levels = level_names(self.numbers["images"])
        cells = {(*key(record), record["level"]): record for record in self.records}
        lines = [["method", "images at once", *levels]]
        for method, size in dict.fromkeys(key(record) for record in self.records):
            found = [cells.get((method, size, level)) for level in levels]
            lines.append(
                [method, size_cell(size), *(_mean(r, "quality", 1) if r else "" for r in found)]
            )
        return lines


def evaluate_run(
    run: Run,
    tested: Views,
    *,
    out: str | Path | None = None,
    batch_sizes: Sequence[int] = (1, 4, 8),
    order: Order = "mse",
    tile: int = TILE,
    slack: float = SLACK,
    only: Sequence[str] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Runs all methods on all images, and writes records and tables.

    Images come in the order that `order` says, so many at a time; a method adapts to the tiles
    of those images together. Then the same on the held-out crops, where nothing has shifted.

    Args:
        run: the trained network.
        tested: the images.
        out: the folder to write to; `evaluation` in the RUN by default. A killed evaluation goes
            on where it was.
        batch_sizes: how many images come together.
        order: of the stream, and so of the batches.
        tile: side of a tile.
        slack: of the scores, in pixels.
        only: names of methods; all by default. The source is always there.
        progress: whether to show how far it is.
    """
    sizes = checked_sizes(batch_sizes)
    if order not in get_args(Order):
        raise IT3Error(f"an order is {' or '.join(get_args(Order))}, not {order!r}")
    folder = folder_for(run, out)
    labels = {f"label {row}": torch.from_numpy(v.copy()) for row, v in enumerate(tested.labels)}
    asked = [order, tile, slack]
    path = gathering_file(folder, run, labels, names=tested.names, asked=asked)
    work = Work(run, tested, tile, slack, path)
    lineups = {size: lineup(run, size).chosen(only, ONCE, size == sizes[0]) for size in sizes}
    bar = Progress(sum(len(one.methods) for one in lineups.values()), "evaluate", progress)
    done = 0
    for size, chosen in lineups.items():
        for name, method in chosen.methods.items():
            if name == "source" and size != sizes[0]:
                continue
            work.run_method(name, method, None if name in ONCE else size, size)
            if name == "source" and order == "mse":
                work.order = work.ranked()
            done += 1
            bar.show(done, f"{name}, {size} images at once")
    bar.close()
    numbers = {
        "settings": {str(size): one.settings for size, one in lineups.items()},
        "order": order,
        "tile": tile,
        "slack": slack,
        "images": len(tested),
        "names": [tested.names[row] for row in work.order],
        "skipped": tested.skipped,
        "size": list(tested.images[0].shape[:2]),
        "about": run.settings["about"],
    }
    records = work.records()
    found = Evaluation(folder, records, summarise(records), numbers)
    _write(found)
    return found


def load_evaluation(folder: str | Path) -> Evaluation:
    """Reads what `evaluate_run` wrote.

    Example:
        >>> load_evaluation("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no evaluation: make one with 'it3-vision roads ...'
    """
    (numbers,) = read_summary(folder, "roads", "numbers")
    records = read_records(Path(folder) / "records.jsonl")
    return Evaluation(Path(folder), records, summarise(records), numbers)


def _size(row: Mapping[str, Any]) -> str:
    if row["method"] == STREAM:
        return f"{row['batch_size']}, a stream"
    return size_cell(row["batch_size"])


def _mean(record: Mapping[str, Any], score: str, digits: int) -> str:
    values = record[score]
    return f"{100 * sum(values) / len(values):.{digits}f}" if values else ""


def _gain(row: Mapping[str, Any] | None) -> str:
    """The change of quality: the sign of the error's, turned round."""
    if row is None:
        return ""
    ends = (("difference", "difference"), ("low", "high"), ("high", "low"))
    turned = {one: None if row[other] is None else 0 - row[other] for one, other in ends}
    return against({**row, **turned}, 1)


def _write(found: Evaluation) -> None:
    table = (
        f"{markdown_table(found.table())}\n\n## Quality by quartile of the source's MSE\n\n"
        f"{markdown_table(found.by_quartile())}\n"
    )
    write_evaluation(
        found.folder,
        found.records,
        {"table.md": table, "rows.md": markdown(found.rows)},
        {"numbers": finite(dict(found.numbers))},
    )
