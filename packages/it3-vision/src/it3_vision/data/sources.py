"""Where the images of a set come from: rows of an array here, files in `trees`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_vision.data.images import Pixels

__all__ = ["ArraySource", "NamedArray", "Names", "Source", "coloured"]


class Source(Protocol):
    """Where images come from: files, members of a tar, or rows of an array.

    Example:
        >>> import numpy as np
        >>> source: Source = ArraySource(np.zeros((2, 4, 4, 3), np.uint8), "test")
        >>> len(source), source.name(1), source.image(1).shape
        (2, 'test/1', (4, 4, 3))
    """

    def __len__(self) -> int: ...

    def name(self, row: int) -> str:
        """The file's name, or what comes nearest."""

    def image(self, row: int, smallest: int | None = None) -> Pixels:
        """(H, W, 3), or `BadImage`; `smallest` as for `read_image`."""


class ArraySource:
    """Images that are rows of an array, which may be memory-mapped; it is never copied.

    Args:
        pixels: (N, H, W, 3) of uint8, or (N, H, W) for grey, which is given as three equal
            channels.
        title: the rows are named title/0, title/1 ...

    Example:
        >>> import numpy as np
        >>> ArraySource(np.full((5, 28, 28), 7, np.uint8), "digits").batch(np.array([0, 3])).shape
        (2, 28, 28, 3)
    """

    def __init__(self, pixels: NDArray[Any], title: str) -> None:
        shape, dtype = pixels.shape, pixels.dtype
        if len(shape) == 4 and shape[3] == 1:
            pixels = pixels[..., 0]
        if not (pixels.ndim == 3 or (pixels.ndim == 4 and shape[3] == 3)):
            raise IT3Error(
                f"{title} has the shape {shape}: images are (N, H, W, 3) or, grey, (N, H, W)"
            )
        if dtype != np.uint8:
            raise IT3Error(f"{title} holds {dtype}: images are uint8, from 0 to 255")
        self.pixels: Pixels = pixels
        self.title = title

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, row: int) -> str:
        return f"{self.title}/{row}"

    def image(self, row: int, smallest: int | None = None) -> Pixels:
        return coloured(np.array(self.pixels[row]), 2)

    def batch(self, rows: NDArray[np.int64]) -> Pixels:
        """(len(rows), H, W, 3)."""
        return coloured(np.asarray(self.pixels[rows]), 3)


def coloured(pixels: Pixels, grey: int) -> Pixels:
    """Three equal channels for pixels that have so many axes and no channels."""
    return np.repeat(pixels[..., None], 3, axis=-1) if pixels.ndim == grey else pixels


class NamedArray(ArraySource):
    """Decoded files keep their names."""

    def __init__(self, pixels: Pixels, names: list[str]) -> None:
        super().__init__(pixels, "images")
        self._names = names

    def name(self, row: int) -> str:
        return self._names[row]


class Names(Sequence[str]):
    """The names of some rows, made when they are asked for."""

    def __init__(self, source: Source, rows: NDArray[np.int64]) -> None:
        self._source, self._rows = source, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[str]: ...
    def __getitem__(self, i: int | slice) -> str | Sequence[str]:
        if isinstance(i, slice):
            return Names(self._source, self._rows[i])
        return self._source.name(int(self._rows[i]))

    def __repr__(self) -> str:
        return repr(list(self))
