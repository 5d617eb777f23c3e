"""What must hold for any input."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.loader import DataLoader

from it3_aero.cars import task as cars_task
from it3_aero.cars.dataset import CarDataset, inputs, moved, pack
from it3_aero.cars.dataset import to_graph as car_graph
from it3_aero.generation.store import read_data
from it3_aero.shapes.graph_net import NetworkSettings, build
from it3_aero.wings import Airfoil, WingDataset, XFoil, generate, naca, naca4, outline
from it3_aero.wings import task as wings_task
from it3_aero.wings.files import read_airfoil
from it3_aero.wings.generating import TASK, Settings, Solved
from it3_aero.wings.geometry import resample
from it3_aero.wings.graph import OutlineTrunk, to_graph
from it3_aero.wings.task import WINGS
from it3_core import IT3, IT3Error, Regression, Source, sensitivity
from it3_core.batching import take
from it3_core.experiment.evaluate import load_evaluation
from it3_core.experiment.folder import load
from it3_core.experiment.types import Network, TestSet

shapes = st.builds(
    naca4,
    camber=st.floats(0.0, 0.08),
    position=st.floats(0.2, 0.7),
    thickness=st.floats(0.04, 0.3),
    n=st.sampled_from([41, 100, 201]),
)


@given(airfoil=shapes)
@settings(max_examples=40, deadline=None)
def test_every_airfoil_has_the_same_form(airfoil: Airfoil) -> None:
    x, y = airfoil.points.T
    assert x.min() == 0.0
    assert x.max() == pytest.approx(1.0)
    assert y[0] + y[-1] == pytest.approx(0.0)
    nose = int(np.argmin(x))
    assert y[:nose].mean() > y[nose:].mean()
    assert not airfoil.points.flags.writeable


@given(
    airfoil=shapes,
    backwards=st.booleans(),
    scale=st.floats(0.01, 1000),
    shift=st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
    start=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=30, deadline=None)
def test_direction_scale_place_and_start_do_not_matter(
    airfoil: Airfoil, backwards: bool, scale: float, shift: tuple[float, float], start: float
) -> None:
    ring = np.roll(airfoil.points, -int(start * len(airfoil.points)), axis=0)
    given_points = (ring[::-1] if backwards else ring) * scale + np.array(shift) * scale
    assert outline("same", given_points).points == pytest.approx(airfoil.points, abs=1e-9)


@given(airfoil=shapes)
@settings(max_examples=15, deadline=None)
def test_resampling_stays_on_the_outline(airfoil: Airfoil) -> None:
    graph = to_graph(airfoil, nodes=64)
    dense = naca4(**airfoil.parameters, n=801).points
    gaps = np.hypot(*(dense[:, None] - graph.pos.double().numpy()[None]).T).min(axis=1)
    assert gaps.max() < 3e-3


def test_a_mirrored_airfoil_has_a_mirrored_graph_and_flow(xfoil: XFoil) -> None:
    one = naca("2412")
    other = outline("mirrored", one.points * [1, -1])
    assert to_graph(other).pos.flip(0) * torch.tensor([1, -1]) == pytest.approx(to_graph(one).pos)
    here, there = xfoil.solve(one, 1e6, 3.0), xfoil.solve(other, 1e6, -3.0)
    assert there.cl == pytest.approx(-here.cl, abs=2e-3)
    assert there.cd == pytest.approx(here.cd, rel=5e-3)


def selig(points: np.ndarray) -> list[str]:
    return [f"{x:.6f} {y:.6f}" for x, y in points.tolist()]


def lednicer(points: np.ndarray) -> list[str]:
    nose = int(np.argmin(points[:, 0]))
    upper, lower = points[nose::-1], points[nose:]
    return [f"{len(upper)}. {len(lower)}.", "", *selig(upper), "", *selig(lower)]


STYLES: dict[str, Callable[[np.ndarray], list[str]]] = {
    "selig": lambda points: ["NACA 2412", *selig(points)],
    "no header": selig,
    "other direction": lambda points: ["NACA 2412", *selig(points[::-1])],
    "from the nose": lambda points: ["x", *selig(np.roll(points, 100, axis=0))],
    "in millimetres": lambda points: ["NACA 2412 chord 180 mm", *selig(180 * points)],
    "lednicer": lambda points: ["NACA 2412", *lednicer(points)],
    "lednicer, no counts": lambda points: ["NACA 2412", *lednicer(points)[1:]],
    "lednicer, lower first": lambda points: ["x", *selig(points[100:]), *selig(points[100::-1])],
    "headings": lambda p: ["x", "Upper", *lednicer(p)[2:104], "Lower", *selig(p[100:])],
    "commas": lambda points: [line.replace(" ", ", ") for line in ["x,y", *selig(points)]],
    "tabs, windows": lambda points: [f"{line}\r".replace(" ", "\t") for line in selig(points)],
    "comments": lambda points: ["# by hand", "! 2026", "2412", *selig(points), "% end"],
    "a note after it": lambda points: ["x", *selig(points), "Thickness: 12 %", "28/12/2005", "--"],
    "fortran": lambda points: [line.replace(".", ".") + "D0" for line in selig(points)],
    "sharp": lambda points: ["x", *selig(points - [[0, y] for y in 0.00126 * points[:, 0]][:1])],
    "a z column": lambda points: [f"{line} 0.000" for line in selig(points)],
}


@pytest.mark.parametrize("style", STYLES)
def test_files_in_any_style_are_the_same_airfoil(style: str, tmp_path: Path) -> None:
    wanted = naca("2412")
    path = tmp_path / "shape.dat"
    path.write_text("\n".join(STYLES[style](wanted.points)), newline="")
    at = np.linspace(0.02, 0.98, 25)
    assert resample(read_airfoil(path), at) == pytest.approx(resample(wanted, at), abs=2e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty profiles by NeuralFoil, with camber for both sides of 60."""
    out = tmp_path_factory.mktemp("wings")
    ranges = {"camber": (0.0, 0.05)}
    generate(out, 20, ranges=ranges, solver="neuralfoil", workers=2, progress=False)
    return out


def test_a_dataset_holds_what_was_generated(folder: Path) -> None:
    wings = WingDataset(folder)
    _, records = read_data(folder, TASK, Settings, Solved)
    assert len(wings) == len(records) == 20
    assert wings.solver.startswith("NeuralFoil")
    for data, record in zip(wings, records, strict=True):
        assert data.y.item() == pytest.approx(record["cl"] / record["cd"], rel=1e-6)
        assert data.name == record["name"]
        assert data.sample.item() == record["sample"]
        named = dict(zip(wings.parameter_names, data.parameters[0].tolist(), strict=True))
        assert named == pytest.approx(record["parameters"], rel=1e-6)
        assert data.cp.shape == (data.num_nodes,)
        wanted = to_graph(naca4(**record["parameters"]))
        assert all(torch.equal(data[k], wanted[k]) for k in ("pos", "edge_index", "edge_attr"))
    batch = next(iter(DataLoader(wings, batch_size=5)))
    assert (batch.y.shape, batch.parameters.shape) == ((5, 1), (5, 3))
    assert torch.equal(wings[[3, 1]][1].pos, wings[1].pos)


def test_a_split_puts_every_profile_in_one_place(folder: Path) -> None:
    wings = WingDataset(folder)
    split = wings.split(threshold=60.0, seed=1)
    parts = [split.train, split.validation, split.test, *split.levels.values()]
    assert sorted(index for part in parts for index in part) == list(range(20))
    assert all(wings[i].y <= 60 for i in [*split.train, *split.validation, *split.test])
    ratios = [float(wings[i].y) for level in split.levels.values() for i in level]
    assert ratios == sorted(ratios)
    assert min(ratios) > 60
    assert len(split.levels) == 3
    assert wings.split(seed=1) == split
    assert wings.split(seed=2).train != split.train


@dataclass(frozen=True)
class Trained:
    """One task's experiment, and what it is tested on."""

    task: Any
    folder: Path
    network: Network
    tests: TestSet
    baselines: set[str]

    @property
    def x(self) -> Any:
        """Eight shapes in distribution."""
        return take(self.tests.levels["in distribution"].x, range(8))  # type: ignore[union-attr]

    def source(self, x: Any) -> torch.Tensor:
        return Source(self.network.model, self.network.adapter)(x).prediction


@pytest.fixture(scope="module", params=["wings", "cars"])
def trained(request: pytest.FixtureRequest, demo: Path, cars_experiment: Path) -> Trained:
    wings = request.param == "wings"
    folder = demo / "experiment" if wings else cars_experiment
    task: Any = wings_task if wings else cars_task
    experiment = load(folder, task.TASK.name, task.TASK.restore)
    names = {"Gaussian process"} if wings else {"train mean", "gradient boosting"}
    tests = task.TASK.test_set(experiment, task.Evaluate())
    return Trained(task, folder, experiment.first, tests, names)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


def test_a_shape_alone_and_in_any_batch(trained: Trained) -> None:
    together = trained.source(trained.x)
    close(torch.cat([trained.source(take(trained.x, [row])) for row in range(8)]), together)
    order = [3, 0, 7, 4, 1, 6, 2, 5]
    close(trained.source(take(trained.x, order)), together[order])


def test_each_shape_on_weights_of_its_own_is_what_a_loop_gives(trained: Trained) -> None:
    network, x = trained.network, take(trained.x, range(3))
    step: dict[str, Any] = {"lr": 1e-3, "trust_region": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it says so where it can't map over rows
        got = IT3(network.model, network.adapter, per_instance=True, **step)(x).prediction
    alone = IT3(network.model, network.adapter, **step)
    close(got, torch.cat([alone(take(x, [row])).prediction for row in range(3)]))
    assert not torch.allclose(got, trained.source(x), atol=1e-4)


def test_it_has_learnt_listens_and_its_vanilla_network_does_not(trained: Trained) -> None:
    network = trained.network
    levels = trained.tests.levels
    y = torch.cat([level.y for level in levels.values()][:1])  # type: ignore[union-attr]
    assert network.measured["validation_error"] < 0.8 * float((y - y.mean()).abs().mean())
    assert sensitivity(network.model, network.adapter, trained.x) > 1e-3
    assert network.vanilla is not None
    assert sensitivity(network.vanilla, network.adapter, trained.x) == 0.0


def test_shifts_are_small_and_repeatable(trained: Trained) -> None:
    x = trained.x
    for shift in (WINGS if trained.task is wings_task else cars_task.CARS).shifts.values():
        first, second = (shift(x, generator=torch.Generator().manual_seed(1)) for _ in range(2))
        one, other, before = (v if torch.is_tensor(v) else v.pos for v in (first, second, x))
        assert torch.equal(one, other)
        assert 0 < float((one - before).abs().max()) < 0.1  # of shapes about one in length


def test_an_evaluation_has_every_line_in_the_order_of_growing_shift(trained: Trained) -> None:
    found = load_evaluation(trained.folder / "evaluation")
    lines = {
        "source",
        "second pass",
        "vanilla net",
        "ActMAD",
        "IT³ (paper)",
        "IT³ cheap",
        "online IT³ (paper)",
    }
    lines |= {"IT³ (paper, gradient stopped)", "IT³ auto", "online IT³", *trained.baselines}
    assert {record["method"] for record in found.records} == lines
    for record in found.records:
        assert record["problem"] is None
        assert len(record["errors"]) == record["n"]
    falling = trained.task is cars_task
    threshold = trained.network.settings["threshold"]
    inside, *beyond = [level.y for level in trained.tests.levels.values()]  # type: ignore[union-attr]
    assert all((y < threshold if falling else y > threshold).all() for y in beyond)
    assert bool((inside >= threshold if falling else inside <= threshold).all())
    captions = {name: caption for name, _, _, caption in found.summary["pictures"]}
    assert {"paper-boxes", "samples"} <= set(captions)
    assert captions["errors"].endswith("seed 0.")  # with the training curve
    stream = torch.cat(beyond)
    assert torch.equal(stream, stream.sort(descending=falling).values)


@pytest.mark.parametrize("entrance", ["head", "nodes"])
def test_untrained_network_ignores_the_signal(entrance: Any) -> None:
    adapter, x = Regression(30.0, 10.0), torch.rand(3, 20, 2)
    net = build(OutlineTrunk, NetworkSettings(layers=2, channels=4, entrance=entrance), adapter)
    told = adapter.encode(torch.tensor([[10.0], [20.0], [60.0]]))
    assert torch.equal(net(x, adapter.neutral(x)), net(x, told))


def test_where_a_ring_begins_and_how_a_mesh_is_numbered_do_not_matter(
    cars_data: Path, cars_experiment: Path
) -> None:
    trunk = OutlineTrunk(NetworkSettings(layers=4, channels=6, stride=1)).double()
    x = torch.rand(2, 30, 2, dtype=torch.double)
    torch.testing.assert_close(trunk(x.roll(7, 1)), trunk(x))
    network = load(cars_experiment, "cars", cars_task.restore).first
    source, car = Source(network.model, network.adapter), CarDataset(cars_data)[0]
    order = torch.randperm(car.num_nodes, generator=torch.Generator().manual_seed(0))
    faces = order.argsort()[car.face].t().flip(0)
    wanted = source(inputs([car])).prediction
    other = car_graph(car.pos[order].numpy(), faces.numpy())
    close(source(inputs([other])).prediction, wanted)
    model = moved(inputs([car]), 0.1 * car.pos)  # a model car is a car
    close(source(model).prediction, wanted)


def test_a_packed_file_is_the_folder_without_what_failed(cars_data: Path, tmp_path: Path) -> None:
    file, dataset = tmp_path / "cars.safetensors", CarDataset(cars_data)
    pack(cars_data, file)
    before, packed = file.read_bytes(), CarDataset(file)
    assert len(packed) == len(dataset) == 84
    assert packed.parameter_names == dataset.parameter_names == ("slant", "height", "width")
    assert dataset[0].parameters.isnan().tolist() == [[False, False, True]]  # it has no width
    for mine, other in zip(packed, dataset, strict=True):
        assert all(torch.equal(mine[key], other[key]) for key in ("x", "edge_index", "y"))
        assert float((mine.cp - other.cp).abs().max()) < 1e-3
        assert (mine.name, mine.family) == (other.name, "ahmed")
    pack(cars_data, file)
    assert file.read_bytes() == before
    for share in (0.0, 0.1, 0.9):
        file.write_bytes(before[: int(share * len(before))])
        with pytest.raises(IT3Error, match="is cut off, damaged or no safetensors file"):
            CarDataset(file)


def test_a_mesh_that_is_broken_or_elsewhere_is_not_read(cars_data: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(cars_data, tmp_path / "data"))
    mesh = data / "raw" / "meshes" / "000003.safetensors"
    whole = mesh.read_bytes()
    for content in (b"", whole[: len(whole) // 2]):
        mesh.write_bytes(content)
        with pytest.raises(IT3Error, match="000003"):
            CarDataset(data)
    (data / "elsewhere.safetensors").write_bytes(whole)
    samples = data / "raw" / "samples.jsonl"
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    lines[3]["mesh"] = "../elsewhere.safetensors"
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(IT3Error, match="outside of the folder"):
        CarDataset(data)
