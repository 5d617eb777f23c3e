"""What the tests of roads share: drawn scenes in folders, and an experiment trained on them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from PIL import Image

from it3_core import IT3Warning
from it3_core.experiment.verbs import loaded
from it3_vision.__main__ import main
from it3_vision.roads.cli import TASK
from it3_vision.roads.drawn import drawn_scenes

SMALL = "--resolution 1 --size tiny --steps 2 --crop 32 --epochs 8 --lr 2e-2 --rotation --quiet"


def write_scenes(place, scenes, end="png"):
    """Scenes as images/ and masks/."""
    for name in ("images", "masks"):
        (place / name).mkdir(parents=True)
    for row in range(len(scenes)):
        mask = (255 * (scenes[row].label > 0)).astype(np.uint8)
        Image.fromarray(scenes[row].image).save(place / "images" / f"{row}.{end}")
        Image.fromarray(mask).save(place / "masks" / f"{row}.png")
    return place


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """A folder with towns to train on and countryside to test on."""
    place = tmp_path_factory.mktemp("scenes")
    write_scenes(place / "train", drawn_scenes("urban", 24, 48))
    write_scenes(place / "test", drawn_scenes("rural", 6, 48, seed=100))
    return place


@pytest.fixture(scope="session")
def folder(scenes, tmp_path_factory):
    """The experiment's."""
    out = tmp_path_factory.mktemp("roads") / "experiment"
    asked = ["roads", "train", str(scenes), "--split", "train", "--vanilla", "--out", str(out)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IT3Warning)  # of so little data, nothing can be promised
        assert main([*asked, *SMALL.split()]) == 0
    return out


@pytest.fixture
def experiment(folder):
    return loaded(TASK, folder)


@pytest.fixture(scope="session")
def evaluation(scenes, folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluated") / "evaluation"
    asked = ["roads", "evaluate", str(folder), "--data", str(scenes), "--split", "test"]
    asked += ["--resolution", "1", "--batch-sizes", "1,2", "--tile", "32", "--out", str(out)]
    assert main([*asked, "--further", "1", "--quiet"]) == 0
    return out


@pytest.fixture
def write(tmp_path):
    """Writes a few towns."""

    def made(n=3, size=48, end="png"):
        return write_scenes(tmp_path / "data", drawn_scenes("urban", n, size), end)

    return made


def _tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def refused(tmp_path, folder, capsys):
    """Checks that a command ends with 2 and one sentence, and that nothing is changed."""

    def check(command, sentence):
        before = _tree(tmp_path), _tree(folder)
        capsys.readouterr()
        assert main(["roads", *command.replace("EXPERIMENT", str(folder)).split()]) == 2
        (text,) = "".join(capsys.readouterr()).splitlines()
        assert sentence in text
        assert (_tree(tmp_path), _tree(folder)) == before

    return check
