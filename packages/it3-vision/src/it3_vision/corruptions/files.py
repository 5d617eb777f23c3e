"""Files that are whole or not there, in a folder that knows which run it belongs to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from it3_core import IT3Error
from it3_vision.data.trees import NOTES

__all__ = ["NOTES", "prepare", "whole", "write"]


def prepare(out: Path, notes: dict[str, Any]) -> None:
    """Makes the folder; one that is there must be empty, or of a run with the same settings.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     prepare(Path(folder), {"seed": 0})
        ...     prepare(Path(folder), {"seed": 1})
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: ... was begun with seed 0, now it is 1: ...
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / NOTES
    if not file.exists():
        if any(entry.name != f".{NOTES}.part" for entry in out.iterdir()):
            raise IT3Error(f"{out} holds other files: give a new folder, nothing is overwritten")
        write(file, (json.dumps(notes, indent=2) + "\n").encode())
        return
    try:
        earlier = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        earlier = None
    if not isinstance(earlier, dict):
        raise IT3Error(f"{file} is damaged: give a new folder, or delete this one")
    for key in notes.keys() | earlier.keys():
        if earlier.get(key) != notes.get(key):
            now, then = notes.get(key), earlier.get(key)
            raise IT3Error(
                f"{out} was begun with {key} {then}, now it is {now}: give the same again, or a "
                "new folder"
            )


@contextlib.contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that is there under its name when all of it has been written, and not before.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "file")
        ...     with whole(file) as stream:
        ...         _ = stream.write(b"all of it")
        ...         before = file.exists()
        ...     before, file.read_bytes()
        (False, b'all of it')
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as stream:
            yield stream
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write(path: Path, content: bytes | Callable[[IO[bytes]], None]) -> None:
    """Writes a whole file, of bytes or by a function.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(Path(folder, "file"), b"text")
        ...     Path(folder, "file").read_text()
        'text'
    """
    with whole(path) as stream:
        if isinstance(content, bytes):
            stream.write(content)
        else:
            content(stream)
