"""Any triangulated car, made fit for the solver or turned away, with a verdict in words.

The mesher takes every broken mesh for a good one, and so gives a wrong drag without a sign. What is
let in here is closed, wound outwards, stands on the ground, has a car's size and points the right
way; what was changed for that, or what can't be, the verdict says.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import trimesh
from scipy.spatial import cKDTree

from it3_aero.cars.axes import Placement, place
from it3_aero.cars.crossings import crossing_faces
from it3_aero.cars.loft import Mask
from it3_aero.cars.reading import found_meshes, read_mesh, shown
from it3_aero.cars.repair import Part, capped, parts_of, united
from it3_aero.cars.shape import decimated, enclosed, frontal_area, inside
from it3_aero.cars.verdict import Measures, Options, Verdict
from it3_core import IT3Error

__all__ = ["Measures", "Options", "Verdict", "admitted", "check", "examine", "found_meshes"]

MOST_FACES = 60_000
"""Above this, a mesh is decimated at once."""

_CRUMB = 0.02  # of the area: a part that is tangled, or far off, and smaller is left out
_PANEL = 0.1  # of the area: an open part that is smaller is a panel if it lies on the body
_SCRAP = 0.002  # of the area: a sheet that stands off and is smaller is left out
_LENGTHS = (0.5, 25.0)  # metres of what is taken for a vehicle


def check(path: str | os.PathLike[str], options: Options | None = None) -> Verdict:
    """The verdict on a mesh file. What can't be read is turned away too; nothing is raised.

    Example:
        >>> print(check("/nowhere/car.stl"))
        /nowhere/car.stl: rejected: can't be read: No such file or directory
    """
    path = Path(path)
    options = options or Options()
    try:
        mesh = read_mesh(path)
    except IT3Error as problem:
        told = str(problem).removeprefix(f"{shown(path)}: ")
        return Verdict(str(path), told)
    return examine(mesh, str(path), options, normalised=path.name == "model_normalized.obj")


def admitted(path: str | os.PathLike[str], options: Options | None = None) -> trimesh.Trimesh:
    """The mesh in a file, fit for the solver; `IT3Error` if it is turned away.

    Example:
        >>> admitted("/nowhere/car.stl")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere/car.stl: can't be read: No such file or directory
    """
    return check(path, options).admitted()


def examine(
    mesh: trimesh.Trimesh,
    name: str = "mesh",
    options: Options | None = None,
    normalised: bool = False,
) -> Verdict:
    """The verdict on a mesh.

    Args:
        mesh: as it was read; it is left as it is.
        name: for the verdict.
        options: what is known.
        normalised: it has no unit, as ShapeNet's.

    Example:
        >>> from it3_aero.cars.bodies import make
        >>> car = make("van")
        >>> print(examine(trimesh.Trimesh(car.vertices, car.faces[:2000]), "half").problem)
        a hole of ... m is too large to be capped (...): close it, or give --largest-hole
    """
    verdict = Verdict(name)
    options = options or Options()
    try:
        _judge(mesh, verdict, options, normalised)
    except IT3Error as problem:
        verdict.problem = str(problem)
    return verdict


def _judge(mesh: trimesh.Trimesh, verdict: Verdict, options: Options, normalised: bool) -> None:
    cleaned = _cleaned(mesh, verdict)
    placed, placement = _placed(cleaned, verdict, options, normalised)
    verdict.before, verdict.mesh = _measured(placed), placed
    length = float(placed.extents[0])
    if not _LENGTHS[0] <= length <= _LENGTHS[1]:
        raise IT3Error(f"it is {length:.3g} m long, which no vehicle is: give --unit")
    parts = _closed(placed, verdict, options.largest_hole * length)
    bodies = _bodies([part.mesh for part in parts], verdict)
    verdict.mesh = body = _together(bodies)
    verdict.changed = _new_faces(body, parts)
    body.vertices -= [body.bounds[0][0], 0.0, 0.0]  # if what was foremost has been left out
    verdict.after = _measured(body)
    _sound(body, verdict, options, placement)


def _cleaned(mesh: trimesh.Trimesh, verdict: Verdict) -> trimesh.Trimesh:
    """Numbers only, each vertex once, each face once; not too many of them."""
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
    if len(clean.faces) > MOST_FACES:
        many = len(clean.faces)
        clean = decimated(clean, MOST_FACES // 2)
        verdict.notes.append(f"decimated from {many:,} to {len(clean.faces):,} faces")
    good = clean.unique_faces() & clean.nondegenerate_faces(height=1e-12)
    if not good.all():
        clean.update_faces(good)
        clean.remove_unreferenced_vertices()
        verdict.notes.append(f"{(~good).sum():,} faces left out: of no area, or there twice")
    return clean


def _placed(
    mesh: trimesh.Trimesh, verdict: Verdict, options: Options, normalised: bool
) -> tuple[trimesh.Trimesh, Placement]:
    found = place(mesh, options.up, options.nose, options.unit, options.ground, normalised)
    verdict.notes += found.notes
    verdict.doubts += found.doubts
    return mesh.copy().apply_transform(found.matrix), found


def _closed(mesh: trimesh.Trimesh, verdict: Verdict, largest_hole: float) -> list[Part]:
    """Every part of a mesh that has a body, closed."""
    flipped = int(not mesh.is_winding_consistent) or int(enclosed(mesh) < 0)
    parts = [capped(piece, largest_hole) for piece in parts_of(mesh)]
    if flipped:
        verdict.notes.append("the winding was not outwards everywhere: turned")
    length, area = float(mesh.extents[0]), float(mesh.area)
    kept, sheets, tangled = [], [], 0
    for part in parts:
        share = float(part.mesh.area) / area
        if part.is_sheet(length) or (part.too_large and share < _PANEL):
            sheets.append(part.mesh)
        elif part.tangled:
            if share > _CRUMB:
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
    solid = _together([part.mesh for part in kept])
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
    crossing = sum(int(crossing_faces(mesh).sum()) for mesh in meshes)
    if crossing:
        verdict.notes.append(f"{crossing} faces run through others of the same part")
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


def _together(bodies: list[trimesh.Trimesh]) -> trimesh.Trimesh:
    """Bodies in one mesh."""
    starts = np.cumsum([0, *(len(body.vertices) for body in bodies)])
    faces = [body.faces + start for body, start in zip(bodies, starts, strict=False)]
    vertices = np.concatenate([np.asarray(body.vertices) for body in bodies])
    return trimesh.Trimesh(vertices, np.concatenate(faces), process=False)


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
    counts = np.unique(mesh.edges_sorted, axis=0, return_counts=True)[1]
    length, width, height = map(float, mesh.extents)
    size = (length, width, height)
    return Measures(
        len(mesh.faces), int((counts == 1).sum()), size, enclosed(mesh), frontal_area(mesh)
    )


def _sound(body: trimesh.Trimesh, verdict: Verdict, options: Options, placement: Placement) -> None:
    """Last look: closed, of a car's shape, on the ground."""
    after, before = verdict.after, verdict.before
    if not body.is_volume or after is None or before is None:
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
    foot = _standing_share(body)
    if options.ground is None and foot > 0.4:
        raise IT3Error(
            "it has no wheels and would lie flat on the ground: give --ground, its height in the "
            f"file along {placement.up}"
        )


def _standing_share(body: trimesh.Trimesh) -> float:
    """The share of a body's footprint that touches the ground."""
    low = body.triangles[:, :, 2].max(axis=1) < 0.004 * float(body.extents[0])
    floor = float(body.area_faces[low & (body.face_normals[:, 2] < -0.9)].sum())
    return floor / float(body.extents[0] * body.extents[1])
