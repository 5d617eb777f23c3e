"""RoadTracer's graphs: vertices and edges in a text file, drawn as a mask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error

__all__ = ["WIDTH", "draw_graph", "read_graph"]

WIDTH = 9
"""Pixels of a drawn road, as RoadTracer's own masks have it: 5.4 m at 0.6 m a pixel."""


def read_graph(path: str | os.PathLike[str]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Vertices (n, 2) as x and y in pixels of the region, and edges (m, 2) between them.

    The file has a line `x y` for each vertex, an empty line, and a line `i j` for each edge.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "boston.graph")
        >>> _ = file.write_text("0 0\\n50 10\\n\\n0 1\\n1 0\\n")
        >>> vertices, edges = read_graph(file)
        >>> vertices.shape, edges.tolist()
        ((2, 2), [[0, 1]])
    """
    try:
        text = Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as problem:
        raise IT3Error(f"{path} can't be read as a road graph: {problem}") from problem
    above, _, below = text.replace("\r", "").partition("\n\n")
    try:
        vertices = np.array([_pair(line, float) for line in above.splitlines() if line.strip()])
        edges = {
            (min(a, b), max(a, b))
            for a, b in (_pair(line, int) for line in below.splitlines() if line.strip())
        }
    except ValueError as problem:
        raise IT3Error(
            f"{path} is no road graph ({problem}): lines of x and y, an empty line, then lines of "
            f"two vertex numbers"
        ) from problem
    found = np.array(sorted(edges), np.int64).reshape(-1, 2)
    if found.size and (found.min() < 0 or found.max() >= len(vertices)):
        raise IT3Error(f"{path}: an edge names vertex {found.max()}, but there are {len(vertices)}")
    if not np.isfinite(vertices).all() or np.abs(vertices).max(initial=0) > 1e7:
        raise IT3Error(f"{path} has a vertex that is nowhere: coordinates are pixels")
    return vertices.reshape(-1, 2), found


def _pair(line: str, kind: type[float] | type[int]) -> tuple[float, float]:
    first, second = line.split()
    return kind(first), kind(second)


def draw_graph(
    vertices: NDArray[np.float64],
    edges: NDArray[np.int64],
    corner: tuple[float, float],
    size: tuple[int, int],
    width: int = WIDTH,
) -> NDArray[np.uint8]:
    """The part of a graph that lies in a window, as a mask of 0 and 255.

    Args:
        vertices: x and y.
        edges: pairs of vertices.
        corner: x and y of the window's upper left.
        size: its height and width.
        width: of a road, in pixels; odd.

    Example:
        >>> mask = draw_graph(np.array([[0.0, 8.0], [15.0, 8.0]]), np.array([[0, 1]]), (0, 0),
        ...                   (16, 16), width=3)
        >>> mask[:, 7].nonzero()[0].tolist()
        [7, 8, 9]
    """
    # Lines one pixel wide, then every pixel within the radius: OpenCV's own wide lines are wider.
    radius = width // 2
    mask: NDArray[Any] = np.zeros((size[0] + 2 * radius, size[1] + 2 * radius), np.uint8)
    here = vertices - np.asarray(corner, np.float64) + radius
    low = here[edges].min(1) if len(edges) else np.zeros((0, 2))
    high = here[edges].max(1) if len(edges) else np.zeros((0, 2))
    near = (high >= 0).all(1) & (low < np.array(mask.shape[::-1])).all(1)
    for a, b in edges[near]:
        ends = [tuple(int(v) for v in np.rint(here[i])) for i in (a, b)]
        cv2.line(mask, ends[0], ends[1], 255, 1)
    y, x = np.indices((2 * radius + 1, 2 * radius + 1)) - radius
    disc = (y**2 + x**2 <= radius**2).astype(np.uint8)
    drawn = cv2.dilate(mask, disc)
    return np.asarray(drawn[radius : radius + size[0], radius : radius + size[1]], np.uint8)
