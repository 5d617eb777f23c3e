"""What the tests share: drawn squares and faces in files, and an experiment of each task."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from it3_core.experiment.verbs import loaded
from it3_vision.__main__ import main
from it3_vision.age.cli import TASK as AGE
from it3_vision.age.faces import draw_faces
from it3_vision.classify.cli import TASK as CLASSIFY
from it3_vision.data import ImageSet

CLASSES = ("blue & <co>", "green", "red")
SQUARES = ["--size", "tiny", "--pixels", "16", "--epochs", "3", "--batch-size", "24", "--lr",
           "0.05", "--no-flip", "--tuned", "12:12", "--held-out", "0.3", "--quiet"]  # fmt: skip
FACES = ["--size", "tiny", "--pixels", "16", "--epochs", "3", "--batch-size", "16", "--tuned",
         "4:8", "--held-out", "0.4", "--coral", "--quiet"]  # fmt: skip


def draw_squares(n, seed=0, classes=CLASSES):
    """Squares of one of three colours somewhere on grey noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % len(classes)
    pixels = rng.integers(60, 120, (n, 16, 16, 3))
    for image, label in zip(pixels, labels, strict=True):
        top, left = rng.integers(1, 7, 2)
        image[top : top + 8, left : left + 8, label] += 100
    return ImageSet.from_array(pixels.astype(np.uint8), labels, classes)


def write_squares(folder, n=24, seed=1, classes=CLASSES):
    images = draw_squares(n, seed, classes)
    for row, label in enumerate(images.labels):
        file = folder / classes[label] / f"{row:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.image(row)).save(file)
    return folder


@pytest.fixture(scope="session")
def squares():
    return draw_squares


@pytest.fixture(scope="session")
def write():
    return write_squares


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Squares to train on, and faces, each in their folder."""
    place = tmp_path_factory.mktemp("data")
    write_squares(place / "classify", 240, 0)
    faces = draw_faces(420, size=16)
    (place / "age").mkdir()
    for row, age in enumerate(faces.labels):
        Image.fromarray(faces.image(row)).save(place / "age" / f"{age}_0_0_{row}.png")
    return place


@pytest.fixture(scope="session")
def classifier(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("classifier") / "experiment"
    command = ["classify", "train", str(data / "classify"), "--out", str(out), "--vanilla"]
    assert main([*command, *SQUARES]) == 0
    return loaded(CLASSIFY, out)


@pytest.fixture(scope="session")
def ages(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("ages") / "experiment"
    assert main(["age", "train", str(data / "age"), "--out", str(out), *FACES]) == 0
    return loaded(AGE, out)


@pytest.fixture
def refused(capsys):
    """The one sentence that a command ends with."""

    def sentence(*arguments):
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        told = capsys.readouterr().err
        assert told.startswith("it3-vision: ")
        assert told.count("\n") == 1
        assert len(told) < 1000
        assert told[:-1].isprintable()
        return told

    return sentence
