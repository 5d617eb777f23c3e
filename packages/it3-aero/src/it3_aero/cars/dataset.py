"""Cars as graphs for torch-geometric and as a dataset, the paper's split; the network's trunk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as nnf
import trimesh
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, InMemoryDataset

from it3_aero.cars.meshes import remeshed
from it3_aero.generation.store import Failed, read_data
from it3_aero.shapes.data import Split, split_by_label
from it3_aero.shapes.graph_net import MeshGMM, Neighbours, NetworkSettings, damp, mesh_weights
from it3_core import IT3Error
from it3_core.io.tensors import read_tensors, write_tensors
from it3_core.io.typed import as_kind

TASK = "cars generate"  # the command, as a folder's marker names it
MESH = "it3-aero mesh"  # what a sample's mesh file is
_KIND = "it3-aero cars"
_TENSORS = ("pos", "faces", "cp", "nodes", "triangles")


class _Solved(TypedDict):
    sample: int
    name: str
    family: str
    parameters: dict[str, float]
    cd: float
    cd_std: float
    cells: int
    cpu_seconds: float
    peak_mb: float


class Solved(_Solved, total=False):
    """A solved car; there is more in it. A packed one has no mesh file."""

    mesh: str


class _Preset(TypedDict):
    name: str


class Settings(TypedDict):
    """What a folder of cars says about them; there is more in it."""

    solver: str
    preset: _Preset


class _Metadata(TypedDict):
    settings: dict[str, Any]
    records: list[Solved]


class Cars(NamedTuple):
    """Cars as a folder or a packed file has them."""

    meshes: list[tuple[Tensor, Tensor, Tensor]]  # vertices, faces and pressure of each
    records: list[Solved]
    settings: dict[str, Any]  # what they were made with


def _folder(folder: Path) -> Cars:
    """The solved cars in a folder that `it3-aero cars generate` made."""
    settings, samples = read_data(folder, TASK, Settings, Solved | Failed)
    records = [record for record in samples if "problem" not in record]
    if not records:
        raise IT3Error(f"{folder} holds no solved car: run it3-aero cars generate")
    return Cars([_mesh(folder / "raw", record) for record in records], records, settings)


def _mesh(raw: Path, record: Solved) -> tuple[Tensor, Tensor, Tensor]:
    path = raw / record.get("mesh", "")
    if not path.resolve().is_relative_to(raw.resolve()):
        raise IT3Error(f"sample {record['sample']} has its mesh outside of the folder: {path}")
    tensors = read_tensors(path, kind=MESH, metadata=dict[str, Any]).tensors
    pos, faces, cp = (tensors.get(name, torch.empty(0)) for name in _TENSORS[:3])
    if not len(pos) or not len(faces) or pos.shape[:1] != cp.shape:
        raise IT3Error(f"{path} is no mesh of a car: generate the data again")
    return pos, faces, cp


def _file(path: Path) -> Cars:
    """The cars in a file that `pack` made."""
    found = read_tensors(path, kind=_KIND, metadata=_Metadata)
    records, settings = found.metadata["records"], found.metadata["settings"]
    as_kind(settings, Settings, f"the settings in {path}", "pack the cars again")
    try:
        pos, faces, cp, nodes, triangles = (found.tensors[name] for name in _TENSORS)
        vertices, pressures = (torch.split(part.float(), nodes.tolist()) for part in (pos, cp))
        corners = torch.split(faces.long(), triangles.tolist())
        meshes = list(zip(vertices, corners, pressures, strict=True))
    except (KeyError, RuntimeError, TypeError, ValueError):
        meshes = []
    if not meshes or len(meshes) != len(records):
        raise IT3Error(f"{path} is damaged: its meshes don't fit its cars: pack them again")
    return Cars(meshes, records, settings)


def pack(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> Cars:
    """Write the cars in a folder into one file that `CarDataset` reads too.

    Pressure is kept to three digits and faces as small numbers, a third of the size; Cd, positions
    and parameters are kept as they are.
    """
    cars = _folder(Path(folder))
    pos, faces, cp = zip(*cars.meshes, strict=True)
    small = torch.int16 if max(map(len, pos)) <= 2**15 else torch.int32
    tensors = {
        "pos": torch.cat(pos).float(),
        "faces": torch.cat(faces).to(small),
        "cp": torch.cat(cp).half(),
        "nodes": torch.tensor([len(one) for one in pos]),
        "triangles": torch.tensor([len(one) for one in faces]),
    }
    records = [{k: v for k, v in record.items() if k != "mesh"} for record in cars.records]
    write_tensors(out, tensors, {"settings": cars.settings, "records": records}, kind=_KIND)
    return cars


SAMPLE = Path(__file__).parent / "data" / "cars.safetensors"
"""The cars that come with this package; `it3-aero cars generate` and `pack` made the file."""


class CarDataset(InMemoryDataset):  # type: ignore[misc]  # torch-geometric has no types
    """The cars in a folder that `it3-aero cars generate` made, those that have a solution.

    Each `Data` has `pos`, `face`, `x`, `edge_index` and `edge_attr` as of `to_graph`; `y` (1, 1),
    the drag coefficient; `cd_std` (1,), how much it swung; `cp` (nodes,), the pressure coefficient;
    `parameters` (1, k) that the car was made from, named by `parameter_names`, NaN where its family
    has no such parameter; `sample`, its number; `name` and `family`.

    Args:
        root: the folder, or a file that `it3-aero cars pack` made; the cars that come with this
            package by default.
        transform: applied to each `Data` when it is taken out, as in any dataset.

    Example:
        >>> CarDataset("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no generated data: make some with ...
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        transform: Callable[[Data], Data] | None = None,
    ) -> None:
        path = Path(root if root is not None else SAMPLE)
        found = _file(path) if path.is_file() else _folder(path)
        self.settings = found.settings
        # Nothing is kept in processed/, where torch-geometric would unpickle what it finds.
        super().__init__(os.fspath(path), transform)
        self.parameter_names: tuple[str, ...] = tuple(
            dict.fromkeys(name for record in found.records for name in record["parameters"])
        )
        self.data, self.slices = self.collate(
            [
                _graph(mesh, record, self.parameter_names)
                for mesh, record in zip(found.meshes, found.records, strict=True)
            ]
        )

    @property
    def solver(self) -> str:
        """Who solved them, such as "OpenFOAM 1912"."""
        return str(self.settings["solver"])

    @property
    def preset(self) -> str:
        """How fine the cells are, such as "coarse"."""
        return str(self.settings["preset"]["name"])

    def threshold(self) -> float:
        """The drag coefficient that a quarter of the cars stays below: the streamlined ones."""
        return round(float(np.quantile(self._drag(), 0.25)), 3)

    def split(self, threshold: float | None = None, *, levels: int = 2, seed: int = 0) -> Split:
        """The paper's split: a smaller Cd is out of distribution; see `split_by_label`."""
        least = self.threshold() if threshold is None else threshold
        return split_by_label(
            self._drag(), least, quantity="Cd", side="lower", levels=levels, seed=seed
        )

    def _drag(self) -> list[float]:
        return [float(self.get(index).y) for index in self.indices()]


def _graph(mesh: tuple[Tensor, Tensor, Tensor], record: Solved, names: tuple[str, ...]) -> Any:
    pos, faces, cp = mesh
    graph = to_graph(pos.numpy(), faces.numpy(), record["name"])
    given = record["parameters"]
    graph.cp = cp
    graph.y = torch.tensor([[record["cd"]]])
    graph.cd_std = torch.tensor([record["cd_std"]])
    graph.parameters = torch.tensor([[given.get(name, math.nan) for name in names]])
    graph.sample = torch.tensor([record["sample"]])
    graph.family = record["family"]
    return graph


_INPUTS = ("x", "pos", "face", "edge_index", "edge_attr")


@dataclass(frozen=True)
class Car:
    """A closed mesh, in metres, with the wind along x and the ground at z = 0; and its name."""

    name: str
    mesh: trimesh.Trimesh


def to_graph(vertices: npt.ArrayLike, faces: npt.ArrayLike, name: str = "car") -> Data:
    """A closed mesh as a graph: in metres, x with the wind, z up, the ground at z = 0.

    `edge_index` (2, edges) is sorted by where an edge ends; `edge_attr` (edges, 3) are Cartesian
    pseudo-coordinates between 0 and 1 as of torch-geometric's `Cartesian`; `x` (nodes, 7) is the
    position as a fraction of the car's length, the normal, and the node's area over the mean.
    """
    pos = torch.as_tensor(np.array(vertices, dtype=np.float32))
    face = torch.as_tensor(np.array(faces, dtype=np.int64)).t().contiguous()
    if pos.dim() != 2 or pos.shape[1] != 3 or face.dim() != 2 or face.shape[0] != 3:
        raise IT3Error(f"{name} is no triangle mesh: vertices and faces have three columns")
    if not len(face[0]) or not bool(torch.isfinite(pos).all()):
        raise IT3Error(f"{name} is no car: it has no face, or a vertex that is no number")
    if int(face.min()) < 0 or int(face.max()) >= len(pos):
        raise IT3Error(f"{name} is no mesh: a face has a vertex that is not there")
    one_way = torch.cat([face[[0, 1]], face[[1, 2]], face[[2, 0]]], 1)
    source, target = torch.cat([one_way, one_way.flip(0)], 1)
    numbers = (target * len(pos) + source).unique()  # sorted
    both = torch.stack([numbers % len(pos), numbers // len(pos)])
    graph = Data(pos=pos, face=face, edge_index=both, name=name)
    return _described(graph, torch.zeros(len(pos), dtype=torch.long), 1)


def car_graph(car: Car, nodes: int) -> Data:
    """A car as a graph of at most so many nodes."""
    fewer = remeshed(car.mesh, nodes)
    return to_graph(fewer.vertices, fewer.faces, car.name)


def inputs(graphs: Sequence[Data]) -> Any:
    """A batch of what the network looks at, and nothing else of the graphs."""
    return Batch.from_data_list([Data(**{key: graph[key] for key in _INPUTS}) for graph in graphs])


def moved(cars: Any, pos: Tensor) -> Any:
    """A batch of `inputs` with its vertices elsewhere, and all that depends on them."""
    other = cars.clone()
    other.pos = pos
    return _described(other, cars.batch, cars.num_graphs)


def _described(graph: Any, batch: Tensor, number: int) -> Any:
    """Writes `x` and `edge_attr`, which follow from where the vertices are."""
    pos, (a, b, c) = graph.pos, graph.face
    cross = torch.linalg.cross(pos[b] - pos[a], pos[c] - pos[a])
    third = cross.norm(dim=1) / 6
    normal, area = torch.zeros_like(pos), pos.new_zeros(len(pos))
    for corner in (a, b, c):
        normal.index_add_(0, corner, cross)
        area.index_add_(0, corner, third)
    normal = normal / normal.norm(dim=1, keepdim=True).clamp_min(1e-12)
    mean = _reduced(area, batch, number, "mean")
    low, high = (_reduced(pos, batch, number, how) for how in ("amin", "amax"))
    length = (high - low)[:, :1].clamp_min(1e-9)
    middle = (low + high) / 2 * pos.new_tensor([1.0, 1.0, 0.0])  # z is from the ground
    # About one in size: a car is a few times as long as it is wide or high.
    where = (pos - middle[batch]) / length[batch] * pos.new_tensor([2.0, 5.0, 5.0])
    relative = area / mean[batch].clamp_min(1e-12)
    graph.x = torch.cat([where, normal, relative.unsqueeze(1)], 1)
    source, target = graph.edge_index
    step = pos[source] - pos[target]
    longest = _reduced(step.abs().amax(1), batch[source], number, "amax")
    scale = 2 * longest[batch[source]].clamp_min(1e-12)
    graph.edge_attr = step / scale.unsqueeze(1) + 0.5
    return graph


def _reduced(values: Tensor, batch: Tensor, number: int, how: str) -> Tensor:
    index = batch if values.dim() == 1 else batch.unsqueeze(1).expand_as(values)
    empty = values.new_zeros((number, *values.shape[1:]))
    return empty.scatter_reduce(0, index, values, how, include_self=False)


class MeshTrunk(nn.Module):
    """A batch of cars to pooled features: GMM layers, each with ELU and a skip.

    What is pooled is the mean over the surface: drag is an integral over it, and a node stands
    for the area around it.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        width, kernels = settings.channels, settings.kernels
        self.encode = nn.Linear(7, width)
        layers = [MeshGMM(width, width, dim=3, kernel_size=kernels) for _ in range(settings.layers)]
        damp(layers)
        self.layers = nn.ModuleList(layers)
        # Node features `(nodes, channels)` after each fifth layer, for ActMAD to watch.
        self.taps = nn.ModuleList(nn.Identity() for _ in range(settings.layers // 5))

    def forward(self, cars: Any) -> Tensor:
        x = nnf.elu(self.encode(cars.x))
        near = Neighbours.of(cars.edge_index, len(x))
        weights = self.weights(cars.edge_attr, near)
        for index, layer in enumerate(self.layers):
            x = x + nnf.elu(layer(x, near, weights[index]), inplace=True)
            if index % 5 == 4:
                self.taps[index // 5](x)
        area = cars.x[:, 6:]
        # A node's area is over the mean of its car's: the areas of a car add up to its nodes.
        total = x.new_zeros(cars.num_graphs, x.shape[1]).index_add(0, cars.batch, x * area)
        pooled: Tensor = total / cars.ptr.diff().unsqueeze(1)
        return pooled

    def weights(self, pseudo: Tensor, near: Neighbours) -> tuple[Tensor, ...]:
        """The weights of every layer's edges: they depend on the meshes alone, so all at once."""
        layers = [layer for layer in self.layers if isinstance(layer, MeshGMM)]
        mu = torch.cat([layer.mu for layer in layers])
        sigma = torch.cat([layer.sigma for layer in layers])
        # GMMConv takes the mean over a node's neighbours.
        part = near.pointer.diff()[near.target].to(pseudo.dtype).reciprocal()
        return (mesh_weights(pseudo[near.order], mu, sigma) * part).chunk(len(layers))
