"""Shapes with labels as the network takes them, and which to train and to test on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from it3_core import IT3Error
from it3_core.batching import take, tensors

__all__ = ["WITHIN", "Levels", "Shapes", "named_tensors"]

WITHIN = "in distribution"
"""The name of the first level."""


@dataclass(frozen=True)
class Shapes:
    """Some shapes, a row each.

    Attributes:
        x: the network's input: outlines `(n, nodes, 2)`, or a batch of graphs.
        y: labels, `(n,)`.
        names: what they are called.
        parameters: what they were made from, `(n, k)`; None where that is not known.
        cp: pressure coefficients at the nodes, one tensor a shape; None where that is not known.

    Example:
        >>> import torch
        >>> shapes = Shapes(torch.rand(3, 8, 2), torch.tensor([5.0, 7.0, 6.0]), ["a", "b", "c"])
        >>> shapes.take([2, 0]).names
        ['c', 'a']
        >>> shapes.by_label().y
        tensor([5., 6., 7.])
    """

    x: Any
    y: Tensor
    names: Sequence[str]
    parameters: Tensor | None = None
    cp: Sequence[Tensor] | Tensor | None = None

    @classmethod
    def of(cls, graphs: Iterable[Any], inputs: Callable[[Sequence[Any]], Any]) -> Shapes:
        """From graphs as a data set holds them; `inputs` makes the network's input of them."""
        found = list(graphs)
        if not found:
            raise IT3Error("there is no shape to work with")
        return cls(
            inputs(found),
            torch.cat([graph.y.reshape(1).float() for graph in found]),
            [str(graph.name) for graph in found],
            torch.cat([graph.parameters for graph in found]) if "parameters" in found[0] else None,
            [graph.cp for graph in found] if "cp" in found[0] else None,
        )

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Sequence[int] | Tensor) -> Shapes:
        """Some of them, in that order."""
        numbers = torch.as_tensor(rows, dtype=torch.long)
        chosen: list[int] = numbers.tolist()
        return Shapes(
            take(self.x, chosen),
            self.y[numbers],
            [self.names[row] for row in chosen],
            None if self.parameters is None else self.parameters[numbers],
            None if self.cp is None else [self.cp[row] for row in chosen],
        )

    def by_label(self, falling: bool = False) -> Shapes:
        """All of them, in the order of growing labels, or of falling ones."""
        return self.take(self.y.argsort(stable=True, descending=falling))

    def sample(self, most: int | None, seed: int = 0) -> Shapes:
        """At most so many of them, drawn with `seed`, in their own order."""
        if most is None or len(self) <= most:
            return self
        generator = torch.Generator().manual_seed(seed)
        return self.take(torch.randperm(len(self), generator=generator)[:most].sort().values)


@dataclass(frozen=True)
class Levels:
    """What to train on and what to test on.

    Attributes:
        train: training shapes.
        test: shapes to be tested on, by level, the in-distribution one first.
        falling: whether labels fall, and do not grow, with the distance from what is known.

    Example:
        >>> import torch
        >>> one = Shapes(torch.rand(2, 8, 2), torch.tensor([9.0, 5.0]), ["a", "b"])
        >>> Levels(one, {WITHIN: one}).drawn(1).test[WITHIN].names
        ['a']
    """

    train: Shapes
    test: Mapping[str, Shapes]
    falling: bool = False

    @classmethod
    def of(
        cls,
        dataset: Any,
        inputs: Callable[[Sequence[Any]], Any],
        threshold: float,
        levels: int,
        falling: bool = False,
    ) -> Levels:
        """The paper's split of a data set; its test shapes never depend on a training seed."""
        split = dataset.split(threshold, levels=levels)
        parts = {WITHIN: split.test, **split.levels}
        known = sorted([*split.train, *split.validation])
        return cls(
            Shapes.of((dataset[i] for i in known), inputs),
            {
                name: Shapes.of((dataset[i] for i in rows), inputs)
                for name, rows in parts.items()
                if rows
            },
            falling,
        )

    def drawn(self, most: int | None = None) -> Levels:
        """The same with at most so many shapes a level, in the order of growing shift."""
        test = {
            name: shapes.sample(most).by_label(self.falling) for name, shapes in self.test.items()
        }
        return Levels(self.train, test, self.falling)


def named_tensors(x: Any, name: str = "x") -> dict[str, Tensor]:
    """The tensors of an input by name, for a digest.

    Example:
        >>> import torch
        >>> list(named_tensors(torch.zeros(2))), list(named_tensors((torch.zeros(2),)))
        (['x'], ['x.0'])
    """
    if isinstance(x, Tensor):
        return {name: x}
    return {f"{name}.{index}": part for index, part in enumerate(tensors(x))}
