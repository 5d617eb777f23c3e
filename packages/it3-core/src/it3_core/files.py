"""Folders and JSON files of a run, where whatever goes wrong is told in one sentence."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from it3_core.errors import IT3Error

__all__ = ["make_folder", "read_json", "write_bytes", "write_figure", "write_json", "write_text"]


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made where there is none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     make_folder(f"{place}/a/b").is_dir()
        True
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise IT3Error(f"can't make the folder {folder}: {problem.strerror}") from problem
    return folder


def write_text(path: str | os.PathLike[str], content: str) -> Path:
    """Writes a text file, whole or not at all.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     write_text(f"{place}/a.txt", "one line").read_text()
        'one line'
    """
    return write_bytes(path, content.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> Path:
    """Writes a file, whole or not at all.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     write_bytes(f"{place}/a", b"1234").stat().st_size
        4
    """
    place = Path(path)
    name = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=place.parent, prefix=f".{place.name}.", delete=False
        ) as file:
            name = Path(file.name)
            file.write(content)
        name.chmod(0o644)
        name.replace(place)
    except OSError as problem:
        if name is not None:
            name.unlink(missing_ok=True)
        raise IT3Error(f"can't write {place}: {problem.strerror}") from problem
    return place


def write_figure(path: str | os.PathLike[str], figure: Any, *, dpi: int = 160, **how: Any) -> Path:
    """Writes a figure of matplotlib as what its name ends in, whole or not at all.

    Args:
        path: ends in .png, .svg or .pdf.
        figure: what to write.
        dpi: dots in an inch.
        how: as `Figure.savefig` takes it.

    Example:
        >>> import tempfile
        >>> from matplotlib.figure import Figure
        >>> with tempfile.TemporaryDirectory() as place:
        ...     write_figure(f"{place}/a.png", Figure()).read_bytes()[1:4]
        b'PNG'
    """
    place, drawn = Path(path), io.BytesIO()
    try:
        figure.savefig(drawn, format=place.suffix[1:] or "png", dpi=dpi, **how)
    except ValueError as problem:  # an ending that matplotlib doesn't know
        raise IT3Error(f"can't save a picture as {place}: {problem}") from problem
    return write_bytes(place, drawn.getvalue())


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> Path:
    """Writes a JSON object that people can read too, whole or not at all.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     read_json(write_json(f"{place}/a.json", {"epochs": 3}), "train it again")
        {'epochs': 3}
    """
    return write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: str | os.PathLike[str], advice: str) -> dict[str, Any]:
    """Reads a JSON object; `advice` says what to do where there is none.

    Example:
        >>> read_json("/nowhere/history.json", "train the RUN again")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: can't read /nowhere/history.json: No such file or directory; ...
    """
    place = Path(path)
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except OSError as problem:
        raise IT3Error(f"can't read {place}: {problem.strerror}; {advice}") from problem
    except ValueError as problem:
        raise IT3Error(f"{place} is damaged ({problem}): {advice}") from problem
    if not isinstance(content, dict):
        raise IT3Error(f"{place} is damaged: {advice}")
    return content
