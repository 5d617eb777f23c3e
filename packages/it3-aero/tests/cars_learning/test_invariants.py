"""What must hold whatever the numbers are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from it3_aero.cars.dataset import CarDataset
from it3_aero.cars.generating import CarStore
from it3_aero.cars.graph import inputs, moved, to_graph
from it3_aero.cars.model import SHIFTS, load_run
from it3_aero.cars.network import build
from it3_aero.cars.packed import pack
from it3_aero.learning import NetworkSettings
from it3_aero.learning.evaluate import Evaluation
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import Levels
from it3_core import IT3, Regression, Source
from it3_core.batching import take
from it3_core.evaluation import read_records


@pytest.mark.parametrize("entrance", ["head", "nodes"])
def test_untrained_network_ignores_the_signal(dataset: CarDataset, entrance: str) -> None:
    adapter, x = Regression(0.3, 0.1), inputs([dataset[0], dataset[1]])
    settings = NetworkSettings(layers=2, channels=4, entrance=entrance)  # type: ignore[arg-type]
    net = build(settings, adapter)
    told = adapter.encode(torch.tensor([[0.2], [0.4]]))
    assert torch.equal(net(x, adapter.neutral(x)), net(x, told))


def test_a_car_alone_and_in_any_batch(run: Run, levels: Levels) -> None:
    x = take(levels.test["in distribution"].x, range(5))
    source = Source(run.model, run.adapter)
    together = source(x).prediction
    alone = torch.cat([source(take(x, [row])).prediction for row in range(5)])
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    order = [3, 0, 4, 1, 2]
    torch.testing.assert_close(
        source(take(x, order)).prediction, together[order], rtol=1e-4, atol=1e-5
    )


def test_how_vertices_and_faces_are_numbered_does_not_matter(run: Run, dataset: CarDataset) -> None:
    car = dataset[0]
    order = torch.randperm(car.num_nodes, generator=torch.Generator().manual_seed(0))
    faces = order.argsort()[car.face].t().flip(0)
    other = to_graph(car.pos[order].numpy(), faces.numpy())
    source = Source(run.model, run.adapter)
    torch.testing.assert_close(
        source(inputs([other])).prediction,
        source(inputs([car])).prediction,
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_model_car_is_a_car(run: Run, levels: Levels) -> None:
    x = take(levels.test["in distribution"].x, [0, 1])
    source = Source(run.model, run.adapter)
    small = source(moved(x, 0.1 * x.pos)).prediction
    torch.testing.assert_close(small, source(x).prediction, rtol=1e-3, atol=1e-4)


def test_each_car_on_weights_of_its_own(run: Run, levels: Levels) -> None:
    x = take(levels.test["in distribution"].x, range(3))
    settings = {"lr": 1e-3, "trust_region": False}
    got = IT3(run.model, run.adapter, per_instance=True, **settings)(x).prediction  # type: ignore[arg-type]
    alone = IT3(run.model, run.adapter, **settings)  # type: ignore[arg-type]
    wanted = torch.cat([alone(take(x, [row])).prediction for row in range(3)])
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(got, Source(run.model, run.adapter)(x).prediction, atol=1e-4)


def test_it_has_learnt_something(run: Run, levels: Levels) -> None:
    within = levels.test["in distribution"]
    error = run.adapter.error(Source(run.model, run.adapter)(within.x).prediction, within.y)
    mean = (levels.train.y.mean() - within.y).abs().mean()
    assert float(error.mean()) < 0.75 * float(mean)


def test_run_read_again_is_the_run(run: Run, levels: Levels) -> None:
    again, x = load_run(run.folder), levels.test["in distribution"].x
    assert again.nodes == 90
    assert torch.equal(
        Source(again.model, again.adapter)(x).prediction,
        Source(run.model, run.adapter)(x).prediction,
    )


def test_what_failed_is_left_out_and_the_rest_is_as_it_was(dataset: CarDataset) -> None:
    assert len(dataset) == 84
    assert dataset.parameter_names == ("slant", "height", "width")
    assert bool(dataset[0].parameters.isnan()[0, 2])  # an Ahmed body without its width
    assert not bool(dataset[1].parameters.isnan().any())
    graph = dataset[7]
    assert (graph.name, graph.family, int(graph.sample)) == ("ahmed 7", "ahmed", 7)
    assert graph.cp.shape == (graph.num_nodes,)
    assert graph.y.shape == (1, 1)


def test_cache_is_used_and_made_again_when_samples_were_added(copy_of_data: Path) -> None:
    first = CarDataset(copy_of_data)
    cache = copy_of_data / "processed" / "cars.safetensors"
    written = cache.stat().st_mtime_ns
    for mesh in (copy_of_data / "raw" / "meshes").iterdir():
        mesh.rename(mesh.with_suffix(".gone"))
    again = CarDataset(copy_of_data)
    assert cache.stat().st_mtime_ns == written
    assert torch.equal(again[5].x, first[5].x)
    for mesh in (copy_of_data / "raw" / "meshes").iterdir():
        mesh.rename(mesh.with_suffix(".safetensors"))
    settings = first.settings
    with CarStore(copy_of_data, settings) as store:
        graph = first[0]
        arrays = {
            "pos": graph.pos.numpy(),
            "faces": graph.face.t().contiguous().numpy(),
            "cp": graph.cp.numpy(),
        }
        more = {"sample": 85, "name": "again", "family": "ahmed", "parameters": {"slant": 3.0}}
        store.append(more | {"cd": 0.5, "mesh": "meshes/000085.safetensors", "arrays": arrays})
    assert len(CarDataset(copy_of_data)) == 85


def test_packed_file_is_the_folder(dataset: CarDataset, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "cars.safetensors"
    pack(data, file)
    packed = CarDataset(file)
    assert len(packed) == len(dataset)
    assert packed.parameter_names == dataset.parameter_names
    for mine, other in zip(packed, dataset, strict=True):
        assert torch.equal(mine.x, other.x)
        assert torch.equal(mine.edge_index, other.edge_index)
        assert torch.equal(mine.y, other.y)
        assert float((mine.cp - other.cp).abs().max()) < 1e-3
        assert mine.name == other.name
    before = file.read_bytes()
    pack(data, file)
    assert file.read_bytes() == before


def test_shifts_are_small_and_repeatable(levels: Levels) -> None:
    x = take(levels.train.x, range(4))
    for shift in SHIFTS.values():
        first = shift(x, generator=torch.Generator().manual_seed(1))
        second = shift(x, generator=torch.Generator().manual_seed(1))
        assert torch.equal(first.x, second.x)
        assert 0 < float((first.pos - x.pos).abs().max()) < 0.1  # of a body one metre long
        assert torch.equal(first.edge_index, x.edge_index)
        assert not torch.equal(first.edge_attr, x.edge_attr)


def test_stream_goes_towards_lower_drag(levels: Levels) -> None:
    labels = torch.cat([cars.y for cars in levels.drawn(8).test.values()])
    assert torch.equal(labels, labels.sort(descending=True).values)


def test_evaluation_has_every_line(evaluation: Evaluation) -> None:
    names = {record["method"] for record in evaluation.records}
    assert names == {
        "source", "second pass", "vanilla net", "ActMAD", "IT³ paper", "IT³ cheap", "IT³ auto",
        "online IT³", "train mean", "gradient boosting",
    }  # fmt: skip
    for record in read_records(evaluation.folder / "records.jsonl"):
        assert record["problem"] is None
        assert len(record["errors"]) == record["n"] == 8
    assert {r["batch_size"] for r in evaluation.records if r["method"] == "ActMAD"} == {1, 4}
    boosted = [r for r in evaluation.rows if r["method"] == "gradient boosting"]
    assert boosted[0]["error"] < 0.03  # in distribution, on the numbers the drag was made from
