"""A whole data set, corrupted into the layout of CIFAR-10-C or ImageNet-C.

Every file is written whole or not at all, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

import io
import multiprocessing
import signal
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import cv2
import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray
from PIL import Image

from it3_core import IT3Error
from it3_core.io import files
from it3_core.io.output import OutputFolder, open_output
from it3_core.io.progress import Progress
from it3_vision.corruptions import CORRUPTIONS, benchmark_for, corrupt_all
from it3_vision.corruptions.kinds import Benchmark
from it3_vision.data import BadImage, ImageSet, fit_to
from it3_vision.data.arrays import LABELS, SEVERITIES

BAD_IMAGES = "bad_images.txt"

_AT_ONCE = 256  # images of an array that one task takes
_UNDER_WAY = 8  # tasks that wait or run at the same time


@dataclass
class Run:
    """What to corrupt, how, and where to write it; and how much of that was done."""

    images: ImageSet
    rows: NDArray[np.int64]  # those that are wanted
    output: OutputFolder
    names: tuple[str, ...]
    severities: tuple[int, ...]
    benchmark: Benchmark
    seed: int
    size: int | None
    written: int = 0  # corrupted images
    before: int = 0  # those that were there already
    bad: list[str] = field(default_factory=list)  # images that can't be read, and why

    def options(self, name: str, severity: int, numbers: list[int]) -> dict[str, Any]:
        found = {"name": name, "severity": severity, "numbers": numbers}
        return found | {"benchmark": self.benchmark, "seed": self.seed}


def corrupt_set(
    images: ImageSet,
    out: files.FilePath,
    names: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    *,
    benchmark: Benchmark | Literal["auto"] = "auto",
    seed: int = 0,
    limit: int | None = None,
    size: int | None = None,
    workers: int = 1,
    inputs: Sequence[files.FilePath] = (),  # which `out` must not lie in
    progress: bool = False,
) -> Run:
    """Writes a corrupted copy of a set of images; run again, it goes on where it was.

    The options and layouts are those of `it3-vision corrupt`. Files are JPEG of quality 85 where
    they were JPEG, else PNG. An image is corrupted alike, whatever the limit.
    """
    names, severities = tuple(dict.fromkeys(names)), tuple(sorted(set(severities)))
    count = min(len(images), limit or len(images))
    if not count:
        raise IT3Error("there are no images to corrupt")
    rows = np.arange(count) * len(images) // count
    kind = benchmark if benchmark != "auto" else benchmark_for(size or _side(images, rows))
    stacked = images.array is not None
    settings: dict[str, Any] = {
        "layout": "CIFAR-10-C" if stacked else "ImageNet-C",
        "benchmark": kind,
        "seed": seed,
        "images": count,
        "checksum": _checksum(images, rows),
        # Files stand alone, but stacks need all the same severities.
        **({"severities": list(severities)} if stacked else {"size": size}),
    }
    targets = [] if stacked else _targets(images, rows)
    stacks = [LABELS, SEVERITIES, *(f"{name}.npy" for name in names)] if stacked else []
    output = open_output(out, "corrupt", settings, files=[BAD_IMAGES, *stacks], inputs=inputs)
    run = Run(images, rows, output, names, severities, kind, seed, size)
    total = count * len(names) * len(severities)
    bar = Progress(total, "corrupt", progress)
    executor = None if workers == 1 else _processes(workers)
    try:
        for reached in _stacks(run, executor) if stacked else _copies(run, targets, executor):
            bar.show(reached, f"{reached:,}/{total:,} images")
    except BrokenProcessPool:
        raise IT3Error(
            "a worker was killed, perhaps for want of memory: nothing finished is lost, run "
            "the same command again, with fewer workers"
        ) from None
    finally:
        bar.close()
        if executor is not None:
            executor.shutdown(cancel_futures=True)
    if len(run.bad) == count:
        raise IT3Error(f"none of the {count} images can be read: {run.bad[0]}")
    if run.bad:
        output.write_text(BAD_IMAGES, "".join(f"{bad}\n" for bad in run.bad))
    return run


def _side(images: ImageSet, rows: NDArray[np.int64]) -> int:
    """The longer side of the first image that can be read; 0 where none can."""
    for row in rows.tolist():
        with suppress(BadImage):
            return int(max(images.image(row).shape[:2]))
    return 0


def _checksum(images: ImageSet, rows: NDArray[np.int64]) -> int:
    """Of the labels, and of the pixels or the files' names: another set is noticed."""
    total = zlib.crc32(images.labels[rows].tobytes())
    if images.array is None:
        names = "\n".join(images.names[row] for row in rows.tolist())
        return zlib.crc32(names.encode(errors="surrogateescape"), total)
    for some in _parts(rows):
        total = zlib.crc32(images.array(some).tobytes(), total)
    return total


def _parts(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]


def _stacks(run: Run, executor: Executor | None) -> Iterator[int]:
    """Writes CIFAR-10-C's layout, and says after each part how many images are there."""
    read = run.images.array
    assert read is not None
    labels = np.tile(run.images.labels[run.rows], len(run.severities))
    small = labels.min() >= 0 and labels.max() < 256  # as published
    with run.output.writing(LABELS) as path:
        files.write_npy(path, labels.astype("u1" if small else "i8"))
    notes = {"severities": list(run.severities), "classes": list(run.images.classes)}
    run.output.write_json(SEVERITIES, notes)
    shape = (len(labels), *read(run.rows[:1]).shape[1:])
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    for name in run.names:
        if (run.output.path / f"{name}.npy").exists():
            run.before += len(labels)
            yield run.before + run.written
            continue
        tasks = (
            (None, read(some), run.options(name, severity, some.tolist()))
            for severity, some in product(run.severities, _parts(run.rows))
        )
        with run.output.writing(f"{name}.npy") as path, files.writing(path) as stream:
            write_array_header_1_0(stream, header)
            for part in _in_order(executor, tasks):
                stream.write(part.tobytes())
                run.written += len(part)
                yield run.before + run.written


def _copies(run: Run, targets: Sequence[PurePosixPath], executor: Executor | None) -> Iterator[int]:
    """Writes ImageNet-C's layout, and says after each file how many are there."""
    each = len(run.names) * len(run.severities)
    for folder in {target.parent for target in targets}:
        for name, severity in product(run.names, run.severities):
            there = run.output.check(f"{name}/{severity}/{folder}/_").parent  # refuses links
            for left in there.glob(".*.tmp"):  # of a killed run
                files.remove_leftovers(there / left.name[1:].rsplit(".", 2)[0])

    def tasks() -> Iterator[tuple[Any, ...]]:
        for row, target in zip(run.rows.tolist(), targets, strict=True):
            todo = [
                (name, severity, path)
                for name, severity in product(run.names, run.severities)
                if not (path := run.output.path / name / str(severity) / target).exists()
            ]
            run.before += each - len(todo)
            if not todo:
                continue
            try:
                image = run.images.image(row)
            except BadImage as bad:
                run.bad.append(str(bad))
                continue
            if run.size is not None:
                image = fit_to(image, run.size)
            for name, severity, path in todo:
                yield path, image[None], run.options(name, severity, [row])

    for _ in _in_order(executor, tasks()):
        run.written += 1
        yield run.written + run.before + each * len(run.bad)


def _work(path: Path | None, pixels: NDArray[np.uint8], options: dict[str, Any]) -> Any:
    """Corrupted images; where there is a path, the only one of them is written there instead."""
    made = corrupt_all(pixels, **options)
    if path is None:
        return made
    content, png = io.BytesIO(), path.suffix.lower() == ".png"
    how = {"format": "PNG"} if png else {"format": "JPEG", "quality": 85, "optimize": True}
    Image.fromarray(made[0]).save(content, **how)
    files.make_folder(path.parent)
    return files.write_bytes(path, content.getvalue(), durable=False)


def _targets(images: ImageSet, rows: NDArray[np.int64]) -> list[PurePosixPath]:
    """CLASS/FILE of each image; one that is neither JPEG nor PNG gets a second suffix, .png."""
    targets = [_target(images, row) for row in rows.tolist()]
    twice, number = Counter(targets).most_common(1)[0]
    if number > 1:
        raise IT3Error(f"two images would both be written as {twice}: rename one of them")
    return targets


def _target(images: ImageSet, row: int) -> PurePosixPath:
    """CLASS/FILE of an image, without the split that may come before the class."""
    name, label = PurePosixPath(images.names[row]), int(images.labels[row])
    folder = images.classes[label] if label >= 0 else ""
    inner = name.parts[name.parts.index(folder) + 1 :] if folder in name.parts else (name.name,)
    target = PurePosixPath(folder, *inner)
    if target.is_absolute() or ".." in target.parts:
        raise IT3Error(f"{name} would be written outside the folder: rename its class")
    kept = target.suffix.lower() in (".jpg", ".jpeg", ".png")
    return target if kept else target.with_name(f"{target.name}.png")


def _processes(workers: int) -> Executor:
    """So many processes to work on."""
    # Not forked from this process, which may have threads; from one that only imports.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    executor = ProcessPoolExecutor(workers, context, initializer=cv2.setNumThreads, initargs=(1,))
    # Processes that start here never hear Ctrl-C: this one tells them to stop.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    wait([executor.submit(int) for _ in range(workers)])
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return executor


def _in_order(executor: Executor | None, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """The results, in the order of the tasks; only so many are under way at a time."""
    if executor is None:
        yield from (_work(*task) for task in tasks)
        return
    under_way: deque[Future[Any]] = deque()
    for task in tasks:
        under_way.append(executor.submit(_work, *task))
        if len(under_way) >= _UNDER_WAY:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()
