"""What is broken, hostile or missing gets one clear sentence, and spoils nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from it3_aero.cars.dataset import CarDataset
from it3_aero.cars.graph import to_graph
from it3_aero.cars.model import load_run
from it3_aero.cars.packed import pack
from it3_aero.gmm import Neighbours
from it3_aero.learning.runs import Run
from it3_aero.learning.runs import load_run as load_any
from it3_aero.wings.task import WINGS
from it3_core import IT3Error

FACES = [[0, 1, 2], [0, 2, 3], [0, 3, 1], [1, 3, 2]]
CORNERS = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("vertices", "faces", "says"),
    [
        (CORNERS, [[0, 1, 4]], "not there"),
        (CORNERS, [[0, 1, -1]], "not there"),
        (CORNERS, np.zeros((0, 3)), "no face"),
        ([*CORNERS[:3], [np.nan, 0, 0]], FACES, "no number"),
        (CORNERS, [[0, 1]], "three columns"),
        ([[0.0, 1.0]], FACES, "three columns"),
    ],
    ids=["beyond", "negative", "empty", "nan", "edges", "flat"],
)
def test_no_mesh_no_graph(vertices: object, faces: object, says: str) -> None:
    with pytest.raises(IT3Error, match=says):
        to_graph(vertices, faces)  # type: ignore[arg-type]


def test_loose_vertices_and_flat_triangles_stay_finite() -> None:
    graph = to_graph([*CORNERS, [9.0, 9.0, 9.0]], [*FACES, [0, 1, 1]])
    assert bool(torch.isfinite(graph.x).all())
    assert bool(torch.isfinite(graph.edge_attr).all())


def test_edges_that_go_one_way_only() -> None:
    with pytest.raises(IT3Error, match="both ways"):
        Neighbours.of(torch.tensor([[0, 1], [1, 2]]), 3)


def test_broken_cache_is_made_again(copy_of_data: Path) -> None:
    (copy_of_data / "processed").mkdir(exist_ok=True)
    (copy_of_data / "processed" / "cars.safetensors").write_bytes(b"\x00" * 50)
    assert len(CarDataset(copy_of_data)) == 84


def test_missing_and_foreign_meshes(copy_of_data: Path) -> None:
    mesh = copy_of_data / "raw" / "meshes" / "000003.safetensors"
    whole = mesh.read_bytes()
    shutil.rmtree(copy_of_data / "processed", ignore_errors=True)
    for content in (None, b"", whole[: len(whole) // 2]):
        mesh.unlink() if content is None else mesh.write_bytes(content)
        with pytest.raises(IT3Error, match="sample 3"):
            CarDataset(copy_of_data)


def test_a_mesh_outside_of_the_folder_is_not_read(copy_of_data: Path) -> None:
    (copy_of_data / "elsewhere.safetensors").write_bytes(
        (copy_of_data / "raw" / "meshes" / "000000.safetensors").read_bytes()
    )
    samples = copy_of_data / "raw" / "samples.jsonl"
    shutil.rmtree(copy_of_data / "processed", ignore_errors=True)
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    lines[0]["mesh"] = "../elsewhere.safetensors"
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(IT3Error, match="outside of the folder"):
        CarDataset(copy_of_data)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_truncated_packed_file(data: Path, tmp_path: Path, share: float) -> None:
    file = tmp_path / "cars.safetensors"
    pack(data, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(IT3Error, match="can't read"):
        CarDataset(file)


def test_another_safetensors_file(run: Run) -> None:
    with pytest.raises(IT3Error, match="holds no cars"):
        CarDataset(run.folder / "model.safetensors")


def test_a_run_of_cars_is_none_of_wings(run: Run) -> None:
    with pytest.raises(IT3Error, match="is a RUN of it3-aero cars, not of wings"):
        load_any(WINGS, run.folder)
    assert load_run(run.folder).seed == 0


def test_thresholds_that_leave_nothing(dataset: CarDataset) -> None:
    with pytest.raises(IT3Error, match="no sample has a Cd from 9"):
        dataset.split(9.0)
    with pytest.raises(IT3Error, match="quantile"):
        dataset.split(quantile=1.5)
