"""What each method scores on each image: a record a method and level."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from it3_core import Method
from it3_core.evaluation import Record, read_records, write_records
from it3_vision.roads.ccq import Score, score
from it3_vision.roads.runs import Run
from it3_vision.roads.tiling import OVERLAP, answer
from it3_vision.roads.views import Views

__all__ = ["ALL", "HELD_OUT", "SCORES", "Work", "key", "level_names"]

HELD_OUT = "held out"
"""The level without a shift: crops that the RUN kept from its training data."""

ALL = "all"
"""The level of all test images."""

QUARTILES = 4

SCORES = ("correctness", "completeness", "quality", "iou", "mse")
"""Of each image; a record has a list of each."""


@dataclass
class Work:
    """One evaluation: a record a method and level, each written when it is there.

    Attributes:
        run: the trained network.
        tested: the images.
        tile: side of a tile.
        slack: of the scores, in pixels.
        path: where records gather.
        order: of the stream of images; as they come at first.
        known: the records that are there, by level, method and images at once.
    """

    run: Run
    tested: Views
    tile: int
    slack: float
    path: Path
    order: list[int] = field(init=False)
    known: dict[tuple[str, str, int | None], Record] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.order = list(range(len(self.tested)))
        if self.path.exists():
            self.known = {(r["level"], *key(r)): r for r in read_records(self.path)}

    def source(self, level: str) -> Record:
        """What the network as it is does at a level; it must have run."""
        return self.known[(level, "source", None)]

    def ranked(self) -> list[int]:
        """The images from the source's best to its worst."""
        mse = self.source(ALL)["mse"]
        return sorted(range(len(mse)), key=lambda row: (mse[row], row))

    def run_method(self, name: str, method: Any, label: int | None, size: int) -> None:
        """Asks a method about the test images and the held-out crops, so many at once."""
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
            **{key: [] for key in SCORES},
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
        ranked = self.ranked()
        names = level_names(len(ranked))[1:]
        found = list(self.known.values())
        for name, rows in zip(names, np.array_split(ranked, len(names)), strict=True):
            for record in [r for r in self.known.values() if r["level"] == ALL]:
                part = {**record, "level": name, "n": len(rows)}
                if record["problem"] is None:
                    part |= {key: [record[key][row] for row in rows] for key in SCORES}
                    own = self.source(ALL)
                    source = {key: [own[key][row] for row in rows] for key in SCORES}
                    _with_errors(part, source)
                found.append(part)
        return found


def level_names(images: int) -> list[str]:
    """All images, and the quartiles of so many."""
    number = min(QUARTILES, images)
    return [ALL, *(f"MSE quartile {index + 1}" for index in range(number))]


def key(record: Mapping[str, Any]) -> tuple[str, int | None]:
    """What a line of a table stands for: a method, and how many images at once."""
    return record["method"], record["batch_size"]


def _with_errors(record: Record, source: Mapping[str, Any]) -> None:
    errors = [round(100 * (1 - value), 4) for value in record["quality"]]
    usual = [round(100 * (1 - value), 4) for value in source["quality"]]
    record["errors"] = errors
    record["differences"] = [a - b for a, b in zip(errors, usual, strict=True)]
    record["error"] = sum(errors) / len(errors)
    record["difference"] = sum(record["differences"]) / len(errors)
