"""What a user calls first: the README's example, and the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import it3_core
from it3_core.__main__ import main

README = Path(__file__).parents[1] / "README.md"
PROMISES = Path(__file__).parents[3] / "docs" / "promises.md"


def it3_core_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "it3_core", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_readme_s_examples_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = README.read_text(encoding="utf-8")
    example, experiment = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    assert len([line for line in experiment.splitlines() if line]) <= 25
    exec(compile(experiment, str(README), "exec"), {})
    assert "What adaptation does" in Path("heights.html").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    exec(compile(example, str(README), "exec"), names)
    assert "candidates" in capsys.readouterr().out
    answer = names["answer"]
    assert isinstance(answer, it3_core.Adaptation)
    trust = names["trust"]
    assert isinstance(trust, it3_core.Trust)
    assert trust.percentile(answer.error_before).mean() > 90  # inputs like none before


def test_every_public_name_is_documented_and_promised_ones_have_an_example() -> None:
    names = [name for name in it3_core.__all__ if not name.startswith("__")]
    assert all(getattr(it3_core, name).__doc__ for name in names)
    promises = PROMISES.read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `it3_core` \| (.*?) \|", promises, re.MULTILINE)
    promised = re.findall(r"`(\w+)`", row)
    assert len(promised) > 20
    assert not [name for name in promised if ">>>" not in getattr(it3_core, name).__doc__]


def test_help_and_version() -> None:
    for arguments, code in ((["--help"], 0), (["demo", "--help"], 0), ([], 2)):
        done = it3_core_command(*arguments)
        assert done.returncode == code
        assert "usage: it3-core" in done.stdout
    done = it3_core_command("--version")
    assert (done.returncode, done.stdout) == (0, f"it3-core {it3_core.__version__}\n")


COMMANDS = """
import sys, warnings
from it3_core import IT3Error, IT3Warning
from it3_core.experiment.verbs import application, run

app = application("it3", "A command.", "it3 1.0")

@app.command
def work(n: int, /, *, alpha: float = 0.0) -> int:
    if n == 0:
        raise IT3Error("n must be positive")
    if n == 9:
        open("x" * 300)
    warnings.warn("there is little light", IT3Warning, stacklevel=1)
    warnings.warn("somebody else's", UserWarning, stacklevel=1)
    print(n, alpha)
    return n

code = run(app, "it3")
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "stdout", "stderr"),
    [
        (["work", "3", "--alpha", "-4"], 3, "3 -4.0", "it3: warning: there is little light"),
        (["work", "0"], 2, "", "it3: n must be positive"),
        (["work", "9"], 2, "", "it3: xxx"),
        (["work", "x"], 2, "", "it3: Invalid value for N"),
        (["wrok", "3"], 2, "", 'it3: Unknown command "wrok"'),
        (["work", "3", "data"], 2, "", "it3: unexpected argument 'data': see --help\n"),
        (["work", "3", "--beta", "1"], 2, "", "it3: Unknown option"),
        (["--version"], 0, "it3 1.0", ""),
        (["work", "--help"], 0, "Usage: it3 work", ""),
        ([], 2, "Usage: it3", ""),
    ],
)
def test_a_command_of_the_packages_ends_in_a_sentence_and_a_code(
    arguments: list[str], code: int, stdout: str, stderr: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert done.stdout.startswith(stdout)
    assert done.stderr.startswith(stderr)


def test_demo_and_inspect(tmp_path: Path) -> None:
    done = it3_core_command("demo", "--quiet", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "chosen by tune" in done.stdout
    assert "flagged" in done.stdout
    files = {file.name for file in (tmp_path / "run").iterdir()}
    assert files == {"demo.safetensors", "demo.png", "it3-output.json"}
    shown = it3_core_command("inspect", str(tmp_path / "run" / "demo.safetensors"))
    assert shown.returncode == 0
    for told in ("IT³ checkpoint", "Regression", "settings", "tuning"):
        assert told in shown.stdout


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
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main(arguments)
    except SystemExit as ended:  # of argparse
        code = ended.code
    assert code == 2
    assert hint in capsys.readouterr().err
