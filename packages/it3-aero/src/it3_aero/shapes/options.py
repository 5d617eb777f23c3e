"""What the commands of wings and of cars share: options, messages, files as users give them.

Loads no torch.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from it3_core import IT3Error
from it3_core.experiment.verbs import (
    EvaluateOptions,
    Overwrite,
    Positive,
    PredictOptions,
    Quiet,
    Seed,
    TrainOptions,
)

New = Annotated[Path, Parameter(help="The folder; a run that was killed continues in it.")]
Trained = Annotated[Path, Parameter(help="The folder that train made.")]
Demo = Annotated[Path, Parameter(help="The folder for all of it.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Generate:
    """Options of `generate`."""

    seed: Seed = 0
    "Which shapes are drawn."
    workers: Positive | None = None
    "Shapes at a time; by default about as many as there are cores."
    dask: str | None = None
    "Address of a Dask scheduler, to use its cluster instead."
    quiet: Quiet = False

    def settings(self) -> dict[str, Any]:
        """As the functions `generate` take them."""
        given = dict(vars(self))
        return given | {"progress": not given.pop("quiet")}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Train(TrainOptions):
    """Options of `train`."""

    preset: Literal["paper"] | None = None
    """paper: the paper's protocol in place of ours: both terms of the loss alike, the signal at the
    input layer, the top 5 % out of distribution, its optimiser and epochs."""
    size: Literal["small", "full"] = "small"
    "Of the network. small: 16 channels, minutes on two cores; full: 64, as the authors' code has."
    top: str | None = None
    "The share of shapes that is out of distribution, such as 5%, in place of a threshold."
    epochs: Positive | None = None
    "Instead of the protocol's."
    calibration: float | None = None
    """Share of the training shapes that is kept for thresholds and intervals, and not trained on:
    0.35, and by the paper's protocol none."""

    def kept(self) -> float:
        """`calibration`, or what it is by default."""
        if self.calibration is None:
            return 0.0 if self.preset else 0.35
        if not 0 <= self.calibration < 0.9:
            raise IT3Error(f"calibration is a share from 0 to below 0.9, not {self.calibration}")
        return self.calibration

    def share(self) -> float | None:
        """`top` as a fraction."""
        if self.top is None:
            return None
        try:
            found = float(self.top.removesuffix("%")) / 100
        except ValueError:
            found = 0.0
        if not 0 < found <= 0.5 or not self.top.endswith("%"):
            raise IT3Error(f"the top is a share up to 50%, such as 5%, unlike {self.top!r}")
        return found


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Evaluate(EvaluateOptions):
    """Options of `evaluate`."""

    data: Path | None = None
    "Where the data are now, if they were moved since training."
    most: Positive = 100
    "Shapes of a level at most."
    batch_sizes: str = "1,4,16"
    "Separated by commas."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Predict(PredictOptions):
    """Options of `predict`."""

    verify: bool = False
    "Run the solver too."
    plot: Path | None = None
    "Draw the shapes into this file: PNG, SVG or PDF."
    overwrite: Overwrite = False


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Interrupted, the command says how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"run the same command to continue in {out}", file=sys.stderr)
        raise


def summary(out: Path, card: Mapping[str, Any], noun: str, quantity: str, key: str) -> str:
    """A data card in a line: how many were solved, by whom, the range of the labels."""
    counts = card["counts"]
    line = f"{out}: {counts['solved']} {noun} by {card['settings']['solver']}"
    if counts["failed"]:
        line += f", {counts['failed']} without a solution (card.json says why)"
    if key in card:
        line += f"; {quantity} {card[key]['lowest']:.3g} to {card[key]['highest']:.3g}"
    return line


def one_thread(size: str = "small") -> None:
    """Small layers gain nothing from a second thread, and lose tenfold to it on a busy machine."""
    import torch

    if size == "small" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def content(path: Path, largest: int) -> bytes:
    """The bytes of a file that has some, and at most `largest`."""
    try:
        # Before it is opened: a pipe would wait for someone to write into it.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise IT3Error("this is not a file")
        if status.st_size > largest:
            size = status.st_size / 1e6
            raise IT3Error(f"{size:.1f} MB is too much: {largest / 1e6:g} MB at most")
        found = path.read_bytes()
    except IT3Error:  # a ValueError too
        raise
    except OSError as problem:
        raise IT3Error(f"can't be read: {problem.strerror}") from None
    except ValueError:  # a NUL in the name
        raise IT3Error("no file can have that name") from None
    if not found.strip():
        raise IT3Error("the file is empty")
    return found
