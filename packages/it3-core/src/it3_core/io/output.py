"""One rule for output: what we wrote is listed in a marker file, and all else is the user's."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from it3_core.errors import IT3Error
from it3_core.io import files
from it3_core.io.files import FilePath, check_replaceable, make_folder, remove_leftovers, write_json
from it3_core.io.typed import as_json, printable, read_json

MARKER = "it3-output.json"
EVALUATION = "evaluation"  # where `evaluate` writes if not told otherwise, in the experiment


@dataclass
class Marker:
    """What stands in the marker file."""

    task: str  # the command that the folder is of
    settings: dict[str, Any]  # what decides its content
    # Each file that we wrote, with its SHA-256. None: it is being written, is appended to, or a
    # kill came between; it is ours all the same.
    files: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputFolder:
    """A folder that a command may write to; `open_output` makes one."""

    path: Path

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """The path of a file to write whole: ours from before it is there, with its hash after."""
        with self.writing_all([name]) as (path,):
            yield path

    @contextmanager
    def writing_all(self, names: Sequence[str]) -> Iterator[list[Path]]:
        """The same for many files, with one change of the marker before and one after."""
        with self._marker() as marker:
            paths = [self._reserved(name, marker) for name in names]
        yield paths
        with self._marker() as marker:
            marker.files |= {name: digest_of(path) for name, path in zip(names, paths, strict=True)}

    def reserve(self, name: str) -> Path:
        """The path of a file that is ours without a hash: one that grows, or is for resuming."""
        with self._marker() as marker:
            return self._reserved(name, marker)

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Writes a file."""
        with self.writing(name) as path:
            return files.write_bytes(path, content)

    def write_text(self, name: str, content: str) -> Path:
        """Writes a text file."""
        return self.write_bytes(name, content.encode())

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Writes a JSON object."""
        with self.writing(name) as path:
            return files.write_json(path, content)

    def write_figure(self, name: str, figure: Any, **options: Any) -> Path:
        """Writes a figure of matplotlib."""
        with self.writing(name) as path:
            return files.write_figure(path, figure, **options)

    def remove(self, name: str) -> None:
        """Removes a file of ours, where it is there."""
        with self._marker() as marker:
            self.check(name, marker).unlink(missing_ok=True)
            marker.files.pop(name, None)

    def check(self, name: str, marker: Marker | None = None) -> Path:
        """The path of a file that may be written: new, or ours and unchanged; not behind a link."""
        marker = marker or read_marker(self.path)
        path = self.path / name
        odd = name == MARKER or not name.isprintable()
        if odd or Path(name).is_absolute() or ".." in Path(name).parts:
            raise IT3Error(f"{printable(name)} is not a name for a file in {self.path}")
        for folder in list(path.parents)[: len(Path(name).parts) - 1]:
            if folder.is_symlink():
                raise IT3Error(f"{folder} is a link, which is not followed: move it away")
        check_replaceable(path)
        if not path.exists():
            return path
        digest = marker.files.get(name, "")
        if digest is not None and digest != digest_of(path):
            raise IT3Error(
                f"{path} was changed or made by somebody else, so it is left alone: move it away"
            )
        return path

    def _reserved(self, name: str, marker: Marker) -> Path:
        path = self.check(name, marker)
        make_folder(path.parent)
        remove_leftovers(path)
        marker.files[name] = None
        return path

    @contextmanager
    def _marker(self) -> Iterator[Marker]:
        """The marker, to be changed: one process at a time."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            marker = read_marker(self.path)
            before = asdict(marker)
            yield marker
            if asdict(marker) != before:
                files.write_json(self.path / MARKER, asdict(marker))
        finally:
            os.close(folder)


def open_output(
    path: FilePath,
    task: str,
    settings: Mapping[str, Any],
    *,
    files: Sequence[str] = (),
    inputs: Iterable[FilePath] = (),
    experiment: FilePath | None = None,
    overwrite: bool = False,
) -> OutputFolder:
    """A folder to write to: new, empty, or ours of the same task and settings; may be a link.

    Args:
        path: the folder; made where there is none.
        task: the command, such as "wings train".
        settings: JSON that decides the content: no devices, workers or paths.
        files: names that will be written, so that a user's own file is found before any work.
        inputs: what is read. A folder that is one of them, or lies in one, is refused.
        experiment: the experiment that is read; only its folder `evaluation` may be written.
        overwrite: of the same task with other settings, remove our own files and start anew.
    """
    folder = Path(path)
    check_apart(folder, inputs, experiment)
    wanted = Marker(task, as_json(settings))
    if folder.exists() and not folder.is_dir():
        raise IT3Error(f"{folder} is a file: name a folder")
    if (folder / MARKER).is_symlink():
        raise IT3Error(f"{folder / MARKER} is a link, which is not followed: name another folder")
    if not (folder / MARKER).exists():
        if folder.exists():
            remove_leftovers(folder / MARKER)
        others = sorted(other.name for other in folder.iterdir()) if folder.exists() else []
        if others:
            some = ", ".join(map(printable, others[:3])) + (", …" if len(others) > 3 else "")
            raise IT3Error(
                f"{folder} holds files that are not ours ({some}): name a new or empty one"
            )
        make_folder(folder)
        write_json(folder / MARKER, asdict(wanted))
    output, found = OutputFolder(folder), read_marker(folder)
    if found.task != task:
        raise IT3Error(
            f"{folder} is the output of {printable(found.task)!r}, not of {task!r}: name another"
        )
    if found.settings != wanted.settings:
        changed = _difference(found.settings, wanted.settings)
        if not overwrite:
            raise IT3Error(f"{folder} was made with other settings ({changed}): name another")
        for name in found.files:  # all of them first: nothing goes where one must stay
            output.check(name, found)
        for name in found.files:
            (folder / name).unlink(missing_ok=True)
        write_json(folder / MARKER, asdict(wanted))
    for name in files:
        output.check(name)
    return output


def check_output(
    out: Path,
    task: str,
    settings: Mapping[str, Any] | None = None,
    files: Sequence[str] = (),
    **apart: Any,
) -> None:
    """Refuses a folder for what `open_output` would, by what is set already, before any work."""
    check_apart(out, **apart)
    nearest = next(path for path in (out, *out.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise IT3Error(f"{nearest} is not a folder: name another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise IT3Error(f"can't write into {nearest}: name another folder")
    remove_leftovers(out / MARKER)
    if nearest == out and any(out.iterdir()):
        found = read_marker(out).settings if (out / MARKER).is_file() else {}
        open_output(out, task, found | dict(settings or {}), files=files)


def output_file(
    path: FilePath,
    *,
    overwrite: bool = False,
    inputs: Iterable[FilePath] = (),
    experiment: FilePath | None = None,
) -> Path:
    """A single file that may be written; an existing one only with `overwrite`."""
    place = Path(path)
    check_apart(place, inputs, experiment, file=True)
    check_replaceable(place)
    if not place.parent.is_dir():
        raise IT3Error(f"there is no folder {place.parent} for {place.name}: make it first")
    if place.exists() and not overwrite:
        raise IT3Error(f"{place} is there already: name another file, or add --overwrite")
    return place


def check_apart(
    out: Path,
    inputs: Iterable[FilePath] = (),
    experiment: FilePath | None = None,
    *,
    file: bool = False,
) -> None:
    """Refuses an output that is an input, lies in one, or is part of the experiment's folder."""
    place = Path(os.path.realpath(out))  # unlike resolve(), it does not raise on a loop of links
    for given in map(Path, inputs):
        real = Path(os.path.realpath(given))
        if place == real or (real.is_dir() and place.is_relative_to(real)):
            raise IT3Error(f"{out} is, or lies in, the input {given}: name another path")
    if experiment is None:
        return
    real = Path(os.path.realpath(experiment))
    if place.is_relative_to(real) and (file or place != real / EVALUATION):
        raise IT3Error(f"{out} is part of the experiment {experiment}: name another path")


def distinct_names(paths: Sequence[FilePath], suffix: str) -> list[str]:
    """A file name for each input, made of its own; folders are added where two would share one.

    a/car.stl and b/car.stl become a-car.png and b-car.png.
    """
    places = [Path(os.path.realpath(path)) for path in paths]
    bare = [place.with_suffix("") for place in places]
    parts = [  # a/car.stl and a/car.obj keep their endings
        (place if bare.count(stem) > 1 else stem).parts[1:]
        for place, stem in zip(places, bare, strict=True)
    ]
    names = []
    for part in parts:
        depth = 1
        while depth < len(part) and [one[-depth:] for one in parts].count(part[-depth:]) > 1:
            depth += 1
        names.append("-".join(part[-depth:]) + suffix)
    if shared := [name for name in names if names.count(name) > 1]:
        raise IT3Error(f"two inputs would share the output {shared[0]}: give each once")
    return names


def inside(folder: FilePath, name: str) -> Path:
    """The path of a file to read in a folder, which may be a link; none leads out of it."""
    path = Path(folder, name)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise IT3Error(f"{path} is a link out of the folder, which is not followed: copy the file")
    return path


def read_marker(folder: Path) -> Marker:
    """What a folder's marker says."""
    return read_json(inside(folder, MARKER), Marker, "name another folder")


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of settings under their own name and that of the whole, as in recipe.epochs."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = _flat(value) if isinstance(value, Mapping) and value else None
        found |= {name: value} if inner is None else {f"{name}.{k}": v for k, v in inner.items()}
    return found


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    before, now = _flat(before), _flat(now)

    def shown(values: Mapping[str, Any], name: str) -> str:
        return printable(values.get(name, "not set"), 60)

    changed = [
        f"{printable(name)} was {shown(before, name)} and is {shown(now, name)}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]
    return "; ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
