"""Numbers that can be worked out by hand, and what must hold whatever the numbers are."""

from __future__ import annotations

import tarfile
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from it3_core import IT3, Source
from it3_core.batching import Ragged
from it3_core.experiment.evaluate import load_evaluation
from it3_vision.data import Preprocessing
from it3_vision.methods import TTT
from it3_vision.methods.rotation import rotation_logits
from it3_vision.roads.adapter import RoadMap, recurrent_supervised, recurrent_zigzag, score
from it3_vision.roads.drawn import draw_scene, drawn_scenes
from it3_vision.roads.further import NAME, Further
from it3_vision.roads.geo import centre_lines
from it3_vision.roads.lines import ttt
from it3_vision.roads.network import NO_DATA, DRUSettings, build
from it3_vision.roads.reading import open_roads
from it3_vision.roads.scenes import (
    SHIFTS,
    Crops,
    as_input,
    find_no_data,
    fitted,
    images_of,
    make_scene,
)
from it3_vision.roads.task import ALL, VALIDATION, _input, _kept, comparison, inputs_of
from it3_vision.roads.tiling import Tiled


def line(row, start=0, end=100):
    found = np.zeros((60, 100), bool)
    found[row, start:end] = True
    return found


@pytest.mark.parametrize(
    ("predicted", "true", "slack", "expected"),
    [
        (line(20), line(20), 0, (1.0, 1.0, 1.0)),
        (line(25), line(20), 5, (1.0, 1.0, 1.0)),
        (line(26), line(20), 5, (0.0, 0.0, 0.0)),
        (line(20, 0, 50), line(20), 0, (1.0, 0.5, 0.5)),
        (line(20, 0, 50), line(20), 5, (1.0, 0.55, 0.55)),  # its end covers five more pixels
        (line(20, 0, 50) | line(50, 0, 50), line(20), 0, (0.5, 0.5, 1 / 3)),
        (line(0, 0, 0), line(20), 5, (1.0, 0.0, 0.0)),
        (line(20), line(0, 0, 0), 5, (0.0, 1.0, 0.0)),
        (line(0, 0, 0), line(0, 0, 0), 5, (1.0, 1.0, 1.0)),
    ],
)
def test_ccq_of_lines(predicted, true, slack, expected):
    assert score(predicted, true.astype(int), slack)[:3] == pytest.approx(expected)


def test_ccq_is_euclidean_and_iou_has_no_slack_and_no_data_count_for_nothing():
    true, predicted = np.zeros((2, 20, 20), bool)
    true[5, 5], predicted[8, 9] = True, True  # three down, four right: five away
    assert score(predicted, true.astype(int), 5).quality == 1
    assert score(predicted, true.astype(int), 4.99).quality == 0
    found = score(line(22).astype(float), line(20).astype(int), slack=5)
    assert (found.quality, found.iou) == (1.0, 0.0)
    assert found.mse == pytest.approx(200 / 6000)
    # Wrong and missed roads where nobody can know; the rest is right.
    label = np.where(np.arange(100) < 50, line(20), -1)
    assert score(line(20, 0, 50) | line(50, 60, 100), label, slack=0) == (1, 1, 1, 1, 0)


def test_a_cross_has_four_arms_and_a_ring_is_closed():
    cross = np.zeros((61, 61), bool)
    cross[28:33], cross[:, 28:33] = True, True
    arms = centre_lines(cross)
    assert len([arm for arm in arms if np.hypot(*(arm[-1] - arm[0])) > 20]) == 4
    middle = np.array([30.0, 30.0])
    assert all(min(np.hypot(*(arm - middle).T)) < 4 for arm in arms)
    y, x = np.indices((61, 61))
    ring = np.abs(np.hypot(y - 30, x - 30) - 20) < 3
    (closed,) = centre_lines(ring)
    assert closed[0].tolist() == closed[-1].tolist()
    assert np.hypot(*(closed - middle).T) == pytest.approx(20, abs=1.6)


def test_corners_have_no_data_and_roofs_and_shadows_have():
    corner = np.tri(200, 200, -100, bool)
    image = np.full((200, 200, 3), 80, np.uint8)
    image[corner], image[20:60, 120:160] = 253, 255  # as a JPEG leaves it; a roof
    found = find_no_data(image)
    assert (found != corner).mean() < 0.005
    assert not found[20:60, 120:160].any()
    image[corner], image[20:60, 120:160] = 0, 0  # inside, as a shadow
    image[:60, :60] = (0, 0, 1)  # at the border, as water
    image[:, 199] = 0  # at the border, as a line
    assert np.array_equal(find_no_data(image), corner)
    image[70:170, 90:190] = 0  # huge: then it need not reach the border
    assert find_no_data(image)[72:168, 92:188].all()


PREPARE = Preprocessing(32, (0.4,) * 3, (0.2,) * 3)


def network(steps=2):
    torch.manual_seed(0)
    model = build(DRUSettings("tiny", steps)).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def inputs(n, size=32):
    x = torch.randn(n, 4, size, size, generator=torch.Generator().manual_seed(1))
    x[:, 3] = 1
    x[:, 3, :8] = 0
    return x


@pytest.mark.parametrize(("tile", "overlap"), [(64, 0), (64, 32), (48, 10), (256, 32)])
def test_seams_vanish(tile, overlap):
    """A method that looks at each pixel alone gives the same map however it is cut."""
    x = torch.randn(4, 150, 131)
    x[3] = 1
    (found,) = Tiled(lambda tiles: tiles[:, :1], tile, overlap)(Ragged([x])).prediction
    assert (found - x[0].sigmoid()).abs().max() < 1e-5


def test_images_of_several_sizes_are_predicted_at_once_and_nothing_without_data():
    seen: list[int] = []

    def watching(tiles):
        seen.append(len(tiles))
        return tiles[:, :1]

    x = [torch.ones(4, 40, 90), torch.ones(4, 17, 16), torch.ones(4, 7, 21)]
    x[1][3, :5], x[2][3] = 0, 0
    tiled = Tiled(watching, tile=32, overlap=8)
    found = list(tiled(Ragged(x)).prediction)
    assert [one.shape for one in found] == [(40, 90), (17, 16), (7, 21)]
    assert [(one == -1).sum() for one in found] == [0, 5 * 16, 7 * 21]
    empty = tiled(Ragged(x[2:]))
    assert (empty.prediction.rows[0] == -1).all()
    assert (empty.error_before.tolist(), seen) == ([0], [2 * 4 + 1])


def test_an_image_is_as_unusual_as_its_tiles_on_average():
    model, adapter = network(), RoadMap()
    x = inputs(1, 64)[0]
    whole = Tiled(Source(model, adapter), tile=32, overlap=0)(Ragged([x, x[:, :32, :32]]))
    cut = torch.stack([x[:, i : i + 32, j : j + 32] for i in (0, 32) for j in (0, 32)])
    errors = Source(model, adapter)(cut).error_before
    assert torch.allclose(whole.error_before, torch.stack([errors.mean(), errors[0]]))


def test_parts_are_the_whole():
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


def test_no_data_take_no_part():
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


def test_the_colour_of_no_data_does_not_matter():
    scene = draw_scene("rural", 64, seed=2, no_data=True)
    assert 0.05 < (~scene.known).mean() < 0.6
    other = np.where(scene.known[..., None], scene.image, np.uint8(7))
    one, two = (as_input(PREPARE, image, scene.known) for image in (scene.image, other))
    assert torch.equal(one, two)
    for shift in SHIFTS.values():  # they leave alone where data are
        assert torch.equal(shift(one[None])[0, 3], one[3])
        assert not torch.allclose(shift(one[None])[0, :3], one[:3])


def test_a_wrong_second_signal_is_a_mask_of_the_batch():
    adapter = RoadMap()
    label = torch.zeros(2, 32, 32, dtype=torch.long)
    label[1] = 1
    told = adapter.encode(label)
    wrong = adapter.perturb(told, 0.5)
    blocks = wrong[:, 0].unfold(1, 16, 16).unfold(2, 16, 16).flatten(3)
    assert (blocks.amin(3) == blocks.amax(3)).all()  # whole patches
    assert torch.equal(adapter.perturb(told, 0.0), told)
    assert torch.equal(adapter.perturb(told, 1.0), told.flip(0))


def test_every_recurrent_step_is_trained():
    model, x, adapter = network().train(), inputs(2), RoadMap()
    y = torch.ones(2, 32, 32, dtype=torch.long)
    first, second = (
        sum(w * adapter.loss(p, y).mean() for w, p in zip((1 / 3, 2 / 3), passed, strict=True))
        for passed in (model.unrolled(x, s) for s in (adapter.neutral(x), adapter.encode(y)))
    )
    loss = partial(recurrent_zigzag, model, adapter, x, y)
    assert torch.allclose(loss(second_signal="label"), torch.as_tensor(first + second), rtol=1e-5)
    assert torch.equal(loss(noisy_fraction=0.0), loss(second_signal="label"))
    assert torch.allclose(recurrent_supervised(model, adapter, x, y), torch.as_tensor(first))
    y[1] = 0  # else all masks are alike, and none is wrong
    torch.manual_seed(0)
    assert not torch.allclose(loss(noisy_fraction=1.0), loss(second_signal="label"))


def test_crops_turn_image_and_mask_alike():
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


def test_resolution_is_kept_with_the_ground():
    scene = draw_scene("urban", 120, seed=1, resolution=0.5)
    coarse = scene.at(1.5)
    assert coarse.image.shape[:2] == (40, 40)
    assert abs((scene.label > 0).mean() - (coarse.label > 0).mean()) < 0.05
    lacking = draw_scene("rural", 120, seed=2, no_data=True).at(2.0)
    assert ((lacking.label < 0) == ~lacking.known).all()
    again = draw_scene("urban", 120, seed=1, resolution=0.5)  # drawn as it was
    assert np.array_equal(again.image, scene.image)


def test_the_same_scene_whatever_it_lies_in(write, tmp_path):
    place = write(2)
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        tar.add(place, "roads")
    official = tmp_path / "massachusetts" / "test"
    official.mkdir(parents=True)
    (place / "images").rename(official / "sat")
    (place / "masks").rename(official / "map")
    packed = open_roads(tmp_path / "all.tar.gz", resolution=1.0)
    unpacked = open_roads(tmp_path / "massachusetts", split="test")
    for row in range(2):
        assert np.array_equal(packed[row].image, unpacked[row].image)
        assert np.array_equal(packed[row].label, unpacked[row].label)
    assert unpacked.resolution == unpacked[0].resolution == 1.0


def test_every_image_is_scored_as_the_source_predicts_it(experiment, scenes, evaluation):
    found = load_evaluation(evaluation)
    network, country = experiment.first, open_roads(scenes, resolution=1.0, split="test")
    prepare = Preprocessing(**network.settings["prepare"])
    source = Tiled(Source(network.model, network.adapter), tile=32)
    by_name = {}
    for scene in (country[row] for row in range(len(country))):
        (road,) = source(Ragged([as_input(prepare, scene.image, scene.known)])).prediction
        by_name[scene.name] = score(road.numpy(), scene.label)
    (record,) = [r for r in found.records if (r["level"], r["method"]) == (ALL, "source")]
    names = found.answers[found.answers["level"] == ALL]["name"].tolist()
    assert names == sorted(names, key=lambda name: by_name[name].mse)
    assert record["mse"] == pytest.approx([100 * by_name[name].mse for name in names], abs=1e-3)
    errors = [100 - 100 * by_name[name].quality for name in names]
    assert record["errors"] == pytest.approx(errors, abs=1e-3)
    # Quartiles hold the images in this order, each once.
    rows = [r for r in found.rows if r["method"] == "source" and r["level"].startswith("MSE")]
    parts = np.array_split(record["errors"], 4)
    assert [r["error"] for r in rows] == pytest.approx([part.mean() for part in parts])
    crops = {(r["method"], r["batch_size"]): r for r in found.records if r["level"] == VALIDATION}
    assert ("vanilla net", None) in crops
    # What was tuned for several crops at once is not done to a single one.
    assert crops["IT³ auto", 1]["errors"] == crops["source", None]["errors"]


def test_images_as_they_come_have_the_same_quartiles(experiment, scenes):
    images = images_of(open_roads(scenes, resolution=1.0, split="test"), 1.0)
    by_order = {}
    for order in ("mse", "given"):
        test_set = comparison(experiment, images, [1], order=order, tile=32)
        names = test_set.levels[ALL](experiment.first).names  # type: ignore[operator]
        by_order[order] = [[names[row] for row in group.part] for group in test_set.groups]
        assert (names == [scene.name for scene in images.scenes]) is (order == "given")
    assert by_order["mse"] == by_order["given"]


def test_ttt_turns_tiles_and_moves_the_encoder_alone():
    torch.manual_seed(0)
    model, x, adapter = build(DRUSettings("tiny", 2), rotation=True).eval(), inputs(2), RoadMap()
    plain, signal = build(DRUSettings("tiny", 2)).eval(), adapter.neutral(x)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "rotation" not in k})
    assert torch.equal(model(x, signal), plain(x, signal))
    model.most = 32 * 32  # the head's pass is not cut into parts
    logits = rotation_logits(model, x, signal)
    assert logits.shape == (2, 4)
    logits.square().sum().backward()
    moved = {name.split(".")[1] for name, p in model.named_parameters() if p.grad is not None}
    assert moved == {"down", "weight", "bias"}  # the latter two are the head's
    answer = TTT(model, adapter, lr=1.0)(x)
    assert not torch.allclose(answer.prediction, answer.initial, atol=1e-3)
    alone = TTT(model, adapter, lr=1.0)(x[1:]).prediction
    assert torch.allclose(answer.prediction[1:], alone, atol=1e-5)
    assert ttt(SimpleNamespace(model=plain), 1) is None


def test_no_image_is_predicted_by_a_network_that_was_trained_on_it(experiment, monkeypatch):
    halves: list[set[str]] = []

    def trained(self, scenes):
        halves.append({scene.name for scene in scenes})
        number = len(halves) - 1
        return lambda tiles: torch.full_like(tiles[:, :1], 20.0 * number - 10)

    monkeypatch.setattr(Further, "_trained", trained)
    images = images_of(drawn_scenes("rural", 8, 48, seed=100), 1.0)
    test_set = comparison(experiment, images, [2], tile=32, further=1)
    (line,) = [line for line in test_set.lines if line.name == NAME]
    method: Any = line.make(experiment.first, 2)
    x, _, names = test_set.levels["all"](experiment.first)
    for name, found in zip(names, method(x), strict=True):
        assert name not in halves[int(found.max() > 0.5)]
    assert [len(half) for half in halves] == [4, 4]
    # The order is by the source's MSE: each quartile has as many of either half.
    assert [sum(name in halves[0] for name in names[n : n + 2]) for n in (0, 2, 4, 6)] == [1] * 4
    crops = method(test_set.levels["validation crops"](experiment.first).x)
    assert max(float(one.max()) for one in crops) < 0.5


def test_training_further_moves_the_network_and_leaves_the_experiment_as_it_is(experiment):
    network, scenes = experiment.first, list(drawn_scenes("rural", 4, 48, seed=100))
    before = network.model.cell.head.weight.clone()
    given, loss = partial(_input, network), partial(recurrent_zigzag, second_signal="label")
    settings = (_kept(network.settings).prepare, 32, loss)
    method = Further(network, [scenes[::2], scenes[1::2]], given, settings, 1, Tiled)
    x = inputs_of(scenes, network).x
    moved = list(method(x))
    source = Tiled(Source(network.model, network.adapter))(x).prediction
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(moved, source, strict=True))
    assert torch.equal(before, network.model.cell.head.weight)
    assert not any(p.grad is not None for p in network.model.parameters())
