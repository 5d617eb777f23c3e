"""Numbers that are known from elsewhere: torch-geometric, and solid geometry."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nnf
import trimesh
from torch_geometric.nn import GMMConv
from torch_geometric.transforms import Cartesian

from it3_aero.cars.dataset import SAMPLE, CarDataset
from it3_aero.cars.graph import inputs, to_graph
from it3_aero.cars.network import MeshTrunk
from it3_aero.cars.task import CARS, PRESETS
from it3_aero.gmm import MeshGMM, Neighbours, gaussian_weights, mesh_weights
from it3_aero.learning import NetworkSettings
from it3_aero.learning.quadrants import quadrant
from it3_aero.learning.shapes import Levels


def test_presets_are_the_papers_network() -> None:
    assert {name: recipe.network.layers for name, recipe in PRESETS.items()} == dict.fromkeys(
        ("small", "paper"), 35
    )
    assert (PRESETS["paper"].epochs, PRESETS["paper"].lr) == (100, 1e-3)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["double", "float"]
)
def test_mesh_layer_equals_gmmconv(
    dataset: CarDataset, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    conv = GMMConv(3, 5, dim=3, kernel_size=4).to(dtype)
    layer = MeshGMM(3, 5, dim=3, kernel_size=4).to(dtype)
    layer.load_state_dict(conv.state_dict())
    cars = inputs([dataset[0], dataset[1]])
    pseudo = cars.edge_attr.to(dtype)
    x = torch.randn(cars.num_nodes, 3, dtype=dtype, requires_grad=True)
    near = Neighbours.of(cars.edge_index, cars.num_nodes)
    weights = mesh_weights(pseudo[near.order], layer.mu, layer.sigma)
    got = layer(x, near, weights / near.pointer.diff()[near.target])
    wanted = conv(x, cars.edge_index, pseudo)
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    up = torch.randn_like(wanted)
    mine = torch.autograd.grad(got, [x, *layer.parameters()], up)
    theirs = torch.autograd.grad(wanted, [x, *conv.parameters()], up)
    for ours, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-3, atol=10 * tolerance)


def test_trunk_equals_a_stack_of_gmmconv(dataset: CarDataset) -> None:
    torch.manual_seed(0)
    trunk = MeshTrunk(NetworkSettings(layers=35, channels=8, kernels=2)).double()
    cars = inputs([dataset[0], dataset[1], dataset[2]])
    cars.x, cars.edge_attr = cars.x.double(), cars.edge_attr.double()
    x = nnf.elu(trunk.encode(cars.x))
    for layer in trunk.layers:
        conv = GMMConv(8, 8, dim=3, kernel_size=2).double()
        conv.load_state_dict(layer.state_dict())
        x = x + nnf.elu(conv(x, cars.edge_index, cars.edge_attr))
    area = cars.x[:, 6:]
    parts = [slice(a, b) for a, b in zip(cars.ptr, cars.ptr[1:], strict=False)]
    wanted = torch.stack([(x[p] * area[p]).sum(0) / area[p].sum() for p in parts])
    torch.testing.assert_close(trunk(cars), wanted, rtol=1e-5, atol=1e-6)


def test_both_ways_of_weighing_edges_agree() -> None:
    torch.manual_seed(0)
    pseudo, mu, sigma = torch.rand(9, 3), torch.rand(4, 3), 0.1 + torch.rand(4, 3)
    wanted = gaussian_weights(pseudo.t().view(3, 1, 1, 9), mu, sigma)[0, :, 0]
    torch.testing.assert_close(mesh_weights(pseudo, mu, sigma), wanted)


def test_pseudo_coordinates_are_torch_geometrics(dataset: CarDataset) -> None:
    graph = dataset[3].clone()
    mine = graph.edge_attr
    graph.edge_attr = None
    torch.testing.assert_close(Cartesian()(graph).edge_attr, mine)


def test_normals_and_areas_of_a_ball() -> None:
    ball = trimesh.creation.icosphere(3, radius=2.0)
    graph = to_graph(ball.vertices, ball.faces)
    outward = torch.tensor(ball.vertices / 2.0, dtype=torch.float32)
    assert float((graph.x[:, 3:6] - outward).abs().max()) < 0.02
    assert float(graph.x[:, 6].mean()) == pytest.approx(1.0)
    assert 0.7 < float(graph.x[:, 6].min()) < float(graph.x[:, 6].max()) < 1.3
    assert graph.edge_index.shape[1] == 2 * len(ball.edges_unique)
    assert float(graph.x[:, 0].abs().max()) == pytest.approx(1.0)  # half a length is one


def test_levels_go_down_from_the_threshold(dataset: CarDataset, levels: Levels) -> None:
    threshold = dataset.threshold()
    within, near, far = levels.test.values()
    assert float(levels.train.y.min()) >= threshold
    assert float(within.y.min()) >= threshold
    assert threshold > float(near.y.max()) >= float(near.y.min()) >= float(far.y.max())
    assert len(near) + len(far) == 21  # a quarter of 84


@pytest.mark.parametrize(
    ("y", "before", "flagged", "where"),
    [
        (0.30, 0.314, False, "trusted and right"),
        (0.30, 0.316, False, "trusted, yet wrong"),
        (0.15, 0.159, True, "not trusted, yet right"),
        (0.15, 0.161, True, "not trusted, and wrong"),
    ],
)
def test_quadrants(y: float, before: float, flagged: bool, where: str) -> None:
    assert quadrant(CARS, {"y": y, "before": before, "flagged": flagged}) == where


def test_the_cars_that_come_with_the_package() -> None:
    cars = CarDataset()
    assert len(cars) >= 120
    assert cars.settings["seed"] == 0
    assert cars.preset == "coarse"
    assert cars.solver.startswith("OpenFOAM")
    assert SAMPLE.stat().st_size < 6e6
    drag: dict[str, list[float]] = {family: [] for family in ("streamlined", "sedan", "van", "box")}
    for car in cars:
        assert 0.1 < float(car.y) < 1.2
        assert 500 < car.num_nodes <= 1000
        assert 0.5 < float(car.cp.max()) < 1.6  # about 1 where the flow is stopped
        drag.get(car.family, []).append(float(car.y))
    means = [sum(values) / len(values) for values in drag.values()]
    assert means == sorted(means)
