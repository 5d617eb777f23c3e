"""What the tests share: one thread, and small data and models, made once."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from threadpoolctl import threadpool_limits

from it3_tabular import IT3Regressor, load_energy
from it3_tabular.__main__ import main

# Before anything runs: on a busy machine, threads of such small networks wait for each other.
torch.set_num_threads(1)
threadpool_limits(1)


@pytest.fixture(scope="session")
def energy() -> tuple[np.ndarray, np.ndarray]:
    return load_energy()


@pytest.fixture(scope="session")
def regressor(energy) -> IT3Regressor:
    return IT3Regressor(random_state=0, max_iter=40).fit(*energy)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, energy) -> Path:
    """`energy.csv`, a small table with gaps and the target `load`, and `run`, trained on it."""
    x, y = energy
    columns = {"height": x[:, 4], "glazing": x[:, 6], "compactness": x[:, 0], "load": y}
    frame = pd.DataFrame(columns)[::6].reset_index(drop=True)
    frame.loc[3::9, "height"] = np.nan
    folder = tmp_path_factory.mktemp("made")
    frame.to_csv(folder / "energy.csv", index=False)
    arguments = ["train", str(folder / "energy.csv"), "--target", "load", "--epochs", "5"]
    assert main([*arguments, "--out", str(folder / "run"), "--quiet"]) == 0
    return folder


@pytest.fixture
def table(tmp_path, made_once) -> Path:
    return Path(shutil.copy(made_once / "energy.csv", tmp_path))


@pytest.fixture
def trained(tmp_path, made_once) -> Path:
    return shutil.copytree(made_once / "run", tmp_path / "run")
