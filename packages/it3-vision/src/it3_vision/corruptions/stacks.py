"""CIFAR-10-C's layout: NAME.npy with the severities one after the other, and labels.npy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from it3_vision.corruptions.applying import corrupt_all
from it3_vision.corruptions.files import whole, write
from it3_vision.corruptions.job import Corrupted, Job
from it3_vision.corruptions.kinds import Benchmark
from it3_vision.corruptions.workers import in_order

__all__ = ["write_stacks"]

_SEVERITIES = "severities.json"


def write_stacks(job: Job, done: Corrupted) -> Iterator[int]:
    """Writes a stack for each corruption, and says after each part how many images are there."""
    labels = np.tile(job.images.labels[job.rows], len(job.severities))
    small = labels.min() >= 0 and labels.max() < 256  # as published
    write(job.out / "labels.npy", partial(np.save, arr=labels.astype("u1" if small else "i8")))
    notes = {"severities": job.severities, "classes": job.images.classes}
    write(job.out / _SEVERITIES, json.dumps(notes).encode())
    each = len(job.rows) * len(job.severities)
    shape = (each, *job.pixels(job.rows[:1]).shape[1:])
    for name in job.names:
        file = job.out / f"{name}.npy"
        if file.exists():
            done.before += each
            yield done.before + done.written
            continue
        with whole(file) as stream:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            for part in in_order(job.executor, _stack, _tasks(job, name)):
                stream.write(part.tobytes())
                done.written += len(part)
                yield done.before + done.written


def _tasks(job: Job, name: str) -> Iterator[tuple[Any, ...]]:
    for severity in job.severities:
        for rows in job.parts():
            numbers = rows.tolist()
            yield job.pixels(rows), name, severity, job.benchmark, job.seed, numbers


def _stack(
    pixels: NDArray[np.uint8],
    name: str,
    severity: int,
    benchmark: Benchmark,
    seed: int,
    numbers: list[int],
) -> NDArray[np.uint8]:
    return corrupt_all(pixels, name, severity, benchmark=benchmark, seed=seed, numbers=numbers)
