"""Hostile meshes: whatever is let in is the car that it should be, and the rest is turned away."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trimesh

from it3_aero.__main__ import main
from it3_aero.cars.bodies import ahmed, make
from it3_aero.cars.cli import MeshOptions
from it3_aero.cars.intake import check, examine, found_meshes

Change = Callable[[trimesh.Trimesh], trimesh.Trimesh]


def only(mesh: trimesh.Trimesh, faces: np.ndarray) -> trimesh.Trimesh:
    return trimesh.Trimesh(mesh.vertices, mesh.faces[faces], process=False)


def turned(mesh: trimesh.Trimesh, which: np.ndarray) -> trimesh.Trimesh:
    faces = mesh.faces.copy()
    faces[which] = faces[which][:, ::-1]
    return trimesh.Trimesh(mesh.vertices, faces, process=False)


def without_a_patch(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    return only(mesh, np.linalg.norm(mesh.triangles_center - [1.0, 0.0, 0.9], axis=1) > 0.35)


def soup(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    faces = np.arange(3 * len(mesh.faces)).reshape(-1, 3)
    return trimesh.Trimesh(mesh.triangles.reshape(-1, 3), faces, process=False)


def is_floor(mesh: trimesh.Trimesh) -> np.ndarray:
    low: np.ndarray = (mesh.triangles_center[:, 2] < 0.3) & (mesh.face_normals[:, 2] < -0.9)
    return low


Y_UP = trimesh.transformations.rotation_matrix(-np.pi / 2, [1, 0, 0])
SHEET = trimesh.Trimesh(
    [[4.0, -0.8, 1.5], [4.6, -0.8, 1.5], [4.6, 0.8, 1.5], [4.0, 0.8, 1.5]],
    [[0, 1, 2], [0, 2, 3]],
    process=False,
)
BLOCK = trimesh.creation.box((1.0, 1.0, 1.0)).apply_translation([2.0, 0.0, 3.0])
FEWER = np.random.default_rng(0)

# What a look at each says must happen: mended to the very car, or turned away with this reason.
BROKEN: dict[str, tuple[Change, str | None]] = {
    "missing share": (lambda m: only(m, FEWER.random(len(m.faces)) > 0.05), None),
    "without a patch": (without_a_patch, None),
    "without roof": (lambda m: only(m, m.triangles_center[:, 2] < 1.0), "too large to be capped"),
    "without floor": (lambda m: only(m, ~is_floor(m)), "too large to be capped"),
    "half flipped": (lambda m: turned(m, m.triangles_center[:, 0] > 2.0), None),
    "inside out": (lambda m: turned(m, m.triangles_center[:, 0] > -1.0), None),
    "in millimetres": (lambda m: m.copy().apply_scale(1000.0), None),
    "y up": (lambda m: m.copy().apply_transform(Y_UP), None),
    "floating": (lambda m: m.copy().apply_translation([3.0, 1.0, 2.0]), None),
    "with a sheet": (lambda m: m + SHEET, "has no thickness"),
    "with a part far off": (lambda m: m + BLOCK, "floats apart from the rest"),
    "as a soup": (soup, None),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_no_broken_mesh_gives_a_silent_wrong_drag(broken: str, sedan: trimesh.Trimesh) -> None:
    good = examine(sedan)
    assert good.after is not None
    change, reason = BROKEN[broken]
    verdict = examine(change(sedan))
    if reason is not None:
        assert reason in (verdict.problem or "")
        return
    assert verdict.accepted, verdict
    assert verdict.mesh.is_volume
    # The same car, in the same place: so the same drag.
    np.testing.assert_allclose(verdict.after.size, good.after.size, rtol=0.002)
    assert verdict.after.volume == pytest.approx(good.after.volume, rel=0.005)
    assert verdict.after.frontal_area == pytest.approx(good.after.frontal_area, rel=0.005)
    np.testing.assert_allclose(verdict.mesh.bounds, good.mesh.bounds, atol=0.01)
    np.testing.assert_allclose(verdict.mesh.centroid, good.mesh.centroid, atol=0.02)
    assert verdict.notes, "what was mended is said"


def test_a_nose_to_the_right_is_turned(sedan: trimesh.Trimesh) -> None:
    back = sedan.copy().apply_transform(trimesh.transformations.rotation_matrix(np.pi, [0, 0, 1]))
    verdict = examine(back)
    assert "the nose points to x" in verdict.notes
    np.testing.assert_allclose(verdict.mesh.centroid, sedan.centroid, atol=0.02)
    given = examine(back, options=MeshOptions(nose="-x", up="z"))
    assert abs(given.mesh.centroid[0] - sedan.centroid[0]) > 0.05


def test_a_body_without_wheels_needs_its_ground() -> None:
    body = ahmed()
    verdict = examine(body)
    assert verdict.problem is not None
    assert "give --ground" in verdict.problem
    assert examine(body, options=MeshOptions(ground=0.0, up="z", nose="-x")).accepted


def test_files_of_every_format(sedan: trimesh.Trimesh, tmp_path: Path) -> None:
    folder = tmp_path / "Autos für alle 車"
    folder.mkdir()
    for kind in ("stl", "obj", "ply", "off", "glb", "dae"):
        content = sedan.export(file_type=kind)
        data = content if isinstance(content, bytes) else content.encode()
        (folder / f"mein Auto é {kind}.{kind}").write_bytes(data)
    found = found_meshes(folder)
    assert len(found) == 6
    for path in found:
        verdict = check(path)
        assert verdict.accepted, verdict
        assert verdict.after.volume == pytest.approx(float(sedan.volume), rel=0.01), path.suffix


def test_shapenet_s_layout(tmp_path: Path, sedan: trimesh.Trimesh) -> None:
    models = tmp_path / "02958343" / "abc" / "models"
    models.mkdir(parents=True)
    size = 1 / np.linalg.norm(sedan.extents)
    unit = sedan.copy().apply_transform(Y_UP).apply_scale(size)
    (models / "model_normalized.obj").write_text(unit.export(file_type="obj"))
    (models / "model_normalized.solid.ply").write_bytes(unit.export(file_type="ply"))
    (found,) = found_meshes(tmp_path)
    verdict = check(found)
    assert verdict.accepted, verdict
    assert verdict.after.size[0] == pytest.approx(4.5, rel=0.01)
    assert "it has no unit: made 4.5 m long" in verdict.notes


def test_files_that_are_no_mesh(
    tmp_path: Path, sedan: trimesh.Trimesh, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = sedan.copy()
    bad.vertices[5] = np.nan
    for name, content, reason in (
        ("empty.stl", b"", "the file is empty"),
        ("nothing.obj", b"# no triangles\n", "no triangles"),
        ("text.ply", b"this is no mesh", "can't be read as PLY"),
        ("image.dae", b"\x89PNG\r\n", "can't be read as DAE"),
        ("zipped.obj", b"PK\x03\x04...", "this is a zip file, not a mesh: unpack it first"),
        ("nan.obj", bad.export(file_type="obj").encode(), "NaN"),
        ("missing.stl", None, "No such file"),
        ("car.step", None, "no mesh format known here"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        problem = check(tmp_path / name).problem
        assert problem is not None, name
        assert reason in problem
        assert "\n" not in problem
    assert main(["cars", "check", str(tmp_path / "zipped.obj")]) == 2
    assert "rejected: this is a zip file" in capsys.readouterr().out
    assert main(["cars", "check", str(tmp_path / "nan.obj"), "--up", "w"]) == 2


def test_materials_are_not_opened(tmp_path: Path, sedan: trimesh.Trimesh) -> None:
    secret = tmp_path / "outside" / "secret.mtl"
    secret.parent.mkdir()
    os.mkfifo(secret)  # opening it would wait for ever
    folder = tmp_path / "meshes"
    folder.mkdir()
    text = sedan.export(file_type="obj")
    (folder / "car.obj").write_text(f"mtllib ../outside/secret.mtl\nusemtl x\n{text}")
    assert check(folder / "car.obj").accepted


def test_a_million_faces(tmp_path: Path) -> None:
    car = make("van")
    vertices, faces = trimesh.remesh.subdivide_loop(car.vertices, car.faces, iterations=4)
    assert len(faces) > 1_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verdict = examine(trimesh.Trimesh(vertices, faces, process=False))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert verdict.accepted, verdict
    assert any(note.startswith("decimated from 1,") for note in verdict.notes)
    assert len(verdict.mesh.faces) < 70_000
    assert grown < 1500
    assert verdict.after.volume == pytest.approx(verdict.before.volume, rel=0.01)


def test_check_says_it_and_paints_it(
    sedan: trimesh.Trimesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mein Auto.stl"
    path.write_bytes(without_a_patch(sedan).export(file_type="stl"))
    assert main(["cars", "check", str(path), "--out", str(tmp_path / "pictures")]) == 0
    told = capsys.readouterr().out
    for part in ("accepted", "holes capped", "before: ", "after: ", "1 of 1 accepted"):
        assert part in told
    assert (tmp_path / "pictures" / "mein Auto.png").read_bytes().startswith(b"\x89PNG")
