"""Classification from training to predictions: nothing is lost, mixed up or told wrongly."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from it3_core import IT3Error
from it3_core.experiment.evaluate import evaluate, load_evaluation
from it3_core.experiment.predict import predict
from it3_core.experiment.report import report
from it3_core.experiment.verbs import PredictOptions, loaded
from it3_core.io.tensors import load
from it3_core.io.typed import as_json
from it3_core.trust.candidates import default_candidates
from it3_vision import image_task
from it3_vision.__main__ import main
from it3_vision.classify import task
from it3_vision.classify.cli import Evaluate, Train
from it3_vision.classify.drawn import CHARACTERS, characters
from it3_vision.classify.levels import Shifts
from it3_vision.corruptions import corrupt_all
from it3_vision.corruptions.writing import corrupt_set
from it3_vision.data import ImageSet, Preprocessing, open_images
from it3_vision.image_task import TrainingImages, augmentation
from it3_vision.networks import NetworkSettings, bare, build, load_weights

Draw = Callable[..., ImageSet]
CLASSES = ("blue & <co>", "green", "red")
SQUARES = ["--size", "tiny", "--pixels", "16", "--epochs", "3", "--batch-size", "24", "--lr",
           "0.05", "--no-flip", "--tuned", "12:12", "--held-out", "0.3", "--quiet"]  # fmt: skip
SIZE = 16
ANY = NetworkSettings()
SOME = {"size": SIZE, "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}
TESTED = ["--corruptions", "fog,contrast", "--batch-sizes", "12", "--no-slow", "--quiet"]


@pytest.fixture(scope="module")
def test_images(write, tmp_path_factory):
    return write(tmp_path_factory.mktemp("test"))


@pytest.fixture(scope="module")
def found(classifier, test_images):
    command = ["classify", "evaluate", str(classifier.folder), "--data", str(test_images)]
    assert main([*command, *TESTED]) == 0
    return load_evaluation(classifier.folder / "evaluation")


def answers(experiment, pixels):
    x = image_task.tensor_of(experiment.first, pixels)
    with torch.no_grad():
        return experiment.first.model(x, experiment.first.adapter.neutral(x))


def record(found, level, method):
    (one,) = (r for r in found.records if r["level"] == level and r["method"] == method)
    return one


def compared(experiment, shifts, *sizes, **how):
    return task.comparison_of(experiment, shifts, sizes, **how)


class TestTraining:
    def test_it_learns_and_is_read_back_whole(self, classifier):
        first = classifier.first
        assert first.measured["validation_error"] < 0.2
        assert first.history["train"][-1] < first.history["train"][0]
        assert first.answers.classes == CLASSES
        assert {name.split(".")[0] for name in first.statistics} >= {"fisher"}
        assert first.vanilla is not None

    def test_one_that_was_killed_ends_with_the_same_bytes(
        self, classifier, data, tmp_path, monkeypatch
    ):
        calls, collate = [0], TrainingImages.collate

        def stopped(feed, rows):
            calls[0] += 1
            if calls[0] == 16:  # in the second epoch
                raise KeyboardInterrupt
            return collate(feed, rows)

        out = tmp_path / "again"
        command = ["classify", "train", str(data / "classify"), "--out", str(out), *SQUARES]
        with monkeypatch.context() as patched:
            patched.setattr(TrainingImages, "collate", stopped)
            assert main(command) == 130
        with pytest.raises(IT3Error, match="not finished"):
            loaded("it3_vision.classify.task:TASK", out)
        assert main(command) == 0
        again, once = (f / "0" / "network.safetensors" for f in (out, classifier.folder))
        assert load(again).tuning == load(once).tuning
        assert load(again).settings == load(once).settings
        assert again.read_bytes() == once.read_bytes()

    def test_other_settings_in_its_folder_are_refused(self, classifier, data, refused):
        command = ["classify", "train", data / "classify", "--out", classifier.folder, *SQUARES]
        for options, sentence in (
            ("--norm group", "network.norm was batch and is group"),
            ("--no-rotation", "rotation was True and is False"),
            ("--second-weight 2", "second_weight was 1.0 and is 2.0"),
            ("--normalise imagenet", "normalise was data and is imagenet"),
            ("--distance js", "distance was l1 and is js"),
            ("--freeze-until level4", "recipe.freeze_until was None and is level4"),
        ):
            assert sentence in refused(*command, *options.split())

    def test_another_training_can_start_from_it(self, classifier):
        network = bare(NetworkSettings(size="tiny", pixels=SIZE), 3)
        load_weights(network, classifier.folder / "0" / "network.safetensors")
        theirs = classifier.first.model.model.state_dict()
        assert all(torch.equal(v, theirs[k]) for k, v in network.state_dict().items())

    def test_images_are_normalised_by_their_own_mean_or_by_imagenets(self, squares):
        images = squares(30)

        def fit(network=ANY, **options):
            asked = Train(out="x", **options)
            return image_task.fit_preprocessing(images, SIZE, asked, network.brings).mean

        mean = images.batch(slice(None)).mean((0, 1, 2)) / 255
        assert np.allclose(fit(), mean, atol=1e-3)
        assert fit(normalise="imagenet") == (0.485, 0.456, 0.406)
        pretrained = NetworkSettings(pretrained="efficientnet_lite0")
        assert fit(pretrained) == (127 / 255,) * 3
        assert fit(pretrained, normalise="imagenet") == (0.485, 0.456, 0.406)
        assert (
            fit(NetworkSettings("efficientnet_lite0")) == fit()
        )  # no weights, no images of theirs

    def test_normalisation_comes_with_weights(self, squares, classifier, tmp_path):
        theirs = tmp_path / "w.safetensors"
        save_file(bare(NetworkSettings(size="tiny"), 3).state_dict(), theirs)
        ours = classifier.folder / "0" / "network.safetensors"

        def fit(weights, **options):
            asked = Train(out="x", weights=weights, **options)
            brings = asked.network.brings
            return image_task.fit_preprocessing(squares(30), SIZE, asked, brings).describe()

        assert fit(theirs)["mean"] == [0.485, 0.456, 0.406]
        assert fit(ours) == classifier.first.settings["preprocessing"]
        assert fit(theirs, normalise="data") == fit(None)

    def test_the_distance_is_the_adapters_own(self, squares):
        made = task.problem_of(squares(30), Train(out="x", distance="l1", quiet=True), {})
        stored = made.data().adapter.describe()
        assert stored == {"kind": "Classification", "classes": 3, "distance": "l1"}
        assert (
            made.restore(
                as_json({**made.settings, "preprocessing": SOME}), stored
            ).adapter.describe()
            == stored
        )

    def test_the_recipe_comes_with_the_network(self):
        def recipe(name, **options):
            network = NetworkSettings(name)
            found = image_task.recipe_of(Train(out="x", network=network, **options), True)
            return found.lr, found.optimizer_options["weight_decay"]

        assert recipe("dla") == recipe("resnet18") == (0.2, 5e-4)
        assert recipe("resnet20") == (0.05, 1e-4)
        assert recipe("resnet56") == (0.03, 1e-4)
        assert recipe("resnet56", lr=0.1, weight_decay=0.0) == (0.1, 0.0)


class TestImagesToChooseBy:
    def test_halves_are_disjoint_whole_and_of_all_classes(self, squares):
        images = squares(31)
        first, second = images.half(0), images.half(1)
        assert sorted([*first.names, *second.names]) == sorted(images.names)
        assert abs(len(first) - len(second)) <= 1
        counts = [np.bincount(half.labels, minlength=3) for half in (first, second)]
        assert np.abs(counts[0] - counts[1]).max() <= 1
        assert images.half(0).names == first.names  # the same each time
        with pytest.raises(IT3Error, match="no half 2"):
            images.half(2)

    def test_joined_sets_are_one_after_the_other(self, squares, write, tmp_path):
        first, second = squares(9), open_images(write(tmp_path / "more", 12))
        both = first.take([4, 2, 0]).joined(second)
        assert both.names == [*first.take([4, 2, 0]).names, *second.names]
        assert both.labels.tolist() == [1, 2, 0, *second.labels]
        expected = [first.image(2), second.image(7), first.image(0)]
        assert np.array_equal(both.batch([1, 10, 2], SIZE), np.stack(expected))

    def test_one_half_is_validated_on_and_only_the_other_tested_on(
        self, data, write, tmp_path, classifier
    ):
        """All of the training images are trained on; choosing and calibrating take the half."""
        apart = write(tmp_path / "test", 48, 5)
        train = Train(out="x", validation=apart, validation_half=1, quiet=True)
        made = task.problem(data / "classify", train)
        found = made.data()
        assert (len(found.rows), len(found.validation)) == (240, 24)
        assert set(found.seen) <= set(found.rows)
        _, labels = found.plain(found.validation)
        assert torch.equal(labels, found.labels[found.validation])
        joined = found.plain(found.validation)[0].sum((1, 2, 3)).sort().values
        half = TrainingImages(open_images(apart).half(1), found.plain.preprocess)
        own = half.collate(list(range(24)))[0].sum((1, 2, 3)).sort().values
        assert torch.allclose(joined, own)
        settings = {**classifier.settings, "validation": made.settings["validation"]}
        experiment = replace(classifier, settings=settings)
        for refused in (None, 1):
            with pytest.raises(IT3Error, match="that training validated on: give --half 0"):
                task.test_set(experiment, Evaluate(data=apart, half=refused))
        tested = task.test_set(experiment, Evaluate(data=apart, half=0, corruptions="fog"))
        names = tested.levels["clean"](classifier.first).names
        assert sorted(names) == sorted(open_images(apart).half(0).names)
        task.test_set(experiment, Evaluate(data=data / "classify"))  # other images

    def test_too_few_are_refused(self, data, write, tmp_path):
        apart = write(tmp_path / "few", 6)
        made = task.problem(data / "classify", Train(out="x", validation=apart, quiet=True))
        with pytest.raises(IT3Error, match="6 labelled images to validate on: give 10 at least"):
            made.data()


class TestAugmentation:
    def test_batches_follow_torchs_seed(self, squares):
        preprocess = Preprocessing(SIZE, (0.5,) * 3, (0.2,) * 3)
        feed, rows = TrainingImages(squares(6), preprocess, augmentation(SIZE)), [5, 0, 3]
        torch.manual_seed(1)
        (x, y), (other, _) = feed.collate(rows), feed.collate(rows)
        torch.manual_seed(1)
        assert torch.equal(feed.collate(rows)[0], x)
        assert not torch.equal(other, x)
        assert y.tolist() == [2, 0, 0]
        plain = TrainingImages(squares(6), preprocess).collate([4])[0]
        assert torch.equal(plain, preprocess(squares(6).batch([4])))

    def test_letters_are_not_flipped(self):
        image = np.zeros((80, 80, 3), np.uint8)
        image[:, :40] = 255
        for size in (32, 80):
            vary = augmentation(size, flip=False)
            vary.set_random_seed(0)
            part = image[:size, 40 - size // 2 : 40 + size // 2]
            made = [vary(image=part)["image"].astype(int) for _ in range(20)]
            assert all(m[:, :3].mean() >= m[:, -3:].mean() for m in made)


class TestTuning:
    def test_no_candidate_of_statistics_without_batch_norm(self, classifier):
        settings = NetworkSettings(size="tiny", norm="group", pixels=SIZE)
        group = build(settings, classifier.first.adapter)

        def norms(model, size):
            return {c.settings.get("norm", "source") for c in default_candidates(model, size)}

        assert norms(group, 64) == norms(group, 1) == {"source"}
        assert norms(classifier.first.model, 64) == {"source", "batch", 0.8}
        # 13 images in batches of 12 leave one, whose statistics a 1×1 map does not have.
        given = [(13, 12), (5, 12), (250, 1), (1030, 64)]
        assert [image_task._whole_batches(*pair) for pair in given] == [12, 5, 250, 1024]

    @pytest.mark.parametrize(("blind_to", "asked"), [(3, 4), (99, image_task._REPEATS)])
    def test_a_corruption_is_repeated_until_it_harms(self, blind_to, asked):
        """A network that makes nothing of three repeats is tried under the fourth, or the last."""
        train = task.Train(out=Path("x"), tuned="4:8", rotation=False)
        data = task._read(characters(100), train)
        seen: list[torch.Tensor] = []

        def wrong(x, y):
            seen.append(x)
            return 0.0 if len(seen) <= 1 + blind_to else 0.2  # the first look is at clean images

        ((_, x, _, shifts),) = image_task.shifted_validation(data, train, 5, wrong)
        first = shifts["speckle_noise"](x)
        assert torch.equal(seen[0], x)
        assert torch.equal(first, seen[asked])
        assert not torch.equal(first, seen[1])


class TestEvaluation:
    def test_every_line_on_every_level(self, found):
        wanted = {"source", "second pass", "batch statistics", "blended statistics",
                  "IT³ (paper)",
            "IT³ (paper), batch statistics", "IT³ (paper, gradient stopped)",
            "online IT³ (paper)", "IT³ auto", "online IT³",
                  "ActMAD", "ActMAD, source statistics", "Tent", "Tent, episodic", "ETA",
                  "EATA", "vanilla net"}  # fmt: skip
        for level in ("clean", "fog 5", "contrast 5", "mean 5"):
            assert {row["method"] for row in found.rows if row["level"] == level} == wanted
        assert not [one["problem"] for one in found.records if one["problem"]]
        names = {path.name for path in found.folder.iterdir()}
        assert names >= {"records.jsonl", "table.md", "report.html", "bars-12.png", "samples.png"}

    def test_source_is_what_the_network_says(self, found, classifier, test_images):
        images = open_images(test_images).sample(24, 0)
        clean = images.batch(slice(None))
        levels = {"clean": clean, "fog 5": corrupt_all(clean, "fog", 5, benchmark="cifar", seed=0)}
        for level, pixels in levels.items():
            said = answers(classifier, pixels).argmax(1).numpy()
            errors = record(found, level, "source")["errors"]
            assert errors == (100.0 * (said != images.labels)).tolist()
            some = found.answers[found.answers["level"] == level]
            assert some["initial"].tolist() == said.tolist()
            assert some["truth"].tolist() == images.labels.tolist()
            assert some["name"].tolist() == list(images.names)

    def test_the_mean_is_over_corruptions_and_its_interval_over_images(self, found):
        for method in ("source", "Tent"):
            rows = {row["level"]: row for row in found.rows if row["method"] == method}
            both = [rows["fog 5"]["error"], rows["contrast 5"]["error"]]
            assert math.isclose(rows["mean 5"]["error"], sum(both) / 2, abs_tol=1e-4)
            assert rows["mean 5"]["n"] == 24  # and not 48

    def test_the_page_stands_alone_and_takes_no_name_for_html(self, found, tmp_path):
        page = report(found, tmp_path / "page.html").read_text(encoding="utf-8")
        assert "blue &amp; &lt;co&gt;" in page
        assert "<co>" not in page
        assert "mean 5" in page
        assert found.summary["memory"]["Tent"] >= 1.0

    def test_other_images_are_not_taken_for_these(self, classifier, tmp_path, squares):
        """Names and labels are the same, pixels are not; severities and batch sizes are told."""
        errors = []
        only, out = ["second pass", "IT³ (paper), batch statistics"], tmp_path / "e"
        for seed in (1, 5):
            images = squares(12, seed)
            rng, pixels = np.random.default_rng(seed), images.batch(slice(None))
            rows = rng.random(12) < 0.5  # half of them say nothing any more
            pixels[rows] = rng.integers(0, 255, pixels[rows].shape, np.uint8)
            noisy = ImageSet.from_array(pixels, images.labels, CLASSES)
            how = compared(classifier, Shifts(noisy, ("fog",), (1, 5)), 12, 4)
            if errors:
                with pytest.raises(IT3Error, match=r"made with other settings"):
                    evaluate(classifier, how, out, only=only, progress=False)
            told = evaluate(classifier, how, out, only=only, overwrite=True, progress=False)
            errors.append(record(told, "clean", "source")["errors"])
        assert errors[0] != errors[1]
        assert {row["level"] for row in told.rows} == {"clean", "fog 1", "fog 5", "mean 1",
                                                       "mean 5"}  # fmt: skip
        assert (out / "severities.png").is_file()
        cells = {(one["method"], one["batch_size"]) for one in told.records}
        assert cells == {("source", None), ("second pass", None),
                         ("IT³ (paper), batch statistics", 12),
                         ("IT³ (paper), batch statistics", 4)}  # fmt: skip

    def test_what_looks_at_one_image_runs_once(self, classifier, tmp_path, squares):
        how = compared(classifier, Shifts(squares(4, 1), ("fog",)), 2, 4)
        told = evaluate(classifier, how, tmp_path / "e", only=["MEMO", "TTT"], progress=False)
        cells = [(one["level"], one["method"], one["batch_size"]) for one in told.records]
        names = ("source", "MEMO", "TTT")
        assert sorted(cells) == sorted((lv, m, None) for lv in ("clean", "fog 5") for m in names)
        assert not [one["problem"] for one in told.records if one["problem"]]

    def test_classes_without_test_images_are_named(self):
        def note(label, classes):
            labels, pixels = [label] * 9, np.zeros((9, 8, 8, 3), np.uint8)
            return Shifts(ImageSet.from_array(pixels, labels, list(classes))).unmeasured()

        assert note(3, "abcd") == ["Without a test image, so that no error is measured: a, b, c."]
        assert note(0, "a") == []
        assert " and 8 more." in note(3, map(str, range(29)))[0]

    def test_from_a_folder_with_bad_files_to_the_page(self, classifier, tmp_path, write):
        """A class is empty, a file is empty, one is text: labels are right, the rest is used."""
        test = write(tmp_path / "test", 12, 1, ("red", "red"))
        for name in ("green", "blue & <co>"):
            (test / name).mkdir()
        (test / "red" / "empty.png").write_bytes(b"")
        (test / "red" / "text.png").write_text("no image")
        command = ["classify", "evaluate", str(classifier.folder), "--data", str(test), "--out",
                   str(tmp_path / "e"), "--only", "second pass; Tent"]  # fmt: skip
        assert main([*command, *TESTED]) == 0
        told = load_evaluation(tmp_path / "e")
        assert {one["n"] for one in told.records} == {12}
        assert set(told.answers["truth"]) == {2}  # red is red without the others
        assert sum(note.startswith("Left out: ") for note in told.summary["notes"]) == 2
        assert any("no error is measured: blue & <co>, green." in n for n in told.summary["notes"])
        assert main(["classify", "report", str(tmp_path / "e"), "--out", str(tmp_path / "p")]) == 0


class TestCorruptedFolders:
    """What `it3-vision corrupt` wrote is matched image by image, and is what is made here."""

    def check(self, images, out):
        corrupt_set(images, out, ["fog", "snow"], [2, 5], benchmark="cifar", seed=3)
        here = Shifts(images, ("fog", "snow"), (2, 5), seed=3)
        rows = [5, 2, 4]  # some of them, in another order, are the same images still
        for some in (range(len(images)), rows):
            there = Shifts(images.take(some), ("fog", "snow"), (2, 5), out)
            for name in here.names():
                assert np.array_equal(there.pixels(SIZE, name), here.pixels(SIZE, name)[some]), name

    def test_arrays(self, tmp_path, squares):
        self.check(squares(9), tmp_path)

    def test_files(self, tmp_path, squares):
        """Classes named like severities, sub-folders, and bitmaps that become PNGs beside PNGs."""
        for row, name in enumerate(
            ["5/x.png", "5/x.bmp", "5/deep/y.bmp", "5/deep/x.png", "1/y.tif", "1/y.bmp"]
        ):
            file = tmp_path / "clean" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(squares(6).image(row)).save(file)
        self.check(open_images(tmp_path / "clean"), tmp_path / "out")

    def test_images_that_are_not_the_same(self, tmp_path, squares):
        corrupt_set(squares(9), tmp_path / "a", ["fog"], [5])
        for n, kind, severity, message in (
            (12, "fog", 5, "are not those of the clean set "),
            (9, "snow", 5, "has no corruption 'snow', only fog"),
            (9, "fog", 3, "severity"),
        ):
            with pytest.raises(IT3Error, match=message):
                Shifts(squares(n), (kind,), (severity,), tmp_path / "a").check()
        corrupt_set(squares(10), tmp_path / "b", ["fog"], [5], limit=5)  # 0, 2, 4, 6 and 8
        with pytest.raises(IT3Error, match="the labels of 'fog 5' are not those of the clean"):
            Shifts(squares(10).take(slice(5)), ("fog",), (5,), tmp_path / "b").check()

    def test_one_corrupted_image_is_never_two_clean_ones(self, tmp_path, squares):
        for name in ("cat/x.png", "dog/x.png"):
            (tmp_path / "clean" / name).parent.mkdir(parents=True)
            Image.fromarray(squares(1).image(0)).save(tmp_path / "clean" / name)
        corrupt_set(open_images(tmp_path / "clean"), tmp_path / "out", ["fog"], [5])
        Image.fromarray(squares(2).image(1)).save(tmp_path / "clean" / "cat" / "x.bmp")
        with pytest.raises(IT3Error, match="fits two of the clean set"):
            Shifts(open_images(tmp_path / "clean"), ("fog",), (5,), tmp_path / "out").check()
        shutil.copy(tmp_path / "clean/cat/x.bmp", tmp_path / "out/fog/5/cat/x.bmp")
        with pytest.raises(IT3Error, match="two images of 'fog 5' have the same name"):
            Shifts(open_images(tmp_path / "clean"), ("fog",), (5,), tmp_path / "out").check()


@pytest.fixture
def files(tmp_path, squares):
    """Good and bad ones, with names that are hard on shells and fonts."""
    made = []
    for row, name in enumerate(["a b.png", "ü 猫.png", "100%.png", "-x.jpg"]):
        Image.fromarray(squares(4).image(row)).save(tmp_path / name)
        made.append(tmp_path / name)
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.png").write_bytes(b"")
    return [made[0], tmp_path / "text.png", made[1], tmp_path / "empty.png", *made[2:]]


def asked(experiment, paths, adapt="auto"):
    reader = task.reader(experiment, PredictOptions())
    return list(predict(experiment, reader, paths, adapt=adapt))


class TestPredict:
    @pytest.mark.parametrize("adapt", ["auto", "instance", "batch", "statistics", "none"])
    def test_the_first_answer_is_the_networks_own(self, classifier, files, adapt, squares):
        said = asked(classifier, [*files, files[0]], adapt)
        assert [one.item.name for one in said] == [*map(str, files), str(files[0])]
        assert [one.problem is None for one in said] == [True, False, True, False] + 3 * [True]
        said = [one for one in said if one.initial]
        pixels = np.stack([squares(4).image(row) for row in range(3)])
        first = answers(classifier, pixels).softmax(1).max(1).values
        assert np.allclose([one.initial["probability"] for one in said[:3]], first, atol=1e-4)
        if adapt == "none":
            assert not any(one.adapted for one in said)

    def test_lines_and_json(self, classifier, files, capsys):
        command = ["classify", "predict", str(classifier.folder), *map(str, files[:3])]
        assert main(command) == 2
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(": ")[0] for line in lines] == list(map(str, files[:3]))
        assert "; percentile " in lines[0]
        assert main([*command, "--json"]) == 2
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert told[1].keys() == {"name", "problem"}
        assert told[0].keys() == {"name", "prediction", "probability", "initial",
                                  "initial_probability", "prediction_set", "percentile",
                                  "flagged", "adapted"}  # fmt: skip


def test_the_demos_characters():
    images = characters(40, seed=3)
    assert images.classes == tuple(CHARACTERS)
    assert np.array_equal(images.batch(slice(None)), characters(40, seed=3).batch(slice(None)))
    assert not np.array_equal(images.image(0), characters(40, seed=4).image(0))
    assert min(images.image(i).std() for i in range(40)) > 10  # ink is on the paper
