"""Generated wings as an ordinary torch-geometric dataset, and the paper's split of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from it3_aero.generation import Record, read_samples, read_settings, write_whole
from it3_aero.learning.split import Split, split_by_label
from it3_aero.wings.families import FAMILIES
from it3_aero.wings.geometry import Airfoil, Points
from it3_aero.wings.graph import NODES, chordwise, ring_edges, to_graph
from it3_core import IT3Error

__all__ = ["Split", "WingDataset"]

_FORMAT = "1"  # of the files under processed/
_TENSORS = ("pos", "edge_attr", "y", "cl", "cd", "cm", "cp", "parameters", "sample")


class WingDataset(InMemoryDataset):  # type: ignore[misc]  # torch-geometric has no types
    """The profiles in a folder that `it3-aero wings generate` made, those that have an answer.

    Each `Data` has `pos`, `edge_index` and `edge_attr` as of `to_graph`; `y` (1, 1), the
    lift-to-drag ratio; `cl`, `cd` and `cm` (1,); `cp` (nodes,), the pressure coefficient at the
    nodes; `parameters` (1, k) that the shape was made from, named by `parameter_names`; `sample`,
    its number; and `name`. Graphs are kept in `processed/`, and made again when samples were added.

    Args:
        root: the folder.
        nodes: of each graph.
        transform: applied to each `Data` when it is taken out, as in any dataset.

    Example:
        >>> import tempfile
        >>> from it3_aero.wings.generating import generate
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = generate(folder, n=4, solver="neuralfoil", progress=False)
        ...     wings = WingDataset(folder)
        >>> wings
        WingDataset(4)
        >>> wings[0].y.shape, wings[0].pos.shape, wings.parameter_names
        (torch.Size([1, 1]), torch.Size([128, 2]), ('camber', 'position', 'thickness'))
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        nodes: int = NODES,
        transform: Callable[[Data], Data] | None = None,
    ) -> None:
        root = Path(root)
        chordwise(nodes)  # refuses a number that can't be
        self.settings = read_settings(root)
        super().__init__(os.fspath(root), transform)
        # torch-geometric's own raw/processed machinery unpickles what it finds in the folder.
        tensors, self.names = self._cached(root, nodes)
        self.parameter_names: tuple[str, ...] = FAMILIES[self.settings["family"]].parameters
        self.data, self.slices = self.collate(_graphs(tensors, self.names))

    @property
    def raw_file_names(self) -> list[str]:
        """What `generate` wrote."""
        return ["settings.json", "samples.jsonl"]

    @property
    def solver(self) -> str:
        """Who gave the answers, such as "XFoil 6.99"."""
        return str(self.settings["solver"])

    def split(
        self,
        threshold: float = 60.0,
        *,
        validation: float = 0.1,
        test: float = 0.15,
        levels: int = 3,
        seed: int = 0,
    ) -> Split:
        """The paper's split: up to a lift-to-drag ratio is known territory, beyond it is not.

        Args:
            threshold: the largest ratio to train on.
            validation: share of the known profiles that is held out for validation.
            test: share of them that is held out for the test in distribution.
            levels: how many levels of equal size to sort the profiles beyond into, by their ratio.
            seed: which of the known profiles are held out.
        """
        return split_by_label(
            [float(self.get(index).y) for index in self.indices()],
            threshold,
            quantity="L/D",
            validation=validation,
            test=test,
            levels=levels,
            seed=seed,
        )

    def _cached(self, root: Path, nodes: int) -> tuple[dict[str, Tensor], list[str]]:
        """The graphs' tensors and names, from `processed/` if those are of the present samples."""
        records = [record for record in read_samples(root) if "problem" not in record]
        if not records:
            raise IT3Error(f"{root} holds no profile with an answer: run it3-aero wings generate")
        told = json.dumps([_FORMAT, nodes, self.settings, records], sort_keys=True)
        wanted = hashlib.sha256(told.encode()).hexdigest()
        path = root / "processed" / f"wings-{nodes}.safetensors"
        names = [str(record["name"]) for record in records]
        try:
            with safe_open(path, "pt") as file:
                if (file.metadata() or {}).get("made_from") == wanted:
                    return {key: file.get_tensor(key) for key in _TENSORS}, names
        except (OSError, SafetensorError):
            pass  # not there yet, or broken
        tensors = _tensors(records, self.settings["family"], nodes)
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, save(tensors, {"made_from": wanted}))
        except (OSError, IT3Error):
            pass  # a folder that can't be written into is read all the same
        return tensors, names


def _tensors(records: list[Record], family: str, nodes: int) -> dict[str, Tensor]:
    make = FAMILIES[family].make
    airfoils: list[Airfoil] = [make(**record["parameters"]) for record in records]
    graphs = [to_graph(airfoil, nodes) for airfoil in airfoils]
    numbers = {
        key: torch.tensor([record[key] for record in records], dtype=torch.float32)
        for key in ("cl", "cd", "cm")
    }
    places = chordwise(nodes)
    pressures = [_at_nodes(record["cp"], places) for record in records]
    parameters = [list(record["parameters"].values()) for record in records]
    return {
        **numbers,
        "y": torch.tensor([record["cl"] / record["cd"] for record in records]),
        "pos": torch.stack([graph.pos for graph in graphs]),
        "edge_attr": torch.stack([graph.edge_attr for graph in graphs]),
        "cp": torch.from_numpy(np.stack(pressures)).float(),
        "parameters": torch.tensor(parameters, dtype=torch.float32),
        "sample": torch.tensor([record["sample"] for record in records]),
    }


def _at_nodes(cp: list[list[float]], places: Points) -> Points:
    """Pressure at the nodes, from a solver's values once around: by side, over the root of x."""
    x, value = np.array(cp)
    nose = int(np.argmin(x))
    at = np.sqrt(places)
    upper, lower = (
        np.interp(at, np.sqrt(np.maximum.accumulate(x[side]).clip(0)), value[side])
        for side in (slice(nose, None, -1), slice(nose, None))
    )
    return np.concatenate([upper[::-1], lower])


def _graphs(tensors: dict[str, Tensor], names: list[str]) -> list[Any]:
    edges = ring_edges(tensors["pos"].shape[1])
    return [
        Data(
            pos=tensors["pos"][i],
            edge_index=edges,
            edge_attr=tensors["edge_attr"][i],
            y=tensors["y"][i].view(1, 1),
            **{key: tensors[key][i].view(1) for key in ("cl", "cd", "cm")},
            cp=tensors["cp"][i],
            parameters=tensors["parameters"][i].view(1, -1),
            sample=tensors["sample"][i].view(1),
            name=name,
        )
        for i, name in enumerate(names)
    ]
