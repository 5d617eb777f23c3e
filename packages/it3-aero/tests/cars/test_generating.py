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
from it3_aero.cars.foam.install import Install
from it3_aero.cars.generating import CarStore, generate
from it3_aero.generation import read_samples
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
    good, broken = read_samples(out)
    assert good["name"] == "a good car.stl"
    # Through a file and back, it is the car that the tests know.
    assert good["cd"] == pytest.approx(smoke.cd, abs=0.01)
    assert good["frontal_area"] == pytest.approx(smoke.frontal_area, rel=0.005)
    assert "up is z" in good["verdict"]
    assert "broken.stl" in broken["problem"]
    arrays = safetensors.numpy.load_file(out / "raw" / good["mesh"])
    assert arrays["pos"].dtype == np.float32
    assert arrays["faces"].dtype == np.int32
    assert len(arrays["pos"]) == len(arrays["cp"]) <= 500
    assert arrays["faces"].max() == len(arrays["pos"]) - 1
    assert -4 < arrays["cp"].min() < 0 < arrays["cp"].max() < 1.3
    card = json.loads((out / "card.json").read_text())
    assert card["counts"] == {"asked": 2, "answered": 1, "failed": 1}
    assert (out / "histogram.png").read_bytes().startswith(b"\x89PNG")
    before = (out / "raw" / "samples.jsonl").read_bytes()
    assert main(command) == 0
    assert (out / "raw" / "samples.jsonl").read_bytes() == before
    assert main([*command, "--seed", "3"]) == 2
    assert "was made with seed = 0, and not with 3" in capsys.readouterr().err


def test_a_mesh_is_there_before_its_sample(tmp_path: Path) -> None:
    record = {"sample": 0, "mesh": "meshes/000000.safetensors"}
    arrays = {"pos": np.zeros((1, 3), np.float32)}
    with CarStore(tmp_path, {}) as store:
        (tmp_path / "raw" / "meshes").write_text("in the way")
        with pytest.raises(IT3Error, match="can't write into"):
            store.append(record | {"arrays": arrays})
        assert not store.samples
        (tmp_path / "raw" / "meshes").unlink()
        store.append(record | {"arrays": arrays})
    assert read_samples(tmp_path) == [record]
    assert (tmp_path / "raw" / "meshes" / "000000.safetensors").exists()


def test_bad_requests_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none").mkdir()
    for options, told in [
        (["--n", "0"], "n must be 1 or more"),
        (["--seed", "-1"], "seed must not be negative"),
        (["--meshes", str(tmp_path / "none")], "holds no meshes"),
    ]:
        assert main(["cars", "generate", str(tmp_path / "out"), *options]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert len(error.splitlines()) == 1
    with pytest.raises(IT3Error, match="there is no preset 'fine'"):
        generate(tmp_path / "out", preset="fine")
    assert not (tmp_path / "out").exists()
