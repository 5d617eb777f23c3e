"""Hostile and broken input: each gets one clear line, and nothing of it reaches a program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from it3_aero.generation.store import only_one
from it3_aero.wings import Airfoil, XFoil, choose, naca, outline, read_airfoil
from it3_aero.wings import solvers as xfoil_module
from it3_aero.wings.solvers import SolverError, _private_folder
from it3_core import IT3Error


def square(points: int = 40) -> str:
    side = np.linspace(0, 1, points // 4, endpoint=False)
    ring = [*((1 - s, 1) for s in side), *((0, 1 - s) for s in side)]
    ring += [*((s, 0) for s in side), *((1, s) for s in side)]
    return "\n".join(f"{x} {y}" for x, y in ring)


def eight() -> str:
    turn = np.linspace(0, 2 * np.pi, 60)
    return "\n".join(
        f"{0.5 + 0.5 * np.cos(t):.5f} {0.05 * np.sin(2 * t):.5f}" for t in turn.tolist()
    )


def with_a(word: str) -> str:
    rows = [f"{x:.5f} {y:.5f}" for x, y in naca("2412").points.tolist()]
    rows[50] = f"0.5 {word}"
    return "\n".join(["name", *rows])


NOT_ONE = "this is not an airfoil: "
FLAT = "\n".join(f"{i / 50} 0" for i in range(50))
BAD = {
    "empty": ("", "the file is empty"),
    "prose": ("There is no airfoil\nin here at all.\n", f"{NOT_ONE}there are no pairs"),
    "a square": (square(), f"{NOT_ONE}it is 100 % as thick as it is long"),
    "crossing": (eight(), "the outline crosses itself near x/c = 0.5"),
    "three points": ("x\n1 0\n0 0.1\n1 0", "3 points are too few for an airfoil: 10 at least"),
    "a line": (FLAT, f"{NOT_ONE}it has only one"),
    "one place": ("0.5 0.5\n" * 50, f"{NOT_ONE}along x it measures 0"),
    "nan": (with_a("nan"), "a coordinate is NaN or infinite"),
    "a broken number": (with_a("0.0x3"), "line 52 is not a pair of numbers: 0.5 0.0x3"),
    "too many points": ("x\n" + "0.5 0.1\n0.4 0.2\n" * 3000, "6000 points are too many"),
    "a picture": ("\x89PNG\r\n\x1a\n\0\0\0", f"{NOT_ONE}the file is not a text"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_get_one_clear_line(kind: str, tmp_path: Path) -> None:
    content, reason = BAD[kind]
    path = tmp_path / "bad.dat"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(IT3Error) as caught:
        read_airfoil(path)
    assert str(caught.value).startswith(f"{path}: {reason}")
    assert "\n" not in str(caught.value)


def test_places_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.dat").touch()
    os.truncate(tmp_path / "large.dat", 100_000_000)
    for path, reason in {
        tmp_path: "this is not a file",
        tmp_path / "large.dat": r"100\.0 MB is too much: 1 MB at most",
        tmp_path / "missing.dat": "can't be read: No such file or directory",
        tmp_path / "pipe": "this is not a file",
        tmp_path / ("long" * 100): "can't be read: File name too long",
    }.items():
        with pytest.raises(IT3Error, match=reason):
            read_airfoil(path)


HOSTILE = ["a\nQUIT\n", "'; rm -rf x; '", '"', "$(touch evil)", "PANE\rQUIT", "ü ž.dat", " "]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_names(
    name: str, xfoil: XFoil, written: Callable[..., Path]
) -> None:
    # In the file's name, in its first line, and as the airfoil's name: the answer is the same.
    path = written(Airfoil(name, naca("2412").points), f"{name.replace('/', '')}.dat")
    airfoil = read_airfoil(path)
    assert airfoil.name.isprintable()
    answer = xfoil.solve(naca("2412"), 1e6, 1.0)
    for same in (airfoil, Airfoil(name, naca("2412").points)):
        assert xfoil.solve(same, 1e6, 1.0).cl == pytest.approx(answer.cl, abs=1e-3)
    path.write_text("nothing")
    with pytest.raises(IT3Error) as caught:
        read_airfoil(path)
    assert len(str(caught.value).splitlines()) == 1


def test_points_that_are_none() -> None:
    for points, reason in (
        (np.zeros((5, 3)), "an outline is an array"),
        (naca("2412").points * 1e12, "this is not an airfoil: along x it measures 1e"),
        (np.random.default_rng(0).random((40, 2)), "the outline crosses itself"),
    ):
        with pytest.raises(IT3Error, match=reason):
            outline("bad", points)
    for digits in ("", "241", "24123456", "2x12", "23512", "²412"):
        with pytest.raises(IT3Error):
            naca(digits)


def test_auto_falls_back_on_neuralfoil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IT3_XFOIL", "/nowhere/xfoil")
    assert choose("auto").name == "NeuralFoil"
    with pytest.raises(SolverError, match="there is no program /nowhere/xfoil"):
        choose("xfoil")


def test_a_solver_that_hangs_is_killed_with_all_it_started(
    program: Callable[..., XFoil], tmp_path: Path
) -> None:
    solver = program(f"echo $$ >> {tmp_path}/pids\nsleep 1000 & echo $! >> {tmp_path}/pids\nwait")
    began = time.perf_counter()
    with pytest.raises(SolverError, match="doesn't answer as XFoil does: no result within 1 s"):
        solver.check()
    assert time.perf_counter() - began < 5
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    time.sleep(0.2)
    for pid in pids:
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_solver_that_hangs_on_a_shape_fails_that_shape(program: Callable[..., XFoil]) -> None:
    banner = "echo XFOIL Version 6.99"
    solver = program(f"{banner}\ngrep -q ALFA && sleep 1000", timeout=0.3)
    point = solver.solve(naca("2412"), 1e6, 0.0)
    assert not point.converged
    assert point.reason == "no result within 0.3 s (with 160, 120, 200 panels)"
    assert np.isnan(point.lift_to_drag)


@pytest.mark.parametrize(
    "polar",
    [
        "no polar at all",
        "   0.000   NaN   0.00564   0.00049  -0.0520",
        "   0.000   0.2371   0.00000   0.00049  -0.0520",
        "   0.000   ********   0.00564   0.00049  -0.0520",
        "   3.000   0.2371   0.00564   0.00049  -0.0520",
    ],
)
def test_a_polar_is_not_trusted(polar: str, program: Callable[..., XFoil]) -> None:
    script = f"echo XFOIL Version 6.99\necho '{polar}' > p.txt\nfor i in 1 2 3 4 5 6 7 8 9 10 11"
    solver = program(f"{script}; do echo $i $i; done > cp.txt; cat > /dev/null")
    reason = solver.solve(naca("2412"), 1e6, 0.0).reason
    assert reason == "not converged (with 160, 120, 200 panels)"


def test_without_a_compiler_the_way_out_is_told(
    xfoil: XFoil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program that dies as Debian's does, in a world without compilers.
    path = tmp_path / "xfoil"
    path.write_text("#!/bin/sh\nkill -FPE $$\n")
    path.chmod(0o755)
    monkeypatch.setattr(xfoil_module, "_COMPILERS", ("no-such-compiler",))
    xfoil_module.build_shim.cache_clear()
    try:
        with pytest.raises(SolverError, match="takes a C compiler: run apt-get install gcc"):
            XFoil(str(path)).check()
    finally:
        xfoil_module.build_shim.cache_clear()


def test_an_error_inside_a_private_folder_or_a_lock_comes_out(tmp_path: Path) -> None:
    for held in (_private_folder(), only_one(tmp_path / ".lock", tmp_path)):
        with pytest.raises(ZeroDivisionError), held:
            raise ZeroDivisionError
