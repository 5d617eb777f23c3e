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


def examples() -> list[Any]:
    """The code of each page that runs together, with the output that stands beside it, if any."""
    found = []
    for page in (README, *sorted((README.parent / "docs").glob("*.md"))):
        parts: list[tuple[str, str]] = []
        text = page.read_text(encoding="utf-8")
        for code, output in re.findall(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", text, re.S):
            before = "" if code.startswith("import") or not parts else parts.pop()[0]
            parts.append((before + code, output))
        found += [pytest.param(*one, id=f"{page.stem}-{n}") for n, one in enumerate(parts)]
    return found


@pytest.mark.parametrize(("code", "output"), examples())
def test_an_example_gives_the_output_that_stands_beside_it(
    code: str, output: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "the example", "exec"), {})
    found = capsys.readouterr().out
    if not output:
        assert len([line for line in code.splitlines() if line]) <= 25
        assert found.split() == ["heights.html"]
        assert "What adaptation does" in Path("heights.html").read_text(encoding="utf-8")
        return
    number = re.compile(r"\d+(?:\.\d+)?")  # another processor rounds otherwise, and learns on it
    assert number.sub("0", found).split() == number.sub("0", output).split()
    for one, other in zip(number.findall(found), number.findall(output), strict=True):
        assert float(one) == pytest.approx(float(other), rel=0.2, abs=0.03 if "." in one else 4)


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
    assert "online IT3 (paper)" in done.stdout
    assert "What to do: collect labels from near (1 to 1.3) on, where 8" in done.stdout
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
