"""Training data of either make, fetched by row numbers, so that any batch can be made again."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from it3_core.batching import check_input, count, map_tensors, take, tensors
from it3_core.errors import IT3Error
from it3_core.tensorfile import digest

__all__ = ["Batch", "Batches", "Collate", "Data", "Rows", "cut", "own_randomness", "reseed"]

Data = tuple[Any, Tensor] | Dataset[Any]
"""Inputs and labels; or a Dataset of `(x, y)`, which is where augmentation belongs."""

Batch = tuple[Any, Tensor]
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Rows:
    """Some rows of a data set.

    Attributes:
        gather: a batch from row numbers.
        numbers: the rows that are meant.
        parts: the tensors that all rows come from, where the data are in memory.

    Example:
        >>> import torch
        >>> rows = Rows.of((torch.arange(10.0)[:, None], torch.arange(10)))
        >>> rows.gather([2, 5])[1]
        tensor([2, 5])
        >>> rest, held_out = rows.split(0.2, seed=0)
        >>> len(rest.numbers), len(held_out.numbers)
        (8, 2)
    """

    gather: Callable[[list[int]], Batch]
    numbers: Tensor
    parts: tuple[Tensor, ...] = ()

    @classmethod
    def of(
        cls, data: Data, collate: Collate | None = None, dtype: torch.dtype | None = None
    ) -> Rows:
        """All rows of the data, after a look at what can be seen at once; `dtype` is the net's."""
        if isinstance(data, tuple):
            if collate is not None:
                raise IT3Error(
                    "collate belongs to a Dataset: the data are tensors, so leave it out"
                )
            return cls._of_pair(data, dtype)
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise IT3Error(
                f"the data must be a pair (x, y) or a Dataset with a length, "
                f"not a {type(data).__name__}"
            )
        if len(data) == 0:
            raise IT3Error("there are no rows to train on or to judge by")
        gather = partial(_from_dataset, data, collate or default_collate)
        return cls(gather, torch.arange(len(data)))

    @classmethod
    def _of_pair(cls, pair: tuple[Any, ...], dtype: torch.dtype | None) -> Rows:
        if len(pair) != 2 or not isinstance(pair[1], Tensor):
            raise IT3Error("the data must be a pair (x, y), with y a tensor of labels")
        x, y = pair
        if count(x) == 0:
            raise IT3Error("there are no rows to train on or to judge by")
        size = check_input(x, dtype)
        if y.dim() == 0 or len(y) != size:
            raise IT3Error(f"there are {size} inputs, but the labels have shape {tuple(y.shape)}")
        if y.is_floating_point() and not torch.isfinite(y).all():
            raise IT3Error("the labels hold NaN or Inf: drop those rows first")
        return cls(partial(_from_pair, x, y), torch.arange(size), (*tensors(x), y))

    def split(self, share: float, seed: int) -> tuple[Rows, Rows]:
        """Two parts, the second of `share` of the rows, drawn with `seed`."""
        total = len(self.numbers)
        if not 0 < share < 1 or total < 2:
            raise IT3Error(
                f"validation={share} must be a share between 0 and 1 of at least 2 rows, and "
                f"there are {total}: give None to hold nothing out"
            )
        held_out = min(max(round(total * share), 1), total - 1)
        order = self.shuffled("split", seed)
        # In their own order, which is faster to read from a disk; training shuffles anew.
        rest, rows = order[held_out:].sort().values, order[:held_out].sort().values
        return replace(self, numbers=rest), replace(self, numbers=rows)

    def shuffled(self, *key: object) -> Tensor:
        """The row numbers in an order that depends on `key` alone."""
        generator = torch.Generator().manual_seed(_number(key))
        return self.numbers[torch.randperm(len(self.numbers), generator=generator)]

    def fingerprint(self) -> str:
        """What tells these rows from others: the data's digest, or just the rows of a Dataset."""
        parts = {str(index): part for index, part in enumerate((self.numbers, *self.parts))}
        return digest(parts, {})[:16]


class Batches(Dataset[Batch]):
    """Batches by number: each is the same whenever it is made, and in whichever process.

    Args:
        rows: where the batches come from.
        numbers: the row numbers of each batch.
        key: what the seeds are made of, for a Dataset that draws random numbers.

    Example:
        >>> import torch
        >>> rows = Rows.of((torch.arange(6.0)[:, None], torch.arange(6)))
        >>> batches = Batches(rows, rows.numbers.split(2), ("example",))
        >>> [y.tolist() for _, y in batches.starting_at(1)]
        [[2, 3], [4, 5]]
    """

    def __init__(self, rows: Rows, numbers: Sequence[Tensor], key: tuple[object, ...]) -> None:
        self._gather = rows.gather
        self._numbers = numbers
        self._key = key

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Batch:
        reseed(*self._key, number)
        return self._gather(self._numbers[number].tolist())

    def starting_at(
        self, first: int, workers: int = 0, device: torch.device | None = None
    ) -> Iterator[Batch]:
        """The batches from `first` on, on `device`, made by so many processes (0: by this one)."""
        wanted = range(first, len(self))
        made: Iterator[Batch] = map(self.__getitem__, wanted)
        if workers:
            made = iter(
                DataLoader(self, None, sampler=wanted, num_workers=workers, collate_fn=_unchanged)
            )
        for x, y in made:
            yield map_tensors(x, lambda part: part.to(device)), y.to(device)


def reseed(*key: object) -> None:
    """Seeds torch's and Python's generators with a number made of `key`.

    Example:
        >>> import torch
        >>> with own_randomness(torch.device("cpu")):
        ...     reseed("step", 3)
        ...     first = torch.rand(2)
        ...     reseed("step", 3)
        ...     torch.equal(first, torch.rand(2))
        True
    """
    number = _number(key)
    # Not torch.manual_seed: where CUDA is not in use it formats a stack trace, for each step.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
    random.seed(number)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Leaves the caller's generators as they were, whatever is drawn or seeded inside.

    Example:
        >>> import random, torch
        >>> before = random.getstate()
        >>> with own_randomness(torch.device("cpu")):
        ...     reseed(1)
        >>> random.getstate() == before
        True
    """
    kept = random.getstate()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(kept)


def _number(key: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")


def _from_pair(x: Any, y: Tensor, rows: list[int]) -> Batch:
    return take(x, rows), y[rows]


def _from_dataset(dataset: Any, collate: Collate, rows: list[int]) -> Batch:
    batch = collate([dataset[row] for row in rows])
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[0], batch[1]
    raise IT3Error("a batch of the Dataset must be a pair (x, y), with y a tensor: see collate")


def _unchanged(batch: Any) -> Any:
    return batch


def cut(numbers: Tensor, size: int) -> tuple[Tensor, ...]:
    """Batches of nearly equal size, `size` at most: none is a left-over of one row.

    Example:
        >>> import torch
        >>> [len(batch) for batch in cut(torch.arange(65), 64)]
        [33, 32]
    """
    return numbers.tensor_split(math.ceil(len(numbers) / size))
