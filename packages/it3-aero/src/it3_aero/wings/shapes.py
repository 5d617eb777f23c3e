"""Outlines as tensors: what the network takes, made from the graphs that a data set holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from it3_core import IT3Error

__all__ = ["Shapes", "outlines"]


@dataclass(frozen=True)
class Shapes:
    """Some airfoils, a row each.

    Attributes:
        x: outlines, `(n, nodes, 2)`.
        y: labels, `(n,)`.
        names: what they are called.
        parameters: what they were made from, `(n, k)`; None where that is not known.
        cp: pressure coefficients at the nodes, `(n, nodes)`; None where that is not known.

    Example:
        >>> import torch
        >>> shapes = Shapes(torch.rand(3, 8, 2), torch.tensor([5.0, 7.0, 6.0]), ["a", "b", "c"])
        >>> shapes.take([2, 0]).names
        ['c', 'a']
        >>> shapes.by_label().y
        tensor([5., 6., 7.])
    """

    x: Tensor
    y: Tensor
    names: Sequence[str]
    parameters: Tensor | None = None
    cp: Tensor | None = None

    @classmethod
    def of(cls, graphs: Iterable[Any]) -> Shapes:
        """From graphs as `WingDataset` holds them, all with as many nodes along the ring."""
        found = list(graphs)
        if not found:
            raise IT3Error("there is no shape to work with")
        return cls(
            outlines(found),
            torch.cat([graph.y.reshape(1).float() for graph in found]),
            [str(graph.name) for graph in found],
            torch.cat([graph.parameters for graph in found]) if "parameters" in found[0] else None,
            torch.stack([graph.cp for graph in found]) if "cp" in found[0] else None,
        )

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Sequence[int] | Tensor) -> Shapes:
        """Some of them, in that order."""
        numbers = torch.as_tensor(rows, dtype=torch.long)
        return Shapes(
            self.x[numbers],
            self.y[numbers],
            [self.names[row] for row in numbers.tolist()],
            None if self.parameters is None else self.parameters[numbers],
            None if self.cp is None else self.cp[numbers],
        )

    def by_label(self) -> Shapes:
        """All of them, in the order of growing labels."""
        return self.take(self.y.argsort(stable=True))

    def sample(self, most: int | None, seed: int = 0) -> Shapes:
        """At most so many of them, drawn with `seed`, in their own order."""
        if most is None or len(self) <= most:
            return self
        generator = torch.Generator().manual_seed(seed)
        return self.take(torch.randperm(len(self), generator=generator)[:most].sort().values)


def outlines(graphs: Iterable[Any]) -> Tensor:
    """The positions of graphs that have as many nodes each, as one tensor `(n, nodes, 2)`.

    Example:
        >>> from it3_aero.wings import naca, to_graph
        >>> outlines([to_graph(naca("0012")), to_graph(naca("2412"))]).shape
        torch.Size([2, 128, 2])
    """
    positions = [graph.pos.float() for graph in graphs]
    if len({len(pos) for pos in positions}) > 1:
        raise IT3Error("the graphs differ in their number of nodes: make them with to_graph")
    return torch.stack(positions)
