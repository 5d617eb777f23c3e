"""Airfoils as graphs for torch-geometric, as tensors, and as a dataset; the network's trunk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch_geometric.data import Data, InMemoryDataset

from it3_aero.generation.store import Failed, read_data
from it3_aero.shapes.data import Split, split_by_label
from it3_aero.shapes.graph_net import (
    NetworkSettings,
    RingGMM,
    damp,
    gaussian_weights,
    ring_pseudo,
)
from it3_aero.wings.generating import TASK, Settings, Solved
from it3_aero.wings.geometry import FAMILIES, Airfoil, Family, Points, resample
from it3_core import IT3Error

NODES = 128
"""Nodes of a graph: the same number for each, so that batches stack."""


def to_graph(airfoil: Airfoil, nodes: int = NODES) -> Data:
    """The outline as a graph, every shape with the same number of nodes.

    Nodes are spaced by the cosine rule along the chord, half on each side, and lie symmetric about
    both edges: none is at the very nose or tail. They begin at the upper trailing edge, and node i
    joins node i + 1 in both directions, the last one the first.

    `edge_attr` are Cartesian pseudo-coordinates between 0 and 1, as of torch-geometric's.
    """
    pos = torch.from_numpy(resample(airfoil, chordwise(nodes))).float()
    edges = ring_edges(nodes)
    source, target = edges
    step = pos[source] - pos[target]
    pseudo = step / (2 * step.abs().max()) + 0.5
    return Data(pos=pos, edge_index=edges, edge_attr=pseudo, name=airfoil.name)


def chordwise(nodes: int) -> Points:
    """Where along the chord each side has its nodes."""
    if nodes < 8 or nodes % 2:
        raise IT3Error(f"nodes must be an even number from 8 on, but is {nodes}")
    side = nodes // 2
    stations: Points = 0.5 - 0.5 * np.cos(np.pi * (np.arange(side) + 0.5) / side)
    return stations


@cache
def ring_edges(nodes: int) -> Tensor:
    """Edges from each node to the next, then the same the other way, `(2, 2 × nodes)`."""
    here = torch.arange(nodes)
    after = here.roll(-1)
    return torch.stack([torch.cat([here, after]), torch.cat([after, here])])


def outlines(graphs: Iterable[Any]) -> Tensor:
    """The positions of graphs that have as many nodes each, as one tensor `(n, nodes, 2)`."""
    return torch.stack([graph.pos.float() for graph in graphs])


class WingDataset(InMemoryDataset):  # type: ignore[misc]  # torch-geometric has no types
    """The profiles in a folder that `it3-aero wings generate` made, those that have a solution.

    Each `Data` has `pos`, `edge_index` and `edge_attr` as of `to_graph`; `y` (1, 1), the
    lift-to-drag ratio; `cl`, `cd` and `cm` (1,); `cp` (nodes,), the pressure coefficient at the
    nodes; `parameters` (1, k) that the shape was made from, named by `parameter_names`; `sample`,
    its number; and `name`.

    Args:
        root: the folder.
        nodes: of each graph.
        transform: applied to each `Data` when it is taken out, as in any dataset.

    Example:
        >>> import tempfile
        >>> from it3_aero.wings.generating import generate
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = generate(folder, n=4, solver="neuralfoil", progress=False)
        ...     wings = WingDataset(folder)
        >>> wings
        WingDataset(4)
        >>> wings[0].y.shape, wings[0].pos.shape, wings.parameter_names
        (torch.Size([1, 1]), torch.Size([128, 2]), ('camber', 'position', 'thickness'))
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        nodes: int = NODES,
        transform: Callable[[Data], Data] | None = None,
    ) -> None:
        root = Path(root)
        chordwise(nodes)  # refuses a number that can't be
        self.settings, samples = read_data(root, TASK, Settings, Solved | Failed)
        records = [record for record in samples if "problem" not in record]
        if not records:
            raise IT3Error(f"{root} holds no solved profile: run it3-aero wings generate")
        # Nothing is kept in processed/, where torch-geometric would unpickle what it finds: two
        # thousand graphs are made in two seconds.
        super().__init__(os.fspath(root), transform)
        family = FAMILIES[self.settings["family"]]
        self.parameter_names: tuple[str, ...] = tuple(family.ranges)
        self.data, self.slices = self.collate(
            [_graph(record, self.parameter_names, family, nodes) for record in records]
        )

    @property
    def solver(self) -> str:
        """Who solved them, such as "XFoil 6.99"."""
        return str(self.settings["solver"])

    def split(self, threshold: float = 60.0, *, levels: int = 3, seed: int = 0) -> Split:
        """The paper's split: a larger L/D is out of distribution; see `split_by_label`."""
        ratios = [float(self.get(index).y) for index in self.indices()]
        return split_by_label(ratios, threshold, quantity="L/D", levels=levels, seed=seed)


def _at_nodes(x: Points, value: Points, stations: Points) -> Points:
    """Pressure at the nodes, from a solver's values once around: by side, over the root of x."""
    nose = int(np.argmin(x))
    at = np.sqrt(stations)
    upper, lower = (
        np.interp(at, np.sqrt(np.maximum.accumulate(x[side]).clip(0)), value[side])
        for side in (slice(nose, None, -1), slice(nose, None))
    )
    return np.concatenate([upper[::-1], lower])


def _graph(record: Solved, names: tuple[str, ...], family: Family, nodes: int) -> Data:
    parameters, (x, cp) = record["parameters"], record["cp"]
    if set(parameters) != set(names) or record["cd"] <= 0 or not 2 <= len(x) == len(cp):
        raise IT3Error(f"sample {record['sample']} is damaged: generate the data again")
    graph = to_graph(family.make(**parameters), nodes)
    graph.y = torch.tensor([[record["cl"] / record["cd"]]])
    graph.cl, graph.cd, graph.cm = torch.tensor([[record["cl"]], [record["cd"]], [record["cm"]]])
    graph.cp = torch.from_numpy(_at_nodes(np.array(x), np.array(cp), chordwise(nodes))).float()
    graph.parameters = torch.tensor([[parameters[name] for name in names]], dtype=torch.float32)
    graph.sample = torch.tensor([record["sample"]])
    graph.name = record["name"]
    return graph


class OutlineTrunk(nn.Module):
    """Outlines `(batch, nodes, 2)` to pooled features: GMM layers, each with ELU and a skip."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        width, kernels = settings.channels, settings.kernels
        self.stride = settings.stride
        self.encode = nn.Linear(2, width)
        layers = [RingGMM(width, width, dim=2, kernel_size=kernels) for _ in range(settings.layers)]
        if settings.damped:
            damp(layers)
        self.layers = nn.ModuleList(layers)
        # Node features `(batch, nodes, channels)` after each fifth layer, for ActMAD to watch.
        self.taps = nn.ModuleList(nn.Identity() for _ in range(settings.layers // 5))

    def forward(self, pos: Tensor) -> Tensor:
        pos = pos[..., :: self.stride, :]
        # About zero and of size one: a chord is 1 long, its outline a tenth as high.
        centred = torch.stack([2 * pos[..., 0] - 1, 10 * pos[..., 1]], -1)
        x = nnf.elu(self.encode(centred)).movedim(-1, 0).contiguous()
        weights = self.weights(pos)
        for index, layer in enumerate(self.layers):
            x = x + nnf.elu(layer(x, weights[index]), inplace=True)
            if index % 5 == 4:
                self.taps[index // 5](x.movedim(0, -1))
        return x.mean(-1).t()

    def weights(self, pos: Tensor) -> tuple[Tensor, ...]:
        """The Gaussian weights of every layer: they depend on the outline alone, so all at once."""
        layers = [layer for layer in self.layers if isinstance(layer, RingGMM)]
        mu = torch.cat([layer.mu for layer in layers])
        sigma = torch.cat([layer.sigma for layer in layers])
        return gaussian_weights(ring_pseudo(pos), mu, sigma).chunk(len(layers), 1)
