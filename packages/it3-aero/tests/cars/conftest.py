"""What the tests of cars share: OpenFOAM itself, and one real run from a mesh to Cd."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import trimesh

from it3_aero.cars.bodies import make
from it3_aero.cars.foam import Flow, solve
from it3_aero.cars.foam.install import Install, find


@pytest.fixture(scope="session")
def openfoam() -> Install:
    """The real programs; where they are missing, tests are skipped, and fail in CI."""
    if shutil.which("simpleFoam") is None:
        sentence = "OpenFOAM is not installed: apt-get install openfoam"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    return find()


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
