"""Where work runs: threads of this process, or a Dask cluster. Both are plain executors.

A sample's time goes into a solver, a program of its own that a thread waits for, so threads do
what processes would, start at once and need nothing pickled.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from it3_core import IT3Error

__all__ = ["Where", "cores", "pool"]

_PATIENCE = 10.0  # seconds that a scheduler may take to answer


def cores() -> int:
    """How many cores this process may use.

    Example:
        >>> cores() >= 1
        True
    """
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def pool(workers: int | None = None, dask: str | None = None) -> Iterator[tuple[Executor, int]]:
    """An executor, and how many samples are well kept under way on it.

    Args:
        workers: threads; one more than there are cores if not given.
        dask: address of a Dask scheduler, whose cluster is used instead.

    Example:
        >>> with pool(workers=2) as (executor, under_way):
        ...     executor.submit(pow, 2, 10).result(), under_way
        (1024, 4)
    """
    if dask is not None:
        if workers is not None:
            raise IT3Error("give either --workers or --dask: a cluster has its own workers")
        with _cluster(dask) as found:
            yield found
        return
    if workers is not None and workers < 1:
        raise IT3Error(f"workers must be 1 or more, but is {workers}")
    # One more than there are cores: none is idle while an answer is read and put down.
    number = workers or cores() + 1
    executor = ThreadPoolExecutor(number, thread_name_prefix="it3-aero")
    try:
        yield executor, 2 * number
    finally:
        executor.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Where:
    """A choice of where work runs: threads here, a Dask cluster, or an executor of the caller's.

    Attributes:
        workers: how many at a time.
        dask: address of a Dask scheduler.
        executor: any other; `workers` says how many it has.

    Example:
        >>> with Where(workers=1).opened() as (executor, under_way):
        ...     executor.submit(pow, 2, 3).result()
        8
    """

    workers: int | None = None
    dask: str | None = None
    executor: Executor | None = None

    def opened(self) -> contextlib.AbstractContextManager[tuple[Executor, int]]:
        """The executor, and how many samples are well kept under way on it."""
        if self.executor is not None:
            return contextlib.nullcontext((self.executor, 2 * (self.workers or 1)))
        return pool(self.workers, self.dask)


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[tuple[Executor, int]]:
    try:
        # Without its types, which are there only where it is installed.
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise IT3Error('--dask needs an extra: pip install "it3-aero[dask]"') from None
    try:
        client = distributed.Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise IT3Error(f"can't reach a Dask scheduler at {address}: {reason}") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise IT3Error(f"the Dask cluster at {address} has no workers: start some first")
        try:
            # A worker that dies takes its tasks along; the scheduler gives them to the others.
            yield client.get_executor(), 2 * threads
        except (distributed.KilledWorker, OSError) as problem:
            raise IT3Error(
                f"the Dask cluster at {address} broke down ({type(problem).__name__}): nothing "
                "that was finished is lost, run the same command again"
            ) from None
