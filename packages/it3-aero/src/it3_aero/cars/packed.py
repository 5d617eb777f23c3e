"""Many meshes with their answers in one file: how a sample is shipped, and how graphs are cached.

A safetensors file with `pos` (all vertices, one car after the other), `faces`, `cp`, and `nodes`
and `triangles`, how many of them each car has. Its one metadata entry is JSON: `settings` and the
`records` of `raw/samples.jsonl`, without those that failed.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from it3_aero.generation import Record, read_samples, read_settings, write_whole
from it3_aero.names import shown
from it3_core import IT3Error

__all__ = ["Packed", "pack"]

_FORMAT = 1
_TENSORS = ("pos", "faces", "cp", "nodes", "triangles")


@dataclass(frozen=True)
class Packed:
    """Cars one after the other.

    Attributes:
        tensors: as the file has them.
        records: one a car.
        settings: what they were made with.

    Example:
        >>> import tempfile
        >>> from it3_aero.cars.generating import CarStore
        >>> mesh = {"pos": torch.eye(3).numpy(), "faces": torch.tensor([[0, 1, 2]]).numpy(),
        ...         "cp": torch.zeros(3).numpy()}
        >>> record = {"sample": 0, "name": "a", "parameters": {}, "cd": 0.3}
        >>> record["mesh"] = "a.safetensors"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with CarStore(folder, {"solver": "nobody"}) as store:
        ...         store.append(record | {"arrays": mesh})
        ...     cars = Packed.of_folder(folder)
        >>> cars.settings, len(cars.meshes())
        ({'solver': 'nobody'}, 1)
    """

    tensors: dict[str, Tensor]
    records: list[Record]
    settings: dict[str, Any]

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str]) -> Packed:
        """The cars with an answer in a folder that `it3-aero cars generate` made."""
        settings, records = read_settings(folder), answered(folder)
        meshes = [_mesh(Path(folder, "raw"), record) for record in records]
        parts = {key: [mesh[key] for mesh in meshes] for key in ("pos", "faces", "cp")}
        tensors = {
            "pos": torch.cat(parts["pos"]).float(),
            "faces": torch.cat(parts["faces"]).int(),
            "cp": torch.cat(parts["cp"]).float(),
            "nodes": torch.tensor([len(pos) for pos in parts["pos"]]),
            "triangles": torch.tensor([len(faces) for faces in parts["faces"]]),
        }
        return cls(tensors, records, settings)

    @classmethod
    def of_file(cls, path: str | os.PathLike[str], key: str = "") -> Packed:
        """The cars in a file; one that was made from something else than `key` is refused."""
        try:
            with safe_open(path, "pt") as file:
                told = json.loads((file.metadata() or {}).get("cars", "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, SafetensorError) as problem:
            raise IT3Error(f"can't read {shown(path)}: {problem}") from None
        whole = set(_TENSORS) <= set(tensors)
        if not (whole and isinstance(told, dict) and told.get("format") == _FORMAT):
            raise IT3Error(f"{shown(path)} holds no cars: make it with it3-aero cars pack")
        if key and told.get("key") != key:
            raise IT3Error(f"{shown(path)} was made from other samples")
        return cls(tensors, told["records"], told["settings"])

    def write(self, path: str | os.PathLike[str], key: str = "") -> None:
        """Into a file, so that it is there as a whole or not at all."""
        told = {"format": _FORMAT, "settings": self.settings, "records": self.records, "key": key}
        write_whole(Path(path), save(self.tensors, {"cars": json.dumps(told)}))

    def meshes(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Vertices, faces and pressure of each car."""
        nodes, triangles = (self.tensors[key].tolist() for key in ("nodes", "triangles"))
        return list(
            zip(
                torch.split(self.tensors["pos"].float(), nodes),
                torch.split(self.tensors["faces"].long(), triangles),
                torch.split(self.tensors["cp"].float(), nodes),
                strict=True,
            )
        )


def pack(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> Packed:
    """Write the cars in a folder into one file that `CarDataset` reads too.

    Pressure is kept to three digits and faces as small numbers, a third of the size; Cd, positions
    and parameters are kept as they are.

    Example:
        >>> pack("/nowhere", "cars.safetensors")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no generated data: there is no raw/settings.json
    """
    whole = Packed.of_folder(folder)
    tensors = dict(whole.tensors)
    tensors["cp"] = tensors["cp"].half()
    if int(tensors["nodes"].max()) <= 2**16:
        tensors["faces"] = tensors["faces"].to(torch.uint16)
    records = [{k: v for k, v in record.items() if k != "mesh"} for record in whole.records]
    found = Packed(tensors, records, whole.settings)
    found.write(out)
    return found


def answered(folder: str | os.PathLike[str]) -> list[Record]:
    """The records in a folder that have an answer."""
    records = [record for record in read_samples(folder) if "problem" not in record]
    if not records:
        raise IT3Error(f"{folder} holds no car with an answer: run it3-aero cars generate")
    return records


def _mesh(raw: Path, record: Record) -> dict[str, Tensor]:
    path = raw / str(record.get("mesh"))
    if not path.resolve().is_relative_to(raw.resolve()):
        raise IT3Error(f"sample {record['sample']} has its mesh outside of the folder: {path}")
    try:
        with safe_open(path, "pt") as file:
            return {key: file.get_tensor(key) for key in ("pos", "faces", "cp")}
    except (OSError, SafetensorError) as problem:
        raise IT3Error(f"can't read the mesh of sample {record['sample']}: {problem}") from None
