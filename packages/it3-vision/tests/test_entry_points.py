"""What a user calls: the import, the version and the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import it3_vision
from it3_vision import age, classify, networks
from it3_vision.__main__ import main


def test_version_is_the_metadata_s() -> None:
    assert it3_vision.__version__ == version("it3-vision")


def test_every_public_name_is_there() -> None:
    for module in (age, classify, networks):
        for name in module.__all__:
            assert hasattr(module, name), name


def test_the_script_is_there() -> None:
    script = Path(sys.executable).with_name("it3-vision")
    done = subprocess.run(
        [script, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Usage: it3-vision" in done.stdout
    assert "images" in done.stdout


def test_the_module_can_be_run() -> None:
    command = [sys.executable, "-m", "it3_vision", "no-such-command"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"it3-vision {it3_vision.__version__}\n"


@pytest.mark.parametrize("before", [[], ["classify"], ["age"]])
def test_without_arguments_it_helps(before: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(before)
    alone = capsys.readouterr()
    assert main([*before, "--help"]) == 0
    assert capsys.readouterr().out.strip() in (alone.out + alone.err)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert "Usage: it3-vision" in told
    assert all(command in told for command in ("age", "classify", "corrupt", "demo"))
    assert main(["classify", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(command in told for command in ("train", "evaluate", "predict"))


def test_bad_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-command"]) == 2
    assert "no-such-command" in capsys.readouterr().err


def test_the_readme_s_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = Path(__file__).parents[1] / "README.md"
    (example,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example, str(readme), "exec"), names)
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert names["answer"].prediction.shape == (16, 17)
