"""The one rule for output and the one reader of stored JSON, tried with hostile files."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

from it3_core.errors import IT3Error
from it3_core.io import files
from it3_core.io.output import MARKER, distinct_names, open_output, output_file, read_marker
from it3_core.io.typed import append_lines, mend, parse_json, printable, read_json, read_lines

PACKAGES = Path(__file__).parents[2]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class TestOutput:
    def test_a_new_folder_lists_what_was_written(self, tmp_path: Path) -> None:
        out = open_output(tmp_path / "a/b", "demo", {"seed": 0})
        out.write_text("report.html", "first")
        out.write_text("parts/0.txt", "one")
        growing = out.reserve("records.jsonl")
        files.append(growing, b"{}\n")
        marker = read_marker(out.path)
        assert (marker.task, marker.settings) == ("demo", {"seed": 0})
        assert marker.files["records.jsonl"] is None
        assert len(marker.files["report.html"] or "") == 64
        again = open_output(tmp_path / "a/b", "demo", {"seed": 0}, files=["report.html"])
        again.write_text("report.html", "second")
        assert (out.path / "report.html").read_text() == "second"

    @pytest.mark.parametrize(
        ("task", "settings", "message"),
        [("train", {"seed": 0}, "'demo', not of 'train'"), ("demo", {"seed": 1}, "seed was 0 and")],
    )
    def test_a_folder_of_another_task_or_settings_is_left_alone(
        self, tmp_path: Path, task: str, settings: dict[str, Any], message: str
    ) -> None:
        open_output(tmp_path / "out", "demo", {"seed": 0}).write_text("a", "b")
        before = snapshot(tmp_path)
        with pytest.raises(IT3Error, match=message):
            open_output(tmp_path / "out", task, settings)
        assert snapshot(tmp_path) == before

    def test_a_folder_with_the_user_s_files_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "report.html").write_text("mine")
        with pytest.raises(IT3Error, match=r"not ours \(report.html\): name a new or empty"):
            open_output(tmp_path, "demo", {})
        assert snapshot(tmp_path) == {"report.html": b"mine"}

    def test_the_user_s_file_in_our_folder_is_found_before_any_work(self, tmp_path: Path) -> None:
        open_output(tmp_path / "out", "demo", {})
        (tmp_path / "out/report.html").write_text("mine")
        with pytest.raises(IT3Error, match="changed or made by somebody else"):
            open_output(tmp_path / "out", "demo", {}, files=["report.html"])
        assert (tmp_path / "out/report.html").read_text() == "mine"

    def test_what_the_user_changed_is_his(self, tmp_path: Path) -> None:
        out = open_output(tmp_path, "demo", {})
        out.write_text("notes.txt", "ours")
        (tmp_path / "notes.txt").write_text("ours, with a note")
        for call in (lambda: out.write_text("notes.txt", "x"), lambda: out.remove("notes.txt")):
            with pytest.raises(IT3Error, match="left alone"):
                call()
        with pytest.raises(IT3Error, match="left alone"):
            open_output(tmp_path, "demo", {"other": 1}, overwrite=True)
        assert (tmp_path / "notes.txt").read_text() == "ours, with a note"

    def test_overwrite_starts_anew_and_keeps_what_is_not_ours(self, tmp_path: Path) -> None:
        open_output(tmp_path, "demo", {"seed": 0}).write_text("old.txt", "ours")
        (tmp_path / "mine.txt").write_text("mine")
        open_output(tmp_path, "demo", {"seed": 1}, overwrite=True).write_text("new.txt", "ours")
        assert {path.name for path in tmp_path.iterdir()} == {MARKER, "mine.txt", "new.txt"}

    def test_a_kill_while_writing_leaves_a_file_that_is_ours(self, tmp_path: Path) -> None:
        program = """
import os, signal, sys
from it3_core.io.output import open_output
out = open_output(sys.argv[1], "demo", {})
with out.writing("big.bin") as path:
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
        assert done.returncode == -signal.SIGKILL
        open_output(tmp_path, "demo", {}, files=["big.bin"]).write_text("big.bin", "whole")
        assert (tmp_path / "big.bin").read_text() == "whole"

    def test_two_processes_may_write_side_by_side(self, tmp_path: Path) -> None:
        program = """
import sys
from it3_core.io.output import open_output
out = open_output(sys.argv[1], "demo", {})
for row in range(20):
    out.write_text(f"{sys.argv[2]}-{row}", "x")
"""
        open_output(tmp_path, "demo", {})
        command = [sys.executable, "-c", program, str(tmp_path)]
        running = [subprocess.Popen([*command, name]) for name in "ab"]
        assert [process.wait() for process in running] == [0, 0]
        marker = read_marker(tmp_path)
        assert len(marker.files) == 40
        assert all(marker.files.values())

    @pytest.mark.parametrize("name", ["model.safetensors", "parts/0.txt"])
    def test_links_are_not_followed_out_of_the_folder(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "elsewhere").mkdir()
        precious = tmp_path / "elsewhere" / Path(name).name
        precious.write_text("precious")
        real = tmp_path / "out"
        real.mkdir()
        named = tmp_path / "named"
        named.symlink_to(real)  # the folder itself may be a link
        out = open_output(named, "demo", {})
        if "/" in name:
            (real / "parts").symlink_to(tmp_path / "elsewhere")
        else:
            (real / name).symlink_to(precious)
        with pytest.raises(IT3Error, match="is a link"):
            out.write_text(name, "x")
        assert precious.read_text() == "precious"

    @pytest.mark.parametrize("name", ["../x", "/tmp/x", MARKER, "a/../../x", "a\0", "a\ud800"])
    def test_no_name_leads_out_of_the_folder(self, tmp_path: Path, name: str) -> None:
        out = open_output(tmp_path / "out", "demo", {})
        with pytest.raises(IT3Error, match="is not a name for a file"):
            out.write_text(name, "x")

    @pytest.mark.parametrize(
        "content",
        ["", "{", "[]", '{"task": 3, "settings": {}}', '{"task": "demo", "files": {"a": 5}}'],
    )
    def test_a_damaged_marker_is_told(self, tmp_path: Path, content: str) -> None:
        (tmp_path / MARKER).write_text(content)
        with pytest.raises(IT3Error, match=f"{MARKER} is damaged"):
            open_output(tmp_path, "demo", {})
        assert (tmp_path / MARKER).read_text() == content

    def test_a_marker_can_not_name_files_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("precious")
        out = tmp_path / "out"
        out.mkdir()
        marker = {"task": "demo", "settings": {}, "files": {"../precious": None}}
        (out / MARKER).write_text(json.dumps(marker))
        with pytest.raises(IT3Error, match="is not a name"):
            open_output(out, "demo", {"seed": 1}, overwrite=True)
        assert (tmp_path / "precious").exists()

    def test_an_output_among_the_inputs_is_refused(self, tmp_path: Path) -> None:
        images, run = tmp_path / "images", tmp_path / "run"
        images.mkdir()
        run.mkdir()
        for out in (images, images / "out"):
            with pytest.raises(IT3Error, match="lies in, the input"):
                open_output(out, "demo", {}, inputs=[images])
        with pytest.raises(IT3Error, match="part of the experiment"):
            output_file(run / "evaluation", experiment=run)
        for out in (run, run / "x", run / "evaluation" / "x"):
            with pytest.raises(IT3Error, match="part of the experiment"):
                open_output(out, "demo", {}, experiment=run)
        open_output(run / "evaluation", "demo", {}, experiment=run)

    def test_a_single_file_needs_overwrite(self, tmp_path: Path) -> None:
        table, out = tmp_path / "in.csv", tmp_path / "out.csv"
        table.write_text("a\n1\n")
        assert output_file(out) == out
        out.write_text("there")
        with pytest.raises(IT3Error, match="add --overwrite"):
            output_file(out)
        assert output_file(out, overwrite=True) == out
        bad: list[tuple[Path, str]] = [(table, "input"), (tmp_path, "is a folder")]
        bad += [(tmp_path / "none" / "x.csv", "there is no folder")]
        pipe, link = tmp_path / "pipe", tmp_path / "link"
        os.mkfifo(pipe)
        link.symlink_to(table)
        for path, message in [*bad, (pipe, "not a regular file"), (link, "input")]:
            with pytest.raises(IT3Error, match=message):
                output_file(path, overwrite=True, inputs=[table])

    def test_two_inputs_never_share_an_output_name(self) -> None:
        assert distinct_names(["car.stl", "van.stl"], ".png") == ["car.png", "van.png"]
        assert distinct_names(["x/a/car.stl", "x/b/car.stl"], ".png") == ["a-car.png", "b-car.png"]
        assert distinct_names(["/a/c.stl", "/a/c.obj"], ".png") == ["c.stl.png", "c.obj.png"]
        with pytest.raises(IT3Error, match="give each once"):
            distinct_names(["car.stl", "./car.stl"], ".png")


class Sample(TypedDict):
    name: str
    value: float


@dataclass
class Card:
    count: int
    share: float
    kind: Literal["naca4", "naca5"]
    samples: list[Sample]
    ends: tuple[float, float] | None = None
    extra: Any = None


GOOD = {"count": 1, "share": 1, "kind": "naca4", "samples": [{"name": "a", "value": 2.5}]}


class TestReader:
    def test_a_class_is_read(self, tmp_path: Path) -> None:
        path = files.write_json(tmp_path / "card.json", {**GOOD, "ends": [0, 1], "unknown": 3})
        card = read_json(path, Card)
        assert card == Card(1, 1.0, "naca4", [{"name": "a", "value": 2.5}], (0.0, 1.0))
        assert isinstance(card.share, float)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"count": None}, "count should be a whole number, but is null"),
            ({"count": True}, "count should be a whole number, but is true"),
            ({"count": 2**63}, "count should be a whole number of 64 bits"),
            ({"count": 1.5}, "count should be a whole number, but is 1.5"),
            ({"share": [1]}, "share should be a number, but is a list"),
            ({"kind": "naca6"}, 'kind should be "naca4" or "naca5", but is "naca6"'),
            ({"samples": {}}, "samples should be a list, but is an object"),
            ({"samples": [[]]}, r"samples\[0\] should be an object, but is a list"),
            ({"samples": [{"name": "a"}]}, r"samples\[0\].value is missing"),
            ({"samples": [{"name": 1, "value": 2}]}, r"samples\[0\].name should be a text"),
            ({"ends": [1]}, "ends should be a list of 2"),
            ({"ends": ["a", 1]}, r"ends\[0\] should be a number"),
            ({"kind": "\x1b[2J" + "x" * 300}, r"\\u001b\[2Jx+…"),
        ],
    )
    def test_what_is_wrong_is_named(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(IT3Error, match=f"card is damaged: .*{message}.*: make it again"):
            parse_json(json.dumps({**GOOD, **change}), Card, "card", "make it again")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[" * 100_000,
            '{"extra": ' + "[" * 100_000 + "]" * 100_000 + "}",
            json.dumps({**GOOD, "extra": 0})[:-2] + "[" * 200 + "]" * 200 + "}",
            json.dumps({**GOOD, "share": float("nan")}),
            json.dumps({**GOOD, "share": 0}).replace("0,", "1e999,", 1),
            json.dumps({**GOOD, "extra": 0}).replace("0}", "1e999}"),
            json.dumps({**GOOD, "extra": "\ud800"}),
            b"\xff\xfe{}",
            "3",
        ],
        ids=range(11),
    )
    def test_what_is_no_json_of_ours_is_told(self, text: str | bytes) -> None:
        with pytest.raises(IT3Error, match="card is damaged"):
            parse_json(text, Card, "card")

    def test_a_file_too_large_or_missing_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("it3_core.io.typed.MAX_BYTES", 10)
        (tmp_path / "a").write_text(" " * 11)
        os.mkfifo(tmp_path / "c")  # it would be waited for
        told = {"a": "more than the 10", "b": "can't read .*: make it", "c": "c is not a file"}
        for name, message in told.items():
            with pytest.raises(IT3Error, match=message):
                read_json(tmp_path / name, Card, "make it")

    def test_text_from_files_is_shown_without_control_characters(self) -> None:
        assert printable("a\x1b[31m\nb") == "a\\x1b[31m\\nb"
        assert len(printable("x" * 1000)) == 200

    def test_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "samples.jsonl"
        mend(path)
        append_lines(path, [{"name": "a", "value": 1.0}, {"name": "b", "value": 2.0}])
        files.append(path, b'{"name": "c", "va')
        assert [sample["name"] for sample in read_lines(path, Sample)] == ["a", "b"]
        mend(path)
        append_lines(path, [{"name": "d", "value": 3.0}])
        assert [sample["name"] for sample in read_lines(path, Sample)] == ["a", "b", "d"]
        files.append(path, b'{"name": "e"}\n')
        with pytest.raises(IT3Error, match=r"line 4 of .*samples.jsonl is damaged: value is miss"):
            read_lines(path, Sample)


class TestFiles:
    def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        path = files.write_text(tmp_path / "a", "old")
        with pytest.raises(ZeroDivisionError), files.writing(path) as stream:
            stream.write(b"new" * (1 // 0))
        assert snapshot(tmp_path) == {"a": b"old"}

    @pytest.mark.parametrize(
        "write",
        [
            "files.write_bytes(path, b'x' * 5000)",
            "files.write_json(path, {'x': [0] * 5000})",
            "write_tensors(path, {'x': torch.zeros(5000)}, {}, kind='test')",
        ],
    )
    def test_a_full_disk_leaves_the_old_file(self, tmp_path: Path, write: str) -> None:
        path = files.write_text(tmp_path / "a", "old")
        program = f"""
import resource, signal, torch
from it3_core.io import files
from it3_core.io.tensors import write_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
path = {str(path)!r}
try:
    {write}
except ValueError as problem:
    print(problem)
"""
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.stdout.startswith(f"can't write {path}")
        assert done.stdout.count("\n") == 1
        assert snapshot(tmp_path) == {"a": b"old"}

    @pytest.mark.parametrize(
        "write", [lambda p: files.write_text(p, "x"), lambda p: files.append(p, b"x")]
    )
    def test_pipes_folders_and_links_are_refused(
        self, tmp_path: Path, write: Callable[[Path], object]
    ) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "file").write_text("here")
        (tmp_path / "link").symlink_to(tmp_path / "file")
        for name in ("pipe", "link", "."):
            with pytest.raises(IT3Error):
                write(tmp_path / name)
        assert (tmp_path / "file").read_text() == "here"
        assert (tmp_path / "pipe").is_fifo()


ALONE = {"savefig", "to_csv", "imwrite", "json.load", "json.loads", "np.save", "numpy.save"}


def writing_calls(source: str) -> list[str]:
    """The calls of a module that write files, or read JSON, by themselves."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        text = ast.unparse(node.func)
        name = text.rpartition(".")[2]
        options = [*node.args, *(keyword.value for keyword in node.keywords)]
        modes = [option.value for option in options if isinstance(option, ast.Constant)]
        opened = name == "open" and any(
            isinstance(mode, str) and mode.strip("bt+") in {"w", "a", "x"} for mode in modes
        )
        # Ours take a path or name before the content; a Path's own take the content alone.
        path_s_own = name in {"write_text", "write_bytes"} and len(node.args) < 2
        if opened or path_s_own or name in ALONE or text in ALONE:
            found.append(f"{node.lineno}: {text}")
    return found


@pytest.mark.parametrize("package", ["core", "tabular", "vision", "aero"])
def test_only_io_writes_files_and_reads_json(package: str) -> None:
    top = PACKAGES / f"it3-{package}" / "src" / f"it3_{package}"
    found = {
        str(path.relative_to(top)): calls
        for path in top.rglob("*.py")
        if path.relative_to(top).parts[0] != "io"
        and (calls := writing_calls(path.read_text(encoding="utf-8")))
    }
    assert not found
