"""Attention's fast path, a switch of the whole process, off while any thread needs it off."""

from __future__ import annotations

import threading

import torch


class _NoFastPath:
    """Attention's fast path has no derivative, and takes stacked weights for plain ones.

    The switch is the process': the first thread in turns it off, the last one out turns it back.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.backends.mha.set_fastpath_enabled(self._before)


no_fast_path = _NoFastPath()
