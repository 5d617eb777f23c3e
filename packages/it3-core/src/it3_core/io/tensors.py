"""Tensors and JSON in one safetensors file that is written whole or not at all.

The JSON goes into the header's metadata under a single key, with a digest over everything, so that
a file which was cut off, damaged or made by somebody else is told apart from a good one.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from it3_core.errors import IT3Error
from it3_core.io.files import FilePath, writing
from it3_core.io.typed import as_kind, parse_json, printable
from it3_core.model.adapters import Adapter, adapter_from
from it3_core.model.networks import misfit, put_weights, weights_of

M = TypeVar("M")

SCHEMA = 2
"""Raised whenever a file of the new kind could be misread by the code before it."""

_KEY = "it3"
_DAMAGED = "is damaged, so copy it again or go back to another one"
_NO_SAFETENSORS = (
    "is cut off, damaged or no safetensors file (what torch.save writes can run code, and is never "
    "loaded): copy it again, or give another one"
)

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
class Stored(Generic[M]):
    """What a file held."""

    tensors: dict[str, Tensor]  # on the CPU; names that were tied share one tensor
    metadata: M
    versions: dict[str, str]  # of the packages that wrote it


@dataclass(frozen=True)
class _Schema:
    """What is read before the rest, which may be of another schema."""

    schema: int


@dataclass(frozen=True)
class _Body(_Schema):
    """The JSON of a file, under the one key of its header."""

    kind: str
    versions: dict[str, str]
    metadata: dict[str, Any]
    ties: dict[str, str]
    sha256: str
    complex: tuple[str, ...] = ()  # tensors that are stored as pairs of real numbers


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
    `kind` says what the file is, and `read_tensors` asks for it again.
    """
    path = Path(path)
    plain, ties = _plain(tensors)
    body = {
        "schema": SCHEMA,
        "kind": kind,
        "versions": {**_versions(), **(versions or {})},
        "ties": ties,
        "metadata": dict(metadata),
    }
    if pairs := [name for name in plain if tensors[name].is_complex()]:
        body["complex"] = pairs
    try:
        body["sha256"] = digest(plain, body)
    except (TypeError, ValueError, RecursionError) as problem:
        raise IT3Error(f"the metadata can't be stored as JSON: {problem}") from problem
    if not path.parent.is_dir():
        raise IT3Error(f"there is no folder {path.parent}: make it first")
    with writing(path) as stream:
        try:
            for chunk in _chunks(plain, json.dumps(body, separators=(",", ":"))):
                stream.write(chunk)
        except OSError as problem:
            size = sum(tensor.nbytes for tensor in plain.values()) / 1e6
            raise IT3Error(
                f"can't write {path} ({problem.strerror}): it needs {size:.1f} MB"
            ) from problem


def read_tensors(path: FilePath, *, kind: str, metadata: type[M]) -> Stored[M]:
    """What `write_tensors` wrote, of this kind, or an `IT3Error` that says what is wrong.

    Nothing in a file is ever executed: it is read by safetensors, and its metadata as JSON.
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
        raise IT3Error(f"{path} {_NO_SAFETENSORS}") from problem
    body, raw = _body(path, content)
    plain = {name: found[name] for name in sorted(found)}
    if digest(plain, {key: part for key, part in raw.items() if key != "sha256"}) != body.sha256:
        raise IT3Error(f"{path} {_DAMAGED}: its checksum is wrong")
    if body.kind != kind:
        raise IT3Error(f"{path} is a {printable(body.kind)} file, but a {kind} file is needed here")
    if unknown := [stored for stored in body.ties.values() if stored not in plain]:
        raise IT3Error(f"{path} {_DAMAGED}: it lacks the tensor {printable(unknown[0])!r}")
    plain |= {name: torch.view_as_complex(plain[name]) for name in body.complex}
    tied = {name: plain[stored] for name, stored in body.ties.items()}
    typed = as_kind(body.metadata, metadata, f"the metadata of {path}", "make it again")
    return Stored({**plain, **tied}, typed, body.versions)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def digest(tensors: Mapping[str, Tensor], body: Mapping[str, Any]) -> str:
    """SHA-256 over JSON and tensors, their names, types and shapes; blind to the order of names."""
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
        if tensor.is_complex():  # safetensors has no name for the wider ones
            tensor = torch.view_as_real(tensor.resolve_conj())
        plain[name] = tensor.cpu().contiguous()
    return plain, ties


def _check(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise IT3Error(f"{name!r} is a {type(tensor).__name__}, and only tensors can be stored")
    if is_lazy(tensor) or tensor.device.type == "meta":
        raise IT3Error(f"{name!r} has no values yet: run the network once before storing it")
    if tensor.layout != torch.strided or not (tensor.is_complex() or tensor.dtype in _DTYPES):
        raise IT3Error(
            f"{name!r} is {tensor.dtype} ({tensor.layout}): only dense numbers can be stored"
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


def _body(path: Path, content: bytes) -> tuple[_Body, dict[str, Any]]:
    """The JSON of a file, as what it must be and as it stands there."""
    size = int.from_bytes(content[:8], "little")
    header = parse_json(content[8 : 8 + size], dict[str, dict[str, Any]], f"the header of {path}")
    text = header.get("__metadata__", {}).get(_KEY)
    if text is None:
        raise IT3Error(
            f"{path} is a safetensors file without IT³'s metadata: it holds weights that another "
            f"program wrote, so load it with safetensors itself"
        )
    raw = parse_json(text, dict[str, Any], f"the metadata of {path}", "copy the file again")
    schema = as_kind(raw, _Schema, f"the metadata of {path}", "copy the file again").schema
    if schema != SCHEMA:
        advice = "upgrade it" if schema > SCHEMA else "make the file again"
        raise IT3Error(
            f"{path} is of schema {schema}, and this it3-core {_versions()['it3-core']} reads "
            f"schema {SCHEMA}: {advice}"
        )
    return as_kind(raw, _Body, f"the metadata of {path}", "copy the file again"), raw


def _versions() -> dict[str, str]:
    from it3_core import __version__

    return {"it3-core": __version__, "torch": str(torch.__version__)}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


_Module = TypeVar("_Module", bound=nn.Module)


class Described(Protocol):
    """Anything that can say in JSON what it is."""

    def describe(self) -> Mapping[str, Any]:
        """This object as JSON."""


@dataclass(frozen=True)
class Checkpoint:
    """What `load` found in a file."""

    weights: dict[str, Tensor]
    adapter_description: dict[str, Any]
    settings: dict[str, Any]  # how to rebuild the network
    trust: dict[str, Any] | None  # None where it was not fitted
    tuning: dict[str, Any] | None  # None where it was not run
    tensors: dict[str, Tensor]  # what else was saved, such as ActMAD's activations
    versions: dict[str, str]  # of the packages that wrote the file

    @property
    def adapter(self) -> Adapter:
        """The adapter, where it is one of it3-core's; others are made from the description."""
        return adapter_from(self.adapter_description)

    def restore(self, model: _Module) -> _Module:
        """Puts the weights into `model` and returns it; where they don't fit, nothing changes."""
        wrong = misfit(self.weights, model)
        if wrong:
            raise IT3Error(f"the checkpoint is of another network ({wrong}): build that one")
        put_weights(model, self.weights)
        return model


@dataclass(frozen=True)
class _Metadata:
    """The JSON of a checkpoint."""

    adapter: dict[str, Any]
    settings: dict[str, Any]
    trust: dict[str, Any] | None
    tuning: dict[str, Any] | None


def save(
    path: FilePath,
    model: nn.Module,
    *,
    adapter: Described,
    settings: Mapping[str, Any],
    trust: Described | Mapping[str, Any] | None = None,
    tuning: Described | Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Writes a checkpoint, whole or not at all: a file that was there before stays until then.

    Args:
        path: the file to make or to replace; its folder must exist.
        model: the network. Tied weights are stored once.
        adapter: what kind of answer it gives.
        settings: JSON from which its network can be rebuilt; {} where the code alone says it.
        trust: the fitted trust, or its description.
        tuning: what `tune` chose, or its description.
        tensors: anything else to keep, such as ActMAD's activations.
        versions: of the packages that are needed to read it, besides it3-core and torch.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from it3_core import Classification, widen
        >>> path, adapter = Path(tempfile.mkdtemp(), "net.safetensors"), Classification(10)
        >>> net = widen(torch.nn.Linear(4, 10), adapter)
        >>> save(path, net, adapter=adapter, settings={"inputs": 4})
        >>> found = load(path)
        >>> found.adapter
        Classification(10, distance='l1')
        >>> again = found.restore(widen(torch.nn.Linear(found.settings["inputs"], 10), adapter))
    """
    stored = {f"weights.{name}": value for name, value in weights_of(model).items()}
    stored |= {f"tensors.{name}": value for name, value in (tensors or {}).items()}
    metadata = {
        "adapter": adapter.describe(),
        "settings": dict(settings),
        "trust": _described(trust),
        "tuning": _described(tuning),
    }
    write_tensors(path, stored, metadata, kind="checkpoint", versions=versions)


def load(path: FilePath) -> Checkpoint:
    """Reads a checkpoint. A file that isn't one, or isn't whole, gets an error that says so.

    Example:
        >>> load("/")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: / is a folder: give the path of a checkpoint file
    """
    stored = read_tensors(path, kind="checkpoint", metadata=_Metadata)
    return Checkpoint(
        weights=under("weights.", stored.tensors),
        adapter_description=stored.metadata.adapter,
        settings=stored.metadata.settings,
        trust=stored.metadata.trust,
        tuning=stored.metadata.tuning,
        tensors=under("tensors.", stored.tensors),
        versions=stored.versions,
    )


def _described(part: Described | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return dict(part if isinstance(part, Mapping) else part.describe())
