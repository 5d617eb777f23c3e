"""Inputs of any make: how many instances a batch holds, some of its rows, all of its tensors.

An input `x` is a tensor, a tuple, list or mapping of inputs, a graph batch (an object with
`num_graphs`, `index_select(rows)` and `from_data_list(graphs)`, as torch-geometric's `Batch` has),
or anything with `len()`, `take(rows)` and `apply(function)`, such as `Ragged`.

Data are a pair `(x, y)` of inputs and labels; or a DataLoader, a Dataset (an IterableDataset too),
or any iterable of batches `(x, y)`. Where no label is needed, inputs alone will do.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from it3_core.errors import IT3Error

ON_META = "the {} is on the device 'meta', where nothing has values: fill it"

Data = tuple[Any, Tensor] | Dataset[Any] | Iterable[Any]
"""Inputs and labels in any of the forms above."""


@dataclass(frozen=True)
class Ragged:
    """A batch whose rows differ in shape: whole images, their labels, answers to them."""

    rows: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.rows)

    def take(self, rows: Sequence[int]) -> Ragged:
        return Ragged([self.rows[row] for row in rows])

    def apply(self, function: Callable[[Tensor], Tensor]) -> Ragged:
        return Ragged([function(row) for row in self.rows])

    def detach(self) -> Ragged:
        return self.apply(Tensor.detach)


def is_rows(x: Any) -> bool:
    """Whether `x` is a batch that takes its rows by itself."""
    return not isinstance(x, Tensor) and hasattr(x, "take") and hasattr(x, "apply")


def is_graph(x: Any) -> bool:
    """Whether `x` is a graph batch: its instances differ in size, so its rows don't stack."""
    return not isinstance(x, Tensor) and hasattr(x, "num_graphs")


def count(x: Any) -> int:
    """The number of instances in a batch."""
    if isinstance(x, Tensor):
        if x.dim() == 0:
            raise IT3Error("the input is a single number: add a batch dimension with x[None]")
        return x.shape[0]
    if is_graph(x):
        return int(x.num_graphs)
    if is_rows(x):
        return len(x)
    if isinstance(x, Mapping | tuple | list):
        sizes = {count(part) for part in (x.values() if isinstance(x, Mapping) else x)}
        if len(sizes) == 1:
            return sizes.pop()
        if not sizes:
            raise IT3Error(f"the input is an empty {type(x).__name__}: there is nothing in it")
        raise IT3Error(f"the parts of the input differ in batch size: {sorted(sizes)}")
    raise IT3Error(
        f"an input is a tensor, a container of them or a graph batch; this is a {type(x).__name__}"
    )


def take(x: Any, rows: Sequence[int] | slice) -> Any:
    """Some rows of a batch, as a batch of the same make."""
    if isinstance(x, Tensor):
        if x.layout != torch.strided:
            raise IT3Error("rows can't be taken of a sparse tensor: call x.to_dense() first")
        return x[rows if isinstance(rows, slice) else list(rows)]
    if is_graph(x):
        chosen = range(count(x))[rows] if isinstance(rows, slice) else rows
        return type(x).from_data_list(x.index_select(list(chosen)))
    if is_rows(x):
        return x.take(list(range(len(x))[rows] if isinstance(rows, slice) else rows))
    if isinstance(x, Mapping | tuple | list):
        return rebuilt(x, lambda part: take(part, rows))
    raise IT3Error(f"can't take rows of a {type(x).__name__}")


def batches(x: Any, size: int) -> Iterator[Any]:
    """A batch cut into consecutive batches of at most `size` instances."""
    if size < 1:
        raise IT3Error(f"a batch size must be at least 1, but is {size}")
    for start in range(0, count(x), size):
        yield take(x, slice(start, start + size))


def labelled(data: Any, size: int = 64) -> Iterator[tuple[Any, Any]]:
    """Batches of inputs and labels from data of any form; None where there are no labels."""
    if isinstance(data, tuple) and len(data) == 2:
        yield from zip(batches(data[0], size), batches(data[1], size), strict=True)
    elif isinstance(data, Tensor | dict) or is_graph(data) or is_rows(data):
        yield from ((x, None) for x in batches(data, size))
    else:
        one_by_one = isinstance(data, Dataset) and not isinstance(data, DataLoader)
        for batch in DataLoader(data, size) if one_by_one else data:
            parts = batch if isinstance(batch, tuple | list) else [batch]
            if len(parts) > 2:
                raise IT3Error(f"a batch of data is a pair (x, y), and this one has {len(parts)}")
            yield (*parts, None)[:2] if parts else (batch, None)


def whole(data: Any) -> tuple[Any, Any]:
    """All inputs and labels of data of any form, as one pair in memory."""
    if isinstance(data, tuple) and len(data) == 2:
        return data
    parts = [*labelled(data)]
    if not parts:
        raise IT3Error("there are no data: of a generator nothing is left when it is read again")
    xs, ys = zip(*parts, strict=True)
    if any(y is None for y in ys):
        raise IT3Error("labels are needed: give (x, y), or a DataLoader of such pairs")
    return _joined(xs), _joined(ys)


def inputs_of(data: Any) -> Any:
    """All inputs of data of any form, without their labels, in memory."""
    if isinstance(data, tuple) and len(data) == 2:
        return data[0]
    if isinstance(data, Tensor | dict) or is_graph(data) or is_rows(data):
        return data
    return _joined([x for x, _ in labelled(data)])


def _joined(parts: Sequence[Any]) -> Any:
    """Batches as one batch."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if is_graph(first):
        graphs = [graph for part in parts for graph in part.index_select(range(count(part)))]
        return type(first).from_data_list(graphs)
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple | list):
        return [_joined(some) for some in zip(*parts, strict=True)]
    raise IT3Error(f"batches of {type(first).__name__} can't be joined: give one pair (x, y)")


def tensors(x: Any) -> Iterator[Tensor]:
    """Every tensor in an input."""
    if isinstance(x, Tensor):
        yield x
    elif is_graph(x) and hasattr(x, "to_dict"):
        yield from (part for part in x.to_dict().values() if isinstance(part, Tensor))
    elif isinstance(x, Mapping):
        for part in x.values():
            yield from tensors(part)
    elif isinstance(x, tuple | list | Ragged):
        for part in x:
            yield from tensors(part)


def map_tensors(x: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same input with `function` applied to each of its tensors; `x` itself stays as it is."""
    if isinstance(x, Tensor):
        return function(x)
    if is_graph(x):
        return copy.copy(x).apply(function)
    if is_rows(x):
        return x.apply(function)
    if isinstance(x, Mapping | tuple | list):
        return rebuilt(x, lambda part: map_tensors(part, function))
    return x


def rebuilt(x: Any, function: Callable[[Any], Any]) -> Any:
    """A container of the same make with `function` applied to its parts."""
    if isinstance(x, Mapping):
        # A dict keeps its type, as those of other libraries have one of their own.
        new = copy.copy(x) if isinstance(x, dict) else dict(x)
        for name, part in x.items():
            new[name] = function(part)
        return new
    parts = [function(part) for part in x]
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)


def check_input(x: Any, dtype: torch.dtype | None = None) -> int:
    """The number of instances, after telling apart what a network can't use.

    `dtype` is the network's: a floating input of another one is refused.
    """
    size = count(x)
    if size == 0:
        raise IT3Error("the batch is empty: there is nothing to answer")
    for part in tensors(x):
        if part.is_meta:
            raise IT3Error(ON_META.format("input"))
        if not part.is_floating_point():
            continue
        if dtype is not None and part.dtype != dtype:
            raise IT3Error(
                f"the input is {part.dtype} but the network's weights are {dtype}: "
                f"convert it with x.to({dtype})"
            )
        # A sum shows any NaN or Inf, in one pass; a sum that overflows is looked into.
        if not math.isfinite(float(part.sum())):
            part = part.to_dense()
            hidden = part.isneginf()
            if part is not x and bool((hidden | (part == 0)).all()):
                continue  # an additive mask of attention
            if bool(part.isfinite().all()):
                continue
            kind, bad = ("NaN", part.isnan()) if part.isnan().any() else ("Inf", part.isinf())
            raise IT3Error(
                f"the input has {kind} in {int(bad.sum())} of {part.numel()} values: "
                f"{'impute or drop them' if kind == 'NaN' else 'clip or drop them'} first"
            )
    return size


def refused(x: Any, problem: Exception) -> IT3Error:
    """What a network says of an input that it can't take, in a sentence."""
    said = " ".join(str(problem).split())
    kinds = sorted({str(part.dtype) for part in tensors(x)})
    # Token ids are meant to be whole numbers: "got Float and Double" is no fault of theirs.
    whole = not any(part.is_floating_point() for part in tensors(x)) and "indices" not in said
    if whole and re.search(r"\b(Byte|Char|Short|Int|Long|unsigned char)\b", said):
        return IT3Error(f"the input is {', '.join(kinds)}: convert it with x.float() ({said})")
    shapes = ", ".join(str(tuple(part.shape)) for part in tensors(x))
    return IT3Error(
        f"the network can't take an input of {', '.join(kinds)} and shape {shapes}: give it one "
        f"like those that it was made for ({said})"
    )
