"""Folders and tars as the same thing: a tree of names with images at its leaves."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import unicodedata
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, cast

from it3_core import IT3Error, IT3Warning
from it3_core.io.output import MARKER
from it3_vision.data.images import SUFFIXES, BadImage, Pixels, read_image

NOTES = MARKER
"""The file that `it3-vision corrupt` leaves beside the folders that it writes."""

MOST_BYTES = 4 * 2**30  # a gzipped tar is unpacked into memory, up to here
MOST_FILE_BYTES = 2**30  # and one member's bytes up to here
_CHUNK = 16 * 2**20
_TARS = (".tar", ".tar.gz", ".tgz")
_FEW = 5  # names in an error

Parts = tuple[str, ...]


def is_tar(name: str) -> bool:
    """Whether a file's name is that of a tar that can be read."""
    return name.casefold().endswith(_TARS)


def open_tree(path: Path) -> Tree:
    """The folder or the tar at that path."""
    if path.is_dir():
        return Folder(path)
    if not path.is_file():  # a pipe would be waited for
        raise IT3Error(f"{path} is no folder, tar or image")
    return Tar(path)


def shown(parts: Sequence[str]) -> str:
    """A path that any terminal can print: a file's name may hold any byte."""
    name = unicodedata.normalize("NFC", "/".join(parts))
    return "".join(letter if letter.isprintable() else "�" for letter in name)


def entries(folder: Path) -> list[str]:
    """Names of what is in a folder, sorted; hidden ones apart."""
    try:
        return sorted(name for name in os.listdir(folder) if not _hidden(name))  # noqa: PTH208
    except OSError as error:
        raise IT3Error(f"{folder} can't be listed ({error.strerror})") from None


def deep_images(tree: Tree, at: Parts) -> list[Parts]:
    """All images at or below a path of the tree, in the order of their names."""
    found = [(*at, name) for name in tree.images(at)]
    for name in tree.folders(at):
        found += deep_images(tree, (*at, name))
    return found


class FileSource:
    """Images that are files of a tree, named by their path in it."""

    def __init__(self, tree: Tree, files: Sequence[Parts]) -> None:
        self._tree, self._files = tree, files

    def __len__(self) -> int:
        return len(self._files)

    def name(self, row: int) -> str:
        return shown(self._files[row])

    def image(self, row: int, smallest: int | None = None) -> Pixels:
        file = self._files[row]
        return read_image(self._tree.raw(file), name=shown(file), smallest=smallest)


def _hidden(name: str) -> bool:
    """Hidden files, and what macOS leaves in archives: `._photo.jpg` is no photo."""
    return name.startswith(".") or name == "__MACOSX"


def _is_image(name: str) -> bool:
    return Path(name).suffix.casefold() in SUFFIXES


def _check_size(file: Parts, size: int) -> None:
    if size > MOST_FILE_BYTES:
        raise BadImage(shown(file), f"is larger than {MOST_FILE_BYTES / 2**30:g} GB")


def _warn_left_out(title: str, what: str, names: Sequence[str]) -> None:
    if names:
        first = names[0] if len(names) == 1 else f"{len(names)}, first {names[0]}"
        warnings.warn(f"{title}: {what} are left out ({first})", IT3Warning, stacklevel=2)


class Folder:
    """A folder on disk. Links that lead out of it, or to folders, are left out with a warning."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self.title = str(root)
        self._seen: dict[Parts, tuple[list[str], list[str]]] = {}

    def folders(self, at: Parts = ()) -> list[str]:
        """Names of the folders there, sorted."""
        return self._listed(at)[0]

    def images(self, at: Parts = ()) -> list[str]:
        """Names of the images there, sorted."""
        return self._listed(at)[1]

    def seen(self, at: Parts = ()) -> list[str]:
        """A few names of whatever is there, for an error."""
        return [shown((name,)) for name in entries(self._root.joinpath(*at))[:_FEW]]

    def noted(self, at: Parts = ()) -> bool:
        """Whether `it3-vision corrupt` wrote that folder: its notes lie beside it."""
        return (self._root.joinpath(*at).parent / NOTES).is_file()

    def raw(self, file: Parts) -> bytes:
        """One file's bytes."""
        path = self._root.joinpath(*file)
        try:
            _check_size(file, path.stat().st_size)
            return path.read_bytes()
        except OSError as error:
            raise BadImage(shown(file), f"can't be opened ({error.strerror})") from None

    def _listed(self, at: Parts) -> tuple[list[str], list[str]]:
        if at in self._seen:
            return self._seen[at]
        folders, images, strange = [], [], []
        try:
            with os.scandir(self._root.joinpath(*at)) as entries:
                for entry in entries:
                    if _hidden(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False) or self._inside(entry):
                        if _is_image(entry.name):
                            images.append(entry.name)
                    elif entry.is_dir() or _is_image(entry.name):
                        strange.append(shown((*at, entry.name)))
        except OSError as error:
            where = "/".join((self.title, *at))
            raise IT3Error(f"{where} can't be listed ({error.strerror})") from None
        what = "links that lead out of it or to a folder, and what is no plain file,"
        _warn_left_out(self.title, what, sorted(strange))
        return self._seen.setdefault(at, (sorted(folders), sorted(images)))

    def _inside(self, entry: os.DirEntry[str]) -> bool:
        """Whether it is a link to a file of this folder."""
        if not (entry.is_symlink() and entry.is_file()):
            return False
        return Path(entry.path).resolve().is_relative_to(self._root)


class Tar:
    """A tar, plain or gzipped, read where it is: nothing is ever extracted to disk.

    Of a plain one only the places of its members are kept; a gzipped one is unpacked into memory
    once. Members that are no plain files, or whose names climb out, are left out.
    """

    def __init__(self, path: Path) -> None:
        self.title = str(path)
        self._path = path.resolve()
        self._unpacked = self._gunzipped()
        self._members: dict[Parts, tuple[int, int]] = {}
        self._folders: dict[Parts, set[str]] = {}
        self._images: dict[Parts, list[str]] = {}
        self._others: list[str] = []
        self._notes: set[Parts] = set()
        try:
            with self._opened() as file:
                self._index(file)
        except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
            raise IT3Error(f"{self.title} is damaged or cut short ({error}): get it anew") from None

    def folders(self, at: Parts = ()) -> list[str]:
        return sorted(self._folders.get(at, ()))

    def images(self, at: Parts = ()) -> list[str]:
        return sorted(self._images.get(at, ()))

    def seen(self, at: Parts = ()) -> list[str]:
        return [*self.folders(at), *self._others][:_FEW]

    def noted(self, at: Parts = ()) -> bool:
        return bool(at) and (*at[:-1], NOTES) in self._notes

    def raw(self, file: Parts) -> bytes:
        start, size = self._members[file]
        _check_size(file, size)
        if self._unpacked is not None:
            return self._unpacked[start : start + size]
        with self._path.open("rb") as tar:
            tar.seek(start)
            return tar.read(size)

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        if self._unpacked is not None:
            yield io.BytesIO(self._unpacked)
            return
        # Mapped, so that a header that claims gigabytes does not make room for them.
        with self._path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as view:
            yield cast(IO[bytes], view)

    def _gunzipped(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                if file.read(2) != b"\x1f\x8b":
                    return None
            chunks, size = [], 0
            with gzip.open(self._path) as stream:
                while chunk := stream.read(_CHUNK):
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > MOST_BYTES:
                        raise IT3Error(
                            f"{self.title} unpacks to more than {MOST_BYTES / 2**30:g} GB of "
                            f"memory: gunzip it to a plain .tar, which is read where it is"
                        )
            return b"".join(chunks)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise IT3Error(f"{self.title} is damaged or cut short ({error}): get it anew") from None
        except OSError as error:
            raise IT3Error(f"{self.title} can't be read ({error.strerror})") from None

    def _index(self, file: IO[bytes]) -> None:
        strange = []
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                if member.size < 0 or tar.offset <= member.offset:
                    raise tarfile.ReadError("a size below zero")  # it would go round for ever
                tar.members = []  # type: ignore[attr-defined]  # else it keeps them all
                parts = tuple(part for part in member.name.split("/") if part not in ("", "."))
                if member.isdir() or not parts:
                    continue
                if parts[-1] == NOTES:
                    self._notes.add(parts)
                if not _is_image(parts[-1]):
                    self._others.append(shown(parts[-1:]))
                    del self._others[_FEW:]
                    continue
                if any(_hidden(part) for part in parts if part != ".."):
                    continue
                if member.issparse() or not member.isreg() or ".." in parts:
                    strange.append(shown(parts))
                    continue
                self._add(parts, member.offset_data, member.size)
            # An unreadable header in the middle looks like the end to tarfile: so look for the end.
            file.seek(tar.offset)
            mark = file.read(tarfile.BLOCKSIZE)
            if mark.strip(b"\0") or (not mark and not self._members):
                raise tarfile.ReadError(f"no header at byte {tar.offset:,}")
        _warn_left_out(self.title, "links, devices and names that climb out", strange)

    def _add(self, parts: Parts, start: int, size: int) -> None:
        if parts not in self._members:  # else the later one of the same name wins, as when unpacked
            for depth in range(len(parts) - 1):
                self._folders.setdefault(parts[:depth], set()).add(parts[depth])
            self._images.setdefault(parts[:-1], []).append(parts[-1])
        self._members[parts] = start, size


Tree = Folder | Tar
"""By the folders and the images at each level of it the layouts are distinguished."""
