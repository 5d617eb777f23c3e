"""The processes that train together: one, or as many as `torchrun` started."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from it3_core.errors import IT3Error

__all__ = ["Group", "place", "processes"]

_groups = itertools.count()
_failed: list[Any] = []


class Group:
    """What processes that train together tell each other. Alone, each call is a plain answer.

    Example:
        >>> import torch
        >>> group = Group(torch.device("cpu"))
        >>> group.rank, group.size, group.sum(1.0, 2.0)
        (0, 1, [1.0, 2.0])
    """

    def __init__(self, device: torch.device) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1
        self._device = device

    def share(self, rows: Tensor) -> tuple[Tensor, float]:
        """This process's part of a batch, and its weight in a mean over the processes.

        With these weights that mean is the mean over the batch, though parts differ in size. Where
        there are fewer rows than processes, some get a row that counts for nothing.
        """
        part = rows.tensor_split(self.size)[self.rank]
        weight = len(part) * self.size / len(rows)
        return (part if len(part) else rows[:1]), weight

    def sum(self, *values: float) -> list[float]:
        """Each value, added up over the processes."""
        if self.size == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(shared)
        return [float(value) for value in shared]

    def first(self, value: float) -> float:
        """The first process's value, so that all decide alike."""
        return self.sum(value if self.rank == 0 else 0.0)[0]

    def check_alike(self, value: int, problem: str) -> None:
        """Raises in all processes where `value` isn't the same in all. Waits for everyone."""
        mean = self.sum(float(value))[0] / self.size
        if self.sum(float(value != mean))[0]:
            raise IT3Error(problem)

    def align(self, model: nn.Module) -> None:
        """Gives all the first one's buffers: batch norm's statistics differ, weights don't."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, with gradients that are means over the processes."""
        if self.size == 1:
            return module
        return nn.parallel.DistributedDataParallel(module)


@contextmanager
def processes(device: torch.device) -> Iterator[Group]:
    """Joins the processes that `torchrun` started; a process group that exists is used as it is.

    Example:
        >>> import torch
        >>> with processes(torch.device("cpu")) as group:
        ...     group.size
        1
    """
    started = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    ours = started and dist.is_available() and not dist.is_initialized()
    if ours:
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        store, rank, size = _meeting_point()
        # A second group would find the first one's addresses under the same names, and hang.
        named = PrefixStore(f"it3-{next(_groups)}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=named, rank=rank, world_size=size)
    group = Group(device)
    try:
        yield group
    except BaseException:
        # The traceback holds DDP, so what is done below comes too early.
        if group.size > 1:
            _failed.append(dist.group.WORLD)
        raise
    finally:
        if group.size > 1:
            # DDP is part of a cycle. Were it the last to let go of the process group, then that
            # one's destructor would wait, holding Python's lock, for a thread that needs the lock.
            gc.collect()
        if ours:
            dist.destroy_process_group()


def place(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Where to train: the model's device, or the one asked for; "cuda" is each process's own.

    Example:
        >>> import torch
        >>> place(torch.nn.Linear(1, 1), None)
        device(type='cpu')
    """
    if device is None:
        return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    device = torch.device(device)
    if device == torch.device("cuda") and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


@cache
def _meeting_point() -> tuple[Any, int, int]:
    """A store that all processes know of, this process's number, and how many there are."""
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(rendezvous("env://"))
    return store, rank, size
