"""What a user calls: the import, the version and the command line."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import it3_aero
from it3_aero import wings
from it3_aero.__main__ import main


def test_every_public_name_is_there() -> None:
    for name in wings.__all__:
        assert getattr(wings, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        wings.nothing  # noqa: B018


HELP = """
import sys
from it3_aero.__main__ import main
for group in ([], ["wings"], ["cars"]):
    assert main([*group, "--help"]) == 0
shared = ["generate", "train", "evaluate", "report", "predict", "demo"]
commands = [["wings", name] for name in shared] + [["doctor"]]
commands += [["cars", name] for name in [*shared, "check", "solve", "pack"]]
for command in commands:
    assert main([*command, "--help"]) == 0
print({"torch", "pandas", "scipy", "trimesh", "matplotlib"} & set(sys.modules))
"""


def test_help_loads_nothing_heavy_and_ends_with_an_example() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert done.stdout.count("Example: it3-aero ") == 17


def test_version_and_a_command_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert it3_aero.__version__ == version("it3-aero")
    assert capsys.readouterr().out == f"it3-aero {it3_aero.__version__}\n"
    assert main(["no-such-command"]) == 2
    assert "no-such-command" in capsys.readouterr().err


def test_doctor_says_what_works_and_how_to_get_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IT3_XFOIL", "/nowhere/xfoil")
    assert main(["doctor"]) == 0  # NeuralFoil is there
    found = capsys.readouterr().out
    assert "\nok  NeuralFoil: NeuralFoil 0" in found
    assert "\n--  XFoil: there is no program /nowhere/xfoil: run apt-get" in found


def test_generate_makes_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["wings", "generate", str(tmp_path), "--n", "5", "--solver", "neuralfoil"]
    options = ["--family", "naca5", "--range", "thickness=0.1:0.12", "--alpha", "-4"]
    assert main([*arguments, *options]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{tmp_path}: 5 profiles by NeuralFoil")
    assert "5/5, 0 failed" in told.err
    names = {"raw", "card.json", "histogram.png", "it3-output.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    dataset = wings.WingDataset(tmp_path)
    assert dataset.parameter_names == ("lift", "position", "thickness")
    assert all(0.1 <= data.parameters[0, 2] <= 0.12 for data in dataset)
    assert dataset.settings["alpha"] == -4.0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--n", "0"], "n must be 1 or more, but is 0"),
        (["--seed", "-1"], 'Invalid value "-1" for --seed. Must be >= 0'),
        (["--workers", "0"], 'Invalid value "0" for --workers. Must be >= 1'),
        (["--range", "camber"], "a range is NAME=LOW:HIGH"),
        (["--range", "camber=0.1:0"], "the range of camber runs backwards"),
        (["--range", "camber=0:0.9"], "camber must lie between 0 and 0.15, but is 0.9"),
        (["--range", "chord=0:1"], "naca4 has no 'chord'; it has camber, position, thickness"),
        (["--family", "naca6"], 'Invalid value "naca6" for --family. Choose from: "naca4"'),
        (["--alpha", "50"], "alpha must lie between -30 and 30, but is 50"),
        (["--reynolds", "nan"], "reynolds must lie between 1000 and 1e+09, but is nan"),
        (["--mach", "1"], "mach must lie between 0 and 0.7, but is 1"),
        (["--dask", "tcp://127.0.0.1:1"], "can't reach a Dask scheduler at tcp://127.0.0.1:1"),
        (["--dask", "x", "--workers", "2"], "give either --workers or --dask"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("it3_aero.generation.store._PATIENCE", 0.5)
    command = ["wings", "generate", str(tmp_path / "out"), "--solver", "neuralfoil", *arguments]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"it3-aero: {sentence}")
    assert len(told.splitlines()) == 1
