"""Faces of a mesh that run through others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import trimesh
from scipy.spatial import cKDTree

from it3_aero.cars.loft import Array, Mask

__all__ = ["crossing_faces"]

_MOST_FACES = 20_000  # a report on more than this would take longer than it is worth
_MOST_PAIRS = 3_000_000


def crossing_faces(mesh: trimesh.Trimesh) -> Mask:
    """Which faces are run through by an edge of another, as a truth value for each.

    Example:
        >>> one = trimesh.creation.box()
        >>> two = trimesh.creation.box().apply_translation([0.5, 0.3, 0.2])
        >>> bool(crossing_faces(one).any()), bool(crossing_faces(one + two).any())
        (False, True)
    """
    found = np.zeros(len(mesh.faces), dtype=bool)
    if not 1 < len(mesh.faces) <= _MOST_FACES:
        return found
    edges = mesh.vertices[mesh.edges_unique]
    pairs = _near(edges, np.asarray(mesh.triangles))
    own = (mesh.faces[pairs[:, 1]][:, :, None] == mesh.edges_unique[pairs[:, 0]][:, None, :]).any(
        axis=(1, 2)
    )
    pairs = pairs[~own]
    through = _through(edges[pairs[:, 0]], np.asarray(mesh.triangles)[pairs[:, 1]])
    found[pairs[through, 1]] = True
    return found


def _near(edges: Array, triangles: Array) -> npt.NDArray[np.int64]:
    """Pairs of edge and face whose boxes meet, of those whose middles are close enough."""
    middles, centres = edges.mean(axis=1), triangles.mean(axis=1)
    reach = np.linalg.norm(triangles - centres[:, None], axis=2).max(axis=1)
    half = np.linalg.norm(edges[:, 1] - edges[:, 0], axis=1) / 2
    lists = cKDTree(middles).query_ball_point(centres, reach + float(half.max()))
    counts = np.array([len(found) for found in lists])
    if counts.sum() > _MOST_PAIRS:
        return np.empty((0, 2), dtype=np.int64)
    first = np.concatenate([np.asarray(found, dtype=int) for found in lists])
    second = np.repeat(np.arange(len(triangles)), counts)
    low = np.maximum(edges.min(axis=1)[first], triangles.min(axis=1)[second])
    high = np.minimum(edges.max(axis=1)[first], triangles.max(axis=1)[second])
    meet = np.flatnonzero((low <= high).all(axis=1))
    return np.column_stack([first[meet], second[meet]])


def _through(edges: Array, triangles: Array) -> Mask:
    """Whether edges pierce triangles (Möller and Trumbore)."""
    start, way = edges[:, 0], edges[:, 1] - edges[:, 0]
    one, two = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    across = np.cross(way, two)
    volume = np.einsum("ij,ij->i", one, across)
    with np.errstate(divide="ignore", invalid="ignore"):
        from_corner = start - triangles[:, 0]
        u = np.einsum("ij,ij->i", from_corner, across) / volume
        sideways = np.cross(from_corner, one)
        v = np.einsum("ij,ij->i", way, sideways) / volume
        along = np.einsum("ij,ij->i", two, sideways) / volume
        small = 1e-6
        inside = (u > small) & (v > small) & (u + v < 1 - small)
    return np.asarray(inside & (along > small) & (along < 1 - small) & (volume != 0))
