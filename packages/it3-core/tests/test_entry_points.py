"""What a user calls first: the README's example, and the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import it3_core

README = Path(__file__).parents[1] / "README.md"


def it3_core_command(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "it3_core", *arguments],
        capture_output=True, text=True, check=False, **options,  # type: ignore[call-overload, no-any-return]
    )  # fmt: skip


def test_the_readme_s_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, str(README), "exec"), names)
    assert "candidates" in capsys.readouterr().out
    answer = names["answer"]
    assert isinstance(answer, it3_core.Adaptation)
    trust = names["trust"]
    assert isinstance(trust, it3_core.Trust)
    assert trust.percentile(answer.error_before).mean() > 90  # inputs like none before


def test_every_public_name_is_documented_with_an_example() -> None:
    for name in it3_core.__all__:
        if name.startswith("__"):
            continue
        thing = getattr(it3_core, name)
        assert thing.__doc__, name
        assert ">>>" in thing.__doc__ or name in ("Conditioned", "Tail"), f"{name} has no example"


def test_help_teaches() -> None:
    for arguments in (["--help"], ["demo", "--help"], ["inspect", "--help"]):
        done = it3_core_command(*arguments)
        assert done.returncode == 0
        assert "usage: it3-core" in done.stdout
    assert "demo" in it3_core_command("--help").stdout


def test_version() -> None:
    done = it3_core_command("--version")
    assert (done.returncode, done.stdout) == (0, f"it3-core {it3_core.__version__}\n")


def test_demo_and_inspect(tmp_path: Path) -> None:
    done = it3_core_command("demo", "--quiet", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "chosen by tune" in done.stdout
    assert "AUROC" in done.stdout
    files = {file.name for file in (tmp_path / "run").iterdir()}
    assert files == {"demo.safetensors", "demo.png"}
    shown = it3_core_command("inspect", str(tmp_path / "run" / "demo.safetensors"))
    assert shown.returncode == 0
    assert "Regression" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["inspect", "missing.safetensors"], "missing.safetensors"),
        (["inspect", "."], "folder"),
        (["inspect"], "required"),
        (["fly"], "invalid choice"),
        (["demo", "--seed", "x"], "invalid int"),
        (["demo", "--out", "/dev/null/run"], "Not a directory"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    arguments: list[str], hint: str, tmp_path: Path
) -> None:
    done = it3_core_command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_warnings_of_ours_are_one_line_and_others_are_as_ever() -> None:
    script = (
        "import warnings, it3_core; from it3_core.commands import exit_code\n"
        "def app(args, prog_name):\n"
        "    warnings.warn('few rows', it3_core.IT3Warning)\n"
        "    warnings.warn('old', UserWarning)\n"
        "exit_code(app, 'it3', [])\n"
        "warnings.warn('later', it3_core.IT3Warning)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    ours, other, later = done.stderr.splitlines()
    assert ours == "it3: few rows"
    assert other.endswith("UserWarning: old")
    assert later.endswith("IT3Warning: later")


def test_no_command_prints_the_help() -> None:
    done = it3_core_command()
    assert done.returncode == 2
    assert "usage: it3-core" in done.stdout


def test_nothing_is_written_or_fetched_by_an_import(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import it3_core"],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []
