"""A user's own files, and broken ones of ours: one sentence, exit code 2, nothing changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from it3_aero.__main__ import main
from it3_aero.cars.bodies import make
from it3_aero.cars.foam import preset
from it3_aero.cars.foam.case import Case
from it3_aero.cars.foam.files import Install
from it3_aero.wings import naca
from it3_core import IT3Error
from it3_core.io.output import MARKER, OutputFolder, open_output
from it3_core.io.tensors import read_tensors, write_tensors

Say = Callable[..., str]

CAR = make("box").export(file_type="stl")
DEMO = "wings demo --out . --n 100 --further 100 --solver neuralfoil --epochs 80 --quiet"
SAME = "--batch-sizes 1,16 --most 40 --quiet"  # as in the demo
TRAIN = "wings train data --out experiment --epochs 80 --quiet"


@pytest.fixture
def place(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the demo, with an airfoil and two cars, where commands run."""
    copy = Path(shutil.copytree(demo, tmp_path / "place"))
    monkeypatch.chdir(copy)
    rows = [f"{x:.5f} {y:.5f}" for x, y in naca("2412").points.tolist()]
    (copy / "wing.dat").write_text("\n".join(rows))
    for name in ("a", "b"):
        (copy / name).mkdir()
        (copy / name / "car.stl").write_bytes(CAR)
    return copy


@pytest.fixture
def refused(place: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs a command that must be refused, and returns what it says."""

    def run(command: str) -> str:
        before = tree(place)
        capsys.readouterr()
        assert main(command.split()) == 2
        out, said = capsys.readouterr()
        assert not out, "it is refused before any work"
        assert len(said.splitlines()) == 1, said
        assert said.startswith("it3-aero: ")
        assert tree(place) == before
        return said

    return run


def tree(place: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.is_symlink():
            found[name] = path.readlink()
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def users(path: str) -> None:
    """A file of the user's own."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("mine")


@pytest.mark.parametrize(
    ("mine", "command"),
    [
        # Before any work: what they would read, and the solvers, are not there.
        ("case/system/controlDict", "cars solve gone.stl case --preset smoke --ground 0"),
        ("case/case.json", "cars solve gone.stl case/case.json/below"),
        ("pics/car.png", "cars check a/car.stl b/car.stl --out pics"),
        ("out/report.html", "wings train gone --out out --epochs 1"),
        ("out/report.html", "cars train gone --out out"),
        ("out/report.html", "wings evaluate gone --out out"),
        ("out/report.html", "wings demo --out out --solver xfoil"),
        ("out/report.html", "cars demo --out out"),
        ("out/raw/samples.jsonl", "wings generate out -n 2 --solver xfoil"),
        ("out/card.json", "cars generate out -n 2"),
        ("wings.png", "wings predict experiment wing.dat --plot wings.png"),
        ("page.html", "wings report experiment --out page.html"),
        ("cars.safetensors", "cars pack data cars.safetensors"),
    ],
)
def test_a_user_s_own_files_stay(
    mine: str, command: str, refused: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    users(mine)
    monkeypatch.setenv("PATH", "")
    said = refused(command)
    assert any(words in said for words in ("not ours", "is there already", "is not a folder"))


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("cars check a --out a/pictures", "lies in, the input a"),
        ("cars check a/car.stl a/car.stl --out pics", "two inputs would share the output"),
        ("cars pack data data/packed.safetensors", "lies in, the input data"),
        ("cars generate meshes/out --meshes meshes", "lies in, the input meshes"),
        ("wings predict experiment wing.dat --plot wing.dat --overwrite", "the input wing.dat"),
        ("wings predict experiment wing.dat --plot experiment/0/x --overwrite", "the experiment"),
        ("wings predict experiment wing.dat --plot nowhere/wing.png", "there is no folder nowhere"),
        ("wings predict experiment wing.dat --plot a --overwrite", "is a folder"),
        (
            "wings report experiment --out experiment/0/network.safetensors --overwrite",
            "is part of",
        ),
        (
            "wings report experiment/evaluation --out experiment/new.html",
            "is part of the experiment",
        ),
        ("cars demo --data data --out data/new", "lies in, the input data"),
        ("cars generate new --meshes a/car.stl", "there is no folder a/car.stl"),
        ("wings evaluate experiment --out experiment", "is part of the experiment"),
        ("wings evaluate experiment --out experiment/evaluation/more", "is part of the experiment"),
        ("wings evaluate experiment --batch-sizes 2", "batch_sizes was [16, 1] and is [2]"),
        ("wings train data --out data", "data is, or lies in, the input data"),
        ("wings generate experiment -n 3 --solver neuralfoil", "is the output of 'wings train'"),
        ("cars train data --out new", "is the output of 'wings generate', not of 'cars generate'"),
        (TRAIN.replace("80", "3"), "recipe.epochs was 80 and is 3"),
    ],
)
def test_inputs_experiments_and_other_tasks_stay(command: str, told: str, refused: Say) -> None:
    Path("meshes").mkdir()
    shutil.copy("a/car.stl", "meshes/car.stl")
    assert told in refused(command)


@pytest.mark.parametrize(
    "command",
    [
        *("wings predict gone a.dat", "wings evaluate gone", "wings report gone"),
        *("wings train gone --out new", "cars pack gone new", "cars demo --data gone --out new"),
        *("wings predict experiment wing.dat --adapt sometimes", "cars train gone --out new"),
    ],
)
def test_what_is_not_there_is_one_sentence(command: str, refused: Say) -> None:
    assert "gone" in (said := refused(command)) or "sometimes" in said


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("experiment/evaluation/table.md", f"wings evaluate experiment {SAME}"),
        ("experiment/evaluation", f"wings evaluate experiment {SAME}"),
        ("experiment/evaluation", "wings report experiment"),
        ("experiment/it3-output.json", TRAIN),
    ],
)
def test_a_link_is_not_written_through(name: str, command: str, place: Path, refused: Say) -> None:
    Path(name).rename("elsewhere")
    for target in ("elsewhere", "gone"):
        Path(name).symlink_to(place / target)
        assert "is a link" in refused(command)
        Path(name).unlink()


def test_what_a_user_changed_or_put_into_our_folder_stays(place: Path, refused: Say) -> None:
    Path("data/card.json").write_text("{}")
    assert "card.json was changed or made by somebody else" in refused("wings generate data -n 101")
    Path("experiment/evaluation/boxes.png").write_bytes(b"mine")
    assert "boxes.png was changed" in refused(f"wings evaluate experiment {SAME}")
    Path("experiment/evaluation/boxes.png").unlink()
    users("experiment/evaluation/notes.txt")
    assert main(["wings", "evaluate", "experiment", *SAME.split()]) == 0
    assert Path("experiment/evaluation/notes.txt").read_text() == "mine"
    again = ["wings", "evaluate", "experiment", "--batch-sizes", "2", "--most", "3", "--quiet"]
    assert main([*again, "--overwrite"]) == 0
    assert Path("experiment/evaluation/notes.txt").read_text() == "mine"
    users("mine.png")
    command = "wings predict experiment wing.dat --plot mine.png --overwrite"
    assert main(command.split()) == 0
    assert Path("mine.png").read_bytes().startswith(b"\x89PNG")


DEEP = "[" * 100_000 + "]" * 100_000


def with_(key: str, part: object) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | {key: part})


SAMPLES = {
    "no cl": (lambda line: line.replace('"cl":', '"x":'), "cl is missing"),
    "negative": (with_("sample", -7), "has no number"),
    "no drag": (with_("cd", 0.0), "sample 0 is damaged"),
    "other parameters": (with_("parameters", {"camber": 0.1}), "sample 0 is damaged"),
    "ragged": (with_("cp", [[1.0, 0.5], [1.0]]), "sample 0 is damaged"),
    "deep": (lambda _: DEEP, "nested too deeply"),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_broken_samples(kind: str, refused: Say) -> None:
    change, told = SAMPLES[kind]
    path = Path("data/raw/samples.jsonl")
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if json.loads(line)["sample"] == 0)
    lines[first] = change(lines[first])
    path.write_text("\n".join(lines) + "\n")
    assert told in refused("wings train data --out new")
    if "is damaged:" not in told and "sample 0" not in told:
        assert told in refused("wings generate data -n 101")


@pytest.mark.parametrize(
    ("file", "command"),
    [
        (f"data/{MARKER}", "wings train data --out new"),
        (f"data/{MARKER}", "wings generate data -n 101"),
        ("data/card.json", "wings train data --out new"),
        (f"experiment/{MARKER}", TRAIN),
        ("experiment/0/history.json", "wings predict experiment wing.dat"),
        ("experiment/0/network.safetensors", "wings predict experiment wing.dat"),
        ("experiment/0/vanilla.safetensors", "wings evaluate experiment"),
        ("experiment/evaluation/evaluation.json", "wings report experiment"),
        ("experiment/evaluation/records.jsonl", "wings report experiment"),
        ("experiment/evaluation/answers.jsonl", "wings report experiment"),
    ],
)
@pytest.mark.parametrize("content", ["{", "[1]", DEEP, "\x00", "", None], ids=repr)
def test_broken_json(file: str, command: str, content: str | None, refused: Say) -> None:
    Path(file).unlink()
    if content is not None:
        Path(file).write_text(content)
    absent = (".safetensors", ".jsonl", MARKER, "evaluation.json", "/card.json")
    if content is not None or not file.endswith(absent):  # a folder without it is another case
        assert Path(file).name in refused(command)


def test_no_link_leads_out_and_no_output_into_data(demo: Path, place: Path, refused: Say) -> None:
    assert "lies in, the input" in refused(f"wings evaluate experiment --out {demo}/data/new")
    for name in ("experiment", "data"):
        Path(name).rename(demo.parent / name)
        Path(name).symlink_to(demo.parent / name)
        assert "is a link out of the folder" in refused(DEMO)
        Path(name).unlink()
        (demo.parent / name).rename(name)


@pytest.mark.parametrize("change", [{"stride": 2**62}, {"kernels": 2**40}, {"layers": [1]}])
def test_a_checkpoint_with_mad_settings(
    change: dict[str, object], place: Path, refused: Say
) -> None:
    path = place / "experiment/0/network.safetensors"
    stored = read_tensors(path, kind="checkpoint", metadata=dict[str, Any])
    stored.metadata["settings"]["settings"]["network"] |= change
    write_tensors(path, stored.tensors, stored.metadata, kind="checkpoint")
    assert next(iter(change)) in refused("wings predict experiment wing.dat")


def test_a_case_of_ours_is_not_the_user_s(place: Path) -> None:
    """In a folder that is ours, `openfoam` may still be the user's."""
    body = make("box")
    case = Case(place / "case", body, preset("smoke"), 1, True, Install("1912", {}))
    open_output(place / "case", "cars solve", case.settings)
    users("case/openfoam/system/controlDict")
    with pytest.raises(IT3Error, match="openfoam is not ours"):
        case.run()
    assert Path("case/openfoam/system/controlDict").read_text() == "mine"
    (place / "case" / "openfoam").rename(place / "other")
    (place / "case" / "openfoam").symlink_to(place / "other")
    with pytest.raises(IT3Error, match="openfoam is a link"):
        case.run()
    (place / "case" / "openfoam").unlink()
    OutputFolder(place / "case").write_text("case.json", '{"cells": [1]}')
    with pytest.raises(IT3Error, match="cells should be a whole number, but is a list"):
        case.run()
