"""What is to be done to a set of images, and what has been done."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from it3_vision.corruptions.kinds import Benchmark
from it3_vision.data import ImageSet
from it3_vision.data.sources import ArraySource

__all__ = ["Corrupted", "Job"]

_AT_ONCE = 256  # images of an array that one task takes


@dataclass
class Corrupted:
    """What a run did.

    Attributes:
        written: corrupted images that it wrote.
        before: those that were there already.
        bad: images that can't be read, with the reason; they were left out.
        benchmark: whose constants it took.

    Example:
        >>> Corrupted(written=3).bad
        []
    """

    written: int = 0
    before: int = 0
    bad: list[str] = field(default_factory=list)
    benchmark: Benchmark = "imagenet"


@dataclass(frozen=True)
class Job:
    """What to corrupt, how, and where to write it.

    Attributes:
        images: the set.
        rows: which of its images.
        out: the folder.
        names: which corruptions.
        severities: from mild to strong.
        benchmark: whose constants.
        seed: of everything that is random.
        size: the side that files are cut to first.
        executor: where to work; None is here and now.
    """

    images: ImageSet
    rows: NDArray[np.int64]
    out: Path
    names: tuple[str, ...]
    severities: tuple[int, ...]
    benchmark: Benchmark
    seed: int
    size: int | None
    executor: Executor | None

    @property
    def array(self) -> bool:
        """Whether the images are rows of an array."""
        return isinstance(self.images._source, ArraySource)

    def parts(self) -> Iterator[NDArray[np.int64]]:
        """The rows, so many at a time as one task takes."""
        for start in range(0, len(self.rows), _AT_ONCE):
            yield self.rows[start : start + _AT_ONCE]

    def pixels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Images as they are in the array: grey ones stay grey."""
        source = self.images._source
        assert isinstance(source, ArraySource)
        return np.asarray(source.pixels[self.images._rows[rows]])
