"""Mesh files as they are found: STL, OBJ, PLY, OFF, GLB and DAE, one or a folder of them.

A file is read alone: whatever it points to, such as an OBJ's materials and textures, is not opened.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import trimesh

from it3_aero.names import shown
from it3_core import IT3Error

__all__ = ["FORMATS", "LARGEST", "found_meshes", "read_mesh", "shown"]

FORMATS = ("stl", "obj", "ply", "off", "glb", "dae")

LARGEST = 500_000_000
"""Bytes that a mesh file may have."""

_ARCHIVES = {b"PK\x03\x04": "a zip file", b"\x1f\x8b": "a gzip file", b"7z\xbc\xaf": "a 7z file"}


def found_meshes(place: str | os.PathLike[str]) -> Sequence[Path]:
    """The mesh files at a place: one file, or all in a folder and below, by name.

    Of ShapeNet's `SYNSET/ID/models/`, that is `model_normalized.obj`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.stl", "a.OBJ", "notes.txt"):
        ...         Path(folder, name).touch()
        ...     [path.name for path in found_meshes(folder)]
        ['a.OBJ', 'b.stl']
    """
    place = Path(place)
    if not place.is_dir():
        return [place]
    files = [
        path
        for path in sorted(place.resolve().rglob("*"))
        if path.suffix.lower().lstrip(".") in FORMATS and path.is_file()
    ]
    normalized = {path.parent for path in files if path.name == "model_normalized.obj"}
    files = [p for p in files if p.parent not in normalized or p.name == "model_normalized.obj"]
    if not files:
        raise IT3Error(f"{shown(place)} holds no meshes: {', '.join(FORMATS)}")
    return files


def read_mesh(path: str | os.PathLike[str]) -> trimesh.Trimesh:
    """The triangles in a mesh file, as they are, in one mesh.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "box.stl")
        ...     _ = path.write_bytes(trimesh.creation.box().export(file_type="stl"))
        ...     len(read_mesh(path).faces)
        12
    """
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        known = ", ".join(FORMATS)
        raise IT3Error(f"{shown(path)}: .{shown(kind)} is no mesh format known here: {known}")
    content = _content(path)
    try:
        mesh = _parsed(content, kind)
    except MemoryError:
        raise IT3Error(f"{shown(path)}: there is not enough memory to read it") from None
    except Exception as problem:  # a parser's, of which there are many
        reason = str(problem).splitlines()[0][:120] if str(problem) else type(problem).__name__
        raise IT3Error(f"{shown(path)}: this can't be read as {kind.upper()}: {reason}") from None
    if not len(mesh.faces):
        raise IT3Error(f"{shown(path)}: the mesh is empty: there are no triangles in it")
    return mesh


def _content(path: Path) -> bytes:
    try:
        # Asked before it is opened: a pipe would wait for someone to write into it.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise IT3Error(f"{shown(path)}: this is not a regular file")
        if status.st_size > LARGEST:
            size = status.st_size / 1e6
            raise IT3Error(f"{shown(path)}: {size:.0f} MB is too much: {LARGEST / 1e6:.0f} at most")
        content = path.read_bytes()
    except OSError as problem:
        raise IT3Error(f"{shown(path)}: can't be read: {problem.strerror}") from None
    except ValueError:  # a NUL in the name
        raise IT3Error(f"{shown(path)}: no file can have that name") from None
    if not content.strip():
        raise IT3Error(f"{shown(path)}: the file is empty")
    for head, archive in _ARCHIVES.items():
        if content.startswith(head):
            raise IT3Error(f"{shown(path)}: this is {archive}, not a mesh: unpack it first")
    return content


def _parsed(content: bytes, kind: str) -> trimesh.Trimesh:
    # Without a resolver, a loader has no way to open another file.
    options: dict[str, Any] = {"skip_materials": True} if kind == "obj" else {}
    scene = trimesh.load_scene(io.BytesIO(content), file_type=kind, process=False, **options)
    mesh = scene.to_mesh()
    faces = np.asarray(mesh.faces)
    return trimesh.Trimesh(np.asarray(mesh.vertices, dtype=float), faces, process=False)
