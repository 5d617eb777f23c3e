"""The paper's graph network on shapes: Gaussian mixture (GMM, or MoNet) layers, and a small head.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import Conditioned, IT3Error, Regression, condition

_EPSILON = 1e-15  # as in torch-geometric

with warnings.catch_warnings():  # "in beta state", once a process: here, where nobody is asked
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1))


class _GMM(nn.Module):
    """The parameters of torch-geometric's `GMMConv`, under its names."""

    width: float  # of the Gaussians at first

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
        # Where torch-geometric draws widths about zero, the Gaussians here begin about as wide as
        # the pseudo-coordinates spread: a width near zero has no gradient to learn from.
        nn.init.xavier_uniform_(self.g)
        nn.init.uniform_(self.mu, 0.5 - self.width, 0.5 + self.width)
        nn.init.constant_(self.sigma, self.width)


class RingGMM(_GMM):
    """`GMMConv(in_channels, out_channels, dim, kernel_size)` on rings; its weights load here."""

    width = 0.5

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
    """Edges that go both ways, sorted by where they end, as the rows of a sparse matrix."""

    order: Tensor  # the edges' numbers in the order in which they are kept here
    pointer: Tensor  # where the edges to each node begin, and the end, `(nodes + 1,)`
    source: Tensor  # where they come from
    target: Tensor  # where they end
    reverse: Tensor  # for each edge, the place of the one the other way

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
    """`GMMConv(in_channels, out_channels, dim, kernel_size)` on meshes; its weights load here."""

    width = 0.2  # scaled by the longest edge of a mesh, most others are short

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
    """exp(−½ Σ (u − μ)² / σ²) for every Gaussian, `(2, kernels, batch, nodes)`.

    Of `ring_pseudo`'s `(dim, 2, batch, nodes)`; centres and widths are `(kernels, dim)`.
    """
    shape = (len(pseudo), 1, -1, 1, 1)
    precision = -0.5 / (sigma.t().reshape(shape).square() + _EPSILON)
    gap = pseudo.unsqueeze(2) - mu.t().reshape(shape)
    return (gap.square() * precision).sum(0).exp()


def mesh_weights(pseudo: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
    """The same for edges in a row, `(edges, dim)` to `(kernels, edges)`."""
    # Multiplied out, the square is one product, but a narrow Gaussian's rounds to above nothing.
    precision = -0.5 / (sigma.square() + _EPSILON)
    gap = pseudo.t() - mu.unsqueeze(2)
    return (gap.square() * precision.unsqueeze(2)).sum(1).exp()


def ring_pseudo(pos: Tensor) -> Tensor:
    """Cartesian pseudo-coordinates of the edges of outlines `(batch, nodes, dim)`.

    Entry `[:, 0, b, i]` is that of the edge to node i from the one before, `[:, 1, b, i]` from the
    one after: source minus target, scaled to 0 … 1 by the largest of the graph, as
    torch-geometric's `Cartesian` transform does.
    """
    nodes = pos.movedim(-1, 0)
    ahead = torch.roll(nodes, -1, -1) - nodes
    longest = ahead.abs().amax((0, 2), keepdim=True)
    ahead = ahead / (2 * longest)
    return torch.stack([-torch.roll(ahead, 1, -1), ahead], 1) + 0.5


@dataclass(frozen=True)
class NetworkSettings:
    """All that a network is made from, as plain values that a checkpoint can hold."""

    layers: int = 25  # of GMM
    channels: int = 16  # features of a node
    kernels: int = 2  # Gaussians of a layer
    hidden: int = 64  # width of the head
    # 2 takes every second node of an outline: half the cost, and each layer sees twice as far along
    # it. A mesh has all of its nodes.
    stride: int = 2
    # Where the signal enters: at the pooled features, so that `f` and `F` share all GMM layers, or
    # at every node's first features, the paper's way.
    entrance: Literal["head", "nodes"] = "head"
    # Whether an outline's layers begin smaller, by the root of their number, as a mesh's always do:
    # features then stay of size one, and a few hundred steps can train the network.
    damped: bool = False


class GraphNet(nn.Module):
    """A number from a shape, in standardised units turned into the user's by the last layer.

    `trunk` makes pooled features `(batch, channels)` of shapes; its `encode` makes a node's first.
    """

    def __init__(self, trunk: nn.Module, settings: NetworkSettings, adapter: Regression) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Sequential(
            nn.Linear(settings.channels, settings.hidden),
            nn.ELU(),
            nn.Linear(settings.hidden, settings.hidden),
            nn.ELU(),
            nn.Linear(settings.hidden, 1),
            adapter.rescale(),
        )

    def forward(self, x: Any) -> Tensor:
        output: Tensor = self.head(self.trunk(x))
        return output


@torch.no_grad()
def damp(layers: Sequence[_GMM]) -> None:
    """Begins so many layers with skips small: their outputs add up."""
    for layer in layers:
        for weight in (layer.g, layer.root.weight):
            weight.mul_(len(layers) ** -0.5)


def build(
    trunk: Callable[[NetworkSettings], nn.Module], settings: NetworkSettings, adapter: Regression
) -> Conditioned:
    """The conditioned network `f(shapes, signal)`; until it is trained it ignores the signal."""
    if not all(0 < size < 10_000 for size in vars(settings).values() if type(size) is int):
        raise IT3Error(f"a network's sizes are from 1 to 9999, unlike in {settings}")
    net = GraphNet(trunk(settings), settings, adapter)
    layer = "trunk" if settings.entrance == "head" else "trunk.encode"
    return condition(net, adapter, layer=layer, channels=settings.channels)
