"""Tasks side by side, each in a process of its own, which ends with the one that started it.

The networks of `quick` and `small` are too small for the threads of several cores to share: two
tasks beside one another, a core each, take little more than half the time of one after the other.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import (
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import TextIO

from paper.outcomes import Outcome, Place
from paper.tasks import TASKS, NotHereError

__all__ = ["Measured", "NamedLines", "cores", "side_by_side"]

Measured = tuple[Outcome | NotHereError, float]
"""What became of a task, and the minutes that it took."""


def side_by_side(places: Mapping[str, Place], jobs: int) -> Iterator[tuple[str, Measured]]:
    """Runs tasks, so many at a time, and gives each one's outcome as soon as it is there.

    What one task loads and leaves behind is no other's, and one that dies takes none with it. The
    first that fails otherwise is heard of after those that had begun; the rest is not begun.

    Args:
        places: by the tasks' names, in the order to begin in: where each finds its data, and
            leaves what it makes.
        jobs: how many at a time; they share the cores.
    """
    threads = max(1, cores() // jobs)
    problem: BaseException | None = None
    with ThreadPoolExecutor(jobs) as pool:
        waiting: dict[Future[Measured], str] = {
            pool.submit(_alone, name, place, threads, jobs > 1): name
            for name, place in places.items()
        }
        try:
            for done in as_completed(waiting):
                if done.cancelled():
                    continue
                if (failed := done.exception()) is None:
                    yield waiting[done], done.result()
                    continue
                problem = problem or failed
                pool.shutdown(wait=False, cancel_futures=True)
        except BaseException:  # ctrl-C: what was begun has heard it too, and comes to its end
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if problem is not None:
        raise problem


def cores() -> int:
    """The cores that this process may use.

    Example:
        >>> cores() >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _alone(name: str, place: Place, threads: int, named: bool) -> Measured:
    print(f"{name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    outcome: Outcome | NotHereError
    with ProcessPoolExecutor(1, get_context("spawn"), _leave_with_parent) as pool:
        try:
            outcome = pool.submit(_measure, name, place, threads, named).result()
        except NotHereError as missing:
            outcome = missing
        except BrokenExecutor:
            outcome = NotHereError(
                "its process ended unexpectedly; run the same command again, which goes on there"
            )
    minutes = (time.monotonic() - began) / 60
    print(f"{name}: done in {minutes:.1f} minutes", file=sys.stderr, flush=True)
    return outcome, minutes


def _measure(name: str, place: Place, threads: int, named: bool) -> Outcome:
    import torch

    os.environ["OMP_NUM_THREADS"] = str(threads)  # for processes of its own
    torch.set_num_threads(threads)
    if named:
        sys.stderr = NamedLines(sys.stderr, name)
    try:
        return TASKS[name](place)
    except ModuleNotFoundError as problem:
        package = str(problem.name).partition(".")[0].replace("_", "-")
        raise NotHereError(f"it needs {package}, which is not installed here") from None


def _leave_with_parent() -> None:
    """Ends this process when its parent is gone: a killed run must not go on beside the next."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    Thread(target=watch, daemon=True).start()


class NamedLines:
    """A stream whose every line says whose it is; two tasks' bars on one line nobody could read.

    Args:
        stream: where the lines go, each in one piece.
        name: what they begin with.

    Example:
        >>> stream = NamedLines(sys.stdout, "cars")
        >>> print("half a", end=" ", file=stream)
        >>> print("line", file=stream)
        cars: half a line
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._begun = ""

    def write(self, text: str) -> int:
        """Keeps what is no whole line yet."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._stream.write(f"{self._name}: {line}\n")
        return len(text)

    def flush(self) -> None:
        """Of whole lines."""
        self._stream.flush()

    def isatty(self) -> bool:
        """So that `Progress` writes a line now and then and no bar."""
        return False
