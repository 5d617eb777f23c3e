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


def test_version_is_the_metadata_s() -> None:
    assert it3_aero.__version__ == version("it3-aero")


def test_every_public_name_is_there() -> None:
    for name in wings.__all__:
        assert getattr(wings, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        wings.nothing  # noqa: B018


def test_the_script_is_there() -> None:
    script = Path(sys.executable).with_name("it3-aero")
    done = subprocess.run(
        [script, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Usage: it3-aero" in done.stdout
    assert "aerodynamics" in done.stdout


def test_version_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"it3-aero {it3_aero.__version__}\n"


def test_without_arguments_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    alone = capsys.readouterr()
    main(["--help"])
    assert capsys.readouterr().out.strip() in (alone.out + alone.err)


def test_bad_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-command"]) == 2
    assert "no-such-command" in capsys.readouterr().err


def test_doctor_says_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok  NeuralFoil: NeuralFoil 0") for line in lines)
    assert any(line[4:].startswith("XFoil:") for line in lines)


def test_doctor_says_how_to_get_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IT3_XFOIL", "/nowhere/xfoil")
    assert main(["doctor"]) == 0  # NeuralFoil is still there
    assert "--  XFoil: there is no program /nowhere/xfoil: run apt-get" in capsys.readouterr().out


def test_generate_makes_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["wings", "generate", str(tmp_path), "--n", "5", "--solver", "neuralfoil"]
    assert main([*arguments, "--family", "naca5", "--range", "thickness=0.1:0.12"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{tmp_path}: 5 profiles by NeuralFoil")
    assert "profiles: 5/5" in told.err
    assert "0 failed" in told.err
    assert {path.name for path in tmp_path.iterdir()} == {"raw", "card.json", "histogram.png"}
    dataset = wings.WingDataset(tmp_path)
    assert dataset.parameter_names == ("lift", "position", "thickness")
    assert all(0.1 <= data.parameters[0, 2] <= 0.12 for data in dataset)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--n", "0"], "n must be 1 or more, but is 0"),
        (["--seed", "-1"], "seed must not be negative, but is -1"),
        (["--workers", "0"], "workers must be 1 or more, but is 0"),
        (["--range", "camber"], "a range is NAME=LOW:HIGH"),
        (["--range", "camber=0.1:0"], "the range of camber runs backwards"),
        (["--range", "camber=0:0.9"], "camber must lie between 0 and 0.15, but is 0.9"),
        (["--range", "chord=0:1"], "naca4 has no 'chord'; it has camber, position, thickness"),
        (["--alpha", "50"], "alpha must lie between -30 and 30 degrees, but is 50"),
        (["--dask", "tcp://127.0.0.1:1"], "can't reach a Dask scheduler at tcp://127.0.0.1:1"),
        (["--dask", "nonsense://x"], "can't reach a Dask scheduler at nonsense://x"),
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
    monkeypatch.setattr("it3_aero.executors._PATIENCE", 0.5)
    command = ["wings", "generate", str(tmp_path / "out"), "--solver", "neuralfoil", *arguments]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"it3-aero: {sentence}")
    assert len(told.splitlines()) == 1
