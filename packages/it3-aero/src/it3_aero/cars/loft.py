"""Closed bodies stretched over sections: rings of points along x, with capped ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import trimesh

__all__ = ["Array", "Mask", "loft", "rectangle", "superellipse"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_CAP_RINGS = 4  # towards the middle of an end, so that its triangles are no splinters


def superellipse(
    half_width: float, low: float, high: float, exponent: float, points: int = 20
) -> Array:
    """Half a section, from the middle of its floor to the middle of its roof: y and z.

    Args:
        half_width: largest y.
        low: z of the floor.
        high: z of the roof.
        exponent: 2 is an ellipse; the larger, the more of a rectangle.
        points: how many, evenly along the outline.

    Example:
        >>> superellipse(1.0, 0.0, 2.0, exponent=2.0, points=3).round(6).tolist()
        [[0.0, 0.0], [1.0, 1.0], [0.0, 2.0]]
    """
    angle = np.linspace(-np.pi / 2, np.pi / 2, 801)
    y = half_width * np.abs(np.cos(angle)) ** (2 / exponent)
    z = np.sign(np.sin(angle)) * np.abs(np.sin(angle)) ** (2 / exponent)
    y[[0, -1]] = 0.0
    return _evenly(np.column_stack([y, (low + high) / 2 + (high - low) / 2 * z]), points)


def rectangle(half_width: float, low: float, high: float, points: int = 20) -> Array:
    """Half of a rectangular section with its corners, from the middle of the floor: y and z.

    Example:
        >>> rectangle(1.0, 0.0, 2.0, points=5).tolist()
        [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 2.0], [0.0, 2.0]]
    """
    corners = np.array([[0, low], [half_width, low], [half_width, high], [0, high]])
    across = max((points - 1) // 4, 1)
    counts = (across, points - 1 - 2 * across, across)
    sides = [
        start + (end - start) * np.linspace(0, 1, count, endpoint=False)[:, None]
        for start, end, count in zip(corners[:-1], corners[1:], counts, strict=True)
    ]
    return np.concatenate([*sides, corners[-1:]])


def loft(x: Sequence[float] | Array, halves: Sequence[Array]) -> trimesh.Trimesh:
    """The closed, mirror-symmetric body through sections, its ends capped flat.

    Args:
        x: where the sections stand, rising.
        halves: each the half of a section with y ≥ 0, all of the same number of points, from the
            middle of the floor to the middle of the roof.

    Example:
        >>> box = loft([0.0, 3.0], [rectangle(1.0, 0.0, 1.0)] * 2)
        >>> box.is_volume, round(float(box.volume), 6)
        (True, 6.0)
    """
    rings = [_ring(at, half) for at, half in zip(x, halves, strict=True)]
    inwards = np.linspace(1, 0, _CAP_RINGS + 1)[1:-1]
    middles = [rings[0].mean(axis=0), rings[-1].mean(axis=0)]
    front = [middles[0] + share * (rings[0] - middles[0]) for share in inwards[::-1]]
    rear = [middles[1] + share * (rings[-1] - middles[1]) for share in inwards]
    rings = [*front, *rings, *rear]
    around, many = len(rings[0]), len(rings)
    one = np.arange(around)
    two = (one + 1) % around
    faces = []
    for ring in range(many - 1):
        a, b = ring * around + one, ring * around + two
        faces += [np.column_stack([a, b, b + around]), np.column_stack([a, b + around, a + around])]
    last = (many - 1) * around
    faces += [np.column_stack([np.full(around, many * around), two, one])]
    faces += [np.column_stack([np.full(around, many * around + 1), last + one, last + two])]
    vertices = np.concatenate([*rings, np.array(middles)])
    body = trimesh.Trimesh(vertices, np.concatenate(faces), process=False)
    if body.volume < 0:
        body.invert()
    return body


def _ring(x: float, half: Array) -> Array:
    """A whole section in space; its first and last points lie in the plane of symmetry."""
    other = half[-2:0:-1] * [-1.0, 1.0]
    ring = np.concatenate([half, other])
    return np.column_stack([np.full(len(ring), x), ring])


def _evenly(line: Array, points: int) -> Array:
    """A line of as many points, evenly spaced along it."""
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=1))])
    where = np.linspace(0.0, along[-1], points)
    return np.column_stack([np.interp(where, along, column) for column in line.T])
