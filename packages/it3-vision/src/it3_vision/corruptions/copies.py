"""ImageNet-C's layout: NAME/SEVERITY/CLASS/FILE, JPEGs of JPEGs and else PNGs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from it3_core import IT3Error
from it3_vision.corruptions.applying import corrupt, generator
from it3_vision.corruptions.files import whole
from it3_vision.corruptions.job import Corrupted, Job
from it3_vision.corruptions.kinds import Benchmark
from it3_vision.corruptions.workers import in_order
from it3_vision.data import BadImage, fit_to

__all__ = ["write_copies"]


def write_copies(job: Job, done: Corrupted, say: Callable[[str], None]) -> Iterator[int]:
    """Writes the copies of each file, and says after each file how many are there."""
    targets = _targets(job)
    all_ = len(job.names) * len(job.severities)
    counts: deque[int] = deque()  # of what each task in turn has to write

    def tasks() -> Iterator[tuple[Any, ...]]:
        for row, target in zip(job.rows.tolist(), targets, strict=True):
            todo = [
                (name, severity, path)
                for name in job.names
                for severity in job.severities
                if not (path := job.out / name / str(severity) / target).exists()
            ]
            done.before += all_ - len(todo)
            if not todo:
                continue
            try:
                image = job.images.image(row)
            except BadImage as bad:
                done.bad.append(str(bad))
                done.before -= all_ - len(todo)
                if len(done.bad) <= 10:
                    say(f"left out: {bad}")
                continue
            if job.size is not None:
                image = fit_to(image, job.size)
            counts.append(len(todo))
            yield image, todo, job.benchmark, job.seed, row

    for _ in in_order(job.executor, _copies, tasks()):
        done.written += counts.popleft()
        yield done.written + done.before + all_ * len(done.bad)
    yield done.written + done.before + all_ * len(done.bad)


def _targets(job: Job) -> list[PurePosixPath]:
    """CLASS/FILE of each image that is wanted; of a.png and a.tif, the latter is a.tif.png."""
    places = _places(job)
    plain = [place if _is_jpeg(place) else place.with_suffix(".png") for place in places]
    # Of all images, not only of those that are wanted: a file's name must not hang on the limit.
    crowded = {place for place, number in Counter(plain).items() if number > 1}
    targets = [
        place.with_name(f"{place.name}.png") if short in crowded and short != place else short
        for place, short in zip(places, plain, strict=True)
    ]
    if len(set(targets)) < len(targets):
        twice = Counter(targets).most_common(1)[0][0]
        raise IT3Error(f"two images would both be written as {twice}: rename one of them")
    return [targets[row] for row in job.rows.tolist()]


def _is_jpeg(place: PurePosixPath) -> bool:
    return place.suffix.lower() in (".jpg", ".jpeg")


def _places(job: Job) -> list[PurePosixPath]:
    """CLASS/FILE of every image, without the split that may come before the class."""
    places = []
    for row in range(len(job.images)):
        name = PurePosixPath(job.images.names[row])
        label = int(job.images.labels[row])
        folder = job.images.classes[label] if label >= 0 else ""
        inner = name.parts[name.parts.index(folder) + 1 :] if folder in name.parts else (name.name,)
        target = PurePosixPath(folder, *inner)
        if target.is_absolute() or ".." in target.parts:
            raise IT3Error(f"{name} would be written outside {job.out}: rename its class")
        places.append(target)
    return places


def _copies(
    image: NDArray[np.uint8],
    todo: list[tuple[str, int, Path]],
    benchmark: Benchmark,
    seed: int,
    row: int,
) -> None:
    for name, severity, path in todo:
        own = generator(seed, row, name)
        made = Image.fromarray(corrupt(image, name, severity, benchmark=benchmark, seed=own))
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as stream:
            if path.suffix == ".png":
                made.save(stream, "PNG")
            else:
                made.save(stream, "JPEG", quality=85, optimize=True)
