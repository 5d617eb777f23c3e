"""What a user calls: the import, the version and the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import it3_vision
from it3_vision.__main__ import main


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_script_and_the_module_can_be_run():
    done = run(Path(sys.executable).with_name("it3-vision"), "--help")
    assert "Usage: it3-vision" in done.stdout
    done = run(sys.executable, "-m", "it3_vision", "no-such-command")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
    assert "Traceback" not in done.stderr


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"it3-vision {version('it3-vision')}\n"
    assert it3_vision.__version__ == version("it3-vision")


def test_help_names_every_command_and_task(capsys):
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(command in told for command in ("age", "classify", "roads", "corrupt", "demo"))
    for task in ("classify", "age", "roads"):
        assert main([task, "--help"]) == 0
        told = capsys.readouterr().out
        verbs = ("train", "evaluate", "report", "predict", "demo")
        assert all(command in told for command in verbs)
        for verb in verbs:
            assert main([task, verb, "--help"]) == 0
            assert f"Example: it3-vision {task} {verb}" in capsys.readouterr().out


def test_help_loads_no_torch():
    code = (
        "import sys; from it3_vision.__main__ import main; "
        "[main([task, 'train', '--help']) for task in ('classify', 'age', 'roads')]; "
        "print(sorted({'torch', 'pandas', 'cv2'} & set(sys.modules)))"
    )
    assert run(sys.executable, "-c", code).stdout.splitlines()[-1] == "[]"


def test_the_readme_s_example_runs(tmp_path, monkeypatch):
    readme = Path(__file__).parents[1] / "README.md"
    (example,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example, str(readme), "exec"), names)
    assert (tmp_path / "experiment" / "0" / "network.safetensors").is_file()
    assert names["answer"].prediction.shape == (16, 17)
