"""Data sets of cars: what a sample holds, what a failure says, and that nothing is made twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import trimesh

from it3_aero.__main__ import main
from it3_aero.cars.foam import Flow
from it3_aero.cars.foam.files import Install
from it3_aero.cars.generating import CarStore
from it3_core import IT3Error


def test_a_folder_of_meshes_becomes_samples(
    openfoam: Install,
    sedan: trimesh.Trimesh,
    smoke: Flow,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    meshes, out = tmp_path / "my meshes", tmp_path / "out"
    meshes.mkdir()
    (meshes / "a good car.stl").write_bytes(sedan.export(file_type="stl"))
    (meshes / "broken.stl").write_bytes(b"solid nothing\nendsolid\n")
    command = ["cars", "generate", str(out), "--meshes", str(meshes), "--preset", "smoke"]
    command += ["--nodes", "500", "--workers", "1", "--quiet"]
    assert main(command) == 0
    assert "1 cars by OpenFOAM" in capsys.readouterr().out
    good, broken = map(json.loads, (out / "raw" / "samples.jsonl").read_text().splitlines())
    assert good["name"] == "a good car.stl"
    # Through a file and back, it is the car that the tests know.
    assert good["cd"] == pytest.approx(smoke.cd, abs=0.01)
    assert good["frontal_area"] == pytest.approx(smoke.frontal_area, rel=0.005)
    assert "up is z" in good["verdict"]
    assert "broken.stl" in broken["problem"]
    arrays = safetensors.numpy.load_file(out / "raw" / good["mesh"])
    assert (arrays["pos"].dtype, arrays["faces"].dtype) == (np.float32, np.int32)
    assert len(arrays["pos"]) == len(arrays["cp"]) <= 500
    assert arrays["faces"].max() == len(arrays["pos"]) - 1
    assert -4 < arrays["cp"].min() < 0 < arrays["cp"].max() < 1.3
    card = json.loads((out / "card.json").read_text())
    assert card["counts"] == {"requested": 2, "solved": 1, "failed": 1}
    assert (out / "histogram.png").read_bytes().startswith(b"\x89PNG")
    before = (out / "raw" / "samples.jsonl").read_bytes()
    assert main(command) == 0
    assert (out / "raw" / "samples.jsonl").read_bytes() == before
    assert main([*command, "--seed", "3"]) == 2
    assert "seed was 0 and is 3" in capsys.readouterr().err


def test_a_mesh_is_there_before_its_sample(tmp_path: Path) -> None:
    record = {"sample": 0, "mesh": "meshes/000000.safetensors"}
    arrays = {"pos": np.zeros((1, 3), np.float32)}
    with CarStore(tmp_path, "test", {}) as store:
        (tmp_path / "raw" / "meshes").write_text("in the way")
        with pytest.raises(IT3Error, match="can't make the folder"):
            store.append(record | {"arrays": arrays})
        assert not store.samples
        (tmp_path / "raw" / "meshes").unlink()
        store.append(record | {"arrays": arrays})
    assert json.loads((tmp_path / "raw" / "samples.jsonl").read_text()) == record
    assert (tmp_path / "raw" / "meshes" / "000000.safetensors").exists()
