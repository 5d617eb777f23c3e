"""Broken meshes made whole: holes capped along their rims, parts united, sheets taken out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import manifold3d
import numpy as np
import trimesh

from it3_aero.cars.loft import Array, Mask
from it3_aero.cars.shape import enclosed
from it3_core import IT3Error

__all__ = ["Part", "boundary_loops", "capped", "parts_of", "united"]

_THIN = 0.002  # of the length: a part that is thinner than this on average is a sheet
_FLAT = 0.08  # of a hole's size: its rim lies in a plane if it strays no further


@dataclass
class Part:
    """A connected piece of a mesh.

    Attributes:
        mesh: the piece.
        caps: its faces that were added, as a truth value for each.
        open_edges: before.
        tangled: edges that more than two faces share.
        largest_hole: diameter of the largest that was capped.
        too_large: diameter of the largest that was left open.
    """

    mesh: trimesh.Trimesh
    caps: Mask
    open_edges: int = 0
    tangled: int = 0
    largest_hole: float = 0.0
    too_large: float = 0.0

    def is_sheet(self, length: float) -> bool:
        """Whether it has no thickness to speak of."""
        return abs(enclosed(self.mesh)) < _THIN * length * float(self.mesh.area) / 2


def parts_of(mesh: trimesh.Trimesh) -> list[trimesh.Trimesh]:
    """The pieces of a mesh that share no edge, largest first, each wound in one sense, outwards.

    Example:
        >>> two = trimesh.creation.box() + trimesh.creation.box().apply_translation([3, 0, 0])
        >>> len(parts_of(two))
        2
    """
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


def boundary_loops(mesh: trimesh.Trimesh) -> list[list[int]]:
    """Rims of a mesh's holes, as vertices in the order in which a cap's faces would go around.

    Example:
        >>> box = trimesh.creation.box()
        >>> box.update_faces(np.arange(12) > 0)
        >>> [len(loop) for loop in boundary_loops(box)]
        [3]
    """
    edges = mesh.edges
    _, where, counts = np.unique(mesh.edges_sorted, axis=0, return_inverse=True, return_counts=True)
    following: defaultdict[int, list[int]] = defaultdict(list)
    for start, end in edges[counts[where.ravel()] == 1].tolist():
        following[end].append(start)  # a cap's face runs the other way
    loops = []
    while following:
        path = [next(iter(following))]
        while True:
            here = path[-1]
            if here not in following:  # a dead end, where the winding is torn
                break
            onwards = following[here].pop()
            if not following[here]:
                del following[here]
            if onwards in path:
                start = path.index(onwards)
                loops.append(path[start:])
                path = path[: start + 1]
                if onwards not in following:
                    break
            else:
                path.append(onwards)
    return [loop for loop in loops if len(loop) > 2]


def capped(piece: trimesh.Trimesh, largest_hole: float) -> Part:
    """A piece with its holes closed, each by a flat cap or by a fan along its rim.

    Args:
        piece: connected, wound in one sense.
        largest_hole: diameter up to which holes are closed; twice that if their rim is flat, as
            where two parts meet.

    Example:
        >>> box = trimesh.creation.box()
        >>> box.update_faces(np.arange(12) > 0)
        >>> part = capped(box, largest_hole=2.0)
        >>> part.mesh.is_volume, part.open_edges
        (True, 3)
    """
    counts = np.unique(piece.edges_sorted, axis=0, return_counts=True)[1]
    part = Part(piece, np.zeros(len(piece.faces), dtype=bool))
    part.open_edges, part.tangled = int((counts == 1).sum()), int((counts > 2).sum())
    vertices, faces = [np.asarray(piece.vertices)], [np.asarray(piece.faces)]
    many = len(piece.vertices)
    for loop in boundary_loops(piece):
        points = np.asarray(piece.vertices)[loop]
        size = float(np.linalg.norm(np.ptp(points, axis=0)))
        if size > largest_hole * (2 if _is_flat(points) else 1):
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


def _is_flat(points: Array) -> bool:
    spread = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    return bool(spread[2] <= _FLAT * spread[0])


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
    """Closed meshes as one body, or as several where they don't touch; largest first.

    Example:
        >>> one = trimesh.creation.box()
        >>> two = trimesh.creation.box().apply_translation([0.5, 0.0, 0.0])
        >>> [round(float(body.volume), 3) for body in united([one, two])]
        [1.5]
    """
    solids = [_solid(mesh) for mesh in meshes]
    whole = manifold3d.Manifold.batch_boolean(solids, manifold3d.OpType.Add)
    bodies = [_mesh(body) for body in whole.decompose()]
    return sorted(bodies, key=lambda body: -float(body.volume))


def _solid(mesh: trimesh.Trimesh) -> manifold3d.Manifold:
    solid = manifold3d.Manifold(
        manifold3d.Mesh(
            vert_properties=np.ascontiguousarray(mesh.vertices, dtype=np.float32),
            tri_verts=np.ascontiguousarray(mesh.faces, dtype=np.uint32),
        )
    )
    if solid.status() != manifold3d.Error.NoError:
        raise IT3Error(f"a part of {len(mesh.faces)} faces can't be made a closed body")
    return solid


def _mesh(solid: manifold3d.Manifold) -> trimesh.Trimesh:
    found = solid.to_mesh()
    vertices = np.asarray(found.vert_properties)[:, :3].astype(float)
    return trimesh.Trimesh(vertices, np.asarray(found.tri_verts), process=True)
