"""A whole data set, corrupted into the layout of CIFAR-10-C or ImageNet-C.

Every file is written whole or not at all, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from it3_core import IT3Error
from it3_core.progress import Progress
from it3_vision.corruptions import (
    CORRUPTIONS,
    Benchmark,
    benchmark_for,
    constants,
    corrupt_all,
    generator,
)
from it3_vision.corruptions import corrupt as corrupt_one
from it3_vision.corruptions.files import prepare, whole, write
from it3_vision.data import BadImage, ImageSet, fit_to
from it3_vision.data.sources import ArraySource

__all__ = ["BAD_IMAGES", "Corrupted", "corrupt_set", "pool"]

BAD_IMAGES = "bad_images.txt"
_SEVERITIES = "severities.json"
_AT_ONCE = 256  # images of an array that one task takes
_UNDER_WAY = 8  # tasks that wait or run at the same time


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


def corrupt_set(
    images: ImageSet | NDArray[np.uint8],
    out: str | Path,
    names: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    *,
    benchmark: Benchmark | Literal["auto"] = "auto",
    seed: int = 0,
    limit: int | None = None,
    size: int | None = None,
    executor: Executor | None = None,
    progress: bool = False,
) -> Corrupted:
    """Writes a corrupted copy of a set of images; run again, it goes on where it was.

    An array, or a set whose images are rows of one, becomes CIFAR-10-C's layout: NAME.npy with
    the severities one after the other, and labels.npy. Files become ImageNet-C's:
    NAME/SEVERITY/CLASS/FILE, JPEG of quality 85 where they were JPEG, else PNG.

    Args:
        images: what `open_images` gives, or an array (N, H, W, 3) or (N, H, W).
        out: a folder that is new, empty, or of an earlier run with the same settings.
        names: which corruptions.
        severities: which severities.
        benchmark: whose constants; "auto" takes CIFAR's up to 84 pixels, else ImageNet's.
        seed: of everything that is random. An image gets the same, whatever the limit.
        limit: corrupt only so many, spread evenly over the set.
        size: cut files to a square of this side first; the benchmark's ImageNet-C has 224.
        executor: where to work; here and now if not given. `pool` makes one.
        progress: whether to show on standard error how far it is.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> images = np.zeros((10, 32, 32, 3), dtype=np.uint8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = corrupt_set(images, folder, ["fog", "frost"], [3, 5])
        ...     np.load(f"{folder}/fog.npy", mmap_mode="r").shape, done.written, done.benchmark
        ((20, 32, 32, 3), 40, 'cifar')
    """
    chosen = images if isinstance(images, ImageSet) else ImageSet.from_array(images)
    if not len(chosen):
        raise IT3Error("there are no images to corrupt")
    if not names or not severities:
        raise IT3Error("name at least one corruption and one severity")
    for name in names:
        for severity in severities:
            constants(name, severity)
    if limit is not None and limit < 1:
        raise IT3Error(f"limit must be at least 1, but is {limit}")
    count = min(len(chosen), limit or len(chosen))
    rows = np.arange(count) * len(chosen) // count
    job = _Job(
        chosen,
        rows,
        Path(out),
        tuple(dict.fromkeys(names)),
        tuple(sorted(set(severities))),
        _settled(benchmark, chosen, rows, size),
        seed,
        size,
        executor,
    )
    generator(seed, 0, "")  # says so if the seed is none
    return job.run(progress)


@contextlib.contextmanager
def pool(workers: int) -> Iterator[Executor | None]:
    """So many processes to work on; with one worker none is started.

    Example:
        >>> with pool(1) as executor:
        ...     print(executor)
        None
    """
    if workers < 1:
        raise IT3Error(f"workers must be at least 1, but is {workers}")
    if workers == 1:
        yield None
        return
    # Not forked from this process, which may have threads; from one that only imports.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    executor = ProcessPoolExecutor(workers, context, initializer=_begin)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _begin() -> None:
    """What a worker starts with: Ctrl-C is for the one who gave out the work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(1)


@dataclass(frozen=True)
class _Job:
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
        return isinstance(self.images._source, ArraySource)

    def run(self, progress: bool) -> Corrupted:
        done = Corrupted(benchmark=self.benchmark)
        total = len(self.rows) * len(self.names) * len(self.severities)
        bar = Progress(total, "corrupt", progress)
        try:
            prepare(self.out, self._notes())
            for count in self._stacks(done) if self.array else self._files(done, bar.say):
                bar.show(count, f"{count:,}/{total:,} images")
            bar.show(total, f"{total:,} images", last=True)
            if len(done.bad) == len(self.rows):
                raise IT3Error(f"none of the {len(self.rows)} images can be read: {done.bad[0]}")
            if done.bad:
                write(self.out / BAD_IMAGES, "".join(f"{bad}\n" for bad in done.bad).encode())
        except BrokenProcessPool:
            raise IT3Error(
                "a worker was killed, perhaps for want of memory: nothing finished is lost, run "
                "the same command again, with fewer workers"
            ) from None
        except OSError as problem:
            raise IT3Error(
                f"can't write into {self.out} ({problem.strerror or problem}): nothing finished is "
                "lost, mend that and run the same command again"
            ) from None
        finally:
            bar.close()
        return done

    def _notes(self) -> dict[str, Any]:
        """What must be the same for a folder to be gone on with."""
        notes: dict[str, Any] = {
            "made by": "it3-vision corrupt",
            "layout": "CIFAR-10-C" if self.array else "ImageNet-C",
            "benchmark": self.benchmark,
            "seed": self.seed,
            "images": len(self.rows),
        }
        if self.array:  # files stand alone, but stacks need all the same severities
            notes["severities"] = list(self.severities)
        elif self.size is not None:
            notes["size"] = self.size
        notes["checksum"] = self._checksum()
        return notes

    def _checksum(self) -> int:
        """Of the labels, and of the pixels or the files' names: another set is noticed."""
        total = zlib.crc32(self.images.labels[self.rows].tobytes())
        for rows in self._parts():
            if self.array:
                total = zlib.crc32(self._pixels(rows).tobytes(), total)
            else:
                names = "\n".join(self.images.names[int(row)] for row in rows)
                total = zlib.crc32(names.encode(errors="surrogateescape"), total)
        return total

    def _parts(self) -> Iterator[NDArray[np.int64]]:
        for start in range(0, len(self.rows), _AT_ONCE):
            yield self.rows[start : start + _AT_ONCE]

    # Rows of an array.

    def _pixels(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """As they are in the array: grey ones stay grey."""
        source = self.images._source
        assert isinstance(source, ArraySource)
        return np.asarray(source.pixels[self.images._rows[rows]])

    def _stacks(self, done: Corrupted) -> Iterator[int]:
        labels = np.tile(self.images.labels[self.rows], len(self.severities))
        small = labels.min() >= 0 and labels.max() < 256  # as published
        write(self.out / "labels.npy", partial(np.save, arr=labels.astype("u1" if small else "i8")))
        notes = {"severities": self.severities, "classes": self.images.classes}
        write(self.out / _SEVERITIES, json.dumps(notes).encode())
        each = len(self.rows) * len(self.severities)
        shape = (each, *self._pixels(self.rows[:1]).shape[1:])
        for name in self.names:
            file = self.out / f"{name}.npy"
            if file.exists():
                done.before += each
                yield done.before + done.written
                continue
            with whole(file) as stream:
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                for part in self._in_order(_stack, self._stack_tasks(name)):
                    stream.write(part.tobytes())
                    done.written += len(part)
                    yield done.before + done.written

    def _stack_tasks(self, name: str) -> Iterator[tuple[Any, ...]]:
        for severity in self.severities:
            for rows in self._parts():
                numbers = rows.tolist()
                yield self._pixels(rows), name, severity, self.benchmark, self.seed, numbers

    # Files.

    def _files(self, done: Corrupted, say: Callable[[str], None]) -> Iterator[int]:
        targets = self._targets()
        all_ = len(self.names) * len(self.severities)
        counts: deque[int] = deque()  # of what each task in turn has to write

        def tasks() -> Iterator[tuple[Any, ...]]:
            for row, target in zip(self.rows.tolist(), targets, strict=True):
                todo = [
                    (name, severity, path)
                    for name in self.names
                    for severity in self.severities
                    if not (path := self.out / name / str(severity) / target).exists()
                ]
                done.before += all_ - len(todo)
                if not todo:
                    continue
                try:
                    image = self.images.image(row)
                except BadImage as bad:
                    done.bad.append(str(bad))
                    done.before -= all_ - len(todo)
                    if len(done.bad) <= 10:
                        say(f"left out: {bad}")
                    continue
                if self.size is not None:
                    image = fit_to(image, self.size)
                counts.append(len(todo))
                yield image, todo, self.benchmark, self.seed, row

        for _ in self._in_order(_file, tasks()):
            done.written += counts.popleft()
            yield done.written + done.before + all_ * len(done.bad)
        yield done.written + done.before + all_ * len(done.bad)

    def _targets(self) -> list[PurePosixPath]:
        """CLASS/FILE of each image, without the split that may come before the class."""
        targets = []
        for row in self.rows.tolist():
            name = PurePosixPath(self.images.names[row])
            label = int(self.images.labels[row])
            folder = self.images.classes[label] if label >= 0 else ""
            inner = (
                name.parts[name.parts.index(folder) + 1 :] if folder in name.parts else (name.name,)
            )
            target = PurePosixPath(folder, *inner)
            if target.is_absolute() or ".." in target.parts:
                raise IT3Error(f"{name} would be written outside {self.out}: rename its class")
            jpeg = name.suffix.lower() in (".jpg", ".jpeg")
            targets.append(target if jpeg else target.with_suffix(".png"))
        if len(set(targets)) < len(targets):
            twice = Counter(targets).most_common(1)[0][0]
            raise IT3Error(f"two images would both be written as {twice}: rename one of them")
        return targets

    # Both.

    def _in_order(
        self, work: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]
    ) -> Iterator[Any]:
        """The results, in the order of the tasks; only so many are under way at a time."""
        if self.executor is None:
            yield from (work(*task) for task in tasks)
            return
        under_way: deque[Future[Any]] = deque()
        try:
            for task in tasks:
                under_way.append(self.executor.submit(work, *task))
                if len(under_way) >= _UNDER_WAY:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()


def _stack(
    pixels: NDArray[np.uint8],
    name: str,
    severity: int,
    benchmark: Benchmark,
    seed: int,
    numbers: list[int],
) -> NDArray[np.uint8]:
    return corrupt_all(pixels, name, severity, benchmark=benchmark, seed=seed, numbers=numbers)


def _file(
    image: NDArray[np.uint8],
    todo: list[tuple[str, int, Path]],
    benchmark: Benchmark,
    seed: int,
    row: int,
) -> None:
    for name, severity, path in todo:
        own = generator(seed, row, name)
        made = Image.fromarray(corrupt_one(image, name, severity, benchmark=benchmark, seed=own))
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as stream:
            if path.suffix == ".png":
                made.save(stream, "PNG")
            else:
                made.save(stream, "JPEG", quality=85, optimize=True)


def _settled(
    benchmark: Benchmark | Literal["auto"],
    images: ImageSet,
    rows: NDArray[np.int64],
    size: int | None,
) -> Benchmark:
    """What "auto" means, by the first image that can be read."""
    if benchmark == "cifar":
        return "cifar"
    if benchmark == "imagenet":
        return "imagenet"
    if benchmark != "auto":
        raise IT3Error(f"benchmark must be cifar, imagenet or auto, but is {benchmark!r}")
    if size is not None:
        return benchmark_for(size)
    for row in rows.tolist():
        try:
            return benchmark_for(max(images.image(row).shape[:2]))
        except BadImage:
            continue
    raise IT3Error("none of the images can be read")
