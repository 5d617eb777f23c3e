"""Every write of the packages: whole or not at all, and never through a link or onto a device."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import secrets
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from it3_core.errors import IT3Error

FilePath = str | os.PathLike[str]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def make_folder(path: FilePath) -> Path:
    """The folder, made where there is none."""
    folder = Path(path)
    with _explained(f"can't make the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def writing(path: FilePath, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A stream whose content becomes `path` at the end; where the body raises, nothing changes.

    Once it returns, the file also survives a power cut, if it is to be durable: thousands of small
    files that can be made again need not be, and are written three times as fast.
    """
    path = Path(path)
    check_replaceable(path)
    # A name of its own: two processes that write one path must not write into one file.
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with _explained(f"can't write {path}"):
        stream = part.open("xb")
    try:
        try:
            yield stream
            with _explained(f"can't write {path}"):
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
        finally:
            with contextlib.suppress(OSError):  # what was not written was told, or will be
                stream.close()
        with _explained(f"can't write {path}"):
            part.replace(path)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(problem, OSError) and problem.errno in _FULL:
            raise IT3Error(f"can't write {path}: {problem.strerror}") from problem
        raise
    if not durable:
        return
    with contextlib.suppress(OSError):  # the new name is on the disk only when the folder is
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_bytes(path: FilePath, content: bytes, *, durable: bool = True) -> Path:
    """Writes a file, whole or not at all."""
    with writing(path, durable=durable) as stream, _explained(f"can't write {path}"):
        stream.write(content)
    return Path(path)


def write_text(path: FilePath, content: str) -> Path:
    """Writes a text file, whole or not at all."""
    return write_bytes(path, content.encode())


def write_json(path: FilePath, content: Mapping[str, Any]) -> Path:
    """Writes a JSON object that people can read too, whole or not at all."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    return write_text(path, text + "\n")


def csv_bytes(frame: Any, *, header: bool = True) -> bytes:
    """A data frame of pandas as CSV, without its index."""
    content: bytes = frame.to_csv(index=False, header=header).encode()
    return content


def write_npy(path: FilePath, array: Any) -> Path:
    """Writes an array of numpy's as a .npy file, whole or not at all."""
    import numpy as np

    with writing(path) as stream, _explained(f"can't write {path}"):
        np.save(stream, array, allow_pickle=False)
    return Path(path)


def write_figure(path: FilePath, figure: Any, *, dpi: int = 160, **options: Any) -> Path:
    """Writes a figure of matplotlib as what its name ends in, whole or not at all."""
    ending = Path(path).suffix[1:] or "png"
    try:
        content = figure_bytes(figure, ending, dpi=dpi, **options)
    except ValueError as problem:  # an ending that matplotlib doesn't know
        raise IT3Error(f"can't save a picture as {path}: {problem}") from problem
    return write_bytes(path, content)


def figure_bytes(figure: Any, ending: str = "png", *, dpi: int = 160, **options: Any) -> bytes:
    """A figure of matplotlib as the content of a file."""
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        # A name may be written in letters that no font at hand has: boxes will do.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(drawn, format=ending, dpi=dpi, **options)
    return drawn.getvalue()


def append(path: FilePath, content: bytes) -> None:
    """Adds to the end of a file, which survives a power cut once this returns."""
    check_replaceable(Path(path))
    with _explained(f"can't write {path}"), Path(path).open("ab") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def truncate(path: FilePath, size: int) -> None:
    """Cuts a file off after so many bytes."""
    check_replaceable(Path(path))
    with _explained(f"can't write {path}"):
        os.truncate(path, size)


def remove_leftovers(path: FilePath) -> None:
    """Removes the unfinished files that killed processes left beside `path`.

    Only for a file with one writer: another one's unfinished file would go too.
    """
    path = Path(path)
    for other in path.parent.iterdir() if path.parent.is_dir() else ():
        if re.fullmatch(rf"\.{re.escape(path.name)}\.\d+-[0-9a-f]{{8}}\.tmp", other.name):
            other.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Refuses what must not be written to: a link, a folder, a pipe, a device."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing there, or what writing will tell
        return
    if stat.S_ISLNK(mode):
        raise IT3Error(f"{path} is a link, which is never written through: name the file itself")
    if stat.S_ISDIR(mode):
        raise IT3Error(f"{path} is a folder: name a file")
    if not stat.S_ISREG(mode):
        raise IT3Error(f"{path} is not a regular file and is left alone: name another one")


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """An OSError in one sentence."""
    try:
        yield
    except OSError as problem:
        raise IT3Error(f"{what}: {problem.strerror or problem}") from problem
