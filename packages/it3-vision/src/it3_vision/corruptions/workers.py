"""Processes to share out work to."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from typing import Any

import cv2

from it3_core import IT3Error

__all__ = ["in_order", "pool"]

_UNDER_WAY = 8  # tasks that wait or run at the same time


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
    context.set_forkserver_preload(["it3_vision.corruptions.writing"])
    executor = ProcessPoolExecutor(workers, context, initializer=cv2.setNumThreads, initargs=(1,))
    try:
        with _interrupts_later():  # one that starts when its parent has gone complains of it
            wait([executor.submit(int) for _ in range(workers)])
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C waits until this is done; processes that are started here never hear it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def in_order(
    executor: Executor | None, work: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]
) -> Iterator[Any]:
    """The results, in the order of the tasks; only so many are under way at a time.

    Example:
        >>> list(in_order(None, pow, [(2, 3), (3, 2)]))
        [8, 9]
    """
    if executor is None:
        yield from (work(*task) for task in tasks)
        return
    under_way: deque[Future[Any]] = deque()
    try:
        for task in tasks:
            under_way.append(executor.submit(work, *task))
            if len(under_way) >= _UNDER_WAY:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()
