"""Answers for images in files: class and probability before and after, and how unusual each is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from it3_core import IT3, IT3Error, Method, Source
from it3_core.progress import Progress
from it3_vision.classify.runs import Run
from it3_vision.data import BadImage, ImageSet, fit_to, open_images, read_image
from it3_vision.methods import BatchNormStats

__all__ = ["Adapt", "Prediction", "method_for", "predict"]

Adapt = Literal["auto", "instance", "batch", "statistics", "none"]
"""What tuning chose; IT³ on each image alone; IT³ on all together; batch statistics; nothing."""

BATCH = 64
"""Images that are answered together."""


@dataclass
class Prediction:
    """What is said about one image, or why nothing is.

    Attributes:
        name: the file.
        before: the most probable class at first, and `sure_before`, its probability.
        after: the same after adaptation, with `sure_after`.
        error: idempotence error before adaptation.
        percentile: the share of the training images, in per cent, that are less unusual.
        flagged: whether that is more than the RUN's trust allows.
        problem: why there is no answer.

    Example:
        >>> print(Prediction("a.png", "cat", 0.61, "dog", 0.8, 0.2, 97.1, flagged=True))
        a.png: cat (61 %) → dog (80 %); more unusual than 97.1 % of the training images (!)
        >>> print(Prediction("b.png", problem="it is empty"))
        b.png: it is empty
    """

    name: str
    before: str | None = None
    sure_before: float | None = None
    after: str | None = None
    sure_after: float | None = None
    error: float | None = None
    percentile: float | None = None
    flagged: bool = False
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        if self.before is None:
            return {"name": self.name, "problem": self.problem}
        found = {key: value for key, value in asdict(self).items() if key != "problem"}
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in found.items()}

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.name}: {self.problem}"
        return (
            f"{self.name}: {self.before} ({100 * (self.sure_before or 0):.0f} %) → "
            f"{self.after} ({100 * (self.sure_after or 0):.0f} %); more unusual than "
            f"{self.percentile:.1f} % of the training images{' (!)' if self.flagged else ''}"
        )


def predict(
    run: Run,
    paths: Sequence[str | os.PathLike[str]],
    adapt: Adapt = "auto",
    *,
    progress: bool = False,
) -> list[Prediction]:
    """An answer for each image, in their order; one that can't be read gets a problem instead.

    Args:
        run: the trained network.
        paths: image files, folders and tars of images.
        adapt: what to do with the network at test time.
        progress: whether to show how far it is.

    Example:
        >>> predict.__module__
        'it3_vision.classify.predict'
    """
    found = [one for path in paths for one in _images(run, Path(path))]
    waiting = [(row, one) for row, one in enumerate(found) if not isinstance(one, Prediction)]
    # Batches of nearly equal size: a last one of one image would have no statistics of its own.
    rows = np.array_split(np.arange(len(waiting)), max(1, -(-len(waiting) // BATCH)))
    method = method_for(run, adapt, max(1, len(rows[-1])))
    answers: list[Prediction] = [
        one if isinstance(one, Prediction) else Prediction(one[0]) for one in found
    ]
    source = Source(run.model, run.adapter)
    bar, done = Progress(len(waiting), "predict", progress), 0
    for part in ([waiting[row] for row in some] for some in rows if len(some)):
        x = run.tensor(np.stack([image for _, (_, image) in part]))
        # A method on the batch's statistics has another first answer than the network as it is,
        # and another error than those that trust was fitted to.
        plain = source(x)
        first, last = plain.initial.softmax(1), method(x).prediction.softmax(1)
        errors = plain.error_before
        percentiles, flags = run.trust.percentile(errors), run.trust.flag(errors)
        for place, (row, (name, _)) in enumerate(part):
            before, after = first[place], last[place]
            answers[row] = Prediction(
                name,
                run.classes[int(before.argmax())],
                float(before.max()),
                run.classes[int(after.argmax())],
                float(after.max()),
                float(errors[place]),
                float(percentiles[place]),
                bool(flags[place]),
            )
        done += len(part)
        bar.show(done, f"{done} images")
    bar.close()
    return answers


def method_for(run: Run, adapt: Adapt, batch_size: int) -> Method:
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


def _images(run: Run, path: Path) -> list[Prediction | tuple[str, Any]]:
    """The images at a path, ready in size; a problem in place of each that can't be read."""
    size = run.prepare.size
    if not path.is_dir() and path.suffix.lower() not in (".tar", ".gz", ".tgz", ".npy"):
        try:
            return [(str(path), fit_to(read_image(path), size))]
        except BadImage as problem:
            return [Prediction(str(path), problem=problem.problem)]
        except IT3Error as problem:
            return [Prediction(str(path), problem=str(problem))]
    images = open_images(path)
    return [_one(images, path, row, size) for row in range(len(images))]


def _one(images: ImageSet, path: Path, row: int, size: int) -> Prediction | tuple[str, Any]:
    name = str(path / images.names[row])
    try:
        return name, images.batch([row], size)[0]
    except BadImage as problem:
        return Prediction(name, problem=problem.problem)
