"""A task in a process of its own, which ends with the one that started it."""

from __future__ import annotations

import os
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread

from paper.outcomes import Outcome, Place
from paper.tasks import TASKS, NotHereError

__all__ = ["alone"]


def alone(name: str, place: Place) -> Outcome:
    """A task's outcome; what it loads and leaves behind is no other's.

    Args:
        name: of the task.
        place: where it finds its data, and leaves what it makes.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), _leave_with_parent) as pool:
        try:
            return pool.submit(TASKS[name], place).result()
        except BrokenExecutor:
            raise NotHereError(
                "its process ended unexpectedly; run the same command again, which goes on there"
            ) from None


def _leave_with_parent() -> None:
    """Ends this process when its parent is gone: a killed run must not go on beside the next."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    Thread(target=watch, daemon=True).start()
