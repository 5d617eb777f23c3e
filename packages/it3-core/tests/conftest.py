"""Small networks of the shapes that IT³ must adapt, each listening to its signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    Adapter,
    Binary,
    Classification,
    DenseMap,
    MultiLabel,
    Quantiles,
    Regression,
    condition,
    widen,
)


@dataclass
class GraphBatch:
    """A batch of graphs of different sizes, with the interface of torch-geometric's `Batch`."""

    nodes: Tensor
    edges: Tensor
    batch: Tensor
    num_graphs: int

    def index_select(self, rows: Sequence[int]) -> list[GraphBatch]:
        graphs = []
        for row in rows:
            inside = self.batch == row
            first = int(inside.nonzero()[0])
            edges = self.edges[:, inside[self.edges[0]]] - first
            graphs.append(GraphBatch(self.nodes[inside], edges, self.batch[inside] * 0, 1))
        return graphs

    @classmethod
    def from_data_list(cls, graphs: Sequence[GraphBatch]) -> GraphBatch:
        sizes = torch.tensor([len(graph.nodes) for graph in graphs])
        starts = (sizes.cumsum(0) - sizes).tolist()
        return cls(
            torch.cat([graph.nodes for graph in graphs]),
            torch.cat([g.edges + start for g, start in zip(graphs, starts, strict=True)], 1),
            torch.arange(len(graphs)).repeat_interleave(sizes),
            len(graphs),
        )

    def apply(self, function: Callable[[Tensor], Tensor]) -> GraphBatch:
        for field in fields(self)[:3]:
            setattr(self, field.name, function(getattr(self, field.name)))
        return self

    def to_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Messages(nn.Module):
    """Sums its neighbours' features, keeps its own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.other = nn.Linear(inputs, outputs)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        sent = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
        return nn.functional.elu(self.own(nodes) + self.other(sent))


class GraphNet(nn.Module):
    """Message passing, mean pooling, a head: graphs → vector."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(2, 6)
        self.first = Messages(6, 6)
        self.second = Messages(6, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: GraphBatch) -> Tensor:
        nodes = self.second(self.first(self.enter(x.nodes), x.edges), x.edges)
        pooled = torch.zeros(x.num_graphs, 6, dtype=nodes.dtype).index_add(0, x.batch, nodes)
        output: Tensor = self.head(pooled / torch.bincount(x.batch)[:, None])
        return output


class ConvNet(nn.Module):
    """Convolutions with batch norm, in-place activations and a skip: image → vector."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.middle = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ELU())
        self.late = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ELU())
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.stem(x)))
        x = x + self.middle(x)
        output: Tensor = self.head(self.late(x).mean((2, 3)))
        return output


class MapNet(nn.Module):
    """An encoder and decoder with a skip: image → image."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(6, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 6, 2, stride=2)
        self.out = nn.Conv2d(9, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.elu(self.down(x))
        hidden = nn.functional.elu(self.deep(hidden))
        output: Tensor = self.out(torch.cat([self.up(hidden), x], 1))
        return output


def mlp(outputs: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 12), nn.ELU(), nn.Linear(12, 8), nn.ELU(), nn.Linear(8, 4), nn.ELU(),
        nn.Linear(4, outputs),
    )  # fmt: skip


def graphs(sizes: Sequence[int], dtype: torch.dtype) -> GraphBatch:
    """Rings of these sizes."""
    parts = []
    for size in sizes:
        ring = torch.arange(size)
        edges = torch.stack([ring, (ring + 1) % size])
        nodes = torch.randn(size, 2, dtype=dtype)
        parts.append(GraphBatch(nodes, torch.cat([edges, edges.flip(0)], 1), ring * 0, 1))
    return GraphBatch.from_data_list(parts)


@dataclass
class Case:
    """A trained-looking network, its adapter, inputs and labels."""

    name: str
    model: nn.Module
    adapter: Adapter
    x: Any
    y: Tensor


def make_case(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> Case:
    """The network of that name with weights at random, its running statistics among them."""
    torch.manual_seed(seed)
    adapter: Adapter = Regression(mean=1.0, std=2.0)
    if name.startswith("mlp"):
        x: Any = torch.randn(6, 5, dtype=dtype)
        y = torch.randn(6, dtype=dtype)
        net = mlp().to(dtype)
        model = widen(net, adapter) if name == "mlp widened" else condition(net, adapter, "2")
    elif name in KINDS:
        adapter, outputs, y = KINDS[name]
        x = torch.randn(*y.shape[: 1 + (name == "tokens")], 5, dtype=dtype)
        model = condition(mlp(outputs).to(dtype), adapter, "2")
    elif name == "cnn":
        adapter = Classification(3)
        x, y = torch.randn(6, 3, 8, 8, dtype=dtype), torch.randint(3, (6,))
        model = condition(ConvNet().to(dtype), adapter, "middle.0")
    elif name == "graph":
        x, y = graphs([3, 5, 4, 6], dtype), torch.randn(4, dtype=dtype)
        model = condition(GraphNet().to(dtype), adapter, "first", channels=6)
    elif name == "map":
        adapter = DenseMap()
        x, y = torch.randn(4, 3, 8, 8, dtype=dtype), torch.randint(2, (4, 8, 8))
        model = condition(MapNet().to(dtype), adapter, "down")
    else:
        raise KeyError(name)
    for tensor in model.parameters():
        tensor.data += 0.3 * torch.randn_like(tensor)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean += 0.3 * torch.randn_like(module.running_mean)
            module.running_var += torch.rand_like(module.running_var)
    return Case(name, model.train(), adapter, x, y)


# Kinds of answers: an adapter, the outputs of a perceptron for it, and labels.
KINDS: dict[str, tuple[Adapter, int, Tensor]] = {
    "binary": (Binary(weights=[1, 2]), 1, torch.tensor([0, 1, 1, 0, 1, 0])),
    "labels": (MultiLabel(3), 3, torch.tensor([[0, 1, 1], [1, -1, 0]] * 3)),
    "quantiles": (Quantiles([0.1, 0.5, 0.9], 1.0, 2.0), 3, torch.linspace(-1, 4, 6)),
    "tokens": (Classification(4, each="token"), 4, torch.tensor([[0, 3, -100], [1, 2, 0]] * 3)),
}

CASES = ["mlp", "mlp widened", "cnn", "graph", "map", *KINDS]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


@pytest.fixture
def build() -> Callable[..., Case]:
    return make_case


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # these networks are small: threads would only wait for each other
