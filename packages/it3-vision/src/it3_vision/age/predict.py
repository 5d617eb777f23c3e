"""Answers for faces in files: the age before and after, and how unusual each face is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from it3_vision.age.runs import Run
from it3_vision.predicting import Adapt, Answered, Asked, ask

__all__ = ["Prediction", "predict"]


@dataclass
class Prediction(Answered):
    """What is said about one face; what is not named here is in `Answered`.

    Attributes:
        before: the age in years at first.
        after: the same after adaptation.

    Example:
        >>> print(Prediction("a.jpg", 58.2, 63.9, percentile=98.2, flagged=True))
        a.jpg: 58.2 → 63.9 years; more unusual than 98.2 % of the training faces (!)
        >>> print(Prediction("b.jpg", problem="is empty"))
        b.jpg: is empty
    """

    things: ClassVar[str] = "faces"

    before: float | None = None
    after: float | None = None

    def answer(self) -> str:
        """The ages before and after adaptation."""
        return f"{self.before:.1f} → {self.after:.1f} years"


def predict(
    run: Run,
    paths: Sequence[str | os.PathLike[str]],
    adapt: Adapt = "auto",
    *,
    progress: bool = False,
) -> list[Prediction]:
    """An answer for each face, in their order; one that can't be read gets a problem instead.

    Args:
        run: the trained network.
        paths: image files, folders and tars of images; their names don't matter.
        adapt: what to do with the network at test time.
        progress: whether to show how far it is.

    Example:
        >>> predict.__module__
        'it3_vision.age.predict'
    """
    return [
        Prediction(name, problem=told) if isinstance(told, str) else _prediction(name, told)
        for name, told in ask(run, paths, adapt, progress=progress)
    ]


def _prediction(name: str, told: Asked) -> Prediction:
    return Prediction(
        name,
        float(told.before),
        float(told.after),
        error=told.error,
        percentile=told.percentile,
        flagged=told.flagged,
    )
