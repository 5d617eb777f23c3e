"""What a user calls: the demo, train, evaluate, predict and report, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from it3_aero.__main__ import main
from it3_aero.wings.model import load_run


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, as small as it comes, with the solver that is always there."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    options = ["--n", "100", "--solver", "neuralfoil", "--epochs", "2", "--quiet"]
    assert main(["wings", "demo", "--out", str(folder), *options]) == 0
    return folder


def test_demo_makes_all_of_it(demo: Path) -> None:
    page = (demo / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") >= 7
    assert "NeuralFoil" in page
    assert load_run(demo / "run").settings["about"]["solver"].startswith("NeuralFoil")
    records = (demo / "run" / "evaluation" / "records.jsonl").read_text(encoding="utf-8")
    methods = {json.loads(line)["method"] for line in records.splitlines()}
    assert "NeuralFoil" not in methods  # no yardstick for its own answers
    assert {"source", "IT³ paper", "online IT³", "Gaussian process"} <= methods


def test_demo_again_goes_on_and_says_the_same(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (demo / "run" / "evaluation" / "records.jsonl").read_bytes()
    options = ["--n", "100", "--solver", "neuralfoil", "--epochs", "2", "--quiet"]
    assert main(["wings", "demo", "--out", str(demo), *options]) == 0
    said = capsys.readouterr().out
    assert "source" in said
    assert said.rstrip().endswith(str(demo / "report.html"))
    assert (demo / "run" / "evaluation" / "records.jsonl").read_bytes() == before


def test_predict_as_text_and_json(
    demo: Path, dat_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = [str(dat_file("one.dat")), str(tmp_path / "gone.dat"), str(dat_file("two.dat"))]
    run = str(demo / "run")
    assert main(["wings", "predict", run, *files, "--json", "--adapt", "instance"]) == 2
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [sorted(line) for line in lines] == [
        ["after", "before", "error", "name", "percentile"],
        ["name", "problem"],
        ["after", "before", "error", "name", "percentile"],
    ]
    picture = tmp_path / "shapes.png"
    assert main(["wings", "predict", run, files[0], "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "% of the training shapes" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_predict_verifies(
    demo: Path, dat_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, shape = str(demo / "run"), str(dat_file("one.dat"))
    assert main(["wings", "predict", run, shape, "--json", "--verify"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["solver"] in ("XFoil", "NeuralFoil")
    assert 35 < found["truth"] < 50  # a NACA 2412 at Re 1e6 and no incidence
    assert found["difference"] == pytest.approx(found["after"] - found["truth"], abs=1e-4)


def test_report_again(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "again.html"
    assert main(["wings", "report", str(demo / "run"), "--out", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    again, first = (path.read_text(encoding="utf-8") for path in (page, demo / "report.html"))
    assert again.count("<img") == first.count("<img")  # the same shapes are found again


def test_train_says_what_it_did(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    options = ["--epochs", "1", "--seed", "3", "--quiet"]
    assert main(["wings", "train", str(demo / "data"), "--out", str(out), *options]) == 0
    assert "for 1 epochs" in capsys.readouterr().out
    assert load_run(out).seed == 3
    other = ["--epochs", "2", "--seed", "3", "--quiet"]
    assert main(["wings", "train", str(demo / "data"), "--out", str(out), *other]) == 2
    assert "another run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "RUN", "a.dat"],
        ["evaluate", "RUN"],
        ["report", "RUN"],
        ["train", "RUN", "--out", "OUT"],
        ["predict", "RUN", "a.dat", "--adapt", "sometimes"],
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_one_line_and_exit_code_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": str(tmp_path / "nowhere"), "OUT": str(tmp_path / "out")}
    assert main(["wings", *(places.get(word, word) for word in arguments)]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.strip()
