"""What a user calls: the import, the version and the command line."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import it3_tabular

COMMANDS = [
    pytest.param([str(Path(sys.executable).with_name("it3-tabular"))], id="script"),
    pytest.param([sys.executable, "-m", "it3_tabular"], id="module"),
]


def run(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_version_is_the_metadata_s() -> None:
    assert it3_tabular.__version__ == version("it3-tabular")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_it_is_for(command: list[str]) -> None:
    done = run(command, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: it3-tabular")
    assert "tables" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_without_arguments_it_helps(command: list[str]) -> None:
    assert run(command).stdout == run(command, "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_version_option(command: list[str]) -> None:
    assert run(command, "--version").stdout == f"it3-tabular {it3_tabular.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_usage_exits_with_2(command: list[str]) -> None:
    done = run(command, "no-such-command")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
    assert "Traceback" not in done.stderr
