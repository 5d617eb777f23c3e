"""What must hold whatever the numbers are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from it3_core import IT3, Source
from it3_vision.data import Preparation
from it3_vision.roads.adapter import RoadMap
from it3_vision.roads.drawing import draw_scene, drawn_scenes
from it3_vision.roads.evaluate import ALL, HELD_OUT, Views, evaluate_run, load_evaluation
from it3_vision.roads.feed import Crops, as_input, fitted
from it3_vision.roads.learning import recurrent_zigzag
from it3_vision.roads.lineup import lineup
from it3_vision.roads.network import NO_DATA, DRUNet, DRUSettings, build
from it3_vision.roads.reading import open_roads
from it3_vision.roads.runs import Run, Training, load_run, train
from it3_vision.roads.scenes import make_scene
from it3_vision.roads.shifting import CHEAP, SHIFTS
from it3_vision.roads.tiling import answer

PREPARE = Preparation(32, (0.4,) * 3, (0.2,) * 3)


def network(steps: int = 2) -> DRUNet:
    torch.manual_seed(0)
    model = build(DRUSettings("tiny", steps)).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def inputs(n: int, size: int = 32) -> Tensor:
    x = torch.randn(n, 4, size, size, generator=torch.Generator().manual_seed(1))
    x[:, 3] = 1
    x[:, 3, :8] = 0
    return x


@pytest.mark.parametrize(("tile", "overlap"), [(64, 0), (64, 32), (48, 10), (256, 32)])
def test_seams_vanish(tile: int, overlap: int) -> None:
    """A method that looks at each pixel alone gives the same map however it is cut."""
    x = torch.randn(4, 150, 131)
    x[3] = 1
    (found,) = answer(lambda tiles: tiles[:, :1], [x], tile=tile, overlap=overlap)
    assert np.abs(found.probability - x[0].sigmoid().numpy()).max() < 1e-5


def test_images_of_several_sizes_are_answered_together() -> None:
    x = [torch.ones(4, 40, 90), torch.ones(4, 17, 16)]
    x[1][3, :5] = 0
    found = answer(lambda tiles: tiles[:, :1], x, tile=32, overlap=8)
    assert [one.probability.shape for one in found] == [(40, 90), (17, 16)]
    assert (found[1].probability[:5] == 0).all()
    assert (found[1].probability[5:] > 0.7).all()


def test_tiles_without_data_are_never_run() -> None:
    seen = []
    x = torch.ones(4, 32, 64)
    x[3, :, 32:] = 0

    def watching(tiles: Tensor) -> Tensor:
        seen.append(len(tiles))
        return tiles[:, :1]

    answer(watching, [x], tile=32, overlap=0)
    assert seen == [1]
    x[3] = 0
    assert (answer(watching, [x], tile=32)[0].probability == 0).all()
    assert seen == [1]


def test_parts_are_the_whole() -> None:
    """In parts, whose activations are computed again, a step is the same step."""
    model, x, adapter = network(), inputs(5), RoadMap()
    settings = {"optimizer": "SGD", "lr": 0.05, "steps": 2, "trust_region": False}
    answers = []
    for most in (10**9, 2 * 32 * 32):
        model.most = most
        answers.append(IT3(model, adapter, anchor_gradient=True, **settings)(x))
    whole, parts = answers
    assert not torch.allclose(whole.prediction, whole.initial, atol=1e-3)
    assert torch.allclose(whole.prediction, parts.prediction, atol=2e-4)


def test_only_the_last_layers_adapt_in_the_cheap_mode() -> None:
    model, x = network(), inputs(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = IT3(model, RoadMap(), parameters=CHEAP, lr=1e-2, trust_region=False)(x)
    assert not torch.equal(found.prediction, found.initial)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_recurrent_steps_are_not_its_steps() -> None:
    x, adapter = inputs(2), RoadMap()
    for steps in (1, 3):
        model = network(steps)
        masks = model.unrolled(x, adapter.neutral(x))
        assert len(masks) == steps
        assert torch.equal(masks[-1], model(x, adapter.neutral(x)))
        assert IT3(model, adapter, steps=2)(x).steps == 2


def test_no_data_take_no_part() -> None:
    model, x, adapter = network(), inputs(2), RoadMap()
    y0 = model(x, adapter.neutral(x))
    y1 = model(x, adapter.encode(y0))
    assert (y0[:, :, :8] == NO_DATA).all()
    gap = adapter.distance(y1, y0)
    assert torch.allclose(gap, adapter.distance(y1[:, :, 8:], y0[:, :, 8:]))
    assert gap.min() > 0
    label = torch.zeros(2, 32, 32, dtype=torch.long)
    label[:, :8] = -1
    assert torch.allclose(adapter.loss(y0, label), adapter.loss(y0[:, :, 8:], label[:, 8:]))
    (y0 - y1).square().sum().backward()  # finite, whatever the constant does
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_the_colour_of_no_data_does_not_matter() -> None:
    scene = draw_scene("rural", 64, seed=2, no_data=True)
    assert 0.05 < (~scene.known).mean() < 0.6
    other = scene.image.copy()
    other[~scene.known] = 7
    one, two = (as_input(PREPARE, image, scene.known) for image in (scene.image, other))
    assert torch.equal(one, two)
    assert one[:3].max() < (250 / 255 - 0.4) / 0.2  # no white is left


def test_a_wrong_second_signal_is_a_mask_of_the_batch() -> None:
    adapter = RoadMap()
    label = torch.zeros(2, 32, 32, dtype=torch.long)
    label[1] = 1
    told = adapter.encode(label)
    wrong = adapter.perturb(told, 0.5)
    blocks = wrong[:, 0].unfold(1, 16, 16).unfold(2, 16, 16).flatten(3)
    assert (blocks.amin(3) == blocks.amax(3)).all()  # whole patches
    assert torch.equal(adapter.perturb(told, 0.0), told)
    assert torch.equal(adapter.perturb(told, 1.0), told.flip(0))


def test_every_recurrent_step_is_trained() -> None:
    model, x = network().train(), inputs(2)
    y = torch.ones(2, 32, 32, dtype=torch.long)
    adapter = RoadMap()
    passes = [model.unrolled(x, s) for s in (adapter.neutral(x), adapter.encode(y))]
    by_hand = sum(
        adapter.loss(first, y).mean() / 3 + 2 * adapter.loss(second, y).mean() / 3
        for first, second in passes
    )
    found = recurrent_zigzag(model, adapter, x, y, second="label")
    assert torch.allclose(found, torch.as_tensor(by_hand), rtol=1e-5)
    y[1] = 0  # else all masks are alike, and none is wrong
    torch.manual_seed(0)
    wrong = recurrent_zigzag(model, adapter, x, y, second="noisy")
    assert not torch.allclose(wrong, recurrent_zigzag(model, adapter, x, y, second="label"))


def test_crops_turn_image_and_mask_alike() -> None:
    mask = np.zeros((96, 96), np.uint8)
    mask[30:40], mask[:, 60:66] = 255, 255
    image = np.where(mask[..., None] > 0, 200, 40).astype(np.uint8).repeat(3, 2)
    scene = make_scene("a", image, mask, 1.0)
    crops = Crops([scene], fitted([scene], 48), 48)
    torch.manual_seed(3)
    x, y = crops.collate([0] * 8)
    road, ground = x[:, 1][y == 1], x[:, 1][y == 0]
    assert road.mean() - ground.mean() > 1.5
    torch.manual_seed(3)
    assert torch.equal(crops.collate([0] * 8)[0], x)


def test_resolution_is_kept_with_the_ground() -> None:
    scene = draw_scene("urban", 120, seed=1, resolution=0.5)
    coarse = scene.at(1.5)
    assert coarse.image.shape[:2] == (40, 40)
    assert scene.label is not None
    assert coarse.label is not None
    assert abs((scene.label > 0).mean() - (coarse.label > 0).mean()) < 0.05
    lacking = draw_scene("rural", 120, seed=2, no_data=True).at(2.0)
    assert lacking.label is not None
    assert ((lacking.label < 0) == ~lacking.known).all()


def test_shifts_leave_alone_where_data_are() -> None:
    x = inputs(2)
    for name, shift in SHIFTS.items():
        moved = shift(x)
        assert torch.equal(moved[:, 3], x[:, 3]), name
        assert not torch.allclose(moved[:, :3], x[:, :3]), name


def test_the_same_scene_whatever_it_lies_in(folder: Callable[..., Path], tmp_path: Path) -> None:
    import tarfile

    place = folder(2)
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        tar.add(place, "roads")
    official = tmp_path / "massachusetts" / "test"
    official.mkdir(parents=True)
    (place / "images").rename(official / "sat")
    packed = open_roads(tmp_path / "all.tar.gz", resolution=1.0)
    (place / "masks").rename(official / "map")
    unpacked = open_roads(tmp_path / "massachusetts", split="test")
    for row in range(2):
        assert np.array_equal(packed[row].image, unpacked[row].image)
        assert np.array_equal(packed[row].label, unpacked[row].label)
    assert unpacked[0].resolution == 1.0


def test_a_run_is_read_as_it_was_written(run: Run) -> None:
    again = load_run(run.folder)
    x = inputs(2)
    assert torch.equal(again.model(x, again.adapter.neutral(x)),
                       run.model(x, run.adapter.neutral(x)))  # fmt: skip
    assert torch.equal(again.held_out[1], run.held_out[1])
    assert again.resolution == 1.0
    towns = drawn_scenes("urban", 24, 48)
    assert train(towns, run.folder, _training(run), progress=False).history == run.history


def _training(run: Run):  # type: ignore[no-untyped-def]
    from it3_vision.roads.runs import Training

    told = dict(run.settings["training"])
    return Training(**(told | {"network": DRUSettings(**told["network"])}))


def test_evaluation_is_paired_ordered_and_resumed(run: Run, country: Views, tmp_path: Path) -> None:
    only = ["second pass", "online IT³"]
    found = evaluate_run(
        run, country, out=tmp_path, batch_sizes=(2,), tile=32, only=only, progress=False
    )
    source = next(r for r in found.records if r["level"] == ALL and r["method"] == "source")
    by_name = dict(zip(country.names, source["mse"], strict=True))
    ranked = [by_name[name] for name in found.numbers["names"]]
    assert ranked == sorted(ranked)
    assert len(ranked) == len(country)
    levels = {r["level"] for r in found.records}
    assert levels == {ALL, HELD_OUT, *(f"MSE quartile {i}" for i in range(1, 5))}
    parts = [r for r in found.records if r["level"].startswith("MSE") and r["method"] == "source"]
    assert sorted(v for r in parts for v in r["quality"]) == sorted(source["quality"])
    means = [np.mean(r["mse"]) for r in parts]
    assert means == sorted(means)
    before = (tmp_path / "records.jsonl").read_text()
    again = evaluate_run(
        run, country, out=tmp_path, batch_sizes=(2,), tile=32, only=only, progress=False
    )
    assert (tmp_path / "records.jsonl").read_text() == before  # CPU seconds and all
    assert load_evaluation(tmp_path).table() == again.table()


def test_the_source_is_scored_as_it_answers(run: Run, country: Views, tmp_path: Path) -> None:
    from it3_vision.roads.ccq import score

    found = evaluate_run(run, country, out=tmp_path, batch_sizes=(1,), order="given", tile=48,
                         only=[], progress=False)  # fmt: skip
    (record,) = [r for r in found.records if (r["level"], r["method"]) == (ALL, "source")]
    source = Source(run.model, run.adapter)
    for row, (x, label) in enumerate(zip(country.inputs, country.labels, strict=True)):
        said = answer(source, [x], tile=48)[0].probability
        assert record["quality"][row] == pytest.approx(score(said, label).quality, abs=1e-5)
    assert found.numbers["names"] == country.names


def test_scenes_are_drawn_again_as_they_were() -> None:
    one, two = (draw_scene("urban", 48, seed=5) for _ in range(2))
    assert np.array_equal(one.image, two.image)
    assert not np.array_equal(one.image, draw_scene("urban", 48, seed=6).image)
    assert replace(one, name="x").resolution == 1.0


def test_vanilla_is_trained_beside_a_finished_one(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run.folder, folder)
    same = Training(DRUSettings("tiny", steps=2), size=32, epochs=3, batch_size=8, lr=1e-2)
    both = train(drawn_scenes("urban", 24, 48), folder, same, vanilla=True, progress=False)
    read = load_run(folder)
    assert both.vanilla is not None
    assert read.vanilla is not None
    x = run.held_out[0][:2]
    blind = Source(read.vanilla, read.adapter)(x).prediction
    assert torch.equal(blind, Source(both.vanilla.eval(), read.adapter)(x).prediction)
    assert not torch.equal(blind, Source(run.model, run.adapter)(x).prediction)
    assert "vanilla net" in lineup(read, 1).methods
    assert "vanilla net" not in lineup(run, 1).methods
