"""Generated cars as an ordinary torch-geometric dataset, and the paper's split of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from it3_aero.cars.graph import to_graph
from it3_aero.cars.packed import Packed, answered
from it3_aero.generation import Record, read_settings
from it3_aero.learning.split import Split, split_by_label
from it3_core import IT3Error

__all__ = ["SAMPLE", "CarDataset"]

SAMPLE = Path(__file__).parent / "data" / "cars.safetensors"
"""The cars that come with this package; `it3-aero cars generate` and `pack` made the file."""


class CarDataset(InMemoryDataset):  # type: ignore[misc]  # torch-geometric has no types
    """The cars in a folder that `it3-aero cars generate` made, those that have an answer.

    Each `Data` has `pos`, `face`, `x`, `edge_index` and `edge_attr` as of `to_graph`; `y` (1, 1),
    the drag coefficient; `cd_std` (1,), how much it swung; `cp` (nodes,), the pressure coefficient;
    `parameters` (1, k) that the car was made from, named by `parameter_names`, NaN where its family
    has no such parameter; `sample`, its number; `name` and `family`. Meshes are kept in
    `processed/`, and read again when samples were added.

    Args:
        root: the folder, or a file that `it3-aero cars pack` made; the cars that come with this
            package by default.
        transform: applied to each `Data` when it is taken out, as in any dataset.

    Example:
        >>> CarDataset("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no generated data: there is no raw/settings.json
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        transform: Callable[[Data], Data] | None = None,
    ) -> None:
        place = Path(root if root is not None else SAMPLE)
        found = Packed.of_file(place) if place.is_file() else _cached(place)
        self.settings = found.settings
        # torch-geometric's own raw/processed machinery unpickles what it finds in the folder.
        super().__init__(os.fspath(place), transform)
        self.names = [str(record["name"]) for record in found.records]
        self.parameter_names: tuple[str, ...] = tuple(
            dict.fromkeys(name for record in found.records for name in record["parameters"])
        )
        self.data, self.slices = self.collate(
            [
                _graph(mesh, record, self.parameter_names)
                for mesh, record in zip(found.meshes(), found.records, strict=True)
            ]
        )

    @property
    def solver(self) -> str:
        """Who gave the answers, such as "OpenFOAM 1912, coarse"."""
        return str(self.settings.get("solver", "OpenFOAM"))

    @property
    def preset(self) -> str:
        """How fine the cells were, such as "coarse"."""
        told = self.settings.get("preset", "coarse")
        return str(told["name"] if isinstance(told, dict) else told)

    def threshold(self, quantile: float = 0.25) -> float:
        """The drag coefficient that a share of the cars stays below: the streamlined ones."""
        if not 0 < quantile < 1:
            raise IT3Error(f"quantile is between 0 and 1, not {quantile}")
        return round(float(np.quantile(self._drag(), quantile)), 3)

    def split(
        self,
        threshold: float | None = None,
        *,
        quantile: float = 0.25,
        validation: float = 0.1,
        test: float = 0.15,
        levels: int = 2,
        seed: int = 0,
    ) -> Split:
        """The paper's split: cars of some drag are known territory, streamlined ones are not.

        Args:
            threshold: the smallest drag coefficient to train on; by default so that `quantile` of
                the cars lie below.
            quantile: see threshold.
            validation: share of the known cars that is held out for validation.
            test: share of them that is held out for the test in distribution.
            levels: how many levels of equal size to sort the streamlined cars into, by their drag.
            seed: which of the known cars are held out.
        """
        return split_by_label(
            self._drag(),
            self.threshold(quantile) if threshold is None else threshold,
            quantity="Cd",
            beyond="lower",
            validation=validation,
            test=test,
            levels=levels,
            seed=seed,
        )

    def _drag(self) -> list[float]:
        return [float(self.get(index).y) for index in self.indices()]


def _cached(root: Path) -> Packed:
    """The cars of a folder, from `processed/` if that is of the present samples."""
    settings = read_settings(root)
    told = json.dumps([settings, answered(root)], sort_keys=True)
    key = hashlib.sha256(told.encode()).hexdigest()
    path = root / "processed" / "cars.safetensors"
    try:
        return Packed.of_file(path, key)
    except IT3Error:
        pass  # not there yet, broken, or of fewer samples
    found = Packed.of_folder(root)
    try:
        path.parent.mkdir(exist_ok=True)
        found.write(path, key)
    except (OSError, IT3Error):
        pass  # a folder that can't be written into is read all the same
    return found


def _graph(mesh: tuple[Tensor, Tensor, Tensor], record: Record, names: tuple[str, ...]) -> Any:
    pos, faces, cp = mesh
    graph = to_graph(pos.numpy(), faces.numpy(), str(record["name"]))
    given = record["parameters"]
    graph.cp = cp
    graph.y = torch.tensor([[float(record["cd"])]])
    graph.cd_std = torch.tensor([float(record.get("cd_std") or 0.0)])
    graph.parameters = torch.tensor([[float(given.get(name, "nan")) for name in names]])
    graph.sample = torch.tensor([int(record["sample"])])
    graph.family = str(record.get("family", ""))
    return graph
