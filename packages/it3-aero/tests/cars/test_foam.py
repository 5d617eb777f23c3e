"""OpenFOAM: from a mesh to Cd, again after kill -9, and what it does with what can't be solved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import trimesh

from it3_aero.cars.bodies import make
from it3_aero.cars.foam import Flow, Preset, preset, solve
from it3_aero.cars.foam.case import Case
from it3_aero.cars.foam.files import Install, _parsed, assess
from it3_aero.generation.programs import SolverError, run
from it3_core import IT3Error

KILLED = """
import sys
from it3_aero.cars.bodies import make
from it3_aero.cars.foam import solve
solve(make("sedan"), sys.argv[1], "smoke")
"""


def test_from_a_mesh_to_a_drag_coefficient(smoke: Flow, smoke_folder: Path) -> None:
    assert smoke.problem is None
    assert 0.2 < smoke.cd < 0.45
    assert 0 <= smoke.cd_std < 0.01
    assert smoke.half
    assert 5_000 < smoke.cells < 30_000
    assert 0 < smoke.cpu_seconds < 60
    assert 50 < smoke.peak_mb < 300
    # A stagnation point in front, suction above, and nothing impossible.
    assert 0.8 < smoke.cp.max() < 1.3
    assert -4 < smoke.cp.min() < -0.3
    nose = smoke.pressure_on(np.array([[0.0, 0.0, 0.5]]))
    roof = smoke.pressure_on(np.array([[2.2, -0.2, 1.44]]))
    assert nose > 0.6
    assert roof < 0
    kept = sum(path.stat().st_size for path in smoke_folder.rglob("*") if path.is_file())
    assert kept < 300_000
    assert not (smoke_folder / "openfoam" / "constant" / "polyMesh").exists()
    assert (smoke_folder / "openfoam" / "logs" / "snappyHexMesh.gz").exists()


def test_killed_in_the_middle_it_has_the_same_answer(smoke: Flow, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    process = subprocess.Popen(command, start_new_session=True)
    limit = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < limit:
        if _running(tmp_path, after=50):  # in the middle of the second piece
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
    assert not _orphans(tmp_path / "openfoam"), "the solver outlived the process that ran it"
    again = solve(make("sedan"), tmp_path, "smoke")
    assert again.iterations == smoke.iterations
    assert again.cd == smoke.cd
    np.testing.assert_array_equal(again.cp, smoke.cp)


def _running(case: Path, after: int) -> bool:
    """Whether the piece that begins after some iterations has done a few."""
    log = case / "openfoam" / "logs" / f"simpleFoam.{after}"
    return log.exists() and log.read_text(errors="replace").count("ExecutionTime") > 5


def _orphans(folder: Path) -> list[int]:
    """Processes that stay in a folder; one that was killed may take a busy machine a moment."""
    for _ in range(50):
        inside = [p.pid for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder)]
        if not inside:
            break
        time.sleep(0.2)
    return inside


def test_a_case_that_is_done_is_read(
    smoke: Flow, sedan: trimesh.Trimesh, smoke_folder: Path
) -> None:
    began = time.perf_counter()
    again = solve(sedan, smoke_folder, "smoke")
    assert time.perf_counter() - began < 10
    assert (again.cd, again.cells) == (smoke.cd, smoke.cells)
    with pytest.raises(IT3Error, match="was made with other settings"):
        solve(make("van"), smoke_folder, "smoke")


def test_a_leaking_mesh_is_noticed(
    openfoam: Install, sedan: trimesh.Trimesh, tmp_path: Path
) -> None:
    """The mesher ends with 0 on a car without a roof: what it made is measured."""
    opened = trimesh.Trimesh(sedan.vertices, sedan.faces[sedan.triangles_center[:, 2] < 1.0])
    case = Case(tmp_path, opened, preset("smoke"), 1, True, openfoam)
    flow = case.run()
    assert flow.problem is not None
    assert flow.problem.startswith("the mesh ")
    assert np.isnan(flow.cd)
    state = json.loads((tmp_path / "case.json").read_text())
    assert state["cd"] is None


def test_a_lopsided_car_is_solved_as_a_whole_and_on_two_ranks(
    openfoam: Install, sedan: trimesh.Trimesh, tmp_path: Path
) -> None:
    side = float(sedan.bounds[1][1])
    fin = trimesh.creation.box(bounds=[[1.6, side - 0.3, 0.45], [2.6, side + 0.25, 0.9]])
    body = trimesh.boolean.union([sedan, fin], engine="manifold")
    tiny = Preset("tiny", (2, 3), 3, (1, 1, 2), 0, 20_000, 500, 0.3, 100)
    flow = solve(body, tmp_path, tiny, ranks=2)
    assert flow.problem is None
    assert not flow.half
    assert 0.2 < flow.cd < 0.6
    assert flow.points[:, 1].min() < -0.9 * side
    assert flow.points[:, 1].max() > side + 0.2
    # The wind meets the fin, and has nothing to meet on the other side.
    met, free = flow.pressure_on(np.array([[1.6, side + 0.1, 0.7], [1.6, -side - 0.1, 0.7]]))
    assert met > free + 0.2
    assert (tmp_path / "openfoam" / "logs" / "decomposePar.gz").exists()
    assert not list(tmp_path.rglob("processor*"))


def test_divergence_is_no_answer() -> None:
    steady = np.column_stack([np.arange(1, 151), np.full(150, 0.3), np.zeros(150)])
    assert assess(steady).converged
    for value in (np.nan, np.inf, -5e139, 7.0):
        broken = steady.copy()
        broken[-1, 1] = value
        assert (assess(broken).problem or "").startswith("diverged")
    for swing in (0.02 * np.sin(steady[:, 0]), 0.0001 * steady[:, 0]):
        moving = steady.copy()
        moving[:, 1] += swing
        assert not assess(moving).converged


def test_a_program_that_hangs_or_grows_is_ended(tmp_path: Path) -> None:
    began = time.perf_counter()
    hanging = ["/bin/sh", "-c", "sleep 100 & sleep 100"]
    ended = run(hanging, tmp_path, tmp_path / "log", silence=0.5)
    assert ended.problem == "it said nothing for 0.5 s"
    assert time.perf_counter() - began < 20
    assert not _orphans(tmp_path)
    looping = ["/bin/sh", "-c", "while :; do :; done"]
    assert run(looping, tmp_path, tmp_path / "log", cpu_limit=1).problem is not None
    told = run(["/bin/sleep", "50"], tmp_path, tmp_path / "log", watch=lambda: "enough").problem
    assert told == "enough"


def test_other_versions_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _parsed("simpleFoam", "Using: OpenFOAM- (1912) - visit www.openfoam.com") == "1912"
    assert _parsed("simpleFoam", "Using: OpenFOAM-v2312 (2312) - visit") == "2312"
    with pytest.raises(SolverError, match=r"OpenFOAM-11: .* not for openfoam.org's"):
        _parsed("simpleFoam", "Using: OpenFOAM-11 (see https://openfoam.org)")
    with pytest.raises(SolverError, match="OpenFOAM 1706, but it has to be 1806 or later"):
        _parsed("simpleFoam", "Build: OPENFOAM=v1706")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SolverError, match="no program simpleFoam: run apt-get install openfoam"):
        solve(make("ahmed"), tmp_path / "case")
