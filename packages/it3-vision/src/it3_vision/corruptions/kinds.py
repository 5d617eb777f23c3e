"""What the four families of corruptions share: types, constants by benchmark, the way to uint8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Benchmark",
    "Corruption",
    "Floats",
    "Images",
    "Kind",
    "Random",
    "benchmark_for",
    "finish",
    "unit",
]

_SMALL = 84  # pixels: halfway, as factors go, between the benchmark's 32 and its 224

Benchmark = Literal["cifar", "imagenet"]
Images = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
Random = Sequence[np.random.Generator]


class Corruption(Protocol):
    """Images of one size (N, H, W, 3), the constants, and each image's own generator."""

    def __call__(self, images: Images, c: Any, random: Random, /) -> Images:
        """New images of the same shape; the given ones are left alone."""
        ...


@dataclass(frozen=True)
class Kind:
    """A corruption, and what the benchmark's two scripts set for its five severities.

    Example:
        >>> from it3_vision.corruptions.noise import GAUSSIAN_NOISE
        >>> GAUSSIAN_NOISE.cifar
        (0.04, 0.06, 0.08, 0.09, 0.1)
    """

    apply: Corruption
    cifar: tuple[Any, ...]
    imagenet: tuple[Any, ...]


def unit(images: Images) -> NDArray[np.float64]:
    """The images as numbers from 0 to 1.

    Example:
        >>> import numpy as np
        >>> unit(np.array([0, 51, 255], dtype=np.uint8)).tolist()
        [0.0, 0.2, 1.0]
    """
    return images / 255.0


def finish(x: Floats) -> Images:
    """Numbers from 0 to 1 as the benchmark stores them: clipped, times 255, *truncated*.

    Works in place, so it takes only arrays of the caller's own.

    Example:
        >>> import numpy as np
        >>> finish(np.array([-1.0, 0.5, 2.0])).tolist()
        [0, 127, 255]
    """
    np.clip(x, 0, 1, out=x)
    x *= 255
    return x.astype(np.uint8)


def benchmark_for(size: int) -> Benchmark:
    """Whose constants suit images of this many pixels a side: CIFAR-10-C's are milder.

    Example:
        >>> benchmark_for(32), benchmark_for(224)
        ('cifar', 'imagenet')
    """
    return "cifar" if size <= _SMALL else "imagenet"
