"""Outlines as tensors: what the network takes, made from the graphs that a data set holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from it3_core import IT3Error

__all__ = ["outlines"]


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
