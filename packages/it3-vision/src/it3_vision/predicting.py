"""Images in files, answered in batches: before and after adaptation, and how unusual each is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from torch import Tensor

from it3_core import IT3, IT3Error, Method, Source
from it3_core.progress import Progress
from it3_vision.data import BadImage, ImageSet, fit_to, open_images, read_image
from it3_vision.data.images import Pixels
from it3_vision.methods import BatchNormStats
from it3_vision.runs import TrainedRun

__all__ = ["Adapt", "Answered", "Asked", "ask", "method_for", "unusual"]

Adapt = Literal["auto", "instance", "batch", "statistics", "none"]
"""What tuning chose; IT³ on each image alone; IT³ on all together; batch statistics; nothing."""

BATCH = 64
"""Images that are answered together."""


class Read(NamedTuple):
    """An image that was read, ready in size, or why it was not."""

    name: str
    pixels: Pixels | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Asked:
    """What a network says about one image.

    Attributes:
        before, after: its outputs, of the network as it is and after adaptation.
        error: idempotence error before adaptation.
        percentile: the share of the training images, in per cent, that are less unusual.
        flagged: whether that is more than the RUN's trust allows.
    """

    before: Tensor
    after: Tensor
    error: float
    percentile: float
    flagged: bool


@dataclass(kw_only=True)
class Answered:
    """What is told to people about one image, or why nothing is; every task adds its answers.

    Attributes:
        name: the file.
        error: idempotence error before adaptation.
        percentile: the share of the training images, in per cent, that are less unusual.
        flagged: whether that is more than the RUN's trust allows.
        problem: why there is no answer.
    """

    things: ClassVar[str] = "images"

    name: str = field(kw_only=False)
    error: float | None = None
    percentile: float | None = None
    flagged: bool = False
    problem: str | None = None

    def answer(self) -> str:
        """The answers before and after adaptation, in words."""
        raise NotImplementedError

    def __str__(self) -> str:
        if self.percentile is None:
            return f"{self.name}: {self.problem}"
        rare = unusual(self.percentile, self.flagged, self.things)
        return f"{self.name}: {self.answer()}; {rare}"

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        if self.percentile is None:
            return {"name": self.name, "problem": self.problem}
        found = asdict(self)
        del found["problem"]
        last = {key: found.pop(key) for key in ("error", "percentile", "flagged")}
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in (found | last).items()}


def unusual(percentile: float, flagged: bool, things: str) -> str:
    """How unusual something is, in words, with a mark on what is flagged.

    Example:
        >>> unusual(97.1, True, "crops")
        'more unusual than 97.1 % of the training crops (!)'
    """
    mark = " (!)" if flagged else ""
    return f"more unusual than {percentile:.1f} % of the training {things}{mark}"


def ask(
    run: TrainedRun[Any],
    paths: Sequence[str | os.PathLike[str]],
    adapt: Adapt = "auto",
    *,
    progress: bool = False,
) -> list[tuple[str, Asked | str]]:
    """For each image, in their order, its name and what is said about it, or why nothing is.

    Args:
        run: the trained network.
        paths: image files, folders and tars of images.
        adapt: what to do with the network at test time.
        progress: whether to show how far it is.
    """
    found = [one for path in paths for one in _images(run, Path(path))]
    answers: list[Asked | str] = [one.problem or "" for one in found]
    waiting = [(row, one.pixels) for row, one in enumerate(found) if one.pixels is not None]
    # Batches of nearly equal size: a last one of one image would have no statistics of its own.
    rows = np.array_split(np.arange(len(waiting)), max(1, -(-len(waiting) // BATCH)))
    method = method_for(run, adapt, max(1, len(rows[-1])))
    source = Source(run.model, run.adapter)
    bar, done = Progress(len(waiting), "predict", progress), 0
    for part in ([waiting[row] for row in some] for some in rows if len(some)):
        x = run.tensor(np.stack([image for _, image in part]))
        # A method on the batch's statistics has another first answer than the network as it is,
        # and another error than those that trust was fitted to.
        plain = source(x)
        last, errors = method(x).prediction, plain.error_before
        percentiles, flags = run.trust.percentile(errors), run.trust.flag(errors)
        for place, (row, _) in enumerate(part):
            answers[row] = Asked(
                plain.initial[place],
                last[place],
                float(errors[place]),
                float(percentiles[place]),
                bool(flags[place]),
            )
        done += len(part)
        bar.show(done, f"{done} images")
    bar.close()
    return [(one.name, answer) for one, answer in zip(found, answers, strict=True)]


def method_for(run: TrainedRun[Any], adapt: Adapt, batch_size: int) -> Method:
    """The method that `--adapt` names, for this RUN's network and that many images at once."""
    if adapt not in get_args(Adapt):
        raise IT3Error(f"adapt is one of {', '.join(get_args(Adapt))}, not {adapt!r}")
    if adapt == "auto":
        return run.method(batch_size)
    if adapt == "none":
        return Source(run.model, run.adapter)
    if adapt == "statistics":
        return BatchNormStats(run.model, run.adapter, prior=16)
    chosen = run.tuning(batch_size).chosen
    settings: dict[str, Any] = {"lr": 2e-4}
    if chosen.method == "IT3":
        settings = dict(chosen.settings)
    settings["per_instance"] = adapt == "instance"
    if adapt == "instance":
        settings["norm"] = "source"
    return IT3(run.model, run.adapter, **settings)


def _images(run: TrainedRun[Any], path: Path) -> list[Read]:
    """The images at a path, ready in size; a problem in place of each that can't be read."""
    size = run.prepare.size
    if not path.is_dir() and path.suffix.lower() not in (".tar", ".gz", ".tgz", ".npy"):
        try:
            return [Read(str(path), fit_to(read_image(path), size))]
        except BadImage as problem:
            return [Read(str(path), problem=problem.problem)]
        except IT3Error as problem:
            return [Read(str(path), problem=str(problem))]
    try:
        images = open_images(path)
    except IT3Error as problem:
        return [Read(str(path), problem=str(problem))]
    return [_one(images, path, row, size) for row in range(len(images))]


def _one(images: ImageSet, path: Path, row: int, size: int) -> Read:
    name = str(path / images.names[row])
    try:
        return Read(name, images.batch([row], size)[0])
    except BadImage as problem:
        return Read(name, problem=problem.problem)
