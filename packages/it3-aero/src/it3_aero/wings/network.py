"""The paper's network on airfoil outlines: GMM layers along the ring, ELU, skips, pooling."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_aero.gmm import RingGMM, gaussian_weights, ring_pseudo
from it3_aero.learning import network
from it3_aero.learning.task import NetworkSettings

__all__ = ["OutlineTrunk", "build"]


class OutlineTrunk(nn.Module):
    """Outlines `(batch, nodes, 2)` to pooled features: GMM layers, each with ELU and a skip.

    Example:
        >>> import torch
        >>> OutlineTrunk(NetworkSettings(layers=2, channels=4))(torch.rand(3, 20, 2)).shape
        torch.Size([3, 4])
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        width, kernels = settings.channels, settings.kernels
        self.stride = settings.stride
        self.encode = nn.Linear(2, width)
        self.layers = nn.ModuleList(
            RingGMM(width, width, dim=2, kernel_size=kernels) for _ in range(settings.layers)
        )
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


build = partial(network.build, OutlineTrunk)
"""`build(settings, adapter)`: the conditioned network on outlines, see `it3_aero.learning`."""
