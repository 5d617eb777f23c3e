"""Tasks side by side, each in a process of its own, which ends with the one that started it.

Several at a time write their progress to `log.txt` in their folders. The networks of `quick` and
`small` are too small for the threads of several cores to share: two tasks beside one another, a
core each, take little more than half the time of one after the other.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import redirect_stderr
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread

from it3_core.io.files import make_folder
from paper.places import NotHereError, Place
from paper.running import run
from paper.tasks import TASKS

Result = list[Path] | NotHereError
"""A task's files of records, or what it lacks."""


def side_by_side(places: Mapping[str, Place], jobs: int) -> Iterator[tuple[str, Result]]:
    """Runs tasks in this order, `jobs` at a time, and gives each one's files when they are there.

    One that dies takes none with it. The first that fails otherwise is raised at the end.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")  # another run may have the other cores
    threads = int(given) if given.isdecimal() else max(1, cores() // jobs)
    problem: BaseException | None = None
    with futures.ThreadPoolExecutor(jobs) as pool:
        waiting: dict[futures.Future[Result], str] = {
            pool.submit(_alone, name, place, threads, jobs > 1): name
            for name, place in places.items()
        }
        try:
            for done in futures.as_completed(waiting):
                if (failed := done.exception()) is None:
                    yield waiting[done], done.result()
                problem = problem or failed
        except BaseException:  # ctrl-C: the tasks that had begun get it too, and end
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if problem is not None:
        raise problem


def cores() -> int:
    """The cores that this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def _alone(name: str, place: Place, threads: int, logged: bool) -> Result:
    progress = f" (progress in {place.folder / 'log.txt'})" if logged else ""
    print(f"{name} ...{progress}", file=sys.stderr, flush=True)
    began = time.monotonic()
    outcome: Result
    with futures.ProcessPoolExecutor(1, get_context("spawn"), _leave_with_parent) as pool:
        try:
            outcome = pool.submit(_measure, name, place, threads, logged).result()
        except NotHereError as missing:
            outcome = missing
        except futures.BrokenExecutor:
            outcome = NotHereError(
                "its process ended unexpectedly; run the same command again, which goes on there"
            )
    minutes = (time.monotonic() - began) / 60
    print(f"{name}: done in {minutes:.1f} minutes", file=sys.stderr, flush=True)
    return outcome


def _measure(name: str, place: Place, threads: int, logged: bool) -> list[Path]:
    import torch

    os.environ["OMP_NUM_THREADS"] = str(threads)  # for processes of its own
    torch.set_num_threads(threads)
    make_folder(place.folder)
    try:
        if not logged:
            return run(name, TASKS[name], place)
        with (place.folder / "log.txt").open("a", encoding="utf-8") as log, redirect_stderr(log):
            return run(name, TASKS[name], place)
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
