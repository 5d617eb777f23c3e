"""The noun: a set of labelled images that can be indexed, decoded when they are asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from it3_core import IT3Error, IT3Warning
from it3_core.progress import Progress
from it3_vision.data.images import BadImage, Pixels, Size, checked_size, fit_to
from it3_vision.data.sources import ArraySource, NamedArray, Names, Source, coloured

__all__ = ["ImageSet"]

_MOST_CLASSES = 100_000  # that are named by their numbers
_AHEAD = 16  # images for each thread at a time: decoded, they wait in memory
_ONE_BY_ONE = 256  # without threads, images between two looks at the clock


class ImageSet:
    """Labelled images, decoded when they are asked for. `open_images` makes one.

    Args:
        source: where the images are.
        labels: for each, its place in `classes`; −1 where it is unknown.
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
        source: Source,
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

        Example:
            >>> import numpy as np
            >>> ImageSet.from_array(np.zeros((3, 28, 28), np.uint8), [2, 0, 1]).classes
            ('0', '1', '2')
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

    @property
    def names(self) -> Sequence[str]:
        """What each image is called: its file within the folder or tar, or "test/123"."""
        return Names(self._source, self._rows)

    def image(self, i: int) -> Pixels:
        """The i-th image, (H, W, 3) of uint8 in RGB; raises `BadImage` if it can't be read."""
        return self._source.image(int(self._rows[i]))

    def batch(self, rows: ArrayLike | slice, size: Size | None = None) -> Pixels:
        """Some images as one (N, H, W, 3) array; raises `BadImage` if one can't be read.

        Args:
            rows: which, as one indexes an array.
            size: each is brought to this size with `fit_to`; without it, all must have the same.

        Example:
            >>> import numpy as np
            >>> images = ImageSet.from_array(np.zeros((6, 8, 8, 3), np.uint8))
            >>> images.batch(slice(4)).shape, images.batch([5], (4, 2)).shape
            ((4, 8, 8, 3), (1, 4, 2, 3))
        """
        chosen = self._rows[_index(rows)]
        if isinstance(self._source, ArraySource):
            whole = self._source.batch(chosen)
            if size is None or whole.shape[1:3] == checked_size(size):
                return whole
            return _stacked([fit_to(image, size) for image in whole], size)
        return _stacked([self._decoded(int(row), size) for row in chosen], size)

    def take(self, rows: ArrayLike | slice) -> ImageSet:
        """The set of some of the images, in the order given; nothing is copied or decoded.

        Example:
            >>> import numpy as np
            >>> images = ImageSet.from_array(np.zeros((6, 8, 8, 3), np.uint8), [0, 1, 2, 0, 1, 2])
            >>> list(images.take(images.labels == 2).names)
            ['images/2', 'images/5']
        """
        chosen = _index(rows)
        return ImageSet(self._source, self.labels[chosen], self.classes, self._rows[chosen])

    def sample(self, n: int, seed: int = 0) -> ImageSet:
        """n images at random, in random order, the classes in the proportions of the whole set.

        Sets with the same labels in the same order, as the corruptions of one test set, give the
        same images for the same seed.

        Example:
            >>> import numpy as np
            >>> images = ImageSet.from_array(np.zeros((9, 8, 8, 3), np.uint8), [0] * 6 + [1] * 3)
            >>> np.bincount(images.sample(3, seed=1).labels)
            array([2, 1])
        """
        if not 0 <= n <= len(self):
            raise IT3Error(f"can't sample {n} of {len(self)} images: ask for at most that many")
        rng = np.random.default_rng(seed)
        kinds, counts = np.unique(self.labels, return_counts=True)
        share = n * counts / max(len(self), 1)
        quota = np.floor(share).astype(int)
        # The images that rounding left over go to the classes that lost most by it.
        most_lost = np.lexsort((rng.random(len(kinds)), quota - share))
        quota[most_lost[: n - int(quota.sum())]] += 1
        rows = [
            rng.choice(np.flatnonzero(self.labels == kind), k, replace=False)
            for kind, k in zip(kinds, quota, strict=True)
        ]
        return self.take(rng.permutation(np.concatenate([*rows, np.zeros(0, np.int64)])))

    def load(
        self, size: Size | None = None, *, workers: int = 1, progress: bool = False
    ) -> tuple[ImageSet, list[BadImage]]:
        """All images decoded into memory, as a set without the bad ones, and the bad ones.

        Args:
            size: as for `batch`.
            workers: threads that decode.
            progress: whether to show on standard error how far it is.

        Example:
            >>> import numpy as np
            >>> images = ImageSet.from_array(np.zeros((6, 8, 8, 3), np.uint8))
            >>> images.load(size=4)
            (ImageSet(6 images, 0 classes), [])
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
        source = NamedArray(decoded[: len(good)], [self.names[i] for i in good])
        return ImageSet(source, self.labels[good], self.classes), bad

    def pixels(
        self, size: Size | None = None, *, workers: int = 1, progress: bool = False
    ) -> Pixels:
        """All images as one (N, H, W, 3) array; the bad ones are left out, with a warning.

        Labels would then no longer fit: `load` gives a set whose labels do. A set that is a whole
        array in colour gives that array itself, memory-mapped if it is.

        Args:
            size, workers, progress: as for `load`.

        Example:
            >>> import numpy as np
            >>> ImageSet.from_array(np.zeros((6, 28, 28), np.uint8)).pixels().shape
            (6, 28, 28, 3)
        """
        source = self._source
        if isinstance(source, ArraySource):
            fits = size is None or source.pixels.shape[1:3] == checked_size(size)
            whole = np.array_equal(self._rows, np.arange(len(source)))
            if fits and whole:
                return coloured(source.pixels, 3)
            if fits:
                return source.batch(self._rows)
        loaded, bad = self.load(size, workers=workers, progress=progress)
        if bad:
            warnings.warn(
                f"{len(bad)} of {len(self)} images can't be read and are left out: {bad[0]}",
                IT3Warning,
                stacklevel=2,
            )
        assert isinstance(loaded._source, ArraySource)
        return loaded._source.pixels

    def check(self, *, workers: int = 1, progress: bool = False) -> list[BadImage]:
        """Decodes everything once and gives all that can't be read.

        Example:
            >>> import numpy as np
            >>> ImageSet.from_array(np.zeros((6, 8, 8, 3), np.uint8)).check()
            []
        """
        return self.sound(workers=workers, progress=progress)[1]

    def sound(self, *, workers: int = 1, progress: bool = False) -> tuple[ImageSet, list[BadImage]]:
        """The set without the images that can't be read, and those; everything is decoded once.

        Example:
            >>> import numpy as np
            >>> images, problems = ImageSet.from_array(np.zeros((6, 8, 8, 3), np.uint8)).sound()
            >>> len(images), problems
            (6, [])
        """
        if isinstance(self._source, ArraySource):
            return self, []
        good, bad = [], []
        for i, image in enumerate(self._all(None, workers, progress, "check")):
            if isinstance(image, BadImage):
                bad.append(image)
            else:
                good.append(i)
        return (self.take(np.asarray(good, np.int64)) if bad else self), bad

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

        if workers < 1:
            raise IT3Error(f"workers must be at least 1, but is {workers}")
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
