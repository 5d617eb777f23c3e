"""What is broken, hostile or missing gets one clear sentence, and spoils nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from it3_aero.learning import NetworkSettings
from it3_aero.learning.evaluate import Evaluation, load_evaluation
from it3_aero.learning.model import Training
from it3_aero.learning.network import zigzag
from it3_aero.learning.predict import Prediction, predict, verify
from it3_aero.learning.report import write_report
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import Levels, Shapes
from it3_aero.wings.files import read_airfoil
from it3_aero.wings.model import load_run, train
from it3_aero.wings.network import build
from it3_aero.wings.solvers import PolarPoint
from it3_aero.wings.task import WINGS, asking
from it3_core import IT3Error, Regression, zigzag_loss
from it3_core.checkpoint import load, save
from it3_core.report import Page, facts, picture, table, text


def one_line(problem: pytest.ExceptionInfo[IT3Error]) -> str:
    said = str(problem.value)
    assert "\n" not in said
    assert said
    return said


@pytest.mark.parametrize("entrance", ["head", "nodes"])
@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_second_pass_that_weighs_nothing_is_refused_as_by_core(
    entrance: str, weight: float
) -> None:
    adapter = Regression()
    net = build(NetworkSettings(layers=2, channels=4, entrance=entrance), adapter)
    batch = torch.rand(3, 20, 2), torch.rand(3)
    said = []
    for loss in (zigzag, zigzag_loss):
        with pytest.raises(IT3Error, match="weight is a positive number") as problem:
            loss(net, adapter, *batch, weight=weight)
        said.append(one_line(problem))
    assert said[0] == said[1]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.999])
def test_truncated_run(copy_of_run: Path, share: float) -> None:
    file = copy_of_run / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(IT3Error) as problem:
        load_run(copy_of_run)
    assert "model.safetensors" in one_line(problem)


def test_run_of_another_version(copy_of_run: Path) -> None:
    found = load(copy_of_run / "model.safetensors")
    network = NetworkSettings.from_description(found.settings["network"])
    model = found.restore(build(network, Regression()))
    settings = {**found.settings, "format": 99}
    save(
        copy_of_run / "model.safetensors",
        model,
        adapter=Regression(),
        settings=settings,
        trust=found.trust,
        tuning=found.tuning,
        tensors=found.tensors,
        versions={"it3-aero": "9.9"},
    )
    with pytest.raises(IT3Error, match=r"written by it3-aero 9\.9"):
        load_run(copy_of_run)


def test_another_packages_checkpoint(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    save(tmp_path / "model.safetensors", net, adapter=Regression(), settings={})
    with pytest.raises(IT3Error) as problem:
        load_run(tmp_path)
    assert "train it again" in one_line(problem)


@pytest.mark.parametrize("file", ["history.json", "data_card.json"])
@pytest.mark.parametrize("content", ["{", "[1]", None], ids=["torn", "a list", "missing"])
def test_damaged_notes(copy_of_run: Path, file: str, content: str | None) -> None:
    path = copy_of_run / file
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(IT3Error, match=file):
        load_run(copy_of_run)


def test_missing_and_unreadable_places(tmp_path: Path, levels: Levels) -> None:
    with pytest.raises(IT3Error, match="is no RUN"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(IT3Error, match="holds no evaluation"):
        load_evaluation(WINGS, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(IT3Error, match="can't make the folder"):
        train(levels.train, tmp_path / "file", progress=False)
    with pytest.raises(IT3Error, match="can't write"):
        Page("a").write(tmp_path / "nowhere" / "page.html")


def test_damaged_evaluation(evaluation: Evaluation, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"numbers": []')
    (tmp_path / "records.jsonl").write_bytes((evaluation.folder / "records.jsonl").read_bytes())
    with pytest.raises(IT3Error, match="damaged"):
        load_evaluation(WINGS, tmp_path)


def test_too_few_shapes_and_unknown_presets(made_up: Shapes, tmp_path: Path) -> None:
    with pytest.raises(IT3Error, match="too few"):
        train(made_up.take(range(20)), tmp_path, progress=False)
    with pytest.raises(IT3Error, match="preset"):
        train(made_up, tmp_path, Training("huge"), progress=False)
    for weight in (0.0, -1.0, float("nan")):
        with pytest.raises(IT3Error, match="weighs more than nothing"):
            train(made_up, tmp_path, Training(second=weight), progress=False)


def test_one_bad_file_does_not_stop_the_rest(
    run: Run, dat_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    points = "0.1 nan\n" * 30
    files = [
        dat_file("good.dat"),
        tmp_path / "missing.dat",
        tmp_path / "folder",
        dat_file("nan.dat", points),
        dat_file("short.dat", "0 0\n1 0\n0 0\n"),
        dat_file("a\nQUIT.dat", "not an airfoil"),
        dat_file("also good.dat"),
    ]
    found = predict(run, files, read_airfoil, "none")
    assert [one.problem is None for one in found] == [True, *[False] * 5, True]
    for one in found:
        line = json.dumps(one.as_json(), allow_nan=False)
        assert "\n" not in line
        assert "\n" not in str(one)
        if one.problem is None:
            assert list(one.as_json()) == ["name", "before", "after", "error", "percentile"]
            assert 0 <= one.as_json()["percentile"] <= 100
        else:
            assert list(one.as_json()) == ["name", "problem"]
    assert found[0].as_json()["before"] == found[-1].as_json()["before"]


class Solver:
    """Answers for thick shapes only."""

    name = "a solver"

    def version(self) -> str:
        return "1"

    def solve(
        self, airfoil: object, reynolds: float, alpha: float, mach: float = 0.0
    ) -> PolarPoint:
        if airfoil.thickness > 0.1:  # type: ignore[attr-defined]
            return PolarPoint(0.5, 0.01, 0.0, True, "a solver 1")
        return PolarPoint.failed("a solver 1", "it did not converge")


def test_verify_says_what_the_solver_says(run: Run, dat_file: Callable[..., Path]) -> None:
    from it3_aero.wings import naca

    thin = "\n".join(f"{x:.6f} {y:.6f}" for x, y in naca("0006").points)
    missing = Path("missing.dat")
    files = [dat_file("thick.dat"), dat_file("thin.dat", thin), missing]
    found = predict(run, files, read_airfoil, "none")
    verify(found, asking(Solver(), 1e6, 0.0))
    first, second, third = (one.as_json() for one in found)
    assert first["truth"] == pytest.approx(50.0)
    assert first["difference"] == pytest.approx(first["after"] - 50.0, abs=1e-4)
    assert second["truth"] is None
    assert "did not converge" in second["problem"]
    assert "difference" not in third
    assert "a solver says 50.0" in str(found[0])


def test_a_page_escapes_what_it_is_given() -> None:
    page = Page("<script>alert(1)</script>", "a & b")
    page.section(
        "<b>",
        text("<img src=x>"),
        table([["<i>"], ['"<u>"']], "<caption>"),
        facts({"<dt>": "<dd>"}),
        picture(b"", '"><script>'),
    )
    made = page.html()
    assert "<script" not in made
    for hostile in ("<b>", "<img src=x>", "<i>", "<u>"):
        assert hostile not in made
    assert "default-src 'none'" in made


def test_names_from_files_are_escaped_in_the_report(
    run: Run, levels: Levels, evaluation: Evaluation, tmp_path: Path
) -> None:
    told = {**run.settings, "about": {"solver": "<script>evil()</script>"}}
    hostile = Run(
        WINGS, run.folder, run.model, run.adapter, run.trust, run.tuning, run.activations, told,
        run.history, {"<script>": "</dd><script>"},
    )  # fmt: skip
    page = write_report(hostile, levels, evaluation, tmp_path / "page.html", "<script>")
    assert "<script" not in page.read_text(encoding="utf-8")


def test_predictions_without_an_answer() -> None:
    assert Prediction(WINGS, "a", problem="b").as_json() == {"name": "a", "problem": "b"}
    assert str(Prediction(WINGS, "a", problem="b")) == "a: b"
