"""How much memory a call takes at its peak, in tensors: what decides whether it fits on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_memory"]


def peak_memory(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The most bytes of tensors that a call had allocated at once, above what there was before.

    Every allocation and release of torch's own allocator is counted, so that the number is
    exact and the same on every run; what Python and the libraries take is not in it.

    Args:
        call: what to measure; call it once before, so that what is made once is there.
        device: whose memory.

    Example:
        >>> import torch
        >>> peak_memory(lambda: torch.zeros(250, 1000) + 1) // 1_000_000
        2
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with _no_chatter(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None
    # The profiler takes the release of what was there before, or what is left over from an earlier
    # profile, for one of this call's: only what this call allocated is taken off again.
    held: dict[int, int] = {}
    now = most = 0
    for _, place, size in sorted(_allocations(seen.profiler.kineto_results)):
        if size > 0:
            held[place] = size
            now += size
            most = max(most, now)
        else:
            now -= held.pop(place, 0)
    return most


def _allocations(results: Any) -> Iterator[tuple[tuple[int, int], int, int]]:
    """When, where and how many bytes; fewer than none for a release."""
    waiting = list(results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.name == "[memory]":
            found = event.extra_fields
            yield (event.start_time_ns, event.id), found.ptr, found.alloc_size


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
