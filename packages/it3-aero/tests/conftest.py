"""What the tests share: XFoil itself, the command line, and airfoil files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from it3_aero.wings import Airfoil, XFoil


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks are small here: a second thread would only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def xfoil() -> XFoil:
    """The real program.

    Where it is missing, tests that need it are skipped on a machine of one's own
    (`bootstrap.py --no-solvers`), and fail in CI, which installs it: there, a skip would hide that
    nothing was tested. Where it is installed but doesn't work, they fail anywhere.
    """
    if shutil.which("xfoil") is None:
        sentence = "XFoil is not installed: apt-get install xfoil"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    solver = XFoil()
    solver.check()
    return solver


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
