"""Any triangulated car, made fit for the solver or rejected, with the reasons in words.

The mesher takes every broken mesh for a good one, and so gives a wrong drag without a sign. What is
accepted here is closed, wound outwards, stands on the ground, has a car's size and points the right
way; what was changed for that, or what can't be, the verdict says. A file is read alone: whatever
it points to, such as an OBJ's materials and textures, is not opened.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import trimesh
from scipy.spatial import cKDTree

from it3_aero.cars.axes import place
from it3_aero.cars.cli import MeshOptions
from it3_aero.cars.meshes import (
    Mask,
    Part,
    capped,
    decimated,
    edge_counts,
    enclosed,
    frontal_area,
    inside,
    parts_of,
    united,
)
from it3_aero.shapes.options import content
from it3_core import IT3Error
from it3_core.io.typed import printable


class Measures(NamedTuple):
    """A mesh in numbers, in metres."""

    faces: int  # triangles
    open_edges: int  # edges of one triangle only
    size: tuple[float, float, float]  # length, width and height
    volume: float  # enclosed, with its sign; what little it means for a mesh that isn't closed
    frontal_area: float  # outline along x

    def __str__(self) -> str:
        size = " × ".join(f"{side:.3g}" for side in self.size)
        return (
            f"{self.faces:,} faces, {self.open_edges} open edges, {size} m, volume "
            f"{self.volume:.4g} m³, frontal area {self.frontal_area:.4g} m²"
        )


@dataclass(eq=False)
class Verdict:
    """What is said of one mesh."""

    name: str  # of the file
    problem: str | None = None  # why it is rejected
    notes: list[str] = field(default_factory=list)  # what was found and changed, in order
    doubts: list[str] = field(default_factory=list)  # what may be wrong all the same
    before: Measures | None = None  # in the file, brought to metres
    after: Measures | None = None  # of what is accepted
    # what is accepted, or what there was when it was rejected; None without triangles
    mesh: trimesh.Trimesh | None = None
    changed: Mask | None = None  # faces of it that weren't in the file, as a truth value for each

    @property
    def accepted(self) -> bool:
        """Whether it has no problem."""
        return self.problem is None

    def admitted(self) -> trimesh.Trimesh:
        """The mesh, fit for the solver; `IT3Error` if it was rejected."""
        if self.mesh is None or not self.accepted:
            raise IT3Error(f"{printable(self.name)}: {self.problem}")
        return self.mesh

    def __str__(self) -> str:
        head = "accepted" if self.accepted else f"rejected: {self.problem}"
        lines = [f"{printable(self.name)}: {head}"]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  in doubt: {doubt}" for doubt in self.doubts]
        lines += [f"  before: {self.before}"] if self.before else []
        lines += [f"  after:  {self.after}"] if self.after else []
        return "\n".join(lines)


_MOST_FACES = 60_000  # above this, a body is decimated
_CRUMB = 0.02  # of the area: a part that is tangled, or far off, and smaller is left out
_PANEL = 0.1  # of the area: an open part that is smaller is a panel if it lies on the body
_SCRAP = 0.002  # of the area: a sheet that stands off and is smaller is left out
_LENGTHS = (0.5, 25.0)  # metres of what is taken for a vehicle


def check(path: str | os.PathLike[str], options: MeshOptions | None = None) -> Verdict:
    """The verdict on a mesh file. What can't be read is rejected too; nothing is raised."""
    path = Path(path)
    try:
        mesh = read_mesh(path)
    except IT3Error as problem:
        return Verdict(str(path), str(problem))
    return examine(mesh, str(path), options, normalised=path.name == "model_normalized.obj")


def examine(
    mesh: trimesh.Trimesh,
    name: str = "mesh",
    options: MeshOptions | None = None,
    normalised: bool = False,
) -> Verdict:
    """The verdict on a mesh, which is left as it is; `normalised` says that it has no unit."""
    verdict = Verdict(name)
    try:
        _examine(mesh, verdict, options or MeshOptions(), normalised)
    except IT3Error as problem:
        verdict.problem = str(problem)
    return verdict


def _examine(
    mesh: trimesh.Trimesh, verdict: Verdict, options: MeshOptions, normalised: bool
) -> None:
    cleaned = _cleaned(mesh, verdict)
    placement = place(cleaned, options, normalised)
    verdict.notes += placement.notes
    verdict.doubts += placement.doubts
    placed = cleaned.copy().apply_transform(placement.matrix)
    verdict.before, verdict.mesh = _measured(placed), placed
    length = float(placed.extents[0])
    if not _LENGTHS[0] <= length <= _LENGTHS[1]:
        raise IT3Error(f"it is {length:.3g} m long, which no vehicle is: give --unit")
    parts = _closed(placed, verdict, options.largest_hole * length)
    bodies = _bodies([part.mesh for part in parts], verdict)
    verdict.mesh = body = _lighter(_joined(bodies), verdict)
    verdict.changed = _new_faces(body, parts)
    body.vertices -= [body.bounds[0][0], 0.0, 0.0]  # if what was foremost has been left out
    verdict.after = _measured(body)
    _check(body, verdict.before, verdict.after, options, placement.up)


def _cleaned(mesh: trimesh.Trimesh, verdict: Verdict) -> trimesh.Trimesh:
    """Numbers only, each vertex once, each face once."""
    vertices = np.asarray(mesh.vertices, dtype=float)
    if not len(mesh.faces):
        raise IT3Error("the mesh is empty: there are no triangles in it")
    used = vertices[np.unique(mesh.faces)]
    wrong = int((~np.isfinite(used)).any(axis=1).sum())
    if wrong:
        raise IT3Error(f"{wrong} of its vertices are NaN or infinite")
    if np.ptp(used, axis=0).min() == 0:
        raise IT3Error("it is flat: all of its vertices lie in one plane")
    clean = trimesh.Trimesh(vertices, mesh.faces, process=False)
    clean.remove_unreferenced_vertices()
    many = len(clean.vertices)
    clean.merge_vertices(digits_vertex=None)
    if len(clean.vertices) < many:
        verdict.notes.append(f"{many - len(clean.vertices):,} duplicate vertices merged")
    clean = _lighter(clean, verdict)
    good = clean.unique_faces() & clean.nondegenerate_faces(height=1e-12)
    if not good.all():
        clean.update_faces(good)
        clean.remove_unreferenced_vertices()
        verdict.notes.append(f"{(~good).sum():,} faces left out: of no area, or there twice")
    return clean


def _lighter(mesh: trimesh.Trimesh, verdict: Verdict) -> trimesh.Trimesh:
    """With fewer faces if there are too many; an open mesh keeps them until it is closed."""
    if len(mesh.faces) <= _MOST_FACES:
        return mesh
    try:
        fewer = decimated(mesh, _MOST_FACES // 2)
    except IT3Error:
        return mesh
    verdict.notes.append(f"decimated from {len(mesh.faces):,} to {len(fewer.faces):,} faces")
    return fewer


def _closed(mesh: trimesh.Trimesh, verdict: Verdict, largest_hole: float) -> list[Part]:
    """Every part of a mesh that has a body, closed."""
    parts = [capped(piece, largest_hole) for piece in parts_of(mesh)]
    if not mesh.is_winding_consistent or enclosed(mesh) < 0:
        verdict.notes.append("the winding was not outwards everywhere: turned")
    length, area = float(mesh.extents[0]), float(mesh.area)
    kept, sheets, tangled = [], [], 0
    for part in parts:
        fraction = float(part.mesh.area) / area
        if part.is_sheet(length) or (part.too_large and fraction < _PANEL):
            sheets.append(part.mesh)
        elif part.tangled:
            if fraction > _CRUMB:
                raise IT3Error(
                    f"{part.tangled} edges of one part are shared by more than two faces: "
                    "there is no telling what is inside"
                )
            tangled += 1
        elif part.too_large:
            raise IT3Error(
                f"a hole of {part.too_large:.3g} m is too large to be capped "
                f"({largest_hole:.3g} m at most): close it, or give --largest-hole"
            )
        elif not part.mesh.is_watertight:
            raise IT3Error("its holes can't be capped: their rims are torn")
        else:
            kept.append(part)
    if tangled:
        verdict.notes.append(f"{tangled} small parts left out: their edges are tangled")
    _without(sheets, kept, verdict, area)
    holes = [part for part in kept if part.caps.any()]
    if holes:
        edges, largest = sum(p.open_edges for p in holes), max(p.largest_hole for p in holes)
        verdict.notes.append(f"holes capped: {edges} open edges, the largest {largest:.3g} m wide")
    if not kept:
        raise IT3Error("nothing of it has a body")
    return kept


def _without(
    sheets: list[trimesh.Trimesh], kept: list[Part], verdict: Verdict, area: float
) -> None:
    """Leave out sheets that are small, or lie on or in a body, such as windows and seats."""
    if not sheets or not kept:
        return
    solid = _joined([part.mesh for part in kept])
    points = trimesh.sample.sample_surface(solid, 50_000, seed=0)[0]
    tree = cKDTree(np.concatenate([points, solid.vertices]))
    reach = 0.01 * float(solid.extents[0])
    for sheet in sheets:
        some = np.asarray(trimesh.sample.sample_surface(sheet, 200, seed=0)[0])
        off = float(np.mean((tree.query(some)[0] > reach) & ~inside(solid, some)))
        if off > 0.1 and float(sheet.area) > _SCRAP * area:
            raise IT3Error(
                f"a sheet of {sheet.area:.3g} m² stands off the body and has no thickness, on "
                "which there can be no cells: give it some"
            )
    verdict.notes.append(f"{len(sheets)} open sheets left out")


def _bodies(meshes: list[trimesh.Trimesh], verdict: Verdict) -> list[trimesh.Trimesh]:
    """The parts united; what is far off is left out if it is small, and refused if it isn't."""
    bodies = united(meshes)
    if len(meshes) > 1:
        verdict.notes.append(f"{len(meshes)} parts united to {len(bodies)}")
    kept, others = bodies[:1], bodies[1:]
    margin = 0.03 * float(bodies[0].extents[0])
    while near := [body for body in others if any(_meets(body, one, margin) for one in kept)]:
        kept += near
        others = [body for body in others if all(body is not one for one in near)]
    for body in others:
        if float(body.area) > _CRUMB * float(bodies[0].area):
            raise IT3Error(
                f"a part of {body.volume:.3g} m³ floats apart from the rest: take it away"
            )
        verdict.notes.append("a small part that floats far off left out")
    return kept


def _meets(one: trimesh.Trimesh, other: trimesh.Trimesh, margin: float) -> bool:
    """Whether boxes about two bodies meet, but for a margin."""
    above = (one.bounds[0] < other.bounds[1] + margin).all()
    return bool(above and (one.bounds[1] > other.bounds[0] - margin).all())


def _joined(bodies: list[trimesh.Trimesh]) -> trimesh.Trimesh:
    """Bodies in one mesh."""
    meshes = [(body.vertices, body.faces) for body in bodies]
    return trimesh.Trimesh(*trimesh.util.append_faces(*zip(*meshes, strict=True)), process=False)


def _new_faces(body: trimesh.Trimesh, parts: list[Part]) -> Mask:
    """Faces that lie on a cap."""
    caps = [np.asarray(part.mesh.triangles)[part.caps] for part in parts if part.caps.any()]
    if not caps:
        return np.zeros(len(body.faces), dtype=bool)
    corners = np.concatenate(caps)
    faces = np.arange(3 * len(corners)).reshape(-1, 3)
    flat = trimesh.Trimesh(corners.reshape(-1, 3), faces, process=False)
    many = max(2000, 20 * len(faces))
    points = trimesh.sample.sample_surface(flat, min(many, 100_000), seed=0)[0]
    points = np.concatenate([points, flat.triangles_center])
    reach = 0.003 * float(body.extents[0])
    distance, _ = cKDTree(points).query(body.triangles_center)
    return np.asarray(distance < reach)


def _measured(mesh: trimesh.Trimesh) -> Measures:
    length, width, height = map(float, mesh.extents)
    open_edges = int((edge_counts(mesh) == 1).sum())
    size = (length, width, height)
    return Measures(len(mesh.faces), open_edges, size, enclosed(mesh), frontal_area(mesh))


def _check(
    body: trimesh.Trimesh, before: Measures, after: Measures, options: MeshOptions, up: str
) -> None:
    """Last look: closed, of a car's shape, on the ground."""
    if not body.is_volume:
        raise IT3Error("it can't be made a closed body")
    length, width, height = after.size
    if not (0.15 <= width / length <= 1.0 and 0.1 <= height / length <= 1.0):
        sides = f"{length:.3g} × {width:.3g} × {height:.3g} m"
        raise IT3Error(f"{sides} is not the shape of a vehicle: give --up and --nose")
    if abs(after.frontal_area / before.frontal_area - 1) > 0.05:
        raise IT3Error(
            f"repairs would change its frontal area from {before.frontal_area:.4g} to "
            f"{after.frontal_area:.4g} m²: mend it by hand"
        )
    fill = after.volume / (length * width * height)
    if fill < 0.15:
        raise IT3Error(f"it fills {100 * fill:.0f} % of its box: it is a shell, not a body")
    low = float(body.bounds[0][2])
    if low < -0.01 * length:
        raise IT3Error(f"{-low:.3g} m of it are below the ground: give another --ground")
    if low > 0.1 * length:
        raise IT3Error(f"it floats {low:.3g} m above the ground: give another --ground")
    on_ground = body.triangles[:, :, 2].max(axis=1) < 0.004 * length
    floor = float(body.area_faces[on_ground & (body.face_normals[:, 2] < -0.9)].sum())
    if options.ground is None and floor > 0.4 * length * width:
        raise IT3Error(
            "it has no wheels and would lie flat on the ground: give --ground, its height in the "
            f"file along {up}"
        )


FORMATS = ("stl", "obj", "ply", "off", "glb", "dae")

_LARGEST = 500_000_000  # bytes of a mesh file
_ARCHIVES = {b"PK\x03\x04": "a zip file", b"\x1f\x8b": "a gzip file", b"7z\xbc\xaf": "a 7z file"}


def found_meshes(given: str | os.PathLike[str]) -> Sequence[Path]:
    """The mesh files at a path: one file, or all in a folder and below, by name.

    Of ShapeNet's `SYNSET/ID/models/`, that is `model_normalized.obj`.
    """
    path = Path(given)
    if not path.is_dir():
        return [path]
    files = [
        file
        for file in sorted(path.resolve().rglob("*"))
        if file.suffix.lower().lstrip(".") in FORMATS and file.is_file()
    ]
    normalized = {file.parent for file in files if file.name == "model_normalized.obj"}
    files = [p for p in files if p.parent not in normalized or p.name == "model_normalized.obj"]
    if not files:
        raise IT3Error(f"{printable(path)} holds no meshes: {', '.join(FORMATS)}")
    return files


def read_mesh(path: Path) -> trimesh.Trimesh:
    """The triangles in a mesh file, as they are, in one mesh."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise IT3Error(f".{printable(kind)} is no mesh format known here: {', '.join(FORMATS)}")
    found = content(path, _LARGEST)
    for head, archive in _ARCHIVES.items():
        if found.startswith(head):
            raise IT3Error(f"this is {archive}, not a mesh: unpack it first")
    # Without a resolver, a loader has no way to open another file.
    options: dict[str, Any] = {"skip_materials": True} if kind == "obj" else {}
    try:
        scene = trimesh.load_scene(io.BytesIO(found), file_type=kind, process=False, **options)
        mesh = scene.to_mesh()
    except MemoryError:
        raise IT3Error("there is not enough memory to read it") from None
    except Exception as problem:  # a parser's, of which there are many
        reason = str(problem).splitlines()[0][:120] if str(problem) else type(problem).__name__
        raise IT3Error(f"this can't be read as {kind.upper()}: {printable(reason)}") from None
    if not len(mesh.faces):
        raise IT3Error("the mesh is empty: there are no triangles in it")
    return trimesh.Trimesh(np.asarray(mesh.vertices, dtype=float), mesh.faces, process=False)
