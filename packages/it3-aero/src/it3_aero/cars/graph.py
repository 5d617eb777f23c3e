"""Triangulated cars as graphs for torch-geometric: a node a vertex, edges both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from it3_core import IT3Error

__all__ = ["inputs", "moved", "to_graph"]

_INPUTS = ("x", "pos", "face", "edge_index", "edge_attr")


def to_graph(vertices: npt.ArrayLike, faces: npt.ArrayLike, name: str = "car") -> Data:
    """A closed mesh as a graph: in metres, x with the wind, z up, the ground at z = 0.

    Args:
        vertices: `(nodes, 3)`.
        faces: `(triangles, 3)`, indices of vertices.
        name: what it is called.

    Returns:
        `pos` (nodes, 3), `face` (3, triangles), `edge_index` (2, edges), sorted by where an edge
        ends; `edge_attr` (edges, 3), Cartesian pseudo-coordinates between 0 and 1 as of
        torch-geometric's `Cartesian`; and `x` (nodes, 7): the place as a share of the car's
        length, the normal, and the area that belongs to the node, over the mean.

    Example:
        >>> from it3_aero.cars.bodies import ahmed
        >>> body = ahmed()
        >>> graph = to_graph(body.vertices, body.faces, "Ahmed")
        >>> graph.x.shape[1], graph.edge_attr.shape[1], graph.num_nodes == len(body.vertices)
        (7, 3, True)
    """
    pos = torch.as_tensor(np.array(vertices, dtype=np.float32))
    face = torch.as_tensor(np.array(faces, dtype=np.int64)).t().contiguous()
    if pos.dim() != 2 or pos.shape[1] != 3 or face.dim() != 2 or face.shape[0] != 3:
        raise IT3Error(f"{name} is no triangle mesh: vertices and faces have three columns")
    if not len(face[0]) or not bool(torch.isfinite(pos).all()):
        raise IT3Error(f"{name} is no car: it has no face, or a vertex that is no number")
    if int(face.min()) < 0 or int(face.max()) >= len(pos):
        raise IT3Error(f"{name} is no mesh: a face has a vertex that is not there")
    one_way = torch.cat([face[[0, 1]], face[[1, 2]], face[[2, 0]]], 1)
    source, target = torch.cat([one_way, one_way.flip(0)], 1)
    numbers = (target * len(pos) + source).unique()  # sorted
    both = torch.stack([numbers % len(pos), numbers // len(pos)])
    graph = Data(pos=pos, face=face, edge_index=both, name=name)
    return _described(graph, torch.zeros(len(pos), dtype=torch.long), 1)


def inputs(graphs: Sequence[Data]) -> Any:
    """A batch of what the network looks at, and nothing else of the graphs.

    Example:
        >>> from it3_aero.cars.bodies import ahmed, make
        >>> bodies = [ahmed(), make("van")]
        >>> inputs([to_graph(body.vertices, body.faces) for body in bodies]).num_graphs
        2
    """
    return Batch.from_data_list([Data(**{key: graph[key] for key in _INPUTS}) for graph in graphs])


def moved(cars: Any, pos: Tensor) -> Any:
    """A batch of `inputs` with its vertices elsewhere, and all that depends on them.

    Example:
        >>> from it3_aero.cars.bodies import ahmed
        >>> body = ahmed()
        >>> cars = inputs([to_graph(body.vertices, body.faces)])
        >>> twice = moved(cars, 2 * cars.pos)
        >>> bool(torch.allclose(twice.x, cars.x, atol=1e-5))  # shares of the length
        True
    """
    other = cars.clone()
    other.pos = pos
    return _described(other, cars.batch, cars.num_graphs)


def _described(graph: Any, batch: Tensor, number: int) -> Any:
    """Writes `x` and `edge_attr`, which follow from where the vertices are."""
    pos, (a, b, c) = graph.pos, graph.face
    cross = torch.linalg.cross(pos[b] - pos[a], pos[c] - pos[a])
    third = cross.norm(dim=1) / 6
    normal, area = torch.zeros_like(pos), pos.new_zeros(len(pos))
    for corner in (a, b, c):
        normal.index_add_(0, corner, cross)
        area.index_add_(0, corner, third)
    normal = normal / normal.norm(dim=1, keepdim=True).clamp_min(1e-12)
    mean = _reduced(area, batch, number, "mean")
    low, high = (_reduced(pos, batch, number, how) for how in ("amin", "amax"))
    length = (high - low)[:, :1].clamp_min(1e-9)
    middle = (low + high) / 2 * pos.new_tensor([1.0, 1.0, 0.0])  # z is from the ground
    # About one in size: a car is a few times as long as it is wide or high.
    place = (pos - middle[batch]) / length[batch] * pos.new_tensor([2.0, 5.0, 5.0])
    relative = area / mean[batch].clamp_min(1e-12)
    graph.x = torch.cat([place, normal, relative.unsqueeze(1)], 1)
    source, target = graph.edge_index
    step = pos[source] - pos[target]
    longest = _reduced(step.abs().amax(1), batch[source], number, "amax")
    scale = 2 * longest[batch[source]].clamp_min(1e-12)
    graph.edge_attr = step / scale.unsqueeze(1) + 0.5
    return graph


def _reduced(values: Tensor, batch: Tensor, number: int, how: str) -> Tensor:
    index = batch if values.dim() == 1 else batch.unsqueeze(1).expand_as(values)
    empty = values.new_zeros((number, *values.shape[1:]))
    return empty.scatter_reduce(0, index, values, how, include_self=False)
