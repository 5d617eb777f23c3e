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
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data.sampler import RandomSampler, SequentialSampler

from it3_core.batching import check_input, count, map_tensors, take, tensors, whole
from it3_core.errors import IT3Error
from it3_core.io.tensors import digest

Batch = tuple[Any, Tensor]
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Rows:
    """Some rows of a data set."""

    gather: Callable[[list[int]], Batch]  # a batch from row numbers
    numbers: Tensor
    parts: tuple[Tensor, ...] = ()  # the tensors that rows come from, where data are in memory

    @classmethod
    def of(
        cls, data: Any, collate: Collate | None = None, dtype: torch.dtype | None = None
    ) -> Rows:
        """All rows of the data, after a look at what can be seen at once; `dtype` is the net's."""
        if isinstance(data, tuple):
            if collate is not None:
                raise IT3Error("collate belongs to a Dataset: leave it out")
            return cls._of_pair(data, dtype)
        if isinstance(data, DataLoader) and data.batch_size is None:
            data = iter(data)
        if isinstance(data, Iterator):
            data = [*data]
        if isinstance(data, list) and collate is None and all(map(_is_batch, data)):
            return cls._of_pair(whole(data), dtype)
        if isinstance(data, DataLoader):
            drawn = type(data.sampler) not in (RandomSampler, SequentialSampler)
            if drawn and not isinstance(data.dataset, IterableDataset):
                raise IT3Error("fit draws the rows itself: give the DataLoader's Dataset alone")
            data, collate = data.dataset, collate or data.collate_fn
        if isinstance(data, IterableDataset):
            data = [*data]  # read once, and kept
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise IT3Error(
                f"the data must be a pair (x, y), a Dataset or a DataLoader, not a "
                f"{type(data).__name__}"
            )
        if len(data) == 0:
            raise IT3Error("there are no rows to train or validate on")
        gather = partial(_from_dataset, data, collate or default_collate)
        return cls(gather, torch.arange(len(data)))

    @classmethod
    def _of_pair(cls, pair: tuple[Any, ...], dtype: torch.dtype | None) -> Rows:
        if len(pair) != 2 or not isinstance(pair[1], Tensor):
            raise IT3Error("the data must be a pair (x, y), with y a tensor of labels")
        x, y = pair
        if count(x) == 0:
            raise IT3Error("there are no rows to train or validate on")
        size = check_input(x, dtype)
        if y.dim() == 0 or len(y) != size:
            raise IT3Error(f"there are {size} inputs, but the labels have shape {tuple(y.shape)}")
        if y.is_floating_point() and not torch.isfinite(y).all():
            raise IT3Error("the labels hold NaN or Inf: drop those rows first")
        return cls(partial(_from_pair, x, y), torch.arange(size), (*tensors(x), y))

    def split(self, fraction: float, seed: int) -> tuple[Rows, Rows]:
        """Two parts, the second of this fraction of the rows, drawn with `seed`."""
        total = len(self.numbers)
        if not 0 < fraction < 1 or total < 2:
            raise IT3Error(
                f"validation={fraction} must be a fraction between 0 and 1 of at least 2 rows, and "
                f"there are {total}: give None to train on all"
            )
        size = min(max(round(total * fraction), 1), total - 1)
        order = self.shuffled("split", seed)
        # In their own order, which is faster to read from a disk; training shuffles anew.
        rest, rows = order[size:].sort().values, order[:size].sort().values
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
    """Batches by number: each is the same whenever it is made, and in whichever process."""

    # `numbers` are the rows of each batch; from `key` come the seeds of a Dataset that draws.
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
    """Seeds torch's and Python's generators with a number made of `key`."""
    number = _number(key)
    # Not torch.manual_seed: where CUDA is not in use it formats a stack trace, for each step.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
    random.seed(number)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Leaves the caller's generators as they were, whatever is drawn or seeded inside."""
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


def _is_batch(row: Any) -> bool:
    """Whether this is a batch (x, y), not one row of a Dataset that is a list."""
    pair = isinstance(row, tuple | list) and len(row) == 2 and isinstance(row[1], Tensor)
    return pair and row[1].dim() > 0 and count(row[0]) == len(row[1])


def _unchanged(batch: Any) -> Any:
    return batch


def cut(numbers: Tensor, size: int) -> tuple[Tensor, ...]:
    """Batches of nearly equal size, `size` at most: none is a left-over of one row."""
    return numbers.tensor_split(math.ceil(len(numbers) / size))
