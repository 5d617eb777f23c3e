"""What the tests share: the real solvers, one trained experiment a task, and airfoil files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import trimesh

from it3_aero.__main__ import main
from it3_aero.cars import task as cars
from it3_aero.cars.bodies import ahmed, make
from it3_aero.cars.dataset import TASK
from it3_aero.cars.foam import Flow, solve
from it3_aero.cars.foam.files import Install, find
from it3_aero.cars.generating import CarStore
from it3_aero.cars.meshes import remeshed
from it3_aero.shapes.graph_net import NetworkSettings
from it3_aero.wings import Airfoil, XFoil
from it3_aero.wings import task as wings

DEMO = ["--n", "100", "--further", "100", "--solver", "neuralfoil", "--epochs", "80", "--quiet"]
TINY = NetworkSettings(layers=5, channels=6, kernels=2, hidden=12)


@pytest.fixture(scope="session", autouse=True)
def tiny() -> Iterator[NetworkSettings]:
    """In this process the size `small` is a tiny network."""
    with pytest.MonkeyPatch.context() as patch:
        for task in (wings, cars):
            small = task.OURS["small"]
            patch.setitem(task.OURS, "small", small._replace(network=TINY))
        yield TINY


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks are small here: a second thread would only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def xfoil() -> XFoil:
    """The real program; where it is missing, tests that need it are skipped, and fail in CI."""
    _needed("xfoil", "xfoil")
    solver = XFoil()
    solver.check()
    return solver


@pytest.fixture(scope="session")
def openfoam() -> Install:
    """OpenFOAM's programs, on the same terms."""
    _needed("simpleFoam", "openfoam")
    return find()


def _needed(program: str, package: str) -> None:
    if shutil.which(program) is None:
        sentence = f"{program} is not installed: apt-get install {package}"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wings' demo, as small as it comes, with the solver that is always there."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    assert main(["wings", "demo", "--out", str(folder), *DEMO]) == 0
    return folder


@pytest.fixture(scope="session")
def sedan() -> trimesh.Trimesh:
    """A good car."""
    return make("sedan")


@pytest.fixture(scope="session")
def smoke_folder(openfoam: Install, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared run is."""
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture(scope="session")
def smoke(sedan: trimesh.Trimesh, smoke_folder: Path) -> Flow:
    """That car at `smoke`, once for all tests."""
    return solve(sedan, smoke_folder, "smoke")


def sample(number: int) -> dict[str, object]:
    """A small Ahmed body whose drag is a smooth function of what it was made from."""
    share = np.random.default_rng(number).random(3)
    given = {"slant": 40 * share[0], "height": 0.24 + 0.1 * share[1], "width": 0.3 + 0.2 * share[2]}
    given = {name: round(float(value), 4) for name, value in given.items()}
    mesh = remeshed(ahmed(**given), 90)
    return {
        "sample": number,
        "name": f"ahmed {number}",
        "family": "ahmed",
        "parameters": given if number % 5 else {k: v for k, v in given.items() if k != "width"},
        "cd": 1.8 * given["height"] + 0.3 * given["width"] - 0.001 * given["slant"] - 0.3,
        "cd_std": 0.002,
        "cells": 9000,
        "cpu_seconds": 1.0,
        "peak_mb": 100.0,
        "mesh": f"meshes/{number:06d}.safetensors",
        "arrays": {
            "pos": np.asarray(mesh.vertices, dtype=np.float32),
            "faces": np.asarray(mesh.faces, dtype=np.int32),
            "cp": np.asarray(-mesh.vertex_normals[:, 0], dtype=np.float32),
        },
    }


@pytest.fixture(scope="session")
def cars_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `cars generate` makes them, with made-up drag."""
    folder = tmp_path_factory.mktemp("cars") / "data"
    settings = {"seed": 0, "solver": "made up", "preset": {"name": "smoke"}}
    with CarStore(folder, TASK, settings) as store:
        for number in range(84):
            store.append(sample(number))
        store.append({"sample": 84, "name": "ahmed 84", "problem": "it diverged"})
    return folder


@pytest.fixture(scope="session")
def cars_experiment(cars_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network on them, evaluated."""
    folder = tmp_path_factory.mktemp("cars") / "experiment"
    options = ["--epochs", "40", "--vanilla", "--quiet"]
    assert main(["cars", "train", str(cars_data), "--out", str(folder), *options]) == 0
    options = ["--batch-sizes", "1,4", "--most", "8", "--quiet"]
    assert main(["cars", "evaluate", str(folder), *options]) == 0
    return folder


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], XFoil]:
    """Puts a shell script in XFoil's place, for what the real one does too rarely to wait for."""

    def make(script: str, timeout: float = 1.0) -> XFoil:
        path = tmp_path / "bin" / "xfoil"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return XFoil(str(path), timeout=timeout)

    return make


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Airfoil], Path]:
    """Writes an airfoil as people do."""

    def write(airfoil: Airfoil, name: str = "airfoil.dat") -> Path:
        path = tmp_path / name
        rows = [f"{x:.6f} {y:.6f}" for x, y in airfoil.points.tolist()]
        path.write_text("\n".join([airfoil.name, *rows, ""]))
        return path

    return write
