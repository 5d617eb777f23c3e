"""Tensors and JSON in one safetensors file that is written whole or not at all.

The JSON goes into the header's metadata under a single key, with a digest over everything, so that
a file which was cut off, damaged or made by somebody else is told apart from a good one.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from torch import Tensor
from torch.nn.parameter import is_lazy

from it3_core.errors import IT3Error

__all__ = [
    "SCHEMA",
    "FilePath",
    "Stored",
    "digest",
    "read_tensors",
    "remove_leftovers",
    "under",
    "write_tensors",
]

FilePath = str | os.PathLike[str]

SCHEMA = 1
"""Raised whenever a file of the new kind could be misread by the code before it."""

_KEY = "it3"

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Stored:
    """What a file held.

    Attributes:
        tensors: on the CPU, in memory of their own. Names that were tied share one tensor.
        metadata: the JSON that was given to `write_tensors`.
        versions: of the packages that wrote it.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, Any]
    versions: dict[str, str]


def write_tensors(
    path: FilePath,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    *,
    kind: str,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Writes a file whole or not at all: whatever happens, `path` is the old file or the new one.

    Once it returns, the file also survives a power cut. The same content gives the same bytes.

    Args:
        path: the file to make or to replace. Its folder must exist.
        tensors: any dense tensors by name. Names of one and the same tensor are stored once.
        metadata: JSON to go with them; numbers must be finite.
        kind: what the file is, which `read_tensors` asks for again.
        versions: of packages besides it3-core and torch.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "statistics.safetensors")
        >>> write_tensors(path, {"mean": torch.ones(2)}, {"rows": 100}, kind="statistics")
        >>> stored = read_tensors(path, kind="statistics")
        >>> stored.tensors["mean"], stored.metadata
        (tensor([1., 1.]), {'rows': 100})
    """
    path = Path(path).resolve()  # so that a link stays one, and its target is replaced
    plain, ties = _plain(tensors)
    body = {
        "schema": SCHEMA,
        "kind": kind,
        "versions": {**_versions(), **(versions or {})},
        "ties": ties,
        "metadata": dict(metadata),
    }
    try:
        body["sha256"] = digest(plain, body)
    except (TypeError, ValueError, RecursionError) as problem:
        raise IT3Error(f"the metadata can't be stored as JSON: {problem}") from problem
    try:
        _write(path, _chunks(plain, json.dumps(body, separators=(",", ":"))))
    except OSError as problem:
        if isinstance(problem, FileNotFoundError) and not path.parent.is_dir():
            raise IT3Error(f"there is no folder {path.parent}: make it first") from problem
        size = sum(tensor.nbytes for tensor in plain.values()) / 1e6
        raise IT3Error(
            f"can't write {path} ({problem.strerror}): it needs {size:.1f} MB, and whatever was "
            f"there before is unchanged"
        ) from problem


def read_tensors(path: FilePath, *, kind: str) -> Stored:
    """What `write_tensors` wrote, or an `IT3Error` that says what is wrong with the file.

    Nothing in a file is ever executed: it is read by safetensors, and its metadata as JSON.

    Example:
        >>> read_tensors("no-such.safetensors", kind="checkpoint")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: there is no file no-such.safetensors
    """
    path = Path(path)
    if not path.exists():
        raise IT3Error(f"there is no file {path}")
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no regular file"
        raise IT3Error(f"{path} is {what}: give the path of a {kind} file")
    try:
        content = path.read_bytes()  # at once: the name may stand for another file a moment later
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror}") from problem
    try:
        found = from_bytes(content)
    except SafetensorError as problem:
        raise IT3Error(f"{path} {_diagnosis(content)}") from problem
    body = _body(path, _header(content).get("__metadata__", {}))
    plain = {name: found[name] for name in sorted(found)}
    expected = body.pop("sha256", None)
    if digest(plain, body) != expected:
        raise IT3Error(f"{path} {_DAMAGED}: its checksum is wrong")
    if body["kind"] != kind:
        raise IT3Error(f"{path} is a {body['kind']} file, but a {kind} file is needed here")
    tied = {name: plain[stored] for name, stored in body["ties"].items()}
    return Stored({**plain, **tied}, body["metadata"], body["versions"])


def remove_leftovers(path: FilePath) -> None:
    """Removes the unfinished files that killed processes left beside `path`.

    Only for a file with one writer: another one's unfinished file would go too.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / ".run.safetensors.123-0123abcd.tmp").touch()
        >>> remove_leftovers(folder / "run.safetensors")
        >>> list(folder.iterdir())
        []
    """
    path = Path(path).resolve()
    for other in path.parent.iterdir() if path.parent.is_dir() else ():
        if re.fullmatch(rf"\.{re.escape(path.name)}\.\d+-[0-9a-f]{{8}}\.tmp", other.name):
            other.unlink(missing_ok=True)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names.

    Example:
        >>> import torch
        >>> under("best.", {"best.bias": torch.zeros(1), "last.bias": torch.ones(1)})
        {'bias': tensor([0.])}
    """
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def digest(tensors: Mapping[str, Tensor], body: Mapping[str, Any]) -> str:
    """SHA-256 over JSON and tensors, their names, types and shapes; blind to the order of names.

    Example:
        >>> import torch
        >>> one, two = torch.zeros(2), torch.ones(2)
        >>> digest({"a": one, "b": two}, {}) == digest({"b": two, "a": one}, {})
        True
        >>> digest({"a": one, "b": two}, {}) == digest({"a": two, "b": one}, {})
        False
    """
    total = hashlib.sha256(_canonical(body).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(_canonical([name, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(_memory(tensor))
    return total.hexdigest()


def _plain(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Contiguous tensors on the CPU, and for the name of one seen before the name it has there."""
    plain: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    names: dict[object, str] = {}
    for name, tensor in tensors.items():
        _check(name, tensor)
        tensor = tensor.detach()
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in names:
            ties[name] = names[place]
            continue
        names[place] = name
        plain[name] = tensor.cpu().contiguous()
    return plain, ties


def _check(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise IT3Error(f"{name!r} is a {type(tensor).__name__}, and only tensors can be stored")
    if is_lazy(tensor) or tensor.device.type == "meta":
        raise IT3Error(f"{name!r} has no values yet: run the network once before storing it")
    if tensor.layout != torch.strided or tensor.dtype not in _DTYPES:
        raise IT3Error(
            f"{name!r} is {tensor.dtype} ({tensor.layout}), which can't be stored: convert it "
            f"to a dense tensor of floats, integers or booleans"
        )


def _chunks(plain: Mapping[str, Tensor], text: str) -> Iterator[bytes | memoryview]:
    """The file in the safetensors format: the header's length, the header, the tensors.

    Written here because `safetensors.torch.save_file` needs numpy, which it3-core has not. The
    widest types come first, as in the original, so that every tensor is aligned.
    """
    if sys.byteorder != "little":
        raise IT3Error("files can be written on little-endian machines only")
    order = sorted(plain, key=lambda name: (-plain[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {_KEY: text}}
    end = 0
    for name in order:
        tensor, start = plain[name], end
        end += tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    yield len(head).to_bytes(8, "little")
    yield head
    for name in order:
        yield _memory(plain[name])


def _memory(tensor: Tensor) -> memoryview:
    """A contiguous tensor's own memory, valid as long as the tensor is."""
    if tensor.nbytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


def _write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    # A name of its own: two processes that save to one path must not write into one file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    # The new name is on the disk only when the folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _body(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    if _KEY not in header:
        raise IT3Error(
            f"{path} is a safetensors file without IT³'s metadata: it holds weights that another "
            f"program wrote, so load it with safetensors itself"
        )
    try:
        body = json.loads(header[_KEY])
        schema, kind, writer = body["schema"], body["kind"], body["versions"]["it3-core"]
        newer = schema > SCHEMA
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise IT3Error(f"{path} {_DAMAGED}: its metadata can't be read") from problem
    if newer:
        raise IT3Error(
            f"{path} is a {kind} file of schema {schema}, written by it3-core {writer}; this "
            f"it3-core {_versions()['it3-core']} reads up to schema {SCHEMA}, so upgrade it"
        )
    return dict(body)


_DAMAGED = "is damaged, so copy it again or go back to another one"


def _header(content: bytes) -> dict[str, Any]:
    return dict(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))


def _diagnosis(content: bytes) -> str:
    """Why safetensors refuses a file, in words that say what to do."""
    size, length = len(content), int.from_bytes(content[:8], "little")
    if content[8:9] == b"{" and length < 2**30:  # else it never was a safetensors file
        return _cut_off(content, 8 + length) or _DAMAGED
    if size < 9:
        return f"has {size} bytes: it is cut off, or was never a checkpoint"
    if content[:4] == b"PK\x03\x04" or content[:1] == b"\x80":
        return (
            "is a pickle or zip file, as torch.save writes them: loading one can run any code, "
            "so convert it to safetensors where you trust it"
        )
    return "is no safetensors file"


def _cut_off(content: bytes, end: int) -> str:
    """What is missing at the end of a file, where the header says what there should be."""
    if len(content) >= end:
        try:
            parts = [part for name, part in _header(content).items() if name != "__metadata__"]
            end += max(part["data_offsets"][1] for part in parts)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return ""
    if len(content) >= end:
        return ""
    return f"is cut off: {len(content)} bytes are there of at least {end}, so copy it again"


def _versions() -> dict[str, str]:
    from it3_core import __version__

    return {"it3-core": __version__, "torch": str(torch.__version__)}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
