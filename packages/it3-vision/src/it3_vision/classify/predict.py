"""Answers for images in files: class and probability before and after, and how unusual each is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from it3_vision.classify.runs import Run
from it3_vision.predicting import Adapt, Answered, Asked, ask

__all__ = ["Prediction", "predict"]


@dataclass
class Prediction(Answered):
    """What is said about one image; what is not named here is in `Answered`.

    Attributes:
        before: the most probable class at first, and `sure_before`, its probability.
        after: the same after adaptation, with `sure_after`.

    Example:
        >>> print(Prediction("a.png", "cat", 0.61, "dog", 0.8, percentile=97.1, flagged=True))
        a.png: cat (61 %) → dog (80 %); more unusual than 97.1 % of the training images (!)
        >>> print(Prediction("b.png", problem="it is empty"))
        b.png: it is empty
    """

    before: str | None = None
    sure_before: float | None = None
    after: str | None = None
    sure_after: float | None = None

    def answer(self) -> str:
        """The classes before and after adaptation, each with its probability."""
        return (
            f"{self.before} ({100 * (self.sure_before or 0):.0f} %) → "
            f"{self.after} ({100 * (self.sure_after or 0):.0f} %)"
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
    return [
        Prediction(name, problem=told) if isinstance(told, str) else _prediction(run, name, told)
        for name, told in ask(run, paths, adapt, progress=progress)
    ]


def _prediction(run: Run, name: str, told: Asked) -> Prediction:
    before, after = told.before.softmax(0), told.after.softmax(0)
    return Prediction(
        name,
        run.classes[int(before.argmax())],
        float(before.max()),
        run.classes[int(after.argmax())],
        float(after.max()),
        error=told.error,
        percentile=told.percentile,
        flagged=told.flagged,
    )
