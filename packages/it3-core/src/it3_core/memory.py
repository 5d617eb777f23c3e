"""How much memory a call takes at its peak, in tensors: what decides whether it fits on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_memory"]


def peak_memory(call: Callable[[], object]) -> int:
    """The most bytes of tensors that a call had allocated at once, above what there was before.

    Every allocation and release of torch's own allocator is counted, so that the number is
    exact and the same on every run; what Python and the libraries take is not in it.

    Example:
        >>> import torch
        >>> peak_memory(lambda: torch.zeros(250, 1000) + 1) // 1_000_000
        2
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with _no_chatter(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None
    now = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


@contextmanager
def _no_chatter() -> Iterator[None]:
    """Sends what the profiler's own C++ code says, of no use to anyone here, nowhere."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
