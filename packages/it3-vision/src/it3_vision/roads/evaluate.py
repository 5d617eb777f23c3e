"""The paper's table of roads: every method on every image, beside doing nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from it3_core import IT3Error, Method
from it3_core.evaluation import Record, read_records, write_records
from it3_core.files import make_folder, write_json, write_text
from it3_core.progress import Progress
from it3_core.summary import Row, markdown, summarise
from it3_core.tables import markdown_table
from it3_core.tensorfile import digest
from it3_vision.comparing import finite, read_summary
from it3_vision.data.images import Pixels
from it3_vision.roads.ccq import SLACK, Score, score
from it3_vision.roads.feed import as_input
from it3_vision.roads.lineup import ONCE, STREAM, lineup
from it3_vision.roads.runs import Run
from it3_vision.roads.scenes import Scenes
from it3_vision.roads.tiling import OVERLAP, TILE, answer

__all__ = ["ALL", "HELD_OUT", "Evaluation", "Order", "Views", "evaluate_run", "load_evaluation",
           "views_of"]  # fmt: skip

HELD_OUT = "held out"
"""The level without a shift: crops that the RUN kept from its training data."""

ALL = "all"
"""The level of all test images."""

QUARTILES = 4

Order = Literal["mse", "given"]
"""The stream of images: from the source's best to its worst, as in the paper, or as it comes."""

_SCORES = ("correctness", "completeness", "quality", "iou", "mse")


@dataclass(frozen=True)
class Views:
    """Images to test on, at the network's resolution.

    Attributes:
        names: of the files.
        images: (H, W, 3) each, for pictures.
        inputs: (4, H, W) each.
        labels: (H, W) each: 1, 0 and −1.
        skipped: files that were left out, and why.
    """

    names: list[str]
    images: list[Pixels]
    inputs: list[Tensor]
    labels: list[NDArray[np.int8]]
    skipped: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)


def views_of(
    run: Run, scenes: Scenes, *, window: int | None = None, most: int | None = None
) -> Views:
    """The scenes as the network sees them.

    Images without a single road pixel among their data are left out: nothing can be complete
    there, and whatever is predicted is wrong.

    Args:
        run: the trained network.
        scenes: with masks.
        window: the side of the square, in pixels of the network's resolution, that is cut from
            each: the one with the most data. None takes all of it.
        most: images at most, evenly spread over the set.
    """
    rows = range(len(scenes))
    if most is not None and most < len(scenes):
        rows = np.linspace(0, len(scenes) - 1, most).round().astype(int).tolist()
    found = Views([], [], [], [])
    for row in rows:
        scene = scenes[row].at(run.resolution)
        scene = scene if window is None else scene.window(window)
        if scene.label is None:
            raise IT3Error(f"{scene.name} has no mask: there is nothing to compare with")
        if not (scene.label > 0).any():
            found.skipped.append(f"{scene.name}: no road where it has data")
            continue
        found.names.append(scene.name)
        found.images.append(scene.image)
        found.inputs.append(as_input(run.prepare, scene.image, scene.known).to(run.device))
        found.labels.append(scene.label)
    if not len(found):
        raise IT3Error(f"none of the images in {scenes.title} has both data and roads")
    return found


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
        harm = {_key(row): row for row in self.rows if row["level"] == HELD_OUT}
        records = {_key(r): r for r in self.records if r["level"] == level}
        lines = [header]
        for row in (row for row in self.rows if row["level"] == level):
            record = records[_key(row)]
            if record["problem"] is not None:
                lines.append([row["method"], _size(row), f"failed: {record['problem']}"] + [""] * 7)
                continue
            lines.append([row["method"], _size(row), *(_mean(record, s, 1) for s in _SCORES[:3]),
                          _interval(row), _mean(record, "iou", 1), _mean(record, "mse", 2),
                          f"{row['cost']:.1f}", _interval(harm.get(_key(row)))])  # fmt: skip
        return lines

    def by_quartile(self) -> list[list[str]]:
        """A line a method, a column a level: quality."""
        levels = _levels(self.numbers["images"])
        cells = {(*_key(record), record["level"]): record for record in self.records}
        lines = [["method", "images at once", *levels]]
        for key in dict.fromkeys(_key(record) for record in self.records):
            found = [cells.get((*key, level)) for level in levels]
            size = "" if key[1] is None else str(key[1])
            lines.append([key[0], size, *(_mean(r, "quality", 1) if r else "" for r in found)])
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
    if not batch_sizes or min(batch_sizes) < 1:
        raise IT3Error(f"batch sizes are whole numbers from 1 on, not {list(batch_sizes)}")
    if order not in get_args(Order):
        raise IT3Error(f"an order is {' or '.join(get_args(Order))}, not {order!r}")
    folder = make_folder(out if out is not None else run.folder / "evaluation")
    identity = _identity(run, tested, (order, tile, slack))
    work = _Work(run, tested, tile, slack, make_folder(folder / "parts") / f"{identity}.jsonl")
    work.order = list(range(len(tested)))
    sizes = sorted(set(batch_sizes), reverse=True)
    lineups = {size: lineup(run, size).chosen(only, ONCE, size == sizes[0]) for size in sizes}
    bar = Progress(sum(len(one.methods) for one in lineups.values()), "evaluate", progress)
    done = 0
    for size, chosen in lineups.items():
        for name, method in chosen.methods.items():
            if name == "source" and size != sizes[0]:
                continue
            work.run_method(name, method, None if name in ONCE else size, size)
            if name == "source" and order == "mse":
                mse = work.source(ALL)["mse"]
                work.order = sorted(range(len(tested)), key=lambda row: (mse[row], row))
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
    return _written(folder, work.records(), numbers)


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


@dataclass
class _Work:
    """One evaluation: a record a method and level, each written when it is there."""

    run: Run
    tested: Views
    tile: int
    slack: float
    path: Path
    order: list[int] = field(default_factory=list)
    known: dict[tuple[str, str, int | None], Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.known = {(r["level"], *_key(r)): r for r in read_records(self.path)}

    def source(self, level: str) -> Record:
        return self.known[(level, "source", None)]

    def run_method(self, name: str, method: Any, label: int | None, size: int) -> None:
        x, y = self.run.held_out
        crops = [row.numpy().astype(np.int8) for row in y.cpu()]
        for level, inputs, labels, order in (
            (ALL, self.tested.inputs, self.tested.labels, self.order),
            (HELD_OUT, list(x), crops, list(range(len(x)))),
        ):
            if (level, name, label) in self.known:
                continue
            record = self._record(level, name, label)
            try:
                self._answer(record, method, inputs, labels, order, size)
            except Exception as problem:  # the others' are not lost for it
                if name == "source":
                    raise
                record["problem"] = str(problem).splitlines()[0] or type(problem).__name__
            self._compare(record)
            write_records([record], self.path)
            self.known[(level, name, label)] = record

    def _answer(
        self,
        record: Record,
        method: Callable[[Tensor], Any],
        inputs: Sequence[Tensor],
        labels: Sequence[NDArray[np.int8]],
        order: Sequence[int],
        size: int,
    ) -> None:
        if isinstance(method, Method):
            method.reset()
        if not self.known:  # a first call costs more than the others
            answer(method, inputs[:1], tile=self.tile, overlap=OVERLAP)
        scores: dict[int, Score] = {}
        seconds = 0.0
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            torch.manual_seed(self.run.seed)
            began = time.process_time()
            said = answer(method, [inputs[row] for row in rows], tile=self.tile, overlap=OVERLAP)
            seconds += time.process_time() - began
            record["fallbacks"] += said[0].fallback is not None
            for row, one in zip(rows, said, strict=True):
                scores[row] = score(one.probability, labels[row], self.slack)
        record["cpu_seconds"] = round(seconds, 4)
        for row in range(len(order)):
            for key, value in asdict(scores[row]).items():
                record[key].append(round(value, 6))

    def _record(self, level: str, name: str, label: int | None) -> Record:
        return {
            "seed": self.run.seed,
            "level": level,
            "method": name,
            "batch_size": label,
            "reference": "source",
            "in_distribution": level == HELD_OUT,
            "n": len(self.order) if level == ALL else len(self.run.held_out[0]),
            "error": None,
            "difference": None,
            "before": None,
            "after": None,
            "fallbacks": 0,
            "cpu_seconds": None,
            "cost": None,
            "problem": None,
            **{key: [] for key in _SCORES},
        }

    def _compare(self, record: Record) -> None:
        """What `it3_core.summary` wants: errors, and differences from the source's."""
        if record["problem"] is not None:
            return
        own = record if record["method"] == "source" else self.source(record["level"])
        record["cost"] = round(record["cpu_seconds"] / max(own["cpu_seconds"], 1e-9), 4)
        _with_errors(record, own)

    def records(self) -> list[Record]:
        """All of them, and those of each quartile of the source's MSE."""
        mse = self.source(ALL)["mse"]
        ranked = sorted(range(len(mse)), key=lambda row: (mse[row], row))
        names = _levels(len(ranked))[1:]
        found = list(self.known.values())
        for name, rows in zip(names, np.array_split(ranked, len(names)), strict=True):
            for record in [r for r in self.known.values() if r["level"] == ALL]:
                part = {**record, "level": name, "n": len(rows)}
                if record["problem"] is None:
                    part |= {key: [record[key][row] for row in rows] for key in _SCORES}
                    own = self.source(ALL)
                    source = {key: [own[key][row] for row in rows] for key in _SCORES}
                    _with_errors(part, source)
                found.append(part)
        return found


def _with_errors(record: Record, source: Mapping[str, Any]) -> None:
    errors = [round(100 * (1 - value), 4) for value in record["quality"]]
    usual = [round(100 * (1 - value), 4) for value in source["quality"]]
    record["errors"] = errors
    record["differences"] = [a - b for a, b in zip(errors, usual, strict=True)]
    record["error"] = sum(errors) / len(errors)
    record["difference"] = sum(record["differences"]) / len(errors)


def _identity(run: Run, tested: Views, asked: Iterable[Any]) -> str:
    """What records belong to: a file of its own for each network, tuning, set and setting."""
    tensors = dict(run.model.state_dict())
    tensors |= {f"label {row}": torch.from_numpy(v.copy()) for row, v in enumerate(tested.labels)}
    body = {"tunings": run.settings["tunings"], "names": tested.names, "asked": list(asked)}
    return digest(tensors, body)[:12]


def _levels(images: int) -> list[str]:
    number = min(QUARTILES, images)
    return [ALL, *(f"MSE quartile {index + 1}" for index in range(number))]


def _key(record: Mapping[str, Any]) -> tuple[str, int | None]:
    return record["method"], record["batch_size"]


def _size(row: Mapping[str, Any]) -> str:
    if row["method"] == STREAM:
        return f"{row['batch_size']}, a stream"
    return "" if row["batch_size"] is None else str(row["batch_size"])


def _mean(record: Mapping[str, Any], key: str, digits: int) -> str:
    values = record[key]
    return f"{100 * sum(values) / len(values):.{digits}f}" if values else ""


def _interval(row: Mapping[str, Any] | None) -> str:
    """The change of quality: the sign of the error's, turned round."""
    if row is None or row["method"] == row["reference"] or row["difference"] is None:
        return ""
    if row["low"] is None or row["high"] is None:
        return f"{-row['difference']:+.1f}"
    return f"{-row['difference']:+.1f} ({-row['high']:+.1f} to {-row['low']:+.1f})"


def _written(folder: Path, records: list[Record], numbers: Mapping[str, Any]) -> Evaluation:
    found = Evaluation(folder, records, summarise(records), numbers)
    write_text(
        folder / "table.md",
        f"{markdown_table(found.table())}\n\n## Quality by quartile of the source's MSE\n\n"
        f"{markdown_table(found.by_quartile())}\n",
    )
    write_text(folder / "rows.md", markdown(found.rows))
    write_json(folder / "summary.json", {"numbers": finite(dict(numbers))})
    (folder / "records.jsonl").unlink(missing_ok=True)
    write_records(records, folder / "records.jsonl")
    return found
