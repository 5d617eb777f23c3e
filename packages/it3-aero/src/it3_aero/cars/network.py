"""The paper's network on triangulated cars: GMM layers along the mesh, ELU, skips, pooling."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_aero.gmm import MeshGMM, Neighbours, mesh_weights
from it3_aero.learning import network
from it3_aero.learning.task import NetworkSettings

__all__ = ["MeshTrunk", "build"]


class MeshTrunk(nn.Module):
    """A batch of cars to pooled features: GMM layers, each with ELU and a skip.

    What is pooled is the mean over the surface: drag is an integral over it, and a node stands
    for the area around it.

    Example:
        >>> from it3_aero.cars.bodies import ahmed
        >>> from it3_aero.cars.graph import inputs, to_graph
        >>> body = ahmed()
        >>> cars = inputs([to_graph(body.vertices, body.faces)] * 2)
        >>> MeshTrunk(NetworkSettings(layers=2, channels=4))(cars).shape
        torch.Size([2, 4])
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        width, kernels = settings.channels, settings.kernels
        self.encode = nn.Linear(7, width)
        layers = [MeshGMM(width, width, dim=3, kernel_size=kernels) for _ in range(settings.layers)]
        # So many skips add up: each layer begins small, so that features stay of size one.
        with torch.no_grad():
            for layer in layers:
                for weight in (layer.g, layer.root.weight):
                    weight.mul_(settings.layers**-0.5)
        self.layers = nn.ModuleList(layers)
        # Node features `(nodes, channels)` after each fifth layer, for ActMAD to watch.
        self.taps = nn.ModuleList(nn.Identity() for _ in range(settings.layers // 5))

    def forward(self, cars: Any) -> Tensor:
        x = nnf.elu(self.encode(cars.x))
        near = Neighbours.of(cars.edge_index, len(x))
        weights = self.weights(cars.edge_attr, near)
        for index, layer in enumerate(self.layers):
            x = x + nnf.elu(layer(x, near, weights[index]), inplace=True)
            if index % 5 == 4:
                self.taps[index // 5](x)
        area = cars.x[:, 6:]
        # A node's area is over the mean of its car's: the areas of a car add up to its nodes.
        total = x.new_zeros(cars.num_graphs, x.shape[1]).index_add(0, cars.batch, x * area)
        pooled: Tensor = total / cars.ptr.diff().unsqueeze(1)
        return pooled

    def weights(self, pseudo: Tensor, near: Neighbours) -> tuple[Tensor, ...]:
        """The weights of every layer's edges: they depend on the meshes alone, so all at once."""
        layers = [layer for layer in self.layers if isinstance(layer, MeshGMM)]
        mu = torch.cat([layer.mu for layer in layers])
        sigma = torch.cat([layer.sigma for layer in layers])
        # GMMConv takes the mean over a node's neighbours.
        share = near.pointer.diff()[near.target].to(pseudo.dtype).reciprocal()
        return (mesh_weights(pseudo[near.order], mu, sigma) * share).chunk(len(layers))


build = partial(network.build, MeshTrunk)
"""`build(settings, adapter)`: the conditioned network on cars, see `it3_aero.learning`."""
