"""Airfoils as graphs for torch-geometric: a ring of nodes along the outline."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from it3_aero.wings.geometry import Airfoil, Points, resample
from it3_core import IT3Error

__all__ = ["NODES", "chordwise", "ring_edges", "to_graph"]

NODES = 128
"""Nodes of a graph: the same number for each, so that batches stack."""


def to_graph(airfoil: Airfoil, nodes: int = NODES) -> Data:
    """The outline as a graph, every shape with the same number of nodes.

    Nodes are spaced by the cosine rule along the chord, half on each side, and lie symmetric about
    both edges: none is at the very nose or tail. They begin at the upper trailing edge, and node i
    joins node i + 1 in both directions, the last one the first.

    Args:
        airfoil: from `naca4`, `read_airfoil` and so on.
        nodes: an even number.

    Returns:
        `pos` (nodes, 2), `edge_index` (2, 2 × nodes), `edge_attr` (2 × nodes, 2): Cartesian
        pseudo-coordinates between 0 and 1, as of torch-geometric's `Cartesian`; and `name`.

    Example:
        >>> from it3_aero.wings import naca
        >>> to_graph(naca("2412"), nodes=64)
        Data(edge_index=[2, 128], edge_attr=[128, 2], pos=[64, 2], name='NACA 2412')
    """
    pos = torch.from_numpy(resample(airfoil, chordwise(nodes))).float()
    edges = ring_edges(nodes)
    source, target = edges
    step = pos[source] - pos[target]
    pseudo = step / (2 * step.abs().max()) + 0.5
    return Data(pos=pos, edge_index=edges, edge_attr=pseudo, name=airfoil.name)


def chordwise(nodes: int) -> Points:
    """Where along the chord each side has its nodes.

    Example:
        >>> chordwise(8).round(3)
        array([0.038, 0.309, 0.691, 0.962])
    """
    if nodes < 8 or nodes % 2:
        raise IT3Error(f"nodes must be an even number from 8 on, but is {nodes}")
    side = nodes // 2
    places: Points = 0.5 - 0.5 * np.cos(np.pi * (np.arange(side) + 0.5) / side)
    return places


@cache
def ring_edges(nodes: int) -> Tensor:
    """Edges from each node to the next, then the same the other way, `(2, 2 × nodes)`.

    Example:
        >>> ring_edges(3)
        tensor([[0, 1, 2, 1, 2, 0],
                [1, 2, 0, 0, 1, 2]])
    """
    here = torch.arange(nodes)
    after = here.roll(-1)
    return torch.stack([torch.cat([here, after]), torch.cat([after, here])])
