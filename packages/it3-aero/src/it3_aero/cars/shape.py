"""What a mesh measures: frontal area, symmetry, and the same shape with fewer triangles."""

from __future__ import annotations

from threading import Lock

import numpy as np
import trimesh
from scipy.spatial import cKDTree

from it3_aero.cars.loft import Array, Mask
from it3_core import IT3Error

__all__ = ["decimated", "enclosed", "frontal_area", "inside", "is_symmetric"]

_ROWS = 400
_SAMPLES = 100_000
_ALONE = Lock()  # fast_simplification holds the mesh it works on in variables of the process
_ASYMMETRY = 0.01  # of the length: further than this, something is on one side only


def enclosed(mesh: trimesh.Trimesh) -> float:
    """The volume within a mesh, with its sign; for one that isn't closed, what a sum makes of it.

    Example:
        >>> round(enclosed(trimesh.creation.box((4.0, 2.0, 1.5))), 6)
        12.0
    """
    a, b, c = (np.asarray(mesh.triangles)[:, corner] for corner in range(3))
    return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6)


def frontal_area(mesh: trimesh.Trimesh) -> float:
    """The area of a mesh's outline as seen along x, whether it is closed or not.

    The mesh is cut by rows of constant z; in each, what its triangles cover is measured exactly.

    Example:
        >>> round(frontal_area(trimesh.creation.box((4.0, 2.0, 1.5))), 3)
        3.0
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
        share = (z - corners[..., 1]) / rise
        y = corners[..., 0] + share * (following[..., 0] - corners[..., 0])
    crosses = (share >= 0) & (share <= 1) & (rise != 0)
    starts = np.where(crosses, y, np.inf).min(axis=1)
    stops = np.where(crosses, y, -np.inf).max(axis=1)
    order = np.argsort(starts)
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    gaps = np.maximum(starts[1:] - stops[:-1], 0.0).sum()
    return float(stops[-1] - starts[0] - gaps)


def inside(mesh: trimesh.Trimesh, points: Array) -> Mask:
    """Which points lie within closed surfaces, by the angle under which they see them.

    Example:
        >>> inside(trimesh.creation.box(), np.array([[0.1, 0.2, 0.0], [0.9, 0.0, 0.0]])).tolist()
        [True, False]
    """
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
    """Whether a mesh is its own mirror image in y = 0, to a hundredth of its length.

    Example:
        >>> from it3_aero.cars.bodies import make
        >>> body = make("sedan")
        >>> is_symmetric(body), is_symmetric(body.apply_translation([0.0, 0.1, 0.0]))
        (True, False)
    """
    points, _ = trimesh.sample.sample_surface(mesh, _SAMPLES, seed=0)
    points = np.concatenate([points, mesh.vertices])
    some = points[:: max(len(points) // 5_000, 1)] * [1.0, -1.0, 1.0]
    distance, _ = cKDTree(points).query(some)
    # Half of the samples' spacing is noise of theirs.
    noise = float(np.sqrt(mesh.area / _SAMPLES))
    return bool(np.quantile(distance, 0.999) < _ASYMMETRY * float(mesh.extents[0]) + noise)


def decimated(mesh: trimesh.Trimesh, nodes: int) -> trimesh.Trimesh:
    """About the same shape with at most so many vertices; as it is, if it has no more.

    Example:
        >>> from it3_aero.cars.bodies import make
        >>> len(decimated(make("sedan"), 1000).vertices) <= 1000
        True
    """
    import fast_simplification

    if nodes < 50:
        raise IT3Error(f"a car needs 50 nodes or more, but there are to be {nodes}")
    if len(mesh.vertices) <= nodes:
        return mesh
    vertices, faces = np.asarray(mesh.vertices), np.asarray(mesh.faces)
    target = 2 * nodes  # triangles of a closed surface
    for _ in range(8):
        with _ALONE:
            points, triangles = fast_simplification.simplify(
                vertices.astype(np.float32), faces.astype(np.int32), target_count=target
            )
        fewer = trimesh.Trimesh(points, triangles, process=True)
        if len(fewer.vertices) <= nodes:
            return fewer
        target = int(target * 0.97 * nodes / len(fewer.vertices))
    raise IT3Error(f"the mesh can't be brought down to {nodes} nodes: it has many small parts")
