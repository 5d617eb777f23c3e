"""Numbers that are known from elsewhere: torch-geometric's layers, tables worked out by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nnf
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GMMConv, global_mean_pool

from it3_aero.gmm import RingGMM, gaussian_weights, ring_pseudo
from it3_aero.learning import NetworkSettings
from it3_aero.learning.quadrants import quadrant
from it3_aero.wings import naca, to_graph
from it3_aero.wings.network import OutlineTrunk
from it3_aero.wings.shapes import outlines
from it3_aero.wings.task import WINGS
from it3_core.summary import summarise
from it3_core.tables import compact, pooled


@pytest.fixture
def graphs() -> list[Data]:
    return [to_graph(naca(digits), nodes=40) for digits in ("0012", "2412", "4415", "6409")]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["double", "float"]
)
def test_ring_equals_gmmconv(graphs: list[Data], dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    conv = GMMConv(3, 5, dim=2, kernel_size=4).to(dtype)
    ring = RingGMM(3, 5, dim=2, kernel_size=4).to(dtype)
    ring.load_state_dict(conv.state_dict())
    batch = Batch.from_data_list(graphs)
    x = torch.randn(4, 40, 3, dtype=dtype, requires_grad=True)

    wanted = conv(x.flatten(0, 1), batch.edge_index, batch.edge_attr.to(dtype))
    pseudo = ring_pseudo(batch.pos.to(dtype).view(4, 40, 2))
    weights = gaussian_weights(pseudo, ring.mu, ring.sigma)
    got = ring(x.movedim(-1, 0), weights).movedim(0, -1).flatten(0, 1)

    # The graphs' pseudo-coordinates are single precision, whichever the layers are.
    close = max(tolerance, 1e-6)
    torch.testing.assert_close(got, wanted, rtol=close, atol=close)
    up = torch.randn_like(wanted)
    for name in ("g", "mu", "sigma", "bias"):
        (mine,) = torch.autograd.grad(got, getattr(ring, name), up, retain_graph=True)
        (theirs,) = torch.autograd.grad(wanted, getattr(conv, name), up, retain_graph=True)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_trunk_equals_a_stack_of_gmmconv(graphs: list[Data]) -> None:
    torch.manual_seed(0)
    trunk = OutlineTrunk(NetworkSettings(layers=25, channels=8, kernels=2, stride=1))
    batch = Batch.from_data_list(graphs)
    x = nnf.elu(trunk.encode(torch.stack([2 * batch.pos[:, 0] - 1, 10 * batch.pos[:, 1]], 1)))
    for layer in trunk.layers:
        conv = GMMConv(8, 8, dim=2, kernel_size=2)
        conv.load_state_dict(layer.state_dict())
        x = x + nnf.elu(conv(x, batch.edge_index, batch.edge_attr))
    wanted = global_mean_pool(x, batch.batch)
    torch.testing.assert_close(trunk(outlines(graphs)), wanted, rtol=1e-5, atol=1e-6)


def test_joined_levels_and_the_table_by_hand() -> None:
    cell = {
        "seed": 0, "reference": "source", "n": 2, "cpu_seconds": 2.0, "problem": None,
        "batch_size": None, "fallbacks": 0,
    }  # fmt: skip

    def record(level: str, method: str, errors: list[float], cost: float) -> dict[str, object]:
        plain = {"clean": [1.0, 1.0], "near": [4.0, 6.0], "far": [10.0, 20.0]}[level]
        gaps = [a - b for a, b in zip(errors, plain, strict=True)]
        return cell | {
            "level": level, "method": method, "errors": errors, "differences": gaps,
            "error": sum(errors) / 2, "difference": sum(gaps) / 2, "cost": cost,
            "cpu_seconds": 2.0 * cost, "in_distribution": level == "clean",
        }  # fmt: skip

    records = [
        record("clean", "source", [1.0, 1.0], 1.0),
        record("clean", "IT³", [1.5, 0.7], 3.0),
        record("near", "source", [4.0, 6.0], 1.0),
        record("near", "IT³", [3.0, 5.0], 3.0),
        record("far", "source", [10.0, 20.0], 1.0),
        record("far", "IT³", [9.0, 19.0], 5.0),
    ]
    joined = {one["method"]: one for one in pooled(records)}
    assert joined["source"]["error"] == 10.0
    assert joined["IT³"]["error"] == 9.0
    assert joined["IT³"]["difference"] == -1.0
    assert joined["IT³"]["cost"] == 4.0
    lines = compact(summarise([*records, *pooled(records)]))
    assert lines[0][2:6] == ["clean", "near", "far", "all beyond"]
    assert lines[2][:6] == ["IT³", "", "1.10", "4.00", "14.00", "9.00"]
    assert lines[2][6] == "-1.00 (-1.00 to -1.00)"
    assert lines[2][7] == "-10 %"
    assert lines[2][8].startswith("+0.10 (")


@pytest.mark.parametrize(
    ("y", "before", "flagged", "where"),
    [
        (50.0, 54.9, False, "trusted and right"),
        (50.0, 55.1, False, "trusted, yet wrong"),
        (5.0, 6.9, True, "not trusted, yet right"),
        (5.0, 7.1, True, "not trusted, and wrong"),
    ],
)
def test_quadrants(y: float, before: float, flagged: bool, where: str) -> None:
    assert quadrant(WINGS, {"y": y, "before": before, "flagged": flagged}) == where
