"""The faces to test on: of the trained ages, and younger and older ones, level by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from it3_core import IT3Error
from it3_vision.age.faces import Interval, set_apart
from it3_vision.age.runs import Run
from it3_vision.data import ImageSet

__all__ = ["Levels"]


@dataclass(frozen=True)
class Levels:
    """The faces to test on, by level, the ages that were trained on first.

    Attributes:
        parts: the faces of each level, in memory.
        bad: what could not be read.
    """

    parts: Mapping[str, ImageSet]
    bad: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        run: Run,
        faces: ImageSet,
        edges: tuple[int, ...] = (10, 20),
        *,
        most: int = 300,
        seed: int = 0,
        everything: bool = False,
    ) -> Levels:
        """The levels of some faces, for this RUN.

        Args:
            run: says which ages it was trained on, and which faces it set apart.
            faces: of all ages.
            edges: the distances from the interval, in years, where levels end.
            most: faces of a level at most, drawn with `seed`.
            seed: of the draw.
            everything: whether to test on all faces of the trained ages. By default these are
                only the ones that training set apart.
        """
        interval = Interval(run.interval.low, run.interval.high, edges)
        usable = ~interval.inside(faces.labels)
        usable |= everything or set_apart(faces.names, run.tested)
        faces = faces.take(usable)
        parts, bad = {}, []
        for name, rows in interval.levels(faces.labels).items():
            some = faces.take(rows).sample(min(most, len(rows)), seed)
            parts[name], problems = some.load(run.prepare.size)
            bad += [str(problem) for problem in problems]
        found = cls({name: part for name, part in parts.items() if len(part)}, tuple(bad))
        if interval.name not in found.parts or len(found.parts) < 2:
            there = ", ".join(f"{len(part)} of {name}" for name, part in found.parts.items())
            raise IT3Error(
                f"testing needs faces of {interval.name} years that training did not see, and "
                f"younger or older ones; there are {there or 'none'}"
            )
        return found

    @property
    def within(self) -> str:
        """The name of the level without a shift."""
        return next(iter(self.parts))

    def load(self, run: Run, name: str) -> tuple[Tensor, Tensor]:
        """The faces of a level, ready for the network, and their ages."""
        part = self.parts[name]
        ages = torch.from_numpy(part.labels).float()
        return run.tensor(part.batch(slice(None), run.prepare.size)), ages.to(run.device)
