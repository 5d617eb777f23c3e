"""Ages from faces: from UTKFace's names to the report."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from it3_core import IT3Error, Regression
from it3_core.evaluation import read_records
from it3_core.tuning import Tail, tail_files
from it3_vision import classify
from it3_vision import training as shared
from it3_vision.__main__ import main
from it3_vision.age import FaceSettings, Interval, Run, Training, load_run, read_faces, train
from it3_vision.age.choosing import _by_side
from it3_vision.age.drawing import draw_face, draw_faces
from it3_vision.age.evaluate import Evaluation, Levels, evaluate_run, load_evaluation
from it3_vision.age.faces import age_of, from_arrays, set_apart
from it3_vision.age.lineup import MeanAge, lineup
from it3_vision.age.network import bare, build
from it3_vision.age.predict import predict
from it3_vision.age.report import write_report
from it3_vision.data import ImageSet
from it3_vision.networks import ResNet

SIZE = 16
TINY = Training(FaceSettings("tiny", size=SIZE), epochs=3, batch_size=16)
TUNED = {4: 8}
SIZES = (4, 8)


@pytest.fixture(scope="module")
def faces() -> ImageSet:
    return draw_faces(420, size=SIZE)


@pytest.fixture(scope="module")
def run(faces: ImageSet, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("age")
    return train(faces, out, TINY, about={"data": "drawn"}, tuned=TUNED, progress=False)


@pytest.fixture(scope="module")
def levels(run: Run, faces: ImageSet) -> Levels:
    return Levels.of(run, faces, most=8)


@pytest.fixture(scope="module")
def found(run: Run, levels: Levels) -> Evaluation:
    return evaluate_run(run, levels, batch_sizes=SIZES, progress=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def refused(capsys: pytest.CaptureFixture[str], *command: object) -> str:
    assert main(["age", *map(str, command)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("it3-vision: ")
    assert told.err.count("\n") == 1
    return told.err


def errors(found: Evaluation, level: str, method: str, size: int | None) -> Sequence[float]:
    cell = (level, method, size)
    (one,) = [
        r["errors"] for r in found.records if (r["level"], r["method"], r["batch_size"]) == cell
    ]
    return one  # type: ignore[no-any-return]


class TestGolden:
    @pytest.mark.parametrize(
        ("name", "age"),
        [
            ("26_1_2_20170116155807484.jpg.chip.jpg", 26),
            ("100_0_0_20170112213500903.jpg", 100),
            ("1_0_4_20161219190531225.png", 1),
            ("61_1_20170109150557335.jpg.chip.jpg", None),
            ("39_1__20170116174525125.jpg", None),
            ("131_0_0_20170116174525125.jpg", None),
            ("7_2_0_20170116174525125.jpg", None),
            ("7_0_5_20170116174525125.jpg", None),
            ("-7_0_0_20170116174525125.jpg", None),
            ("٣_0_0_20170116174525125.jpg", None),
            ("photo.jpg", None),
        ],
    )
    def test_names(self, name: str, age: int | None) -> None:
        assert age_of(name) == age

    def test_the_paper_s_network(self) -> None:
        network = bare(FaceSettings("paper"), Regression(35.0, 10.0))
        linear = [layer for layer in network.fc if isinstance(layer, nn.Linear)]
        assert [layer.in_features for layer in linear] == [2048, 1024, 512, 256, 128]
        assert linear[-1].out_features == 1
        trunk = sum(p.numel() for n, p in network.named_parameters() if not n.startswith("fc."))
        assert trunk == 58_143_808  # torchvision's resnet152 without its last layer

    def test_levels(self) -> None:
        ages = np.array([20, 60, 19, 10, 9, 0, 61, 70, 71, 80, 81, 116])
        assert {k: v.tolist() for k, v in Interval().levels(ages).items()} == {
            "20–60": [0, 1],
            "younger by 1–10": [2, 3],
            "older by 1–10": [6, 7],
            "younger by 11–20": [4, 5],
            "older by 11–20": [8, 9],
            "older by more than 20": [10, 11],
        }
        assert list(Interval(30, 40, (5,)).levels(ages)) == [
            "younger by more than 5",
            "older by more than 5",
        ]

    def test_the_mean_age(self, run: Run, found: Evaluation, levels: Levels) -> None:
        for level, part in levels.parts.items():
            wanted = np.abs(part.labels - run.adapter.mean[0])
            assert np.allclose(errors(found, level, "mean age", None), wanted, atol=1e-3)

    def test_drawn_faces_depend_on_age_and_seed_alone(self) -> None:
        first, again, other = (draw_faces(20, seed) for seed in (3, 3, 4))
        assert np.array_equal(first.pixels(), again.pixels())
        assert not np.array_equal(first.pixels(), other.pixels())
        young, old = (
            np.mean([draw_face(age, np.random.default_rng(s))[1:6, 10:22] for s in range(30)])
            for age in (20, 90)
        )
        assert old > young + 30  # their hair is white


class TestInvariants:
    def test_it_is_read_back_whole(self, run: Run) -> None:
        again = load_run(run.folder)
        x = run.tensor(draw_faces(8, 2, size=SIZE).pixels())
        with torch.no_grad():
            mine, theirs = (r.model(x, r.adapter.neutral(x)) for r in (run, again))
        assert torch.equal(mine, theirs)
        assert torch.equal(run.method(4)(x).prediction, again.method(4)(x).prediction)
        assert again.interval == run.interval
        assert again.tunings == run.tunings
        assert json.loads(json.dumps(run.settings)) == again.settings
        tensors = run.activations.tensors()
        assert all(torch.equal(v, again.activations.tensors()[k]) for k, v in tensors.items())

    def test_trained_faces_are_of_the_interval_and_not_tested_on(
        self, run: Run, faces: ImageSet
    ) -> None:
        apart = set_apart(faces.names, 0.2)
        inside = (faces.labels >= 20) & (faces.labels <= 60)
        assert run.settings["faces"] == int((inside & ~apart).sum())
        tested = Levels.of(run, faces, most=10_000).parts["20–60"]
        assert sorted(tested.names) == sorted(np.array(faces.names)[inside & apart])
        everything = Levels.of(run, faces, most=10_000, everything=True).parts["20–60"]
        assert len(everything) == inside.sum()

    def test_test_faces_are_told_by_their_names_alone(self) -> None:
        names = [f"{age}_0_0_{age * 7919}.jpg" for age in range(117)]
        apart = set_apart(names, 0.2)
        assert 10 < apart.sum() < 40
        assert (set_apart(names[::-1], 0.2)[::-1] == apart).all()
        assert (set_apart([f"a/b/{name}" for name in names], 0.2) == apart).all()
        assert not set_apart(names, 0.0).any()

    def test_until_it_is_trained_it_answers_as_the_bare_one(self) -> None:
        adapter, x = Regression(35.0, 10.0), torch.randn(3, 3, SIZE, SIZE)
        made = []
        for make in (bare, build):
            torch.manual_seed(0)
            made.append(make(TINY.network, adapter).eval())  # type: ignore[operator]
        with torch.no_grad():
            assert torch.equal(made[0](x), made[1](x, adapter.neutral(x)))

    def test_weights_of_a_network_that_answers_something_else(self, tmp_path: Path) -> None:
        file = tmp_path / "resnet.safetensors"
        there = ResNet(18, 1000, width=8, stem="small")
        save_file(there.state_dict(), file)
        adapter = Regression(35.0, 10.0)
        model = build(TINY.network, adapter, weights=file, new_head=True)
        assert torch.equal(model.model.get_parameter("layer4.0.conv1.weight"),
                           there.get_parameter("layer4.0.conv1.weight"))  # fmt: skip
        with pytest.raises(IT3Error, match="does not fit this network"):
            build(TINY.network, adapter, weights=file)

    def test_a_finished_one_is_returned_and_vanilla_trained_beside_it(
        self, run: Run, faces: ImageSet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = (run.folder / "model.safetensors").read_bytes()
        calls, fit = [], shared.fit

        def counted(*given: object, **named: object) -> object:
            calls.append(named["checkpoint"])
            return fit(*given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(shared, "fit", counted)
        again = train(faces, run.folder, TINY, tuned=TUNED, progress=False)
        assert calls == []
        assert again.vanilla is None
        both = train(faces, run.folder, TINY, tuned=TUNED, vanilla=True, progress=False)
        assert [path.name for path in calls] == ["vanilla-training.safetensors"]  # type: ignore[attr-defined]
        assert (run.folder / "model.safetensors").read_bytes() == before
        read = load_run(run.folder)
        assert both.vanilla is not None
        assert read.vanilla is not None
        mine, theirs = both.vanilla.state_dict(), read.vanilla.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert "vanilla net" in lineup(read, 4).methods
        assert "vanilla net" not in lineup(run, 4).methods
        x = run.tensor(faces.batch(slice(4)))
        blind = read.vanilla(x, read.adapter.neutral(x))
        assert torch.equal(blind, read.vanilla(x, read.adapter.encode(faces_ages(faces, 4))))

    def test_three_networks_tell_of_the_tail(self, run: Run) -> None:
        kept = [load_file(path) for path in tail_files(run.folder)]
        name = next(name for name in kept[0] if name.endswith("conv1.weight"))
        assert len({tuple(one[name].flatten().tolist()) for one in kept}) == len(kept) == 3
        assert all("label tail 3" in one["changes"] for one in run.tuning(4).tried)

    def test_the_second_pass_weighs_what_it_is_told(
        self, run: Run, faces: ImageSet, tmp_path: Path
    ) -> None:
        heavy = train(faces, tmp_path, replace(TINY, weight=10.0), tuned=TUNED, progress=False)
        assert heavy.history["train"][0] > 3 * run.history["train"][0]

    def test_the_tail_comes_in_batches_of_one_side(self) -> None:
        y = torch.cat([torch.arange(20, 30), torch.arange(50, 60)])
        tail = _by_side(Tail(nn.Identity(), y[:, None], y), 4, 16)
        assert len(tail.y) == 16
        assert all(len({int(age) // 40 for age in part}) == 1 for part in tail.y.split(4))
        assert torch.equal(tail.x[:, 0], tail.y)

    def test_statistics_are_those_of_faces_as_they_are(self, run: Run, faces: ImageSet) -> None:
        model = build(TINY.network, run.adapter)
        model.load_state_dict(run.model.state_dict())
        model.eval()
        x = run.tensor(faces.batch(slice(100)))
        norm = model.model.get_submodule("bn1")
        assert isinstance(norm, nn.BatchNorm2d)
        norm.running_mean += 3  # as if it lagged behind
        shared.refresh_statistics(model, run.adapter, x)
        with torch.no_grad():
            maps = model.model.get_submodule("conv1")(x)
        assert torch.allclose(norm.running_mean, maps.mean((0, 2, 3)), atol=1e-4)
        assert not any(layer.training for layer in model.modules())
        assert norm.momentum == 0.1

    def test_every_line_is_on_every_level(self, found: Evaluation, levels: Levels) -> None:
        assert found.levels == list(levels.parts)
        assert not [record["problem"] for record in found.records if record["problem"]]
        methods = {record["method"] for record in found.records}
        assert methods == {
            "source", "second pass", "answer step", "mean age", "batch statistics",
            "blended statistics", "IT³, source statistics", "IT³, batch statistics", "IT³ auto",
            "online IT³", "online IT³, source statistics", "ActMAD", "ActMAD, source statistics",
        }  # fmt: skip
        for record in found.records:
            assert record["n"] == len(levels.parts[record["level"]])
        sizes = {r["batch_size"] for r in found.records if r["method"] == "ActMAD"}
        assert sizes == set(SIZES)

    def test_source_is_the_network_s_own_answer(
        self, run: Run, found: Evaluation, levels: Levels
    ) -> None:
        x, age = levels.load(run, "older by 1–10")
        with torch.no_grad():
            own = (run.model(x, run.adapter.neutral(x)).flatten() - age).abs()
        assert np.allclose(errors(found, "older by 1–10", "source", None), own, atol=1e-3)

    def test_joined_levels_are_of_their_sides(self, found: Evaluation) -> None:
        rows = {r["level"]: r["error"] for r in found.rows if r["method"] == "source"}
        for side in ("younger", "older"):
            parts = [errors(found, level, "source", None) for level in found.levels
                     if level.startswith(side)]  # fmt: skip
            assert rows[f"all {side}"] == pytest.approx(np.concatenate(parts).mean())
        header, source, *_ = found.summary()
        assert header[2:5] == ["20–60", "younger", "older"]
        assert source[2:5] == [f"{rows[k]:.2f}" for k in ("20–60", "all younger", "all older")]

    def test_the_source_alone_has_a_table_too(
        self, run: Run, levels: Levels, tmp_path: Path
    ) -> None:
        found = evaluate_run(
            run, levels, out=tmp_path, batch_sizes=[8], only=["source"], progress=False
        )
        assert {record["method"] for record in found.records} == {"source"}
        assert (tmp_path / "table.md").exists()
        assert write_report(run, levels, found, tmp_path / "r.html", "it3-vision age").exists()

    def test_what_was_evaluated_is_not_evaluated_again(
        self, run: Run, levels: Levels, found: Evaluation
    ) -> None:
        again = evaluate_run(run, levels, batch_sizes=SIZES, progress=False)
        assert again.records == found.records  # their times too: nothing ran
        read = load_evaluation(found.folder)
        assert read.summary() == found.summary()
        assert read_records(found.folder / "records.jsonl") == list(found.records)

    def test_the_report_and_its_pictures(self, run: Run, levels: Levels, found: Evaluation) -> None:
        page = write_report(run, levels, found, found.folder / "r.html", "it3-vision age <x>")
        told = page.read_text(encoding="utf-8")
        assert "it3-vision age &lt;x&gt;" in told
        assert "younger by 1–10" in told
        for name in ("boxes", "methods", "differences", "errors", "samples"):
            with Image.open(found.folder / f"{name}.png") as picture:
                assert picture.size[0] > 600


def faces_ages(faces: ImageSet, n: int) -> torch.Tensor:
    return torch.from_numpy(faces.labels[:n])


class TestRobustness:
    def test_parts_and_what_is_left_out(self, folder: Path) -> None:
        found = read_faces(folder)
        assert len(found.images) == 131
        assert sorted(found.problems) == [
            "part1/61_1_20170109150557335.jpg.chip.jpg is not named AGE_GENDER_RACE_DATE.jpg",
            "part2/2_0_0_20170000000000000.jpg.chip.jpg has the name of "
            "part1/2_0_0_20170000000000000.jpg.chip.jpg",
        ]
        assert found.images.labels[list(found.images.names).index("part1/33_0_1_99.jpg")] == 33

    def test_a_tar_is_read_as_its_folder(self, folder: Path, tmp_path: Path) -> None:
        for name in ("faces.tar", "faces.tar.gz"):
            with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as tar:
                tar.add(folder, ".")
            inside, outside = read_faces(tmp_path / name), read_faces(folder)
            assert list(inside.images.names) == list(outside.images.names)
            assert (inside.images.labels == outside.images.labels).all()
            assert inside.problems == outside.problems
            assert np.array_equal(inside.images.image(7), outside.images.image(7))

    def test_folders_without_faces(self, tmp_path: Path) -> None:
        with pytest.raises(IT3Error, match="holds no images"):
            read_faces(tmp_path)
        Image.new("RGB", (4, 4)).save(tmp_path / "cat.jpg")
        with pytest.raises(IT3Error, match=r"no image in .* cat.jpg, for example, says no age"):
            read_faces(tmp_path)
        for path in (tmp_path / "gone", tmp_path / "cat.jpg"):
            with pytest.raises(IT3Error, match="is neither a folder nor a tar"):
                read_faces(path)

    def test_settings_that_make_no_sense(self) -> None:
        for low, high in ((60, 20), (-1, 20), (20, 999)):
            with pytest.raises(IT3Error, match="ages are trained on from 0"):
                Interval(low, high)
        for edges in ((), (0, 5), (10, 5), (5, 5)):
            with pytest.raises(IT3Error, match="levels end at growing distances"):
                Interval(edges=edges)
        with pytest.raises(IT3Error, match="from 0 to below 1"):
            Training(tested=1.0)
        with pytest.raises(IT3Error, match="weight is a positive number"):
            Training(weight=0.0)
        with pytest.raises(IT3Error, match="a preset is tiny, small, paper"):
            FaceSettings("large")  # type: ignore[arg-type]

    def test_too_few_faces(self, run: Run, faces: ImageSet, tmp_path: Path) -> None:
        with pytest.raises(IT3Error, match="there are 0 faces of 100 to 110 years"):
            train(faces, tmp_path, replace(TINY, low=100, high=110), progress=False)
        young = from_arrays(np.zeros((3, 8, 8, 3), np.uint8), [4, 5, 6])
        with pytest.raises(IT3Error, match="there are 3 of younger by 11–20"):
            Levels.of(run, young)

    def test_another_s_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "is no RUN" in refused(capsys, "predict", tmp_path, tmp_path / "a.jpg")
        told = refused(capsys, "train", tmp_path, "--out", tmp_path / "r", "--low", 70)
        assert "not 70 to 60" in told
        assert not (tmp_path / "r").exists()

    def test_a_classifier_s_run_says_no_ages(
        self, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["classify", "predict", str(run.folder), str(tmp_path / "a.jpg")]) == 2
        told = capsys.readouterr().err
        assert "is no RUN of a classifier: give one that 'it3-vision classify train' made" in told

    def test_no_classifier_is_trained_over_it(self, run: Run) -> None:
        before = (run.folder / "model.safetensors").read_bytes()
        images = ImageSet.from_array(np.zeros((20, 8, 8, 3), np.uint8), np.arange(20) % 2)
        with pytest.raises(IT3Error, match="holds a RUN of another task: name a new folder"):
            classify.train(images, run.folder, progress=False)
        assert (run.folder / "model.safetensors").read_bytes() == before

    def test_a_batch_of_one_and_unreadable_ones(self, run: Run, folder: Path) -> None:
        good = sorted((folder / "part1").glob("4*.jpg"))[0]
        alone, torn, gone = predict(run, [good, folder / "part1/33_0_1_99.jpg", "gone.jpg"])
        assert alone.before is not None
        assert alone.before == alone.after  # nothing was tuned for a face alone
        assert "damaged" in str(torn.problem)
        assert "does not exist" in str(gone.problem)


class TestEntryPoints:
    def test_train_evaluate_predict(
        self, run: Run, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "run"
        command = ["age", "train", str(folder), "--out", str(out), "--preset", "tiny", "--quiet"]
        command += ["--size", str(SIZE), "--epochs", "1", "--low", "10", "--high", "70"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("it3_vision.age.runs.choose", lambda *_, **__: run.tunings)  # slow
            assert main(command) == 0
        told = capsys.readouterr()
        assert "faces of 10–70 years for 1 epochs" in told.out
        assert told.err.count("left out: ") == 2
        assert len(load_run(out).settings["bad"]) >= 2

        options = ["--data", str(folder), "--batch-sizes", "4", "--most", "4", "--quiet"]
        options += ["--only", "IT³ auto; mean age", "--levels", "5"]
        assert main(["age", "evaluate", str(out), *options]) == 0
        told = capsys.readouterr()
        assert told.out.startswith("| method | batch | 10–70 | younger | older |")
        page = (out / "evaluation" / "report.html").read_text(encoding="utf-8")
        assert "--levels 5 --batch-sizes 4 --most 4" in page

        files = [str(path) for path in sorted((folder / "part2").iterdir())[:2]]
        assert main(["age", "predict", str(out), *files, "--quiet"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(": ")[0] for line in lines] == files
        assert main(["age", "predict", str(out), files[0], "gone.jpg", "--json", "--quiet"]) == 2
        first, gone = map(json.loads, capsys.readouterr().out.splitlines())
        assert first.keys() == {"name", "before", "after", "error", "percentile", "flagged"}
        assert gone.keys() == {"name", "problem"}

    def test_a_method_that_is_not_there(
        self, run: Run, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ["age", "evaluate", str(run.folder), "--data", str(folder), "--only", "Tent"]
        assert main([*command, "--quiet"]) == 2
        assert "no method is called Tent: take source; second pass" in capsys.readouterr().err

    def test_help_names_every_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["age", "--help"]) == 0
        told = capsys.readouterr().out
        assert all(command in told for command in ("train", "evaluate", "predict", "demo"))

    def test_the_mean_age_is_a_predictor(self) -> None:
        assert MeanAge(30.0)(torch.zeros(2, 3, 4, 4)).tolist() == [[30.0], [30.0]]
