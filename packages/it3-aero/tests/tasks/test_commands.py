"""What a user calls: train, evaluate, report, predict and demo, from the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from it3_aero.__main__ import main
from it3_aero.cars.bodies import make
from it3_aero.cars.foam.files import Install
from it3_aero.wings import Airfoil, NeuralFoil, PolarPoint, generate, naca, task
from it3_aero.wings.cli import Predict
from it3_core.experiment.evaluate import load_evaluation
from it3_core.experiment.folder import load
from it3_core.experiment.predict import predict
from it3_core.trust.candidates import Candidate

Run = Callable[..., list[str]]
Capture = pytest.CaptureFixture[str]
FIELDS = {"name", "prediction", "initial", "percentile", "flagged", "adapted"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns the lines that it printed."""

    def lines(*command: object, code: int = 0) -> list[str]:
        capsys.readouterr()
        found = main([str(part) for part in command])
        said = capsys.readouterr()
        print(said.err, file=sys.stderr)
        assert found == code, said.err
        return said.out.splitlines()

    return lines


def test_demo_makes_all_of_it_and_again_says_the_same(demo: Path, run: Run) -> None:
    page = (demo / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") >= 7
    assert "NeuralFoil" in page
    records = demo / "experiment" / "evaluation" / "records.jsonl"
    methods = {json.loads(line)["method"] for line in records.read_text("utf-8").splitlines()}
    assert "NeuralFoil" not in methods  # no baseline for its own answers
    assert {"source", "vanilla net", "IT³ (paper)", "online IT³", "Gaussian process"} <= methods
    before = records.read_bytes()
    options = ["--n", 100, "--further", 100, "--solver", "neuralfoil", "--epochs", 80, "--quiet"]
    assert run("wings", "demo", "--out", demo, *options)[-1] == str(demo / "report.html")
    assert records.read_bytes() == before


def test_seeds_are_trained_compared_in_pairs_and_reported(
    demo: Path, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    out, options = tmp_path / "experiment", ["--seed", 3, "--seeds", 2, "--quiet"]
    said = run("wings", "train", demo / "data", "--out", out, "--epochs", 1, *options)
    assert [line for line in said if " rows, 1 epochs" in line] == [said[0], said[2]]
    run("wings", "train", demo / "data", "--out", out, "--epochs", 2, *options, code=2)
    assert "recipe.epochs was 1 and is 2" in capsys.readouterr().err
    said = run("wings", "evaluate", out, "--batch-sizes", "1,2", "--most", 6, "--quiet")
    assert any(line.startswith("| Gaussian process |") for line in said)
    found = load_evaluation(out / "evaluation")
    rows = dict(list(found.answers.groupby("seed")))
    for column in ("level", "name", "truth"):
        assert rows[3][column].tolist() == rows[4][column].tolist()
    assert rows[3]["initial"].tolist() != rows[4]["initial"].tolist()
    page = tmp_path / "again.html"
    assert run("wings", "report", out, "--out", page)[-1] == str(page)
    assert page.read_text("utf-8").count("<img") >= 7


@pytest.mark.parametrize("name", ["wings", "cars"])
def test_the_papers_protocol_runs(
    name: str,
    demo: Path,
    cars_data: Path,
    tmp_path: Path,
    run: Run,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = [Candidate("AnswerStep", {"alpha": 1.0})]  # tuning is not what this is about
    monkeypatch.setattr("it3_core.trust.tune.default_candidates", lambda *_: few)
    data, sizes = (demo / "data", {1, 4, 16}) if name == "wings" else (cars_data, {1, 2, 4})
    out, options = tmp_path / "experiment", ["--preset", "paper", "--epochs", 2, "--quiet"]
    run(name, "train", data, "--out", out, *options)
    run(name, "train", data, "--out", out, *options, "--top", "5%", "--threshold", 1, code=2)
    assert "a threshold or a top, not both" in capsys.readouterr().err
    run(name, "train", data, "--out", out, *options, "--top", "5", code=2)
    assert "such as 5%, unlike '5'" in capsys.readouterr().err
    run(name, "evaluate", out, "--only", "IT³ (paper)", "--most", 6, "--quiet")
    found = load_evaluation(out / "evaluation")
    settings = found.summary["settings"]
    assert (settings["protocol"], settings["second_weight"]) == ("paper", 1.0)
    assert settings["network"]["entrance"] == "nodes"
    beyond = {r["level"]: r["n"] for r in found.records if r["level"] != "in distribution"}
    assert sum(beyond.values()) == (10 if name == "wings" else 4)  # of 200 and of 84
    assert {r["batch_size"] for r in found.records} == {None, *sizes}
    run(name, "evaluate", out, "--only", "source", "--most", 6, "--quiet", "--overwrite")
    run(name, "evaluate", out, "--only", "second pass", "--most", 6, "--quiet", "--overwrite")
    assert not (out / "evaluation" / "errors.png").exists()  # there is nothing after adaptation


def test_wings_are_answered_verified_and_drawn_from_a_folder_that_moved(
    demo: Path, tmp_path: Path, written: Callable[..., Path], run: Run
) -> None:
    place = tmp_path / "moved" / "elsewhere"
    shutil.copytree(demo / "experiment", place)  # without the data
    files = [written(naca("2412"), "one.dat"), tmp_path / "gone.dat", written(naca("0012"), "$x")]
    said = run("wings", "predict", place, *files, "--json", "--adapt", "instance", code=2)
    first, gone, last = map(json.loads, said)
    assert set(first) == set(last) == FIELDS
    reason = "can't be read: No such file or directory"
    assert gone == {"name": str(files[1]), "problem": reason}
    assert run("wings", "predict", place, files[1], code=2) == [f"{files[1]}: {reason}"]
    options = ["--verify", "--plot", tmp_path / "shapes.png"]
    (line,) = run("wings", "predict", place, files[0], "--json", *options)
    found = json.loads(line)
    assert found["initial"] == first["initial"]
    assert found["lower"] < found["prediction"] < found["upper"]  # of auto alone
    assert 35 < found["truth"] < 50  # a NACA 2412 at Re 1e6 and no incidence
    assert found["error"] == pytest.approx(found["prediction"] - found["truth"], abs=1e-4)
    assert (tmp_path / "shapes.png").read_bytes().startswith(b"\x89PNG")
    (line,) = run("wings", "predict", place, files[0], "--verify")
    ends = f"(L/D {found['lower']:.1f} to L/D {found['upper']:.1f})"
    assert f"L/D {found['prediction']:.1f} {ends}" in line
    assert f" {found['truth']:.1f}, error " in line


def test_cars_are_packed_trained_reported_answered_and_drawn(
    cars_data: Path, cars_experiment: Path, tmp_path: Path, run: Run
) -> None:
    assert "84 cars" in run("cars", "pack", cars_data, tmp_path / "cars.safetensors")[0]
    out = tmp_path / "experiment"
    options = ["--epochs", 1, "--seed", 3, "--quiet"]
    run("cars", "train", tmp_path / "cars.safetensors", "--out", out, *options)
    page = cars_experiment / "evaluation" / "report.html"
    text = page.read_text("utf-8")
    assert "Mahalanobis, features" in text
    assert text.count("data:image/png;base64,") >= 6
    run("cars", "report", cars_experiment, "--out", tmp_path / "again.html")
    assert "Cars: drag and how far to believe it" in (tmp_path / "again.html").read_text("utf-8")
    good, bad = tmp_path / "ein schönes Auto.stl", tmp_path / "bad.obj"
    make("sedan").export(good)
    bad.write_bytes(b"PK\x03\x04 a zip")
    options = ["--json", "--adapt", "instance", "--plot", tmp_path / "cars.png"]
    said = run("cars", "predict", cars_experiment, good, bad, *options, code=2)
    first, second = map(json.loads, said)
    assert set(first) == FIELDS
    assert second["problem"] == "this is a zip file, not a mesh: unpack it first"
    assert (tmp_path / "cars.png").read_bytes().startswith(b"\x89PNG")
    placed = ["--adapt", "none", "--up", "z", "--nose=-x", "--unit", 1]
    (line,) = run("cars", "predict", cars_experiment, good, *placed)
    assert f"Cd {first['initial']:.3f}; percentile" in line


def test_a_car_that_nobody_has_seen_is_verified_by_openfoam(
    cars_experiment: Path, tmp_path: Path, openfoam: Install, run: Run
) -> None:
    car = tmp_path / "van.stl"
    make("van").export(car)
    (said,) = run("cars", "predict", cars_experiment, car, "--verify", "--json")
    found = json.loads(said)
    assert 0.2 < found["truth"] < 0.8
    assert found["error"] == pytest.approx(found["prediction"] - found["truth"], abs=2e-6)


class Asked(NeuralFoil):
    """A solver that keeps which flows it was asked about, and fails for thin shapes."""

    name = "a solver"
    flows: ClassVar[list[tuple[float, ...]]] = []

    def solve(
        self, airfoil: Airfoil, reynolds: float, alpha: float, mach: float = 0.0
    ) -> PolarPoint:
        self.flows.append((reynolds, alpha, mach))
        if airfoil.thickness < 0.05:
            return PolarPoint.failed(self.name, "it did not converge")
        return replace(NeuralFoil("xxsmall").solve(airfoil, reynolds, alpha), solver=self.name)


def test_the_flow_of_the_data_is_what_the_solver_is_asked_about(
    tmp_path: Path, written: Callable[..., Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver, flow = Asked(), {"reynolds": 2e6, "alpha": 1.0, "mach": 0.3}
    generate(tmp_path / "data", 80, solver=solver, progress=False, **flow)  # type: ignore[arg-type]
    run("wings", "train", tmp_path / "data", "--out", tmp_path / "x", "--epochs", 1, "--quiet")
    solver.flows.clear()
    monkeypatch.setattr(task, "choose", lambda name: solver)
    shapes = written(naca("2412")), written(naca("0004"), "thin.dat")
    said = run("wings", "predict", tmp_path / "x", *shapes, "--json", "--verify", code=2)
    assert solver.flows == [(2e6, 1.0, 0.3)] * 2
    answered, failed = map(json.loads, said)
    assert answered["solver"] == "a solver"
    assert "truth" not in failed
    assert failed["problem"] == "a solver has no solution: it did not converge"
    tests = task.TASK.test_set(load(tmp_path / "x", "wings", task.restore), task.Evaluate())
    assert "NeuralFoil" not in {line.name for line in tests.lines}  # it knows Mach 0 only


def test_an_answer_never_depends_on_its_neighbours(
    demo: Path, written: Callable[..., Path]
) -> None:
    experiment = load(demo / "experiment", "wings", task.restore)
    assert set(experiment.first.predictors) == {"row"}
    reader, names = task.reader(experiment, Predict()), ["2412", "6409", "0012"]
    shapes = [written(naca(name)) for name in names]
    for shape in shapes:
        alone, *_ = predict(experiment, reader, [shape])
        among = list(predict(experiment, reader, [*shapes, shape] * 5))[3]
        for one, other in ((alone.values, among.values), (alone.interval, among.interval)):
            assert one == pytest.approx(other, rel=1e-4)
        assert alone.adapted == among.adapted


def test_a_training_that_is_killed_goes_on_to_the_same_bytes(demo: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "it3_aero", "wings", "train", str(demo / "data"), "--quiet"]
    command += ["--epochs", "6", "--out"]
    process = subprocess.Popen([*command, str(tmp_path / "killed")], start_new_session=True)
    limit = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < limit:
        if (tmp_path / "killed" / "0" / "extrapolation-1.safetensors").exists():
            break
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
    assert main(["wings", "predict", str(tmp_path / "killed"), "x.dat"]) == 2  # it is not finished
    for name in ("killed", "whole"):
        subprocess.run([*command, str(tmp_path / name)], check=True, capture_output=True)
    again, once = (tmp_path / name / "0" / "network.safetensors" for name in ("killed", "whole"))
    assert again.read_bytes() == once.read_bytes()
