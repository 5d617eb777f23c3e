"""A whole data set, corrupted into the layout of CIFAR-10-C or ImageNet-C.

Every file is written whole or not at all, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_core.progress import Progress
from it3_vision.corruptions.applying import CORRUPTIONS, constants, generator
from it3_vision.corruptions.copies import write_copies
from it3_vision.corruptions.files import prepare, write
from it3_vision.corruptions.job import Corrupted, Job
from it3_vision.corruptions.kinds import Benchmark, benchmark_for
from it3_vision.corruptions.stacks import write_stacks
from it3_vision.corruptions.workers import pool
from it3_vision.data import BadImage, ImageSet

__all__ = ["BAD_IMAGES", "Corrupted", "corrupt_set", "pool"]

BAD_IMAGES = "bad_images.txt"


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
    NAME/SEVERITY/CLASS/FILE, JPEG of quality 85 where they were JPEG, else PNG; without classes,
    NAME/SEVERITY/FILE.

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
    job = Job(
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
    return _run(job, progress)


def _run(job: Job, progress: bool) -> Corrupted:
    done = Corrupted(benchmark=job.benchmark)
    total = len(job.rows) * len(job.names) * len(job.severities)
    bar = Progress(total, "corrupt", progress)
    try:
        prepare(job.out, _notes(job))
        for count in write_stacks(job, done) if job.array else write_copies(job, done, bar.say):
            bar.show(count, f"{count:,}/{total:,} images")
        bar.show(total, f"{total:,} images", last=True)
        if len(done.bad) == len(job.rows):
            raise IT3Error(f"none of the {len(job.rows)} images can be read: {done.bad[0]}")
        if done.bad:
            write(job.out / BAD_IMAGES, "".join(f"{bad}\n" for bad in done.bad).encode())
    except BrokenProcessPool:
        raise IT3Error(
            "a worker was killed, perhaps for want of memory: nothing finished is lost, run "
            "the same command again, with fewer workers"
        ) from None
    except OSError as problem:
        raise IT3Error(
            f"can't write into {job.out} ({problem.strerror or problem}): nothing finished is "
            "lost, mend that and run the same command again"
        ) from None
    finally:
        bar.close()
    return done


def _notes(job: Job) -> dict[str, Any]:
    """What must be the same for a folder to be gone on with."""
    notes: dict[str, Any] = {
        "made by": "it3-vision corrupt",
        "layout": "CIFAR-10-C" if job.array else "ImageNet-C",
        "benchmark": job.benchmark,
        "seed": job.seed,
        "images": len(job.rows),
    }
    if job.array:  # files stand alone, but stacks need all the same severities
        notes["severities"] = list(job.severities)
    elif job.size is not None:
        notes["size"] = job.size
    notes["checksum"] = _checksum(job)
    return notes


def _checksum(job: Job) -> int:
    """Of the labels, and of the pixels or the files' names: another set is noticed."""
    total = zlib.crc32(job.images.labels[job.rows].tobytes())
    for rows in job.parts():
        if job.array:
            total = zlib.crc32(job.pixels(rows).tobytes(), total)
        else:
            names = "\n".join(job.images.names[int(row)] for row in rows)
            total = zlib.crc32(names.encode(errors="surrogateescape"), total)
    return total


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
