"""A RUN from its training to its report: nothing is lost, mixed up or told wrongly."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from it3_core import IT3Error, IT3Warning, Source
from it3_core.evaluation import read_records
from it3_vision import training
from it3_vision.augmentation import Feed, augmentation
from it3_vision.classify import Run, Training, load_run, runs, train
from it3_vision.classify.demo import CHARACTERS, characters
from it3_vision.classify.evaluate import Evaluation, Shifts, evaluate_run, load_evaluation
from it3_vision.classify.lineup import lineup
from it3_vision.classify.predict import Prediction, predict
from it3_vision.classify.report import write_report
from it3_vision.comparing import WITH_GRAPH
from it3_vision.corruptions import corrupt_all
from it3_vision.corruptions.writing import corrupt_set
from it3_vision.data import ImageSet, Preparation, open_images
from it3_vision.lineup import paper_step
from it3_vision.networks import NetworkSettings, bare, load_weights
from it3_vision.trials import _REPEATS, _whole_batches, candidates, trials

CLASSES = ["red", "green", "<b>blue & co</b>"]
SIZE = 16
TINY = Training(
    NetworkSettings(preset="tiny", size=SIZE), epochs=3, batch_size=24, lr=0.05, flip=False
)
TUNED = {12: 12}


def squares(n: int, seed: int = 0) -> ImageSet:
    """Squares of one of three colours somewhere on grey noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    pixels = rng.integers(60, 120, (n, SIZE, SIZE, 3))
    for image, label in zip(pixels, labels, strict=True):
        top, left = rng.integers(1, 7, 2)
        image[top : top + 8, left : left + 8, label] += 100
    return ImageSet.from_array(pixels.astype(np.uint8), labels, CLASSES)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("run")
    return train(squares(240), out, TINY, about={"data": "squares"}, tuned=TUNED, progress=False)


@pytest.fixture(scope="module")
def group_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    network = replace(TINY.network, norm="group")
    settings = replace(TINY, network=network, epochs=2, rotation=False)
    out = tmp_path_factory.mktemp("group")
    return train(squares(240), out, settings, tuned=TUNED, progress=False)


@pytest.fixture(scope="module")
def shifts() -> Shifts:
    return Shifts(squares(24, seed=1), ("fog", "contrast"), (5,))


@pytest.fixture(scope="module")
def found(run: Run, shifts: Shifts) -> Evaluation:
    return evaluate_run(run, shifts, batch_sizes=(12,), slow=False, progress=False)


def answers(run: Run, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return run.model(x, run.adapter.neutral(x))  # type: ignore[no-any-return]


def same_weights(one: Run, other: Run) -> bool:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


class TestTraining:
    def test_it_learns(self, run: Run) -> None:
        assert run.settings["held_out_error"] < 0.2
        assert run.history["train"][-1] < run.history["train"][0]

    def test_it_is_read_back_whole(self, run: Run) -> None:
        again = load_run(run.folder)
        x = run.prepare(squares(12, 2).batch(slice(None)))
        assert torch.equal(answers(again, x), answers(run, x))
        assert same_weights(run, again)
        assert again.classes == run.classes == tuple(CLASSES)
        assert again.prepare == run.prepare
        assert again.tunings == run.tunings
        assert again.history == run.history
        assert json.loads(json.dumps(run.settings)) == again.settings
        assert torch.equal(again.trust.quantiles, run.trust.quantiles)
        for kind in ("activations", "fisher"):
            mine, theirs = getattr(run, kind).tensors(), getattr(again, kind).tensors()
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        y0 = run.method(12)(x).prediction
        assert torch.equal(again.method(12)(x).prediction, y0)

    def test_a_finished_one_is_returned_at_once(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("it trains")

        monkeypatch.setattr(training, "fit", refuse)
        again = train(squares(240), run.folder, TINY, tuned=TUNED, progress=False)
        assert same_weights(run, again)

    def test_bfloat16_is_for_what_computes_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def told(**has: bool) -> None:
            monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, **has})

        told(avx512_bf16=False, amx_bf16=False)
        with pytest.warns(IT3Warning, match="no bfloat16 instructions"):
            assert training.precision(True, "cpu") is False
        assert training.precision(True, "cuda") is True
        told(avx512_bf16=True)
        assert training.precision(True, "cpu") is True

    def test_the_second_pass_weighs_what_it_is_told(self, run: Run, tmp_path: Path) -> None:
        told = replace(TINY, epochs=1, weight=10.0)
        heavy = train(squares(240), tmp_path, told, tuned=TUNED, progress=False)
        assert heavy.history["train"][0] > 2 * run.history["train"][0]

    @pytest.mark.parametrize(
        ("changed", "sentence"),
        [
            ({"lr": 0.04}, "lr was 0.05 and is 0.04"),
            ({"flip": True}, "flip was False and is True"),
            ({"normalise": "imagenet"}, "normalise was data and is imagenet"),
            ({"network": replace(TINY.network, size=24)}, "size was 16 and is 24"),
        ],
    )
    def test_another_training_in_its_folder_is_refused(
        self, changed: dict[str, Any], sentence: str, run: Run, tmp_path: Path
    ) -> None:
        """Or these weights would be kept, as if they had been trained so; half-way ones too."""
        before = (run.folder / "model.safetensors").read_bytes()
        with pytest.raises(IT3Error, match=sentence):
            train(squares(240), run.folder, replace(TINY, **changed), progress=False)
        assert (run.folder / "model.safetensors").read_bytes() == before
        for name in ("training.safetensors", "training.json"):
            shutil.copy(run.folder / name, tmp_path)
        with pytest.raises(IT3Error, match=sentence):
            train(squares(240), tmp_path, replace(TINY, **changed), progress=False)

    def test_other_images_in_its_folder_are_refused(self, run: Run) -> None:
        images = squares(240)
        relabelled = ImageSet.from_array(images.pixels(), images.labels[::-1].copy(), CLASSES)
        with pytest.raises(IT3Error, match=r"\(the images are others\).* name a new folder"):
            train(relabelled, run.folder, TINY, tuned=TUNED, progress=False)
        with pytest.raises(IT3Error, match="images was 240 and is 237"):
            train(squares(237), run.folder, TINY, tuned=TUNED, progress=False)

    def test_what_never_began_binds_nobody(self, tmp_path: Path) -> None:
        with pytest.raises(IT3Error, match="lr must be"):
            train(squares(240), tmp_path, replace(TINY, lr=-1.0), progress=False)
        network = replace(TINY.network, layer="none")
        with pytest.raises(IT3Error, match="has no layer"):
            train(squares(240), tmp_path, replace(TINY, network=network), progress=False)

    def test_one_that_was_stopped_ends_with_the_same_weights(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls, collate = [0], Feed.collate

        def stopped(feed: Feed, rows: list[int]) -> Any:
            calls[0] += 1
            if calls[0] == 16:  # in the second epoch
                os.kill(os.getpid(), signal.SIGINT)
            return collate(feed, rows)

        # A shell's background job starts with SIGINT ignored.
        usual = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(Feed, "collate", stopped)
                with pytest.raises(KeyboardInterrupt):
                    train(squares(240), tmp_path, TINY, tuned=TUNED, progress=False)
        finally:
            signal.signal(signal.SIGINT, usual)
        with pytest.raises(IT3Error, match="is no RUN"):
            load_run(tmp_path)
        assert (tmp_path / "training.safetensors").is_file()
        monkeypatch.setattr(runs, "choose", lambda *_, **__: run.tunings)  # which takes long
        again = train(squares(240), tmp_path, TINY, tuned=TUNED, progress=False)
        assert same_weights(run, again)
        assert again.history["train"] == run.history["train"]
        assert calls[0] == 16

    def test_vanilla_is_trained_beside_a_finished_one(self, run: Run, tmp_path: Path) -> None:
        folder = tmp_path / "copy"
        shutil.copytree(run.folder, folder)
        both = train(squares(240), folder, TINY, tuned=TUNED, vanilla=True, progress=False)
        read = load_run(folder)
        assert same_weights(run, read)
        assert both.vanilla is not None
        assert read.vanilla is not None
        x = run.prepare(squares(12, 2).batch(slice(None)))
        blind = read.vanilla(x, read.adapter.neutral(x))
        assert torch.equal(blind, both.vanilla.eval()(x, read.adapter.neutral(x)))
        assert not torch.equal(blind, answers(run, x))
        assert "vanilla net" in lineup(read, 12).methods
        assert "vanilla net" not in lineup(run, 12).methods

    def test_another_training_can_start_from_it(self, run: Run) -> None:
        for name in ("model.safetensors", "training.safetensors"):
            network = bare(TINY.network, 3)
            load_weights(network, run.folder / name)
            mine, theirs = network.state_dict(), run.model.model.state_dict()
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[k], theirs[k]) for k in mine)

    def test_held_out_images_are_not_trained_on(self) -> None:
        images = squares(240)
        held_out, rest = training.parts(images, seed=3)
        assert len(held_out) == 24
        assert sorted([*held_out.names, *rest.names]) == sorted(images.names)
        assert list(training.parts(images, 4)[0].names) != list(held_out.names)

    def test_images_are_normalised_by_their_own_mean_or_by_imagenets(self) -> None:
        images = squares(30)
        mean = images.batch(slice(None)).mean((0, 1, 2)) / 255
        told = training.preparation(images, SIZE, "data", 0)
        assert np.allclose(told.mean, mean, atol=1e-3)
        told = training.preparation(images, SIZE, "imagenet", 0)
        assert told.mean == (0.485, 0.456, 0.406)
        with pytest.raises(IT3Error, match="images are normalised by "):
            training.preparation(images, SIZE, "mnist", 0)  # type: ignore[arg-type]

    def test_unreadable_images_are_left_out(self, tmp_path: Path) -> None:
        for row in range(24):
            folder = tmp_path / "ab"[row % 2]
            folder.mkdir(exist_ok=True)
            Image.fromarray(squares(24).image(row)).save(folder / f"{row}.png")
        (tmp_path / "a" / "bad.png").write_bytes(b"")
        images, bad = runs._gathered(open_images(tmp_path), SIZE, progress=False)
        assert len(images) == 24
        assert [one.name for one in bad] == ["a/bad.png"]

    @pytest.mark.parametrize(
        ("images", "sentence"),
        [
            (ImageSet.from_array(np.zeros((30, 8, 8, 3), np.uint8), [0] * 30), "two classes"),
            (squares(12), "there are 12 images to train on, and 4 of class 'red'"),
            (ImageSet.from_array(np.zeros((30, 8, 8, 3), np.uint8), [0] * 29 + [1]), "1 of class"),
            (ImageSet.from_array(np.zeros((30, 8, 8, 3), np.uint8), [0, 1] * 15), "nothing to see"),
        ],
    )
    def test_what_can_not_be_learnt_from(
        self, images: ImageSet, sentence: str, tmp_path: Path
    ) -> None:
        with pytest.raises(IT3Error, match=sentence):
            train(images, tmp_path, TINY, progress=False)

    def test_a_device_that_is_not_there(self, tmp_path: Path) -> None:
        for name in ("toaster", "cuda:99"):
            with pytest.raises(IT3Error, match=f"can't compute on '{name}': "):
                train(squares(240), tmp_path, TINY, device=name, progress=False)


class TestAugmentation:
    def test_batches_follow_torchs_seed(self) -> None:
        feed = Feed(squares(6), Preparation(SIZE, (0.5,) * 3, (0.2,) * 3), augmentation(SIZE))
        rows = [5, 0, 3]
        torch.manual_seed(1)
        (x, y), (other, _) = feed.collate(rows), feed.collate(rows)
        torch.manual_seed(1)
        assert torch.equal(feed.collate(rows)[0], x)
        assert not torch.equal(other, x)
        assert y.tolist() == [2, 0, 0]
        assert [feed[i] for i in range(len(feed))] == list(range(6))

    def test_letters_are_not_flipped(self) -> None:
        image = np.zeros((80, 80, 3), np.uint8)
        image[:, :40] = 255
        for size in (32, 80):
            vary = augmentation(size, flip=False)
            vary.set_random_seed(0)
            part = image[:size, 40 - size // 2 : 40 + size // 2]
            made = [vary(image=part)["image"].astype(int) for _ in range(20)]
            assert all(m[:, :3].mean() >= m[:, -3:].mean() for m in made)

    def test_without_variation_images_stay(self) -> None:
        images, prepare = squares(6), Preparation(SIZE, (0.5,) * 3, (0.2,) * 3)
        x, _ = Feed(images, prepare).collate([4])
        assert torch.equal(x, prepare(images.batch([4])))


class TestChoosing:
    def test_no_candidate_of_statistics_without_batch_norm(self, run: Run, group_run: Run) -> None:
        def norms(one: Run, size: int) -> set[Any]:
            return {c.settings.get("norm", "source") for c in candidates(one.model, size)}

        assert norms(group_run, 64) == norms(group_run, 1) == {"source"}
        assert norms(run, 64) == {"source", "batch", 0.6}
        assert "batch" not in norms(run, 1)

    def test_no_last_batch_of_one(self) -> None:
        """13 images in batches of 12 leave one, whose statistics a 1×1 map does not have."""
        given = [(13, 12), (5, 12), (250, 1), (1024, 64), (1030, 64)]
        assert [_whole_batches(*pair) for pair in given] == [12, 5, 250, 1024, 1024]

    def test_the_tuning_for_a_batch_size(self, run: Run) -> None:
        small, large = (replace(run.tunings[12], reason=text) for text in ("small", "large"))
        both = replace(run, tunings={4: small, 16: large})
        assert [both.tuning(n).reason for n in (4, 15, 16, 99)] == ["small"] * 2 + ["large"] * 2
        alone = both.tuning(3)  # statistics of a batch, say, are nothing for a few images
        assert alone.chosen.method == "Source"
        assert alone.reason == "No adaptation: it was tuned for batches of 4 images and more."

    def test_no_gain_is_better_than_a_loss(self, run: Run) -> None:
        def entry(lr: float, gain: float | None) -> dict[str, Any]:
            settings = {"anchor_gradient": True, "norm": "source", "lr": lr}
            return {"method": "IT3", "settings": settings, "gain": gain}

        tried = (entry(0.1, None), entry(0.2, -0.3), entry(0.3, 0.0), entry(0.4, -0.1))
        tuned = replace(run, tunings={1: replace(run.tunings[12], tried=tried)})
        assert paper_step(tuned, 1, "source")["lr"] == 0.3
        assert paper_step(tuned, 1, "batch")["lr"] == 2e-4  # none was tried on these statistics
        larger = {1: replace(run.tunings[12], tried=()), 16: tuned.tunings[1]}
        known = paper_step(tuned, 1, "source")
        assert paper_step(replace(run, tunings=larger), 1, "source") == known  # of the next size


class TestEvaluation:
    def test_all_files_are_there(self, found: Evaluation, run: Run) -> None:
        assert found.folder == run.folder / "evaluation"
        names = {path.name for path in found.folder.iterdir()}
        assert names >= {"records.jsonl", "table.md", "rows.md", "summary.json", "bars-12.png"}
        assert (found.folder / "bars-12.png").read_bytes().startswith(b"\x89PNG")
        table = (found.folder / "table.md").read_text()
        assert "| IT³, batch statistics | 12 |" in table
        assert "| method | clean | fog | contrast | mean |" in table

    def test_classes_without_test_images_are_named(self, found: Evaluation) -> None:
        assert found.numbers["unmeasured"] == ""
        dogs = ImageSet.from_array(np.zeros((9, 8, 8, 3), np.uint8), [3] * 9, list("abcd"))
        said = "none of the 9 test images is of the classes a, b, c: their error is not measured"
        assert Shifts(dogs).unmeasured() == said
        many = ImageSet(dogs._source, [0] * 9, [f"class {row}" for row in range(100)])
        assert "class 19, class 20 and 79 more: their" in Shifts(many).unmeasured()

    def test_every_row_that_was_promised(self, found: Evaluation) -> None:
        wanted = {"source", "second pass", "batch statistics", "blended statistics",
                  "IT³, source statistics", "IT³, batch statistics", "IT³ auto", "online IT³",
                  "ActMAD", "Tent", "Tent, episodic", "ETA", "EATA"}  # fmt: skip
        for level in ("clean", "fog 5", "contrast 5", "mean 5"):
            assert {row["method"] for row in found.rows if row["level"] == level} == wanted
        assert not [record["problem"] for record in found.records if record["problem"]]

    def test_source_is_what_the_network_says(
        self, found: Evaluation, run: Run, shifts: Shifts
    ) -> None:
        clean = shifts.images.batch(slice(None))
        for level, pixels in (
            ("clean", clean),
            ("fog 5", corrupt_all(clean, "fog", 5, benchmark="cifar", seed=0)),
        ):
            said = answers(run, run.prepare(pixels)).argmax(1).numpy()
            expected = 100.0 * (said != shifts.images.labels)
            assert record(found, level, "source")["errors"] == expected.tolist()

    def test_differences_are_paired(self, found: Evaluation) -> None:
        source = np.array(record(found, "fog 5", "source")["errors"])
        for one in found.records:
            if one["level"] == "fog 5":
                pairs = np.array(one["errors"]) - source
                assert one["differences"] == pairs.tolist()
                assert math.isclose(one["difference"], pairs.mean(), abs_tol=1e-4)

    def test_the_mean_is_over_corruptions_and_its_interval_over_images(
        self, found: Evaluation
    ) -> None:
        for method in ("source", "Tent"):
            rows = {row["level"]: row for row in found.rows if row["method"] == method}
            both = [rows["fog 5"]["error"], rows["contrast 5"]["error"]]
            assert math.isclose(rows["mean 5"]["error"], sum(both) / 2, abs_tol=1e-4)
            assert rows["mean 5"]["n"] == 24  # and not 48

    def test_batch_statistics_are_the_batchs(
        self, found: Evaluation, run: Run, shifts: Shifts
    ) -> None:
        """The row equals the network in training mode, batch by batch; IT³'s starts from it."""
        x, y = shifts.load(run, "fog 5")
        network = load_run(run.folder).model.train()
        said = []
        for part in x.split(12):
            with torch.no_grad():
                said.append(network(part, run.adapter.neutral(part)))
        wrong = 100.0 * (torch.cat(said).argmax(1) != y)
        assert record(found, "fog 5", "batch statistics")["errors"] == wrong.tolist()
        methods = lineup(run, 12, slow=False).methods
        first = methods["IT³, batch statistics"](x[:12]).initial  # type: ignore[union-attr]
        assert torch.allclose(first, said[0], atol=1e-4)
        first = methods["IT³, source statistics"](x[:12]).initial  # type: ignore[union-attr]
        assert torch.allclose(first, answers(run, x[:12]), atol=1e-5)

    def test_it_goes_on_where_it_was(
        self, found: Evaluation, run: Run, shifts: Shifts, tmp_path: Path
    ) -> None:
        (parts,) = (found.folder / "parts").iterdir()
        again = evaluate_run(run, shifts, batch_sizes=(12,), slow=False, progress=False)
        assert list(again.records) == list(found.records)  # CPU seconds and all
        lines = parts.read_text().splitlines(keepends=True)
        folder = tmp_path / "evaluation"
        (folder / "parts").mkdir(parents=True)
        kept = [line for line in lines if json.loads(line)["level"] == "clean"]
        (folder / "parts" / parts.name).write_text("".join(kept) + lines[-1][:40])  # torn off
        again = evaluate_run(
            run, shifts, out=folder, batch_sizes=(12,), slow=False, only=["Tent"], progress=False
        )
        for level in ("clean", "fog 5", "contrast 5"):
            mine, theirs = record(found, level, "Tent"), record(again, level, "Tent")
            assert mine["errors"] == theirs["errors"]
            assert (mine["cpu_seconds"] == theirs["cpu_seconds"]) == (level == "clean")
        assert {one["method"] for one in again.records} == {"source", "Tent"}

    def test_other_images_are_not_taken_for_these(
        self, run: Run, shifts: Shifts, tmp_path: Path
    ) -> None:
        """Names and labels are the same, pixels are not."""
        errors = []
        for seed in (1, 5):
            one = replace(shifts, images=noisy(squares(12, seed), seed), corruptions=("fog",))
            told = evaluate_run(
                run, one, out=tmp_path, batch_sizes=(12,), only=["second pass"], progress=False
            )
            errors.append(record(told, "clean", "source")["errors"])
        assert errors[0] != errors[1]
        assert len(list((tmp_path / "parts").iterdir())) == 2

    def test_what_looks_at_one_image_runs_once(self, run: Run, tmp_path: Path) -> None:
        few = Shifts(squares(4, 1), ("fog",), (5,))
        told = evaluate_run(
            run, few, out=tmp_path, batch_sizes=(2, 4), only=["MEMO", "TTT"], progress=False
        )
        cells = [(one["level"], one["method"], one["batch_size"]) for one in told.records]
        names = ("source", "MEMO", "TTT")
        assert sorted(cells) == sorted((lv, m, None) for lv in ("clean", "fog 5") for m in names)
        assert not [one["problem"] for one in told.records if one["problem"]]

    def test_several_batch_sizes(self, run: Run, tmp_path: Path) -> None:
        few = Shifts(squares(12, 1), ("fog",), (5,))
        only = ["second pass", "batch statistics", "IT³, batch statistics"]
        told = evaluate_run(
            run, few, out=tmp_path, batch_sizes=(12, 4), only=only, slow=False, progress=False
        )
        cells = {(one["method"], one["batch_size"]) for one in told.records}
        assert cells == {("source", None), ("second pass", None), ("batch statistics", 12),
                         ("batch statistics", 4), ("IT³, batch statistics", 12),
                         ("IT³, batch statistics", 4)}  # fmt: skip
        assert "norm=0.20" in told.numbers["settings"]["4"]["IT³, batch statistics"]
        assert "norm=batch" in told.numbers["settings"]["12"]["IT³, batch statistics"]
        header, *lines = told.by_corruption(5, 4)
        assert header == ["method", "clean", "fog", "mean"]
        assert [line[0] for line in lines] == ["source", "second pass", *only[1:]]

    def test_severities(self, run: Run, tmp_path: Path) -> None:
        both = Shifts(squares(6, 1), ("fog",), (1, 5))
        told = evaluate_run(
            run, both, out=tmp_path, batch_sizes=(6,), only=["second pass"], progress=False
        )
        levels = {row["level"] for row in told.rows}
        assert levels == {"clean", "fog 1", "fog 5", "mean 1", "mean 5"}
        assert (tmp_path / "severities.png").is_file()
        assert "## Severity 1" in (tmp_path / "table.md").read_text()

    def test_group_norm_has_no_statistics_to_choose(self, group_run: Run) -> None:
        whole = lineup(group_run, 12)
        assert not [name for name in whole.methods if "statistics" in name and "source" not in name]
        assert {"source", "second pass", "IT³, source statistics", "MEMO"} <= set(whole.methods)
        assert "TTT" not in whole.methods  # trained without its head
        x = group_run.prepare(squares(3).batch(slice(None)))
        for name in ("IT³, source statistics", "Tent", "EATA", "ActMAD"):
            answer = whole.methods[name](x)
            assert torch.isfinite(answer.prediction).all()  # type: ignore[union-attr]

    def test_memory_and_trust(self, found: Evaluation) -> None:
        memory, trust = found.numbers["memory"], found.numbers["trust"]
        assert memory["source"] == 1.0
        assert memory[WITH_GRAPH] > 1.0
        assert all(memory[name] >= 1.0 for name in ("Tent", "IT³, batch statistics", "ActMAD"))
        assert 0 <= trust["flagged_clean"] <= 1
        assert trust["error"]["pearson"] is None  # 24 images make no batch of 64

    def test_it_is_read_back(self, found: Evaluation) -> None:
        again = load_evaluation(found.folder)
        assert [line[:6] for line in again.summary(5)] == [line[:6] for line in found.summary(5)]
        assert again.samples == json.loads(json.dumps(found.samples))
        assert read_records(found.folder / "records.jsonl") == list(found.records)
        (found.folder / "summary.json").rename(found.folder / "away.json")
        with pytest.raises(IT3Error, match="holds no evaluation: make one with"):
            load_evaluation(found.folder)
        (found.folder / "away.json").rename(found.folder / "summary.json")

    def test_samples_are_what_was_said(self, found: Evaluation, run: Run, shifts: Shifts) -> None:
        x, y = shifts.load(run, "contrast 5")
        lines = [line for line in found.samples if line["level"] == "contrast 5"]
        assert [line["row"] for line in lines] == [0, 1, 2, 3]
        assert [line["truth"] for line in lines] == y[:4].tolist()
        assert [line["before"] for line in lines] == run.method(12)(x[:12]).initial.argmax(
            1
        ).tolist()[:4]
        assert all(0 <= line["percentile"] <= 100 for line in found.samples)

    def test_bad_requests(self, run: Run, shifts: Shifts, tmp_path: Path) -> None:
        def ask(**options: Any) -> None:
            evaluate_run(run, shifts, out=tmp_path, progress=False, **options)

        with pytest.raises(IT3Error, match="no method is called Tant: take source; second pass"):
            ask(only=["Tant"], batch_sizes=(12,))
        for sizes in ((), (0, 4)):
            with pytest.raises(IT3Error, match="batch sizes are whole numbers from 1 on"):
                ask(batch_sizes=sizes)
        with pytest.raises(IT3Error, match="at least one corruption"):
            Shifts(squares(3), ())


def record(found: Evaluation, level: str, method: str) -> dict[str, Any]:
    (one,) = (r for r in found.records if r["level"] == level and r["method"] == method)
    return one


def noisy(images: ImageSet, seed: int) -> ImageSet:
    rng = np.random.default_rng(seed)
    pixels = images.batch(slice(None))
    rows = rng.random(len(pixels)) < 0.5  # half of them say nothing any more
    pixels[rows] = rng.integers(0, 255, pixels[rows].shape, np.uint8)
    return ImageSet.from_array(pixels, images.labels, images.classes)


class TestCorruptedFolders:
    """What `it3-vision corrupt` wrote is matched image by image, and is what is made here."""

    def levels(self, images: ImageSet, folder: Path) -> list[NDArray[np.uint8]]:
        there = Shifts(images, ("fog", "snow"), (2, 5), folder)
        return [there.pixels(SIZE, name) for name in there.names()]

    def test_arrays(self, tmp_path: Path) -> None:
        images = squares(9)
        corrupt_set(images, tmp_path, ["fog", "snow"], [2, 5], benchmark="cifar", seed=3)
        here = Shifts(images, ("fog", "snow"), (2, 5), seed=3)
        for name, pixels in zip(here.names(), self.levels(images, tmp_path), strict=True):
            assert np.array_equal(pixels, here.pixels(SIZE, name)), name
        rows = [7, 2, 5]  # some of them, in another order, are the same images still
        whole, some = self.levels(images, tmp_path), self.levels(images.take(rows), tmp_path)
        assert all(np.array_equal(a[rows], b) for a, b in zip(whole, some, strict=True))

    def test_files(self, tmp_path: Path) -> None:
        """Classes named like severities, sub-folders, and bitmaps that become PNGs beside PNGs."""
        for row, name in enumerate(
            ["5/x.png", "5/x.bmp", "5/deep/y.bmp", "5/deep/x.png", "1/y.tif", "1/y.bmp"]
        ):
            file = tmp_path / "clean" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(squares(6).image(row)).save(file)
        images = open_images(tmp_path / "clean")
        corrupt_set(images, tmp_path / "out", ["fog", "snow"], [2, 5], benchmark="cifar", seed=3)
        here = Shifts(images, ("fog", "snow"), (2, 5), seed=3)
        made = self.levels(images, tmp_path / "out")
        for name, pixels in zip(here.names(), made, strict=True):
            assert np.array_equal(pixels, here.pixels(SIZE, name)), name
        rows = [4, 0, 2]
        some = self.levels(images.take(rows), tmp_path / "out")
        assert all(np.array_equal(a[rows], b) for a, b in zip(made, some, strict=True))

    def test_an_image_that_is_not_there(self, tmp_path: Path) -> None:
        corrupt_set(squares(9), tmp_path, ["fog"], [5])
        with pytest.raises(IT3Error, match="are not those of the clean set "):
            Shifts(squares(12), ("fog",), (5,), tmp_path).pixels(SIZE, "fog 5")
        with pytest.raises(IT3Error, match="has no corruption 'snow', only fog"):
            Shifts(squares(9), ("snow",), (5,), tmp_path).pixels(SIZE, "snow 5")
        with pytest.raises(IT3Error, match="severity"):
            Shifts(squares(9), ("fog",), (3,), tmp_path).pixels(SIZE, "fog 3")

    def test_every_third_image_is_not_the_first_ones(self, tmp_path: Path) -> None:
        images = squares(10)
        corrupt_set(images, tmp_path, ["fog"], [5], limit=5)  # the numbers 0, 2, 4, 6 and 8
        with pytest.raises(IT3Error, match="the labels of 'fog 5' are not those of the clean"):
            Shifts(images.take(slice(5)), ("fog",), (5,), tmp_path).pixels(SIZE, "fog 5")

    def test_one_corrupted_image_is_never_two_clean_ones(self, tmp_path: Path) -> None:
        for name in ("cat/x.png", "dog/x.png"):
            (tmp_path / "clean" / name).parent.mkdir(parents=True)
            Image.fromarray(squares(1).image(0)).save(tmp_path / "clean" / name)
        corrupt_set(open_images(tmp_path / "clean"), tmp_path / "out", ["fog"], [5])
        Image.fromarray(squares(2).image(1)).save(tmp_path / "clean" / "cat" / "x.bmp")
        with pytest.raises(IT3Error, match="fits two of the clean set"):
            Shifts(open_images(tmp_path / "clean"), ("fog",), (5,), tmp_path / "out").check()

    def test_names_that_differ_by_suffix_alone(self, tmp_path: Path) -> None:
        for row, name in enumerate(["cat/x.png", "cat/x.jpg", "dog/x.png"]):
            file = tmp_path / "fog" / "5" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(squares(5).image(row)).save(file)
        images = open_images(tmp_path, corruption="fog", severity=5)
        with pytest.raises(IT3Error, match="two images of 'fog 5' have the same name"):
            Shifts(images, ("fog",), (5,), tmp_path).pixels(SIZE, "fog 5")


class _Outside(HTMLParser):
    """Whatever a browser would fetch, and all tags."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "data", "action") and not (value or "").startswith("data:"):
                self.fetched.append(f"{tag} {name}={value}")


@pytest.fixture(scope="module")
def page(
    run: Run, shifts: Shifts, found: Evaluation, tmp_path_factory: pytest.TempPathFactory
) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    about = {**run.settings, "about": {"data": "<script>alert(1)</script>"}}
    told = replace(run, settings=about)
    assert write_report(told, shifts, found, path, "a command --with <this>") == path
    return path.read_text(encoding="utf-8")


class TestReport:
    def test_it_stands_alone(self, page: str) -> None:
        seen = _Outside()
        seen.feed(page)
        assert seen.fetched == []
        assert not {"script", "iframe", "object", "b"} & set(seen.tags)
        assert seen.tags.count("img") >= 2
        assert "url(" not in page
        assert "@import" not in page

    def test_nothing_is_taken_for_html(self, page: str) -> None:
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "a command --with &lt;this&gt;" in page

    def test_it_says_what_the_records_say(self, page: str, found: Evaluation) -> None:
        for severity, method in ((5, "source"), (5, "Tent"), (5, "IT³, batch statistics")):
            row = next(r for r in found.rows
                       if (r["level"], r["method"]) == (f"mean {severity}", method))  # fmt: skip
            assert re.search(rf"<td>{method}</td>.*?>{row['error']:.1f}</td>", page)

    def test_class_names_that_no_font_has(
        self, run: Run, shifts: Shifts, found: Evaluation, tmp_path: Path
    ) -> None:
        strange = replace(run, classes=("猫", "$x^2", "<b>&</b>"))
        write_report(strange, shifts, found, tmp_path / "report.html")  # without a warning


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Good and bad ones, with names that are hard on shells and fonts."""
    made = []
    for row, name in enumerate(["a b.png", "ü 猫.png", "100%.png", "-x.jpg"]):
        Image.fromarray(squares(4).image(row)).save(tmp_path / name)
        made.append(tmp_path / name)
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "empty.png").write_bytes(b"")
    return [made[0], tmp_path / "text.png", made[1], tmp_path / "empty.png", *made[2:]]


class TestPredict:
    def test_order_is_kept_and_bad_files_are_told(self, run: Run, files: list[Path]) -> None:
        said = predict(run, [*files, files[0]])
        assert [one.name for one in said] == [*map(str, files), str(files[0])]
        assert [one.before is None for one in said] == [False, True, False, True] + 3 * [False]
        assert all(one.problem for one in said if one.before is None)
        assert [one.before for one in said if one.before][:2] == CLASSES[:2]
        assert all(0 <= one.percentile <= 100 for one in said if one.percentile is not None)

    @pytest.mark.parametrize("adapt", ["auto", "instance", "batch", "statistics", "none"])
    def test_every_kind_of_adaptation(self, run: Run, files: list[Path], adapt: Any) -> None:
        said = [one for one in predict(run, files, adapt) if one.before]
        x = run.prepare(np.stack([squares(4).image(row) for row in range(3)]))
        # Before is the network as it is, whatever statistics the method is on.
        first = answers(run, x).softmax(1).max(1).values
        assert np.allclose([one.sure_before for one in said[:3]], first.numpy(), atol=1e-4)
        errors = Source(run.model, run.adapter)(x).error_before
        assert np.allclose([one.error for one in said[:3]], errors.numpy(), atol=1e-4)
        for one in said:
            assert one.after in CLASSES
            assert 1 / 3 <= (one.sure_after or 0) <= 1
        if adapt == "none":
            assert [one.after for one in said] == [one.before for one in said]

    def test_what_is_asked_alone_is_answered_alone(self, run: Run, files: list[Path]) -> None:
        """Without batch statistics, or image by image, company changes nothing."""
        good = [files[0], files[2]]
        for adapt in ("none", "instance"):
            together = predict(run, good, adapt)  # type: ignore[arg-type]
            alone = [predict(run, [file], adapt)[0] for file in good]  # type: ignore[arg-type]
            for one, other in zip(together, alone, strict=True):
                assert one.after == other.after
                assert math.isclose(one.sure_after or 0, other.sure_after or 1, abs_tol=1e-3)

    def test_no_last_batch_of_one(self, run: Run, tmp_path: Path) -> None:
        """65 images come as 33 and 32: one alone would have no statistics to speak of."""
        np.save(tmp_path / "images.npy", squares(65).batch(slice(None)))
        said = predict(run, [tmp_path / "images.npy"], "statistics")
        pixels = squares(65).batch(slice(33, None))
        share = 32 / (16 + 32)
        answer = predict_with(run, pixels, share)
        assert [one.after for one in said[33:]] == [CLASSES[i] for i in answer.argmax(1)]
        sure = answer.softmax(1).max(1).values.numpy()
        assert np.allclose([one.sure_after for one in said[33:]], sure, atol=1e-4)

    def test_folders_and_nothing(self, run: Run, files: list[Path]) -> None:
        said = predict(run, [files[0].parent], "none")
        assert len(said) == 6
        assert {one.name for one in said} == set(map(str, files))
        assert predict(run, []) == []
        assert predict(run, [files[1]])[0].problem
        (empty := files[0].with_name("empty")).mkdir()
        answered, nothing = predict(run, [files[0], empty])
        assert answered.problem is None
        assert "no image" in str(nothing.problem)
        (gone,) = predict(run, [files[0].with_name("gone.png")])
        assert gone.problem
        with pytest.raises(IT3Error, match="adapt is one of auto, instance"):
            predict(run, files, "much")  # type: ignore[arg-type]

    def test_group_norm_has_no_statistics(self, group_run: Run, files: list[Path]) -> None:
        with pytest.warns(IT3Warning, match="has no batch norm"):
            said = predict(group_run, files[:1], "statistics")
        assert said[0].after == said[0].before

    def test_in_words(self) -> None:
        said = Prediction("100%.png", "5 % fat", 0.999, "milk", 0.5, error=0.1, percentile=3.25)
        assert str(said) == (
            "100%.png: 5 % fat (100 %) → milk (50 %); more unusual than 3.2 % of the training "
            "images"
        )
        assert json.loads(json.dumps(said.as_json()))["percentile"] == 3.25
        assert Prediction("x", problem="why").as_json() == {"name": "x", "problem": "why"}


def predict_with(run: Run, pixels: NDArray[np.uint8], share: float) -> torch.Tensor:

    return Source(run.model, run.adapter, norm=share)(run.prepare(pixels)).prediction


def test_the_demos_characters() -> None:
    images = characters(40, seed=3)
    assert images.classes == tuple(CHARACTERS)
    assert np.array_equal(images.batch(slice(None)), characters(40, seed=3).batch(slice(None)))
    assert not np.array_equal(images.image(0), characters(40, seed=4).image(0))
    assert min(images.image(i).std() for i in range(40)) > 10  # ink is on the paper


@pytest.mark.parametrize(("blind_to", "asked"), [(3, 4), (99, _REPEATS)])
def test_a_corruption_is_repeated_until_it_harms(blind_to: int, asked: int) -> None:
    """A network that makes nothing of three repeats is tried under the fourth, or the last."""
    images = characters(8)
    prepare = Preparation(32, (0.5,) * 3, (0.25,) * 3)
    seen: list[torch.Tensor] = []

    def wrong(x: torch.Tensor, y: torch.Tensor) -> float:
        seen.append(x)
        return 0.0 if len(seen) <= 1 + blind_to else 0.2  # the first look is at clean images

    (trial,) = trials(images, prepare, {4: 8}, wrong=wrong)
    first = trial.shifts["speckle_noise"](trial.x)
    assert torch.equal(seen[0], trial.x)
    assert torch.equal(first, seen[asked])
    assert not torch.equal(first, seen[1])
    (once,) = trials(images, prepare, {4: 8})
    assert torch.equal(once.shifts["speckle_noise"](once.x), seen[1])
