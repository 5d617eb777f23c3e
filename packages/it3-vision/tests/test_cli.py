"""The command line and whatever people give it: exit code 2 and one sentence, never a traceback."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from it3_core.__main__ import main as core
from it3_core.experiment.folder import NETWORK
from it3_core.experiment.lines import units
from it3_core.io.tensors import read_tensors, write_tensors
from it3_vision.__main__ import main

TINY = ["--size", "tiny", "--pixels", "16", "--quiet"]


def state(folder):
    """Everything in a folder by its content."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(params=["classify", "age"])
def task(request):
    return str(request.param)


@pytest.fixture
def experiment(task, classifier, ages, tmp_path):
    """A copy of a trained folder, without its evaluation."""
    place = {"classify": classifier, "age": ages}[task].folder
    marker = shutil.ignore_patterns("evaluation")
    return Path(shutil.copytree(place, tmp_path / "experiment", ignore=marker))


def evaluated(task):
    """Options of the smallest evaluation."""
    some = ["--corruptions", "fog", "--no-slow"] if task == "classify" else []
    return ["--batch-sizes", 4, "--most", 4, "--only", "second pass", "--quiet", *some]


class TestTrain:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--network", "vgg"], "there is no network 'vgg': take dla, resnet18"),
            (["--layer", "level9"], "the network has no layer 'level9'; did you mean"),
            (["--lr", "nan"], "lr must be a positive number"),
            (["--second-weight", "0"], "second-weight must be a positive number, not 0.0"),
            (["--device", "toaster"], "can't compute on 'toaster': "),
            (["--split", "val"], "is not divided by split: leave split='val' out"),
            (["--freeze-until", "level9"], "the network has no layer 'level9'; did you mean"),
            (["--validation-half", "0"], "--validation-half and --validation-split are of"),
            (["--validation-half", "2"], "--validation-half"),
            (["--weights", "gone.pth"], "gone.pth may hold pickled code"),
            (["--weights", "gone.safetensors"], "there is no file gone.safetensors"),
            (["--epochs", "0"], "--epochs"),
            (["--norm", "layer"], "--norm"),
            (["--seed", "-1"], "--seed"),
        ],
    )
    def test_options(self, options, sentence, data, tmp_path, refused):
        out = tmp_path / "run"
        told = refused("classify", "train", data / "classify", "--out", out, *TINY, *options)
        assert sentence in told
        assert not list(out.rglob(NETWORK))

    def test_folders(self, tmp_path, write, refused):
        def ask(folder, out=tmp_path / "run"):
            return refused("classify", "train", folder, "--out", out, *TINY)

        assert "does not exist" in ask(tmp_path / "gone")
        assert "two classes" in ask(write(tmp_path / "one", 20, 0, ("cat",)))
        few = ask(write(tmp_path / "few", 6, 0, ("cat", "dog")))
        assert "there are 6 images to train on, and 3 of class 'cat': give 20 at least" in few
        good = write(tmp_path / "good", 20)
        (tmp_path / "file").write_text("")
        assert "is not a folder: name another" in ask(good, tmp_path / "file" / "run")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "a.txt").write_text("mine")
        assert "holds files that are not ours (a.txt)" in ask(good, tmp_path / "full")

    def test_where_it_may_not_go(self, task, data, experiment, tmp_path, refused):
        other = {"classify": "age", "age": "classify"}[task]
        before = state(tmp_path)
        command = [task, "train", data / task, "--quiet", "--out"]
        assert "is, or lies in, the input" in refused(*command, data / task / "run")
        assert "was made with other settings" in refused(*command, experiment)
        told = refused(other, "train", tmp_path / "gone", "--out", experiment)  # before it is read
        assert f"is the output of '{task} train', not of '{other} train'" in told
        assert state(tmp_path) == before
        told = refused(other, "predict", experiment, "x.png")
        assert f"is the output of '{task} train'" in told


class TestEvaluate:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--corruptions", "fgo"], "no corruption is called 'fgo': did you mean 'fog'?"),
            (["--severities", "6"], "severities are from 1 to 5, such as 5, 1-5, 1,3,5 or all"),
            (["--batch-sizes", "0"], "batch sizes are numbers from 1 separated by commas"),
            (["--only", "Tant"], "no method is called Tant: take source; second pass"),
            (["--corrupted", "nowhere"], "nowhere does not exist"),
            (["--split", "val"], "is not divided by split"),
            (["--device", "cuda:99"], "can't compute on 'cuda:99': "),
        ],
    )
    def test_options(self, options, sentence, classifier, data, tmp_path, refused):
        asked = ["classify", "evaluate", classifier.folder, "--data", data / "classify", "--out"]
        assert sentence in refused(*asked, tmp_path / "e", "--quiet", "--most", 4, *options)

    def test_test_images(self, classifier, tmp_path, write, refused):
        def ask(folder):
            return refused("classify", "evaluate", classifier.folder, "--data", folder, "--out",
                           tmp_path / "e", "--quiet", "--corruptions", "fog")  # fmt: skip

        assert "horse" in ask(write(tmp_path / "more", 6, 0, ("red", "horse")))
        (tmp_path / "loose").mkdir()
        Image.new("RGB", (16, 16)).save(tmp_path / "loose" / "1.png")
        assert "holds no labelled image" in ask(tmp_path / "loose")
        (tmp_path / "broken" / "red").mkdir(parents=True)
        (tmp_path / "broken" / "red" / "1.png").write_bytes(b"")
        assert "none of the images in" in ask(tmp_path / "broken")

    def test_files_of_the_users_own_stay(self, task, data, experiment, tmp_path, refused):
        out = tmp_path / "out"
        asked = [task, "evaluate", experiment, "--data", data / task, *evaluated(task), "--out"]
        assert "is part of the experiment" in refused(*asked, experiment / "more")
        assert "lies in, the input" in refused(*asked, data / task / "more")
        assert main([str(word) for word in [*asked, out]]) == 0
        assert main([str(word) for word in [*asked, out]]) == 0  # our own are written again
        (out / "report.html").write_text("mine now")
        told = refused(*asked, out)
        assert "report.html was changed or made by somebody else" in told
        assert (out / "report.html").read_text() == "mine now"


class TestPredict:
    def test_strange_images(self, classifier, tmp_path, capsys):
        """1×1, grey, with transparency, 16 bit: an answer. A torn one, none: a problem."""
        made = {"1x1.png": Image.new("RGB", (1, 1)), "grey.png": Image.new("L", (9, 20)),
                "clear.png": Image.new("RGBA", (20, 9)),
                "deep.png": Image.new("I;16", (16, 16))}  # fmt: skip
        for name, image in made.items():
            image.save(tmp_path / name)
        (tmp_path / "torn.png").write_bytes((tmp_path / "clear.png").read_bytes()[:50])
        names = [*made, "torn.png", "gone.png"]
        files = [str(tmp_path / name) for name in names]
        capsys.readouterr()
        assert main(["classify", "predict", str(classifier.folder), *files, "--json"]) == 2
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [Path(one["name"]).name for one in told] == names
        assert ["problem" in one for one in told] == [False] * 4 + [True] * 2
        assert all("\n" not in one.get("problem", "") for one in told)

    def test_warnings_are_one_line(self, classifier, tmp_path, write):
        """Not two, with a place in our source code and what stands there."""
        folder = write(tmp_path / "in", 3)
        (folder / "red" / "loop").symlink_to(folder)
        command = [sys.executable, "-m", "it3_vision", "classify", "predict", classifier.folder]
        done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0
        assert re.fullmatch(r"it3-vision: .* are left out \(red/loop\)\n", done.stderr)

    @pytest.mark.parametrize(
        ("keys", "value"),
        [
            ("settings/settings/preprocessing", None),
            ("settings/settings/preprocessing/mean", "bright"),
            ("settings/settings/preprocessing/std", [0.0, 1.0, 1.0]),
            ("settings/settings/network", "large"),
            ("settings/settings/network/size", "huge"),
            ("settings/settings/network/size", 1.5),
            ("settings/measured", [0.1]),
            ("trust", {"quantiles": "many"}),
            ("tuning", [1]),
            ("tuning", {"many": {}}),
            ("tuning", {"row": {"chosen": {"method": "IT3", "settings": 5}}}),
            ("adapter", {"kind": "Oracle"}),
            ("settings", 5),
        ],
    )
    def test_a_network_file_s_json(self, keys, value, data, task, experiment, refused):
        path = experiment / "0" / NETWORK
        found = read_tensors(path, kind="checkpoint", metadata=dict[str, Any])
        *way, last = keys.split("/")
        told = found.metadata
        for key in way:
            told = told[key]
        told[last] = value
        write_tensors(
            path, found.tensors, found.metadata, kind="checkpoint", versions=found.versions
        )
        refused(task, "predict", experiment, next((data / task).rglob("*.png")))


def test_a_link_to_itself(tmp_path, write, refused):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "does not exist" in refused("corrupt", loop, tmp_path / "out")
    assert "can't make the folder" in refused("corrupt", write(tmp_path / "in"), loop)


def test_inspect_says_what_was_tuned(classifier, capsys):
    assert core(["inspect", str(classifier.folder / "0" / NETWORK)]) == 0
    told = capsys.readouterr().out
    for name, one in classifier.first.tunings.items():
        assert f"{units(name)}: {one.reason[:400]}" in told
