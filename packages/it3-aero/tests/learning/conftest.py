"""What the tests of the learning half share: made-up labels, a tiny network, a finished RUN."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from it3_aero.learning import NetworkSettings
from it3_aero.learning.evaluate import Evaluation, evaluate_run
from it3_aero.learning.model import Training
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import WITHIN, Levels, Shapes
from it3_aero.wings import naca4, to_graph
from it3_aero.wings.model import train
from it3_aero.wings.shapes import outlines

TINY = NetworkSettings(layers=5, channels=6, kernels=2, hidden=12, stride=2)


@pytest.fixture(scope="session")
def tiny() -> NetworkSettings:
    return TINY


@pytest.fixture(scope="session")
def made_up() -> Shapes:
    """160 real outlines whose labels are a smooth function of their parameters, up to about 100."""
    generator = np.random.default_rng(0)
    graphs, parameters = [], []
    for number in range(160):
        share = generator.random(3)
        camber, position, thickness = 0.06 * share[0], 0.3 + 0.3 * share[1], 0.08 + 0.1 * share[2]
        graph = to_graph(naca4(camber, position, thickness), nodes=40)
        graph.y = torch.tensor(1500 * camber + 60 * position * (0.2 - thickness))
        graph.name = f"shape {number}"
        graphs.append(graph)
        parameters.append([camber, position, thickness])
    shapes = Shapes.of(graphs, outlines)
    cp = torch.linspace(1, -1, 40).expand(160, 40)
    return Shapes(shapes.x, shapes.y, shapes.names, torch.tensor(parameters), cp)


@pytest.fixture(scope="session")
def levels(made_up: Shapes) -> Levels:
    inside = (made_up.y <= 60).nonzero().flatten()
    beyond = made_up.take((made_up.y > 60).nonzero().flatten()).by_label()
    half = len(beyond) // 2
    return Levels(
        made_up.take(inside[20:]),
        {
            WITHIN: made_up.take(inside[:20]),
            "near": beyond.take(range(half)),
            "far": beyond.take(range(half, len(beyond))),
        },
    )


@pytest.fixture(scope="session")
def about() -> dict[str, object]:
    return {"solver": "NeuralFoil, made up", "reynolds": 1e6, "alpha": 0.0, "threshold": 60.0}


@pytest.fixture(scope="session")
def _run(levels: Levels, about: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "run"
    training = Training(epochs=60, network=TINY)
    return train(levels.train, folder, training, card={"n": 160}, about=about, progress=False)


@pytest.fixture
def run(_run: Run) -> Run:
    """A trained RUN, not to be written into."""
    return _run


@pytest.fixture
def copy_of_run(_run: Run, tmp_path: Path) -> Path:
    """A RUN's folder to damage."""
    return Path(shutil.copytree(_run.folder, tmp_path / "run"))


@pytest.fixture(scope="session")
def evaluation(_run: Run, levels: Levels, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    folder = tmp_path_factory.mktemp("evaluation")
    return evaluate_run(_run, levels, out=folder, batch_sizes=(1, 8), most=12, progress=False)


@pytest.fixture
def dat_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes an airfoil file, or any text under that name."""

    def write(name: str, text: str | None = None) -> Path:
        path = tmp_path / name
        if text is None:
            points = naca4(0.02, 0.4, 0.12).points
            text = "\n".join([name, *(f"{x:.6f} {y:.6f}" for x, y in points)])
        path.write_text(text, encoding="utf-8")
        return path

    return write
