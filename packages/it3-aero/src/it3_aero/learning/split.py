"""Known and unknown territory: a data set split by its labels, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from it3_core import IT3Error

__all__ = ["Split", "split_by_label"]


@dataclass(frozen=True)
class Split:
    """Indices into a dataset: what to train on, and what to test on in and out of distribution.

    Attributes:
        train: on the known side of the threshold.
        validation: there too, held out to stop early and to tune.
        test: there too, held out for the in-distribution figures.
        levels: beyond the threshold, by name, from the nearest to the furthest.

    Example:
        >>> split = Split([0, 3], [1], [2], {"L/D 60–70": [5], "L/D 70–90": [4]})
        >>> split.beyond
        [5, 4]
    """

    train: list[int]
    validation: list[int]
    test: list[int]
    levels: dict[str, list[int]]

    @property
    def beyond(self) -> list[int]:
        """All indices beyond the threshold, level by level."""
        return [index for level in self.levels.values() for index in level]


def split_by_label(
    labels: Sequence[float],
    threshold: float,
    *,
    quantity: str,
    beyond: Literal["upper", "lower"] = "upper",
    validation: float = 0.1,
    test: float = 0.15,
    levels: int = 3,
    seed: int = 0,
) -> Split:
    """Up to a label is known territory, beyond it is not.

    Args:
        labels: one a sample.
        threshold: the last label to train on.
        quantity: what the labels are, for the levels' names.
        beyond: the side of the threshold that is unknown.
        validation: share of the known samples that is held out for validation.
        test: share of them that is held out for the test in distribution.
        levels: how many levels of equal size to sort the samples beyond into, by their labels.
        seed: which of the known samples are held out.

    Example:
        >>> labels = [0.3, 0.2, 0.4, 0.35, 0.25, 0.5]
        >>> split_by_label(labels, 0.3, quantity="Cd", beyond="lower", levels=2, seed=1).levels
        {'Cd 0.3–0.25': [4], 'Cd 0.25–0.2': [1]}
    """
    if validation < 0 or test < 0 or validation + test >= 1:
        raise IT3Error("validation and test are shares that leave something to train on")
    if levels < 1:
        raise IT3Error(f"levels must be positive, but is {levels}")
    sign = 1 if beyond == "upper" else -1
    distance = sign * (np.array(labels, dtype=float) - threshold)
    known, unknown = np.flatnonzero(distance <= 0), np.flatnonzero(distance > 0)
    held, tested = round(validation * len(known)), round(test * len(known))
    if len(known) - held - tested < 1:
        side = "up to" if beyond == "upper" else "from"
        raise IT3Error(f"no sample has a {quantity} {side} {threshold:g} to train on")
    mixed = np.random.default_rng(seed).permutation(known).tolist()
    ordered = unknown[np.argsort(distance[unknown], kind="stable")]
    parts = [part for part in np.array_split(ordered, levels) if len(part)]
    ends = [threshold, *(float(labels[part[-1]]) for part in parts)]
    return Split(
        train=mixed[held + tested :],
        validation=mixed[:held],
        test=mixed[held : held + tested],
        levels={
            f"{quantity} {low:.4g}–{high:.4g}": part.tolist()
            for low, high, part in zip(ends, ends[1:], parts, strict=False)
        },
    )
