"""What a user calls: the demo, train, evaluate, report and pack, from the command line."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from it3_aero.__main__ import main
from it3_aero.cars.bodies import make
from it3_aero.cars.demo import _epochs, fresh_cars
from it3_aero.cars.model import load_run
from it3_aero.learning.evaluate import Evaluation
from it3_aero.learning.report import write_report
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import WITHIN, Levels


def test_pack_train_evaluate_and_report(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "cars.safetensors", tmp_path / "run"
    assert main(["cars", "pack", str(data), str(file)]) == 0
    assert "84 cars" in capsys.readouterr().out
    options = ["--epochs", "1", "--seed", "3", "--quiet"]
    assert main(["cars", "train", str(file), "--out", str(out), *options]) == 0
    assert "in Cd on held-out ones" in capsys.readouterr().out
    assert load_run(out).settings["network"]["layers"] == 35
    options = ["--batch-sizes", "2", "--most", "3", "--quiet"]
    assert main(["cars", "evaluate", str(out), *options]) == 0
    said = capsys.readouterr().out
    assert "| gradient boosting |" in said
    page = (out / "evaluation" / "report.html").read_text(encoding="utf-8")
    assert "falling Cd" in page
    assert main(["cars", "report", str(out), "--out", str(tmp_path / "again.html")]) == 0
    again = (tmp_path / "again.html").read_text(encoding="utf-8")
    assert again.count("<img") == page.count("<img")


def test_predict_as_text_and_json(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "ein schönes Auto.stl", tmp_path / "bad.obj"
    make("sedan").export(good)
    bad.write_bytes(b"PK\x03\x04 a zip")
    files = [str(good), str(bad), str(tmp_path / "gone.ply")]
    picture = tmp_path / "cars.png"
    options = ["--json", "--adapt", "instance", "--plot", str(picture)]
    assert main(["cars", "predict", str(run.folder), *files, *options]) == 2
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sorted(line) for line in lines] == [
        ["after", "before", "error", "name", "percentile"],
        ["name", "problem"],
        ["name", "problem"],
    ]
    assert lines[0]["name"] == "ein schönes Auto"
    assert picture.read_bytes().startswith(b"\x89PNG")
    placed = ["--adapt", "none", "--up", "z", "--nose=-x", "--unit", "1"]
    assert main(["cars", "predict", str(run.folder), str(good), *placed]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert f"Cd {lines[0]['before']:.3f} before" in said


def test_report_has_cars_with_pressure(
    run: Run, levels: Levels, evaluation: Evaluation, tmp_path: Path
) -> None:
    path = write_report(run, levels.drawn(8), evaluation, tmp_path / "page.html", "a test")
    page = path.read_text(encoding="utf-8")
    assert "Cars: drag with a trust gauge" in page
    assert page.count("data:image/png;base64,") >= 6


def test_report_says_when_a_network_is_mostly_wrong(
    run: Run, levels: Levels, evaluation: Evaluation, tmp_path: Path
) -> None:
    known = [line for line in evaluation.shapes if line["level"] == WITHIN]
    warning = f"Only 0 of {len(known)} of the former are right"
    for off, warned in ((0.5, True), (0.0, False)):
        shapes = [{**line, "before": line["y"] + off} for line in evaluation.shapes]
        found = replace(evaluation, shapes=shapes)
        page = write_report(run, levels.drawn(8), found, tmp_path / "page.html")
        assert (warning in page.read_text(encoding="utf-8")) == warned


def test_the_demo_stays_short() -> None:
    assert _epochs(76, most=60) == 60
    assert 128 * _epochs(128, most=60) <= 76 * 61
    assert _epochs(100_000, most=60) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "RUN", "a.stl"],
        ["evaluate", "RUN"],
        ["report", "RUN"],
        ["train", "RUN", "--out", "OUT"],
        ["pack", "RUN", "OUT"],
        ["demo", "--data", "RUN", "--out", "OUT"],
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_one_line_and_exit_code_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": str(tmp_path / "nowhere"), "OUT": str(tmp_path / "out")}
    assert main(["cars", *(places.get(word, word) for word in arguments)]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.strip()


@pytest.fixture
def openfoam() -> None:
    """Skips where it is missing, and fails in CI, which installs it."""
    if shutil.which("simpleFoam") is None:
        sentence = "OpenFOAM is not installed: apt-get install openfoam"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)


def test_a_car_that_nobody_has_seen(run: Run, tmp_path: Path, openfoam: None) -> None:
    """The demo's `--fresh`: drawn, solved by OpenFOAM, and answered by the network."""
    (found,) = fresh_cars(run, tmp_path / "fresh", 1, progress=False)
    told = found.as_json()
    assert told["solver"].startswith("OpenFOAM")
    assert 0.1 < told["truth"] < 1.0
    assert told["difference"] == pytest.approx(told["after"] - told["truth"], abs=1e-5)
    case = tmp_path / "fresh" / "cases" / "000000" / "case.json"
    written = case.stat().st_mtime_ns
    (same,) = fresh_cars(run, tmp_path / "fresh", 1, progress=False)
    assert case.stat().st_mtime_ns == written  # it was not solved again
    assert same.as_json() == told
