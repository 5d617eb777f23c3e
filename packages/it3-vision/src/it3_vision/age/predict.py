"""Answers for faces in files: the age before and after, and how unusual each face is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from it3_vision.age.runs import Run
from it3_vision.predicting import Adapt, Answered, ask

__all__ = ["Prediction", "predict"]


@dataclass
class Prediction(Answered):
    """What is said about one face, or why nothing is.

    Attributes:
        name: the file.
        before: the age in years at first.
        after: the same after adaptation.
        error: idempotence error before adaptation, in training standard deviations.
        percentile: the share of the training faces, in per cent, that are less unusual.
        flagged: whether that is more than the RUN's trust allows.
        problem: why there is no answer.

    Example:
        >>> print(Prediction("a.jpg", 58.2, 63.9, 0.4, 98.2, flagged=True))
        a.jpg: 58.2 → 63.9 years; more unusual than 98.2 % of the training faces (!)
        >>> print(Prediction("b.jpg", problem="is empty"))
        b.jpg: is empty
    """

    before: float | None = None
    after: float | None = None
    error: float | None = None
    percentile: float | None = None
    flagged: bool = False
    problem: str | None = None

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.name}: {self.problem}"
        return (
            f"{self.name}: {self.before:.1f} → {self.after:.1f} years; more unusual than "
            f"{self.percentile:.1f} % of the training faces{' (!)' if self.flagged else ''}"
        )


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
        Prediction(name, problem=told)
        if isinstance(told, str)
        else Prediction(
            name, float(told.before), float(told.after), told.error, told.percentile, told.flagged
        )
        for name, told in ask(run, paths, adapt, progress=progress)
    ]
