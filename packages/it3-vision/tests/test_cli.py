"""The command line and whatever people give it: exit code 2 and one sentence, never a traceback."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from it3_core import IT3Error
from it3_vision.__main__ import main
from it3_vision.classify import Training, train
from it3_vision.data import open_images
from it3_vision.evaluations import write_evaluation
from it3_vision.networks import NetworkSettings

TRAINED = ["--preset", "tiny", "--size", "16", "--epochs", "2", "--batch-size", "24",
           "--no-rotation", "--norm", "group", "--lr", "0.05", "--quiet"]  # fmt: skip


def images(folder: Path, n: int = 60, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """Reddish cats and bluish dogs, somewhere on grey."""
    rng = np.random.default_rng(0)
    for row in range(n):
        kind = row % len(classes)
        pixels = rng.integers(60, 120, (16, 16, 3))
        top, left = rng.integers(1, 7, 2)
        pixels[top : top + 8, left : left + 8, 2 * (kind % 2)] += 60
        (folder / classes[kind]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / classes[kind] / f"{row}.png")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images(tmp_path_factory.mktemp("data"), 200)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What TRAINED asks for, tuned on fewer images than a command line does."""
    network = NetworkSettings(preset="tiny", norm="group", size=16)
    training = Training(network, epochs=2, batch_size=24, lr=0.05, rotation=False)
    out = tmp_path_factory.mktemp("out") / "run"
    train(open_images(data), out, training, tuned={8: 8}, progress=False)
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence that a command ends with."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    told = capsys.readouterr()
    lines = [line for line in told.err.splitlines() if not line.startswith("left out: ")]
    assert len(lines) == 1, told.err
    assert lines[0].startswith("it3-vision: ")
    return lines[0]


class TestTrain:
    def test_it_says_what_it_did(
        self, data: Path, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """And that a training with just these settings is finished already."""
        before = (run / "model.safetensors").read_bytes()
        assert main(["classify", "train", str(data), "--out", str(run), *TRAINED]) == 0
        told = capsys.readouterr().out
        assert "trained on 200 images of 2 classes for 2 epochs" in told
        assert told.count("Batches of ") == 1
        assert (run / "model.safetensors").read_bytes() == before
        assert json.loads((run / "history.json").read_text())["train"]

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--network", "vgg"], "there is no network 'vgg': take dla, resnet18"),
            (["--layer", "level9"], "the network has no layer 'level9'; did you mean"),
            (["--lr", "nan"], "lr"),
            (["--weight", "0"], "weight is a positive number, not 0.0"),
            (["--device", "toaster"], "can't compute on 'toaster': "),
            (["--split", "val"], "is not divided by split: leave split='val' out"),
            (["--weights", "gone.pth"], "gone.pth may hold pickled code"),
            (["--weights", "gone.safetensors"], "there is no file gone.safetensors"),
        ],
    )
    def test_options(
        self, options: list[str], sentence: str, data: Path, tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        out = tmp_path / "run"
        told = refused(capsys, "classify", "train", data, "--out", out, *TRAINED, *options)
        assert sentence in told
        assert not (out / "model.safetensors").exists()

    def test_folders(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def ask(folder: Path, out: Path = tmp_path / "run") -> str:
            return refused(capsys, "classify", "train", folder, "--out", out, *TRAINED)

        (tmp_path / "empty").mkdir()
        assert "holds no images (it is empty)" in ask(tmp_path / "empty")
        (tmp_path / "text").mkdir()
        (tmp_path / "text" / "notes.txt").write_text("no image")
        assert "holds no images, only notes.txt" in ask(tmp_path / "text")
        assert "does not exist" in ask(tmp_path / "gone")
        assert "two classes" in ask(images(tmp_path / "one", 20, ("cat",)))
        few = ask(images(tmp_path / "few", 6))
        assert "there are 6 images to train on, and 3 of class 'cat': give 20 at least" in few
        file = tmp_path / "file"
        file.write_text("")
        good = images(tmp_path / "good", 20)
        assert "can't make the folder" in ask(good, file / "run")
        assert "would be read as images" in ask(good, good / "cat" / "run")
        assert not (good / "cat" / "run").exists()

    def test_values_that_typer_refuses(
        self, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for option, value in (("--epochs", "0"), ("--preset", "huge"), ("--norm", "layer"),
                              ("--size", "x"), ("--seed", "-1")):  # fmt: skip
            command = ["classify", "train", str(data), "--out", str(tmp_path), option, value]
            assert main(command) == 2
            assert option in capsys.readouterr().err


class TestEvaluate:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--corruptions", "fgo"], "no corruption is called 'fgo': did you mean 'fog'?"),
            (["--corruptions", ""], "no corruption is called ''"),
            (["--severities", "6"], "severity must be a whole number from 1 to 5, but is 6"),
            (["--severities", "mild"], "severities are whole numbers from 1 on, such as 1,4,16"),
            (["--batch-sizes", "0"], "batch sizes are whole numbers from 1 on"),
            (["--only", "Tant"], "no method is called Tant: take source; second pass"),
            (["--corrupted", "nowhere"], "nowhere does not exist"),
            (["--split", "val"], "is not divided by split"),
            (["--device", "cuda:99"], "can't compute on 'cuda:99': "),
        ],
    )
    def test_options(
        self, options: list[str], sentence: str, run: Path, data: Path, tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        asked = ["classify", "evaluate", run, "--data", data, "--out", tmp_path / "e", "--quiet",
                 "--most", 4, "--corruptions", "fog", "--no-slow", "--batch-sizes", 2]  # fmt: skip
        assert sentence in refused(capsys, *asked, *options)

    def test_from_the_folder_to_the_page(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A class is empty, a file is empty, one is text: labels are right, the rest is used."""
        test = images(tmp_path / "test", 12, ("dog", "dog"))
        (test / "cat").mkdir()
        (test / "dog" / "empty.png").write_bytes(b"")
        (test / "dog" / "text.png").write_text("no image")
        command = ["classify", "evaluate", str(run), "--data", str(test), "--out",
                   str(tmp_path / "e"), "--quiet", "--corruptions", "fog, contrast", "--no-slow",
                   "--batch-sizes", "4", "--only", "second pass; Tent", "--severities",
                   "5,5"]  # fmt: skip
        assert main(command) == 0
        told = capsys.readouterr()
        assert told.err.count("left out: ") == 2
        lost = "one of the 12 test images is of the class cat: its error is not measured"
        assert f"{test}: n{lost}" in told.err.splitlines()
        assert told.err.count("cat") == 1
        assert "| Tent | 4 |" in told.out
        page = (tmp_path / "e" / "report.html").read_text(encoding="utf-8")
        assert "--only &#x27;second pass; Tent&#x27;" in page
        assert "--no-slow" in page
        assert f"N{lost}." in page
        lines = (tmp_path / "e" / "records.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert {record["n"] for record in records} == {12}
        samples = json.loads((tmp_path / "e" / "summary.json").read_text())["samples"]
        assert {sample["truth"] for sample in samples} == {1}  # a dog is a dog without cats

    def test_test_images(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def ask(folder: Path) -> str:
            return refused(capsys, "classify", "evaluate", run, "--data", folder, "--out",
                           tmp_path / "e", "--quiet", "--corruptions", "fog")  # fmt: skip

        assert "horse" in ask(images(tmp_path / "more", 6, ("cat", "horse")))
        (tmp_path / "loose").mkdir()
        Image.new("RGB", (16, 16)).save(tmp_path / "loose" / "1.png")
        assert "holds no labelled image" in ask(tmp_path / "loose")
        (tmp_path / "broken" / "cat").mkdir(parents=True)
        (tmp_path / "broken" / "cat" / "1.png").write_bytes(b"")
        assert "none of the images in" in ask(tmp_path / "broken")
        (tmp_path / "nothing").mkdir()
        assert "holds no images" in ask(tmp_path / "nothing")

    def test_a_folder_that_can_not_be_written(
        self, run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").write_text("")
        out = tmp_path / "file" / "e"
        told = refused(capsys, "classify", "evaluate", run, "--data", data, "--out", out)
        assert "can't make the folder" in told

    def test_a_picture_that_can_not_be_written(self, tmp_path: Path) -> None:
        """As on a full disk, where matplotlib raises what nobody expects."""
        (tmp_path / "bars.png").mkdir()
        with pytest.raises(IT3Error, match=r"can't write .*bars\.png: Is a directory"):
            write_evaluation(tmp_path, [], {}, {}, {"bars": Figure()})


@pytest.mark.parametrize("task", ["classify", "age", "roads"])
def test_what_is_wrong_with_options_is_said_before_anything_is_read(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    told = refused(capsys, task, "train", gone, "--out", tmp_path / "run", "--lr", -1)
    assert "lr must be a positive number, not -1.0" in told
    assert not (tmp_path / "run").exists()
    told = refused(capsys, task, "evaluate", gone, "--data", gone, "--batch-sizes", 0)
    assert "batch sizes are whole numbers from 1 on" in told


def test_a_link_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "does not exist" in refused(capsys, "corrupt", loop, tmp_path / "out")
    assert "can't write into" in refused(capsys, "corrupt", images(tmp_path / "in"), loop)


def test_warnings_are_one_line(run: Path, tmp_path: Path) -> None:
    """Not two, with a place in our source code and what stands there."""
    folder = images(tmp_path / "in", 4)
    (folder / "cat" / "loop").symlink_to(folder)
    done = subprocess.run(
        [sys.executable, "-m", "it3_vision", "classify", "predict", run, folder, "--quiet"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert re.fullmatch(r"it3-vision: .* are left out \(cat/loop\)\n", done.stderr)


def bomb(side: int) -> bytes:
    """A PNG of a hundred bytes that claims to be so wide and high."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


class TestPredict:
    def test_lines_and_json(
        self, run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        good = sorted((data / "cat").iterdir())[:2]
        bad = tmp_path / "b ä d.png"
        bad.write_text("no image")
        files = [str(good[0]), str(bad), str(good[1])]
        assert main(["classify", "predict", str(run), *files, "--quiet"]) == 2
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(": ")[0] for line in lines] == files
        assert "more unusual than" in lines[0]
        assert main(["classify", "predict", str(run), *files, "--json", "--quiet"]) == 2
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["name"] for one in told] == files
        assert told[1].keys() == {"name", "problem"}
        assert {"before", "sure_before", "after", "sure_after", "percentile"} <= told[0].keys()
        assert main(["classify", "predict", str(run), files[0], "--adapt", "none"]) == 0

    def test_strange_images(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """1×1, grey, with transparency, 16 bit: an answer. A bomb, a torn one: a problem."""
        made = {"1x1.png": Image.new("RGB", (1, 1)), "grey.png": Image.new("L", (9, 20)),
                "clear.png": Image.new("RGBA", (20, 9)),
                "deep.png": Image.new("I;16", (16, 16))}  # fmt: skip
        for name, image in made.items():
            image.save(tmp_path / name)
        (tmp_path / "bomb.png").write_bytes(bomb(60_000))
        (tmp_path / "torn.png").write_bytes((tmp_path / "clear.png").read_bytes()[:50])
        names = [*made, "bomb.png", "torn.png", "gone.png"]
        command = ["classify", "predict", str(run), *(str(tmp_path / name) for name in names)]
        assert main([*command, "--json", "--quiet", "--adapt", "none"]) == 2
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [Path(one["name"]).name for one in told] == names
        assert ["problem" in one for one in told] == [False] * 4 + [True] * 3
        assert all("\n" not in one.get("problem", "") for one in told)

    def test_runs_that_are_none(
        self, run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        image = next((data / "cat").iterdir())
        assert "is no RUN: make one with" in refused(capsys, "classify", "predict", data, image)
        broken = tmp_path / "broken"
        broken.mkdir()
        whole = (run / "model.safetensors").read_bytes()
        for content in (b"", b"text", whole[: len(whole) // 2], whole[:100]):
            (broken / "model.safetensors").write_bytes(content)
            assert "model.safetensors" in refused(capsys, "classify", "predict", broken, image)
        (broken / "model.safetensors").write_bytes(whole)
        assert "history.json" in refused(capsys, "classify", "predict", broken, image)
        (broken / "history.json").write_text("{")
        assert "is damaged" in refused(capsys, "classify", "predict", broken, image)

    def test_empty_folders_and_no_images(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        capsys.readouterr()
        assert main(["classify", "predict", str(run), str(tmp_path)]) == 2
        told = capsys.readouterr()
        assert "holds no images" in told.out  # in its place among the answers, as a missing file
        assert not told.err
        assert main(["classify", "predict", str(run)]) == 2
        assert "IMAGES" in capsys.readouterr().err

    def test_a_device_that_is_not_there(
        self, run: Path, data: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        image = next((data / "cat").iterdir())
        told = refused(capsys, "classify", "predict", run, image, "--device", "cuda:99")
        assert re.search(r"can't compute on 'cuda:99': .*; take cpu$", told)


def test_a_real_process(run: Path, data: Path) -> None:
    """Answers to standard output and nothing but them; what is wrong to standard error."""
    command = [sys.executable, "-m", "it3_vision", "classify", "predict"]
    good = next((data / "dog").iterdir())
    done = subprocess.run(
        [*command, run, good, "--json", "--quiet"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["name"] == str(good)
    assert done.stderr == ""
