"""What the tests of roads share: a small RUN, trained on drawn towns, and folders of scenes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from it3_core import IT3Warning
from it3_vision.roads.drawing import drawn_scenes
from it3_vision.roads.evaluate import Views, views_of
from it3_vision.roads.network import DRUSettings
from it3_vision.roads.runs import Run, Training, train

TINY = Training(DRUSettings("tiny", steps=2), size=32, epochs=3, batch_size=8, lr=1e-2)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IT3Warning)  # of so little data, nothing can be promised
        towns = drawn_scenes("urban", 24, 48)
        return train(towns, tmp_path_factory.mktemp("roads"), TINY, progress=False)


@pytest.fixture(scope="session")
def country(run: Run) -> Views:
    return views_of(run, drawn_scenes("rural", 6, 48, seed=100))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes scenes as images/ and masks/."""

    def write(n: int = 3, size: int = 48, style: str = "urban", end: str = "png") -> Path:
        for name in ("images", "masks"):
            (tmp_path / "data" / name).mkdir(parents=True)
        scenes = drawn_scenes(style, n, size)  # type: ignore[arg-type]
        for row in range(n):
            scene = scenes[row]
            assert scene.label is not None
            mask = (255 * (scene.label > 0)).astype(np.uint8)
            Image.fromarray(scene.image).save(tmp_path / "data" / "images" / f"{row}.{end}")
            Image.fromarray(mask).save(tmp_path / "data" / "masks" / f"{row}.png")
        return tmp_path / "data"

    return write
