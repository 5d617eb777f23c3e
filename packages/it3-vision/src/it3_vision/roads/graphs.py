"""RoadTracer's graphs: vertices and edges in a text file, drawn as a mask."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error

__all__ = ["WIDTH", "draw_graph", "read_graph"]

WIDTH = 9
"""Pixels of a drawn road, as RoadTracer's own masks have it: 5.4 m at 0.6 m a pixel."""

_SHIFT = 4  # OpenCV's fixed point: a sixteenth of a pixel


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
        width: of a road, in pixels.

    Example:
        >>> mask = draw_graph(np.array([[0.0, 8.0], [15.0, 8.0]]), np.array([[0, 1]]), (0, 0),
        ...                   (16, 16), width=3)
        >>> mask[:, 7].nonzero()[0].tolist()
        [7, 8, 9]
    """
    mask = np.zeros(size, np.uint8)
    here = vertices - np.asarray(corner, np.float64)
    low = here[edges].min(1) if len(edges) else np.zeros((0, 2))
    high = here[edges].max(1) if len(edges) else np.zeros((0, 2))
    near = (high > -width).all(1) & (low[:, 0] < size[1] + width) & (low[:, 1] < size[0] + width)
    for a, b in edges[near]:
        ends = [tuple(int(v) for v in np.rint(here[i] * 2**_SHIFT)) for i in (a, b)]
        cv2.line(mask, ends[0], ends[1], 255, width, cv2.LINE_8, _SHIFT)
    return mask
