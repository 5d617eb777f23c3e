"""Gaussian mixture (GMM, or MoNet) convolution on rings, as a few dense operations.

torch-geometric's `GMMConv` gathers and scatters along any edges. On a closed outline every node
has two neighbours, so that a batch of outlines with as many nodes each is a plain tensor and
neighbours are a roll away. `RingGMM` has the parameters of `GMMConv` under the same names and
gives the same numbers to 1e-6; it is faster, and `torch.func.vmap` can map it over rows that have
weights of their own.

Features are `(channels, batch, nodes)`: with nodes last, what is done to each edge runs along
memory, and with channels first, a layer is one product of two matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["RingGMM", "gaussian_weights", "ring_pseudo"]

_EPSILON = 1e-15  # as in torch-geometric


class RingGMM(nn.Module):
    """`GMMConv(in_channels, out_channels, dim, kernel_size)` on rings; its weights load here.

    Args:
        in_channels: features of a node.
        out_channels: features that are returned.
        dim: pseudo-coordinates of an edge.
        kernel_size: number of Gaussians.

    Example:
        >>> import torch
        >>> layer = RingGMM(3, 8, dim=2, kernel_size=2)
        >>> outlines = torch.randn(4, 50, 2)
        >>> weights = gaussian_weights(ring_pseudo(outlines), layer.mu, layer.sigma)
        >>> layer(torch.randn(3, 4, 50), weights).shape
        torch.Size([8, 4, 50])
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int, kernel_size: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.g = nn.Parameter(torch.empty(in_channels, kernel_size * out_channels))
        self.mu = nn.Parameter(torch.empty(kernel_size, dim))
        self.sigma = nn.Parameter(torch.empty(kernel_size, dim))
        self.root = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))
        # Where torch-geometric draws widths about zero, the Gaussians here begin half as wide as
        # the pseudo-coordinates' range, 0 to 1: a width near zero has no gradient to learn from.
        nn.init.xavier_uniform_(self.g)
        nn.init.uniform_(self.mu)
        nn.init.constant_(self.sigma, 0.5)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Features `(channels, batch, nodes)`, Gaussian weights `(2, kernels, batch, nodes)`."""
        before, after = weights.unsqueeze(2).unbind()
        near = torch.addcmul(torch.roll(x, 1, -1) * before, torch.roll(x, -1, -1), after)
        rows = torch.cat([x.unsqueeze(0), near]).flatten(0, 1).flatten(1)
        kernels = self.g.view(self.in_channels, self.kernel_size, self.out_channels)
        # A half, because GMMConv takes the mean over a node's two neighbours.
        mixing = 0.5 * kernels.permute(2, 1, 0).reshape(self.out_channels, -1)
        matrix = torch.cat([self.root.weight, mixing], 1)
        out = torch.addmm(self.bias.unsqueeze(1), matrix, rows)
        return out.view(self.out_channels, *x.shape[1:])


def gaussian_weights(pseudo: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """exp(−½ Σ (u − μ)² / σ²) of pseudo-coordinates, for every Gaussian.

    Args:
        pseudo: of `ring_pseudo`, `(dim, 2, batch, nodes)`.
        mu: centres, `(kernels, dim)`.
        sigma: widths, `(kernels, dim)`.

    Returns:
        `(2, kernels, batch, nodes)`.

    Example:
        >>> import torch
        >>> u = torch.tensor([0.5, 0.5]).view(2, 1, 1, 1)
        >>> weights = gaussian_weights(u, torch.tensor([[0.5, 0.5], [0.5, 1.5]]), torch.ones(2, 2))
        >>> weights.flatten()
        tensor([1.0000, 0.6065])
    """
    shape = (len(pseudo), 1, -1, 1, 1)
    precision = -0.5 / (sigma.t().reshape(shape).square() + _EPSILON)
    gap = pseudo.unsqueeze(2) - mu.t().reshape(shape)
    return (gap.square() * precision).sum(0).exp()


def ring_pseudo(pos: Tensor) -> Tensor:
    """Cartesian pseudo-coordinates of a ring's edges, `(dim, 2, batch, nodes)`.

    Entry `[:, 0, b, i]` is that of the edge to node i from the one before, `[:, 1, b, i]` from the
    one after: source minus target, scaled to 0 … 1 by the largest of the graph, as
    torch-geometric's `Cartesian` transform does.

    Args:
        pos: outlines, `(batch, nodes, dim)`.

    Example:
        >>> import torch
        >>> square = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
        >>> ring_pseudo(square)[:, :, 0, 0].t()  # from above, and from the right
        tensor([[0.5000, 1.0000],
                [1.0000, 0.5000]])
    """
    place = pos.movedim(-1, 0)
    ahead = torch.roll(place, -1, -1) - place
    longest = ahead.abs().amax((0, 2), keepdim=True)
    ahead = ahead / (2 * longest)
    return torch.stack([-torch.roll(ahead, 1, -1), ahead], 1) + 0.5
