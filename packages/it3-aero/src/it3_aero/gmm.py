"""Gaussian mixture (GMM, or MoNet) convolution on rings and on meshes.

torch-geometric's `GMMConv` gathers and scatters along any edges. Both layers here have its
parameters under the same names and give the same numbers to 1e-6, faster:

- On a closed outline every node has two neighbours, so that a batch of outlines with as many
  nodes each is a plain tensor and neighbours are a roll away: `RingGMM` is a few dense operations,
  and `torch.func.vmap` can map it over rows that have weights of their own. Features are
  `(channels, batch, nodes)`: with nodes last, what is done to each edge runs along memory, and
  with channels first, a layer is one product of two matrices.
- On a mesh the edges go both ways, so that `MeshGMM` and its gradient are products with sparse
  matrices, and nothing as large as edges times channels is ever made. Features are
  `(nodes, channels)`.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import IT3Error

__all__ = ["MeshGMM", "Neighbours", "RingGMM", "gaussian_weights", "mesh_weights", "ring_pseudo"]

_EPSILON = 1e-15  # as in torch-geometric

with warnings.catch_warnings():  # "in beta state", once a process: here, where nobody is asked
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1))


class _GMM(nn.Module):
    """The parameters of torch-geometric's `GMMConv`, under its names."""

    def __init__(
        self, in_channels: int, out_channels: int, dim: int, kernel_size: int, width: float
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.g = nn.Parameter(torch.empty(in_channels, kernel_size * out_channels))
        self.mu = nn.Parameter(torch.empty(kernel_size, dim))
        self.sigma = nn.Parameter(torch.empty(kernel_size, dim))
        self.root = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))
        # Where torch-geometric draws widths about zero, the Gaussians here begin about as wide as
        # the pseudo-coordinates spread: a width near zero has no gradient to learn from.
        nn.init.xavier_uniform_(self.g)
        nn.init.uniform_(self.mu, 0.5 - width, 0.5 + width)
        nn.init.constant_(self.sigma, width)


class RingGMM(_GMM):
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
        super().__init__(in_channels, out_channels, dim, kernel_size, width=0.5)

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


class Neighbours(NamedTuple):
    """Edges that go both ways, sorted by where they end, as the rows of a sparse matrix.

    Attributes:
        order: the edges' numbers in the order in which they are kept here.
        pointer: where the edges to each node begin, and the end, `(nodes + 1,)`.
        source: where they come from.
        target: where they end.
        reverse: for each edge, the place of the one the other way.

    Example:
        >>> import torch
        >>> ring = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
        >>> Neighbours.of(ring, 3).source
        tensor([1, 2, 0, 2, 0, 1])
    """

    order: Tensor
    pointer: Tensor
    source: Tensor
    target: Tensor
    reverse: Tensor

    @classmethod
    def of(cls, edges: Tensor, nodes: int) -> Neighbours:
        """From `edge_index`, `(2, edges)`; an edge that goes one way only is refused."""
        source, target = edges
        order = (target * nodes + source).argsort()
        source, target = source[order], target[order]
        reverse = (source * nodes + target).argsort()  # sorted by source, as they are by target
        if not torch.equal(source[reverse], target):
            raise IT3Error("a mesh layer needs each edge both ways: see to_undirected")
        counts = torch.bincount(target, minlength=nodes)
        pointer = nnf.pad(counts.cumsum(0), (1, 0))
        return cls(order, pointer, source, target, reverse)


class MeshGMM(_GMM):
    """`GMMConv(in_channels, out_channels, dim, kernel_size)` on meshes; its weights load here.

    Args:
        in_channels: features of a node.
        out_channels: features that are returned.
        dim: pseudo-coordinates of an edge.
        kernel_size: number of Gaussians.

    Example:
        >>> import torch
        >>> edges = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
        >>> layer = MeshGMM(3, 8, dim=3, kernel_size=2)
        >>> layer(torch.randn(3, 3), Neighbours.of(edges, 3), torch.rand(2, 6)).shape
        torch.Size([3, 8])
    """

    def __init__(self, in_channels: int, out_channels: int, dim: int, kernel_size: int) -> None:
        # Scaled by the longest edge of a mesh, most others are short.
        super().__init__(in_channels, out_channels, dim, kernel_size, width=0.2)

    def forward(self, x: Tensor, near: Neighbours, weights: Tensor) -> Tensor:
        """Features `(nodes, channels)`; weights `(kernels, edges)`, a node's adding up to a mean.

        They are Gaussian weights divided by the number of the node's neighbours.
        """
        sums: Tensor = _Gather.apply(x, weights, near)  # type: ignore[no-untyped-call]
        kernels = self.g.view(self.in_channels, self.kernel_size, self.out_channels)
        matrix = torch.cat([self.root.weight.t(), kernels.transpose(0, 1).flatten(0, 1)])
        return torch.addmm(self.bias, torch.cat([x, sums], 1), matrix)


class _Gather(torch.autograd.Function):
    """Σ w x over each node's neighbours, a block of columns for each Gaussian."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, near: Neighbours) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.near = near
        return torch.cat([_matrix(near, values) @ x for values in weights.contiguous()], 1)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weights = ctx.saved_tensors
        near: Neighbours = ctx.near
        parts = [part.contiguous() for part in up.chunk(len(weights), 1)]
        to_x = to_weights = None
        if ctx.needs_input_grad[0]:
            # The transposed matrix has the same pattern, since each edge goes both ways.
            turned = weights[:, near.reverse]
            products = [_matrix(near, v) @ part for v, part in zip(turned, parts, strict=True)]
            to_x = torch.stack(products).sum(0)
        if ctx.needs_input_grad[1]:
            pattern = _matrix(near, weights[0].contiguous())
            dots = [torch.sparse.sampled_addmm(pattern, p, x.t(), beta=0.0) for p in parts]
            to_weights = torch.stack([dot.values() for dot in dots])
        return to_x, to_weights, None


def _matrix(near: Neighbours, values: Tensor) -> Tensor:
    nodes = len(near.pointer) - 1
    return torch.sparse_csr_tensor(
        near.pointer, near.source, values, (nodes, nodes), check_invariants=False
    )


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


def mesh_weights(pseudo: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """`gaussian_weights` for edges in a row, as one product of matrices.

    Args:
        pseudo: pseudo-coordinates, `(edges, dim)`.
        mu: centres, `(kernels, dim)`.
        sigma: widths, `(kernels, dim)`.

    Returns:
        `(kernels, edges)`.

    Example:
        >>> import torch
        >>> centres = torch.tensor([[0.5, 0.5], [0.5, 1.5]])
        >>> mesh_weights(torch.tensor([[0.5, 0.5]]), centres, torch.ones(2, 2)).flatten()
        tensor([1.0000, 0.6065])
    """
    u, centre = pseudo - 0.5, mu - 0.5  # most edges are short: small numbers, small errors
    precision = -0.5 / (sigma.square() + _EPSILON)
    constant = (centre.square() * precision).sum(1, keepdim=True)
    quadratic = torch.cat([precision, -2 * precision * centre], 1)
    return torch.addmm(constant, quadratic, torch.cat([u.square(), u], 1).t()).exp()


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
