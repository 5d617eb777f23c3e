"""The noun: a set of labelled images that can be indexed, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from it3_core import IT3Error
from it3_core.io.progress import Progress
from it3_vision.data.images import BadImage, Pixels, Size, checked_size, fit_to
from it3_vision.data.trees import FileSource

_MOST_CLASSES = 100_000  # that are named by their numbers
_AHEAD = 16  # images for each thread at a time: decoded, they wait in memory
_ONE_BY_ONE = 256  # without threads, images between two looks at the clock


class ArraySource:
    """Images that are rows of an array, which may be memory-mapped; it is never copied.

    (N, H, W, 3) of uint8, or (N, H, W) for grey, which is given as three equal channels. Without
    names, the rows are named title/0, title/1 ...
    """

    def __init__(
        self, pixels: NDArray[Any], title: str, names: Sequence[str] | None = None
    ) -> None:
        shape, dtype = pixels.shape, pixels.dtype
        if len(shape) == 4 and shape[3] == 1:
            pixels = pixels[..., 0]
        if not (pixels.ndim == 3 or (pixels.ndim == 4 and shape[3] == 3)):
            raise IT3Error(f"{title} has the shape {shape}: images are (N, H, W, 3) or (N, H, W)")
        if dtype != np.uint8:
            raise IT3Error(f"{title} holds {dtype}: images are uint8, from 0 to 255")
        self.pixels: Pixels = pixels
        self.title = title
        self._names = names

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, row: int) -> str:
        return f"{self.title}/{row}" if self._names is None else self._names[row]

    def image(self, row: int, smallest: int | None = None) -> Pixels:
        return np.array(self.batch(slice(row, row + 1))[0])

    def batch(self, rows: NDArray[np.int64] | slice) -> Pixels:
        """(len(rows), H, W, 3)."""
        some = np.asarray(self.pixels[rows])
        return np.repeat(some[..., None], 3, axis=-1) if some.ndim == 3 else some


class JoinedSource:
    """The images of two sets, one after the other."""

    def __init__(self, *parts: ImageSet) -> None:
        self._rows = [(part, row) for part in parts for row in range(len(part))]

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, row: int) -> str:
        part, row = self._rows[row]
        return part.names[row]

    def image(self, row: int, smallest: int | None = None) -> Pixels:
        part, row = self._rows[row]
        return part._source.image(int(part._rows[row]), smallest)


class ImageSet:
    """Labelled images, decoded when they are asked for. `open_images` makes one.

    Args:
        source: where the images are.
        labels: for each, its index in `classes`; −1 where it is unknown.
        classes: the classes' names.
        rows: which rows of the source, in which order; all unless given.

    Example:
        >>> import numpy as np
        >>> pixels = np.zeros((6, 8, 8, 3), np.uint8)
        >>> images = ImageSet.from_array(pixels, [0, 1, 0, 1, 0, 1], ["cat", "dog"])
        >>> images
        ImageSet(6 images, 2 classes)
        >>> images.image(0).shape, images.batch([0, 5], size=4).shape
        ((8, 8, 3), (2, 4, 4, 3))
        >>> images.take([1, 3]).labels
        array([1, 1])
        >>> images.names[2]
        'images/2'
    """

    def __init__(
        self,
        source: ArraySource | FileSource | JoinedSource,
        labels: ArrayLike,
        classes: Sequence[str] = (),
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self._source = source
        self._rows = np.arange(len(source)) if rows is None else rows
        self.labels: NDArray[np.int64] = np.asarray(labels, dtype=np.int64)
        self.classes = tuple(classes)
        if self.labels.shape != self._rows.shape:
            raise IT3Error(f"there are {self.labels.size} labels for {len(self._rows)} images")
        if self.labels.size and not -1 <= self.labels.min() <= self.labels.max() < len(classes):
            raise IT3Error(
                f"labels go from {self.labels.min()} to {self.labels.max()}, but there are "
                f"{len(classes)} classes"
            )

    @classmethod
    def from_array(
        cls,
        pixels: NDArray[Any],
        labels: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        title: str = "images",
    ) -> ImageSet:
        """A set of the rows of an array, which is not copied.

        Args:
            pixels: (N, H, W, 3) or (N, H, W) of uint8.
            labels: −1 for all unless given.
            classes: "0", "1" ... unless given.
            title: the images are named title/0, title/1 ...
        """
        source = ArraySource(pixels, title)
        known = np.asarray([-1] * len(source) if labels is None else labels, dtype=np.int64)
        if classes is None:
            if known.max(initial=-1) >= _MOST_CLASSES:
                raise IT3Error(
                    f"{title} has the label {known.max()}: it is damaged, or its classes need names"
                )
            classes = [str(i) for i in range(int(known.max(initial=-1)) + 1)]
        return cls(source, known, classes)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"ImageSet({len(self):,} images, {len(self.classes):,} classes)"

    @cached_property
    def names(self) -> list[str]:
        """What each image is called: its file within the folder or tar, or "test/123"."""
        return [self._source.name(row) for row in self._rows.tolist()]

    @property
    def array(self) -> Callable[[NDArray[np.int64]], Pixels] | None:
        """Where the images are rows of an array, what gives some of them; grey ones stay grey."""
        source = self._source
        if not isinstance(source, ArraySource):
            return None
        return lambda rows: np.asarray(source.pixels[self._rows[rows]])

    def image(self, i: int) -> Pixels:
        """The i-th image, (H, W, 3) of uint8 in RGB; raises `BadImage` if it can't be read."""
        return self._source.image(int(self._rows[i]))

    def batch(self, rows: ArrayLike | slice, size: Size | None = None) -> Pixels:
        """Some images as one (N, H, W, 3) array; raises `BadImage` if one can't be read.

        Args:
            rows: which, as one indexes an array.
            size: each is brought to this size with `fit_to`; without it, all must have the same.
        """
        chosen = self._rows[_index(rows)]
        if isinstance(self._source, ArraySource):
            whole = self._source.batch(chosen)
            if size is None or whole.shape[1:3] == checked_size(size):
                return whole
            return _stacked([fit_to(image, size) for image in whole], size)
        return _stacked([self._decoded(int(row), size) for row in chosen], size)

    def take(self, rows: ArrayLike | slice) -> ImageSet:
        """The set of some of the images, in the order given; nothing is copied or decoded."""
        chosen = _index(rows)
        return ImageSet(self._source, self.labels[chosen], self.classes, self._rows[chosen])

    def half(self, number: int) -> ImageSet:
        """Half 0 or 1: the same images whenever it is taken, of each class as many as can be."""
        if number not in (0, 1):
            raise IT3Error(f"a set has a half 0 and a half 1, and no half {number}")
        order = np.lexsort((np.random.default_rng(0).random(len(self)), self.labels))
        return self.take(np.sort(order[number::2]))

    def joined(self, other: ImageSet) -> ImageSet:
        """These images, and after them another set's of the same classes; nothing is copied."""
        labels = np.concatenate([self.labels, other.labels])
        return ImageSet(JoinedSource(self, other), labels, self.classes)

    def sample(self, n: int, seed: int = 0) -> ImageSet:
        """n images at random, in random order, the classes in the proportions of the whole set.

        Sets with the same labels in the same order, as the corruptions of one test set, give the
        same images for the same seed.
        """
        return self.take(self.sample_rows(n, seed))

    def sample_rows(self, n: int, seed: int = 0) -> NDArray[np.int64]:
        """The rows that `sample` takes."""
        if not 0 <= n <= len(self):
            raise IT3Error(f"can't sample {n} of {len(self)} images: ask for at most that many")
        rng = np.random.default_rng(seed)
        kinds, counts = np.unique(self.labels, return_counts=True)
        exact = n * counts / max(len(self), 1)
        quota = np.floor(exact).astype(int)
        # The images that rounding left over go to the classes that lost most by it.
        most_lost = np.lexsort((rng.random(len(kinds)), quota - exact))
        quota[most_lost[: n - int(quota.sum())]] += 1
        rows = [
            rng.choice(np.flatnonzero(self.labels == kind), k, replace=False)
            for kind, k in zip(kinds, quota, strict=True)
        ]
        return rng.permutation(np.concatenate([*rows, np.zeros(0, np.int64)]))

    def load(
        self, size: Size | None = None, *, workers: int = 1, progress: bool = False
    ) -> tuple[ImageSet, list[BadImage]]:
        """All images decoded into memory, as a set without the bad ones, and the bad ones.

        Args:
            size: as for `batch`.
            workers: threads that decode.
            progress: whether to show on standard error how far it is.
        """
        good: list[int] = []
        bad: list[BadImage] = []
        decoded = _stacked([], size)
        for i, image in enumerate(self._all(size, workers, progress)):
            if isinstance(image, BadImage):
                bad.append(image)
                continue
            if not good:
                decoded = np.empty((len(self), *image.shape), np.uint8)
            _check_alike({image.shape[:2], decoded.shape[1:3]})
            decoded[len(good)] = image
            good.append(i)
        source = ArraySource(decoded[: len(good)], "images", [self.names[i] for i in good])
        return ImageSet(source, self.labels[good], self.classes), bad

    def sound(self, *, workers: int = 1, progress: bool = False) -> tuple[ImageSet, list[BadImage]]:
        """The set without the images that can't be read, and those; everything is decoded once."""
        if isinstance(self._source, ArraySource):
            return self, []
        bad = {
            i: image
            for i, image in enumerate(self._all(None, workers, progress, "check"))
            if isinstance(image, BadImage)
        }
        good = np.delete(np.arange(len(self)), list(bad))
        return (self.take(good) if bad else self), list(bad.values())

    def _decoded(self, row: int, size: Size | None) -> Pixels:
        if size is None:
            return self._source.image(row)
        return fit_to(self._source.image(row, smallest=max(checked_size(size))), size)

    def _all(
        self, size: Size | None, workers: int, progress: bool, title: str = "read"
    ) -> Iterator[Pixels | BadImage]:
        def tried(row: int) -> Pixels | BadImage:
            try:
                return self._decoded(row, size)
            except BadImage as bad:
                return bad.with_traceback(None)  # which would keep the file's bytes alive

        bar = Progress(len(self), title, progress)
        ahead = _ONE_BY_ONE if workers == 1 else _AHEAD * workers
        with ThreadPoolExecutor(workers) as pool:
            for start in range(0, len(self), ahead):
                rows = self._rows[start : start + ahead].tolist()
                yield from map(tried, rows) if workers == 1 else pool.map(tried, rows)
                bar.show(start + len(rows), f"{start + len(rows):,}/{len(self):,} images")
        bar.close()


def _index(rows: ArrayLike | slice) -> Any:
    # An empty list would be an array of floats, which can't index.
    if isinstance(rows, slice):
        return rows
    index = np.asarray(rows)
    return index.astype(np.int64) if index.size == 0 else index


def _stacked(images: list[Pixels], size: Size | None) -> Pixels:
    if not images:
        height, width = (0, 0) if size is None else checked_size(size)
        return np.zeros((0, height, width, 3), np.uint8)
    _check_alike({image.shape[:2] for image in images})
    return np.stack(images)


def _check_alike(shapes: set[tuple[int, ...]]) -> None:
    if len(shapes) > 1:
        (h, w), *_, (h2, w2) = sorted(shapes)
        raise IT3Error(
            f"the images have different sizes ({h} × {w} and {h2} × {w2}, for example): say with "
            f"size= which one all are to get"
        )
