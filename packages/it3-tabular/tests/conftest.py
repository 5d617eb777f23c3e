"""What the tests share: one thread, and small data and models, made once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from it3_tabular import IT3Classifier, IT3Regressor, load_energy

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
def classifier(energy) -> IT3Classifier:
    x, y = energy
    return IT3Classifier(random_state=0, max_iter=40).fit(x, np.where(y > 20, "high", "low"))


@pytest.fixture
def table(tmp_path, energy) -> Path:
    """A small CSV with gaps and the target `load`."""
    x, y = energy
    lines = ["height,glazing,compactness,load"]
    for i, (row, target) in enumerate(zip(x[::6], y[::6], strict=True)):
        height = "" if i % 9 == 3 else row[4]
        lines.append(f"{height},{row[6]},{row[0]},{target}")
    path = tmp_path / "energy.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
