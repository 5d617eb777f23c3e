"""A scene: an aerial image, its road mask where there is one, and its ground resolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_vision.data.images import Pixels
from it3_vision.roads.nodata import find_no_data

__all__ = ["Scene", "Scenes", "make_scene"]

_LARGEST = 4e8  # pixels of an enlarged image: more is a mistaken resolution


@dataclass(frozen=True)
class Scene:
    """An aerial image and its roads.

    Attributes:
        name: the file's.
        image: (H, W, 3) of uint8.
        known: (H, W), false where there are no data.
        label: (H, W) of int8: 1 road, 0 none, −1 unknown; None where there is no mask.
        resolution: metres a pixel.
    """

    name: str
    image: Pixels
    known: NDArray[np.bool_]
    label: NDArray[np.int8] | None
    resolution: float

    def at(self, resolution: float) -> Scene:
        """The scene at another ground resolution: shrunk by areas, or enlarged.

        Example:
            >>> import numpy as np
            >>> scene = make_scene("a", np.full((40, 60, 3), 90, np.uint8), None, 0.5)
            >>> scene.at(1.0).image.shape
            (20, 30, 3)
        """
        scale = self.resolution / resolution
        height, width = (max(1, round(side * scale)) for side in self.image.shape[:2])
        if scale > 1 and height * width > _LARGEST:
            raise IT3Error(
                f"{self.name} at {self.resolution:g} m a pixel would have {width} × {height} "
                f"pixels of {resolution:g} m: check its ground resolution"
            )
        if (height, width) == self.image.shape[:2]:
            return replace(self, resolution=resolution)
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR

        def resized(values: NDArray[Any]) -> NDArray[Any]:
            return np.asarray(cv2.resize(values, (width, height), interpolation=how))

        known = resized(self.known.astype(np.float32)) > 0.99
        label = self.label
        if label is not None:
            road = resized((label > 0).astype(np.float32)) >= 0.5
            label = np.where(resized((label >= 0).astype(np.float32)) > 0.99, road, -1)
            label = label.astype(np.int8)
        image = resized(self.image).astype(np.uint8)
        return Scene(self.name, image, known, label, resolution)

    def window(self, size: int) -> Scene:
        """The square with the most data; of several, the one nearest to the middle of the data.

        Example:
            >>> import numpy as np
            >>> image = np.full((64, 64, 3), 90, np.uint8)
            >>> image[:32] = 255
            >>> bool(make_scene("a", image, None, 1.0).window(32).known.all())
            True
        """
        height, width = self.image.shape[:2]
        if size >= height and size >= width:
            return self
        h, w = min(size, height), min(size, width)
        total = cv2.integral(self.known.astype(np.uint8))
        sums = total[h:, w:] - total[:-h, w:] - total[h:, :-w] + total[:-h, :-w]
        tops, lefts = np.nonzero(sums == sums.max())
        ys, xs = np.nonzero(self.known) if self.known.any() else (np.zeros(1), np.zeros(1))
        far = np.hypot(tops + h / 2 - ys.mean(), lefts + w / 2 - xs.mean())
        top, left = tops[far.argmin()], lefts[far.argmin()]
        there = (slice(int(top), int(top) + h), slice(int(left), int(left) + w))
        label = None if self.label is None else self.label[there]
        return Scene(self.name, self.image[there], self.known[there], label, self.resolution)


def make_scene(
    name: str,
    image: Pixels,
    mask: NDArray[np.generic] | None,
    resolution: float,
    no_data: int | None = None,
) -> Scene:
    """A scene from an image and a mask of two values; where there are no data, nothing is known.

    Args:
        name: for errors.
        image: (H, W, 3).
        mask: (H, W) of zeros and one other value, or None.
        resolution: metres a pixel.
        no_data: what the image's file declares to be no data, see `find_no_data`.

    Example:
        >>> import numpy as np
        >>> mask = np.zeros((8, 8), np.uint8)
        >>> mask[4] = 255
        >>> int(make_scene("a", np.zeros((8, 8, 3), np.uint8), mask, 1.0).label.sum())
        8
    """
    if not 0 < resolution < 1000:
        raise IT3Error(f"a ground resolution is in metres a pixel, such as 0.3, not {resolution}")
    known = ~find_no_data(image, declared=no_data)
    label = None
    if mask is not None:
        if mask.shape[:2] != image.shape[:2]:
            raise IT3Error(
                f"{name}: the image has {image.shape[1]} × {image.shape[0]} pixels but its mask "
                f"{mask.shape[1]} × {mask.shape[0]}: give a mask of the same size"
            )
        label = np.where(known, _binary(name, mask), -1).astype(np.int8)
    return Scene(name, image, known, label, resolution)


def _binary(name: str, mask: NDArray[np.generic]) -> NDArray[np.bool_]:
    """A mask has two values: black, and one more (1, 255 …). JPEG's blur around them is let pass.

    What lies between is neither road nor ground, and guessing would be a choice of ours.
    """
    plain = np.asarray(mask if mask.ndim == 2 else mask[..., :3].max(2), np.float64)
    top = float(plain.max())
    if top == 0:
        return np.zeros(plain.shape, np.bool_)
    share = plain / top
    grey = (share > 0.2) & (share < 0.8)
    # Roads are a few per cent of an image, so that a grey one is a small share of all pixels.
    if grey.mean() > 0.02 or grey.sum() > 0.5 * (share > 0.2).sum():
        raise IT3Error(
            f"{name}: {grey.mean():.1%} of the mask's pixels are grey, neither road nor ground: "
            f"threshold it first, to 0 and 255"
        )
    return np.asarray(share >= 0.5)


@dataclass(frozen=True)
class Scenes:
    """Scenes that are read when they are asked for.

    Attributes:
        title: where they come from.
        names: of the scenes.
        read: makes the scene of that number.
    """

    title: str
    names: tuple[str, ...]
    read: Callable[[int], Scene]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: int) -> Scene:
        return self.read(range(len(self))[row])

    def take(self, rows: Sequence[int]) -> Scenes:
        """Some of them.

        Example:
            >>> import numpy as np
            >>> one = make_scene("a", np.zeros((8, 8, 3), np.uint8), None, 1.0)
            >>> len(Scenes("mine", ("a", "b"), lambda row: one).take([1]))
            1
        """
        kept = list(rows)
        return Scenes(self.title, tuple(self.names[r] for r in kept), lambda i: self.read(kept[i]))

    @cached_property
    def labelled(self) -> bool:
        """Whether the first has a mask."""
        return bool(len(self)) and self[0].label is not None
