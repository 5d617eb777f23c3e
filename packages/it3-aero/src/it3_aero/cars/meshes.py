"""Meshes: what they measure, the same closed body with fewer triangles, broken ones made whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import manifold3d
import numpy as np
import numpy.typing as npt
import trimesh
from scipy.spatial import cKDTree

from it3_core import IT3Error

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_ROWS = 400
_SAMPLES = 100_000
_LOST = 0.15  # of the volume: a mesh that loses more is no longer the same body
_ASYMMETRY = 0.01  # of the length: further than this, something is on one side only


def enclosed(mesh: trimesh.Trimesh) -> float:
    """The volume within a mesh, with its sign (a plain sum where it is not closed)."""
    a, b, c = (np.asarray(mesh.triangles)[:, corner] for corner in range(3))
    return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6)


def edge_counts(mesh: trimesh.Trimesh) -> npt.NDArray[np.int64]:
    """How many faces share each edge."""
    return np.unique(mesh.edges_sorted, axis=0, return_counts=True)[1]


def frontal_area(mesh: trimesh.Trimesh) -> float:
    """The area of a mesh's outline as seen along x, whether it is closed or not.

    The mesh is cut by rows of constant z; in each, what its triangles cover is measured exactly.
    """
    corners = mesh.triangles[:, :, 1:]
    if not len(corners):
        return 0.0
    low, high = corners[:, :, 1].min(axis=1), corners[:, :, 1].max(axis=1)
    edge = (high.max() - low.min()) / _ROWS
    rows = low.min() + edge * (np.arange(_ROWS) + 0.5)
    return float(edge * sum(_covered(corners[(low < row) & (high > row)], row) for row in rows))


def _covered(corners: Array, z: float) -> float:
    """The length of a row that triangles cover; each of them reaches above and below it."""
    if not len(corners):
        return 0.0
    following = np.roll(corners, -1, axis=1)
    rise = following[..., 1] - corners[..., 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = (z - corners[..., 1]) / rise
        y = corners[..., 0] + part * (following[..., 0] - corners[..., 0])
    crosses = (part >= 0) & (part <= 1) & (rise != 0)
    starts = np.where(crosses, y, np.inf).min(axis=1)
    stops = np.where(crosses, y, -np.inf).max(axis=1)
    order = np.argsort(starts)
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    gaps = np.maximum(starts[1:] - stops[:-1], 0.0).sum()
    return float(stops[-1] - starts[0] - gaps)


def inside(mesh: trimesh.Trimesh, points: Array) -> Mask:
    """Which points lie within closed surfaces, by the angle under which they see them."""
    corners = np.asarray(mesh.triangles)
    angles = np.empty(len(points))
    for number, point in enumerate(points):
        a, b, c = np.moveaxis(corners - point, 1, 0)
        x, y, z = (np.linalg.norm(side, axis=1) for side in (a, b, c))
        volume = np.einsum("ij,ij->i", a, np.cross(b, c))
        dots = [np.einsum("ij,ij->i", one, two) for one, two in ((a, b), (b, c), (c, a))]
        below = x * y * z + dots[0] * z + dots[1] * x + dots[2] * y
        angles[number] = 2 * np.arctan2(volume, below).sum()
    return np.asarray(angles > 2 * np.pi)


def is_symmetric(mesh: trimesh.Trimesh) -> bool:
    """Whether a mesh is its own mirror image in y = 0, to a hundredth of its length."""
    points, _ = trimesh.sample.sample_surface(mesh, _SAMPLES, seed=0)
    points = np.concatenate([points, mesh.vertices])
    some = points[:: max(len(points) // 5_000, 1)] * [1.0, -1.0, 1.0]
    distance, _ = cKDTree(points).query(some)
    # Half of the samples' spacing is noise of theirs.
    noise = float(np.sqrt(mesh.area / _SAMPLES))
    return bool(np.quantile(distance, 0.999) < _ASYMMETRY * float(mesh.extents[0]) + noise)


def _as_solid(mesh: trimesh.Trimesh) -> manifold3d.Manifold:
    solid = manifold3d.Manifold(
        manifold3d.Mesh(
            vert_properties=np.ascontiguousarray(mesh.vertices, dtype=np.float32),
            tri_verts=np.ascontiguousarray(mesh.faces, dtype=np.uint32),
        )
    )
    if solid.status() != manifold3d.Error.NoError:
        raise IT3Error(f"a part of {len(mesh.faces)} faces can't be made a closed body")
    return solid


def _as_mesh(solid: manifold3d.Manifold, process: bool = False) -> trimesh.Trimesh:
    found = solid.to_mesh()
    vertices = np.asarray(found.vert_properties)[:, :3].astype(float)
    return trimesh.Trimesh(vertices, np.asarray(found.tri_verts), process=process)


def decimated(mesh: trimesh.Trimesh, nodes: int) -> trimesh.Trimesh:
    """The same closed body with at most so many vertices, which are some of its own."""
    return _as_mesh(_simplified(mesh, nodes))


def remeshed(mesh: trimesh.Trimesh, nodes: int) -> trimesh.Trimesh:
    """About the same closed body with at most so many vertices; as it is, if it has no more.

    A quarter of them cuts the longest edges: flat sides, which need no vertices for their shape,
    have some for their pressure.
    """
    if nodes < 50:
        raise IT3Error(f"a car needs 50 nodes or more, but there are to be {nodes}")
    if len(mesh.vertices) <= nodes:
        return mesh
    fewer = _simplified(mesh, round(0.75 * nodes))
    best, short, long = fewer, 0.0, 2 * float(mesh.extents.max())
    for _ in range(16):
        middle = (short + long) / 2
        found = fewer.refine_to_length(middle)
        if found.num_vert() <= nodes:
            best, long = found, middle
        else:
            short = middle
    return _as_mesh(best)


def _simplified(mesh: trimesh.Trimesh, nodes: int) -> manifold3d.Manifold:
    solid, size = _as_solid(mesh), float(mesh.extents.max())
    fewer, tolerance = solid, 1e-5 * size
    # Step by step: a large tolerance at once takes away edges that carry the shape.
    while fewer.num_vert() > nodes and tolerance < 0.1 * size:
        fewer, tolerance = fewer.simplify(tolerance), 1.1 * tolerance
    lost = abs(fewer.volume() / solid.volume() - 1)
    if fewer.num_vert() > nodes or lost > _LOST:
        raise IT3Error(f"the mesh can't have as few as {nodes} nodes without losing its shape")
    return fewer


_THIN = 0.002  # of the length: a part that is thinner than this on average is a sheet
_FLAT = 0.08  # of a hole's size: its rim lies in a plane if it strays no further


@dataclass
class Part:
    """A connected piece of a mesh."""

    mesh: trimesh.Trimesh  # the piece
    caps: Mask  # its faces that were added, as a truth value for each
    open_edges: int = 0  # before
    tangled: int = 0  # edges that more than two faces share
    largest_hole: float = 0.0  # diameter of the largest that was capped
    too_large: float = 0.0  # diameter of the largest that was left open

    def is_sheet(self, length: float) -> bool:
        """Whether it has no thickness to speak of."""
        return abs(enclosed(self.mesh)) < _THIN * length * float(self.mesh.area) / 2


def parts_of(mesh: trimesh.Trimesh) -> list[trimesh.Trimesh]:
    """The pieces of a mesh that share no edge, largest first, each wound in one sense, outwards."""
    label_all: Any = trimesh.graph.connected_component_labels  # which has no types
    labels = label_all(mesh.face_adjacency, len(mesh.faces))
    wind: Any = trimesh.repair.fix_winding
    pieces = []
    for label in range(labels.max() + 1):
        piece = trimesh.Trimesh(mesh.vertices, mesh.faces[labels == label], process=False)
        piece.remove_unreferenced_vertices()
        wind(piece)
        if enclosed(piece) < 0:
            piece.invert()
        pieces.append(piece)
    return sorted(pieces, key=lambda piece: -float(piece.area))


def _boundary_loops(mesh: trimesh.Trimesh) -> list[list[int]]:
    """Rims of a mesh's holes, as vertices in the order in which a cap's faces would go around."""
    edges = mesh.edges
    _, where, counts = np.unique(mesh.edges_sorted, axis=0, return_inverse=True, return_counts=True)
    following: defaultdict[int, list[int]] = defaultdict(list)
    for start, end in edges[counts[where.ravel()] == 1].tolist():
        following[end].append(start)  # a cap's face runs the other way
    loops = []
    while following:
        path = [next(iter(following))]
        while (here := path[-1]) in following:  # else a dead end, where the winding is torn
            onwards = following[here].pop()
            if not following[here]:
                del following[here]
            if onwards in path:
                start = path.index(onwards)
                loops.append(path[start:])
                path = path[: start + 1]
            else:
                path.append(onwards)
    return [loop for loop in loops if len(loop) > 2]


def capped(piece: trimesh.Trimesh, largest_hole: float) -> Part:
    """A connected piece with its holes closed, each by a flat cap or by a fan along its rim.

    Up to `largest_hole` in diameter; twice that if the rim is flat, as where two parts meet.
    """
    counts = edge_counts(piece)
    part = Part(piece, np.zeros(len(piece.faces), dtype=bool))
    part.open_edges, part.tangled = int((counts == 1).sum()), int((counts > 2).sum())
    vertices, faces = [np.asarray(piece.vertices)], [np.asarray(piece.faces)]
    many = len(piece.vertices)
    for loop in _boundary_loops(piece):
        points = np.asarray(piece.vertices)[loop]
        size = float(np.linalg.norm(np.ptp(points, axis=0)))
        spread = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
        if size > largest_hole * (2 if spread[2] <= _FLAT * spread[0] else 1):
            part.too_large = max(part.too_large, size)
            continue
        part.largest_hole = max(part.largest_hole, size)
        triangles = _cap(points)
        if triangles is None:
            vertices.append(points.mean(axis=0, keepdims=True))
            pairs = zip(loop, [*loop[1:], loop[0]], strict=True)
            faces.append(np.array([[a, b, many] for a, b in pairs]))
            many += 1
        else:
            faces.append(np.array(loop)[triangles])
    whole = np.concatenate(faces)
    part.mesh = trimesh.Trimesh(np.concatenate(vertices), whole, process=False)
    part.caps = np.arange(len(whole)) >= len(piece.faces)
    if enclosed(part.mesh) < 0:
        part.mesh.invert()
    return part


def _cap(points: Array) -> Array | None:
    """Triangles within a rim that is nearly flat, wound as the rim runs; None if that fails."""
    if len(points) == 3:
        return np.array([[0, 1, 2]])
    centred = points - points.mean(axis=0)
    _, spread, axes = np.linalg.svd(centred, full_matrices=False)
    if spread[2] > 0.15 * spread[1]:
        return None
    flat = centred @ axes[:2].T
    x, y = flat.T
    if np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)) < 0:
        flat = flat * [1.0, -1.0]
    try:
        triangles = np.asarray(manifold3d.triangulate([flat]))
    except (RuntimeError, ValueError):
        return None
    return triangles if len(triangles) == len(points) - 2 else None


def united(meshes: Sequence[trimesh.Trimesh]) -> list[trimesh.Trimesh]:
    """Closed meshes as one body, or as several where they don't touch; largest first."""
    solids = [_as_solid(mesh) for mesh in meshes]
    whole = manifold3d.Manifold.batch_boolean(solids, manifold3d.OpType.Add)
    bodies = [_as_mesh(body, process=True) for body in whole.decompose()]
    return sorted(bodies, key=lambda body: -float(body.volume))
