"""What the four families of corruptions share: types, constants by benchmark, the way to uint8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Benchmark = Literal["cifar", "imagenet"]
Images = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
Random = Sequence[np.random.Generator]


class Kind(NamedTuple):
    """A corruption, and what the benchmark's two scripts set for its five severities.

    It takes images of one size (N, H, W, 3), which it leaves alone, a severity's constants, and a
    generator for each image.
    """

    apply: Callable[[Images, Any, Random], Images]
    cifar: tuple[Any, ...]
    imagenet: tuple[Any, ...]


def unit(images: Images) -> NDArray[np.float64]:
    """The images as numbers from 0 to 1."""
    return images / 255.0


def finish(x: Floats) -> Images:
    """Numbers from 0 to 1 as the benchmark stores them: clipped, times 255, *truncated*.

    Works in place, so it takes only arrays of the caller's own.
    """
    np.clip(x, 0, 1, out=x)
    x *= 255
    return x.astype(np.uint8)
