"""What the tests of networks on cars share: made-up drag, a tiny network, a finished RUN."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from it3_aero.cars.bodies import ahmed
from it3_aero.cars.dataset import CarDataset
from it3_aero.cars.generating import CarStore
from it3_aero.cars.model import train
from it3_aero.cars.shape import decimated
from it3_aero.cars.task import CARS
from it3_aero.learning import NetworkSettings
from it3_aero.learning.evaluate import Evaluation, evaluate_run
from it3_aero.learning.job import about, levels_of, threshold_of
from it3_aero.learning.model import Training
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import Levels

TINY = NetworkSettings(layers=5, channels=6, kernels=2, hidden=12, stride=1)
SETTINGS = {"kind": "cars", "format": 1, "seed": 0, "solver": "made up", "preset": "smoke"}


def sample(number: int) -> dict[str, object]:
    """A small Ahmed body whose drag is a smooth function of what it was made from."""
    share = np.random.default_rng(number).random(3)
    given = {"slant": 40 * share[0], "height": 0.24 + 0.1 * share[1], "width": 0.3 + 0.2 * share[2]}
    given = {name: round(float(value), 4) for name, value in given.items()}
    mesh = decimated(ahmed(**given), 90)
    record: dict[str, object] = {"sample": number, "name": f"ahmed {number}", "family": "ahmed"}
    return record | {
        "parameters": given if number % 5 else {k: v for k, v in given.items() if k != "width"},
        "cd": 1.8 * given["height"] + 0.3 * given["width"] - 0.001 * given["slant"] - 0.3,
        "cd_std": 0.002,
        "mesh": f"meshes/{number:06d}.safetensors",
        "arrays": {
            "pos": np.asarray(mesh.vertices, dtype=np.float32),
            "faces": np.asarray(mesh.faces, dtype=np.int32),
            "cp": np.asarray(-mesh.vertex_normals[:, 0], dtype=np.float32),
        },
    }


@pytest.fixture(scope="session")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cars") / "data"
    with CarStore(folder, SETTINGS) as store:
        for number in range(84):
            store.append(sample(number))
        store.append({"sample": 84, "name": "ahmed 84", "problem": "it diverged"})
    return folder


@pytest.fixture
def data(_data: Path) -> Path:
    """A folder as generate makes them, not to be written into."""
    return _data


@pytest.fixture
def copy_of_data(_data: Path, tmp_path: Path) -> Path:
    """A folder of samples to damage or to add to."""
    return Path(shutil.copytree(_data, tmp_path / "data"))


@pytest.fixture(scope="session")
def dataset(_data: Path) -> CarDataset:
    return CarDataset(_data)


@pytest.fixture(scope="session")
def levels(dataset: CarDataset) -> Levels:
    return levels_of(CARS, dataset, threshold_of(CARS, dataset))


@pytest.fixture(scope="session")
def _run(
    _data: Path, dataset: CarDataset, levels: Levels, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    told = about(CARS, dataset, _data, threshold_of(CARS, dataset))
    training = Training(epochs=20, network=TINY)
    return train(levels.train, folder, training, card={"n": 84}, about=told, progress=False)


@pytest.fixture
def run(_run: Run) -> Run:
    """A trained RUN, not to be written into."""
    return _run


@pytest.fixture(scope="session")
def evaluation(_run: Run, levels: Levels, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    folder = tmp_path_factory.mktemp("evaluation")
    return evaluate_run(_run, levels, out=folder, batch_sizes=(1, 4), most=8, progress=False)
