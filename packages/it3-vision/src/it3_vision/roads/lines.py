"""Centre lines: a mask thinned to a skeleton, traced into lines, simplified."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

__all__ = ["centre_lines", "thinned"]

_AROUND = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))  # clockwise

Line = NDArray[np.float64]


def thinned(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """The skeleton of a mask, one pixel wide and as connected as the mask (Zhang and Suen 1984).

    Example:
        >>> mask = np.zeros((7, 12), bool)
        >>> mask[2:5, 1:11] = True  # a bar, three pixels wide
        >>> int(thinned(mask).sum(0).max())
        1
    """
    here = np.pad(np.asarray(mask, bool), 1)
    while True:
        before = int(here.sum())
        for first in (True, False):
            p = [np.roll(here, (-dy, -dx), (0, 1)) for dy, dx in _AROUND]
            number = sum(part.astype(np.int8) for part in p)
            turns = sum((~a & b).astype(np.int8) for a, b in zip(p, [*p[1:], p[0]], strict=True))
            north, east, south, west = p[0], p[2], p[4], p[6]
            if first:
                open_side = ~(north & east & south) & ~(east & south & west)
            else:
                open_side = ~(north & east & west) & ~(north & south & west)
            here &= ~((number >= 2) & (number <= 6) & (turns == 1) & open_side)
        if int(here.sum()) == before:
            return here[1:-1, 1:-1]


def centre_lines(mask: NDArray[Any], least: float = 10.0, tolerance: float = 1.0) -> list[Line]:
    """The centre lines of a mask's roads, from junction to junction, as x and y in pixels.

    A pixel's middle has whole coordinates, as in OpenCV and world files.

    Args:
        mask: (H, W), true where there is a road.
        least: a line with a loose end that is shorter is a spur of the skeleton, and dropped.
        tolerance: how far a simplified line may lie from the skeleton, in pixels.

    Example:
        >>> mask = np.zeros((9, 40), bool)
        >>> mask[3:6] = True
        >>> [line.round().tolist() for line in centre_lines(mask)]
        [[[1.0, 4.0], [37.0, 4.0]]]
    """
    skeleton = thinned(mask)
    neighbours = _neighbours(skeleton)
    ends = {place for place, near in neighbours.items() if len(near) != 2}
    found: list[tuple[list[tuple[int, int]], bool]] = []
    used: set[frozenset[tuple[int, int]]] = set()
    for start in [*sorted(ends), *sorted(set(neighbours) - ends)]:
        if start not in ends and any(frozenset((start, n)) in used for n in neighbours[start]):
            continue  # part of a line already; what is left are rings
        for step in neighbours[start]:
            if frozenset((start, step)) in used:
                continue
            path = _walk(start, step, neighbours, ends, used)
            loose = any(len(neighbours[place]) == 1 for place in (path[0], path[-1]))
            found.append((path, loose))
    lines = []
    for path, loose in found:
        line = np.array([(x, y) for y, x in path], np.float64)
        length = float(np.hypot(*np.diff(line, axis=0).T).sum())
        joined = len(found) > 1 or not loose
        if length < (least if loose or not joined else 2):
            continue
        lines.append(_simplified(line, tolerance))
    return lines


def _simplified(line: Line, tolerance: float) -> Line:
    if line[0].tolist() == line[-1].tolist():  # a ring: each half by itself
        half = len(line) // 2
        first, second = (_simplified(part, tolerance) for part in (line[: half + 1], line[half:]))
        return np.concatenate([first, second[1:]])
    simple = cv2.approxPolyDP(line.astype(np.float32)[:, None], tolerance, False)
    return np.asarray(simple[:, 0], np.float64)


def _neighbours(skeleton: NDArray[np.bool_]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """For each pixel those beside it; a diagonal only where no straight way leads there too."""
    there = {(int(y), int(x)) for y, x in np.argwhere(skeleton)}
    found = {}
    for y, x in there:
        near = []
        for dy, dx in _AROUND:
            if (y + dy, x + dx) not in there:
                continue
            if dy and dx and ((y + dy, x) in there or (y, x + dx) in there):
                continue
            near.append((y + dy, x + dx))
        found[(y, x)] = near
    return found


def _walk(
    start: tuple[int, int],
    step: tuple[int, int],
    neighbours: dict[tuple[int, int], list[tuple[int, int]]],
    ends: set[tuple[int, int]],
    used: set[frozenset[tuple[int, int]]],
) -> list[tuple[int, int]]:
    path = [start, step]
    used.add(frozenset((start, step)))
    while path[-1] not in ends and path[-1] != start:
        onward = [n for n in neighbours[path[-1]] if n != path[-2]]
        if not onward or frozenset((path[-1], onward[0])) in used:
            break
        used.add(frozenset((path[-1], onward[0])))
        path.append(onward[0])
    return path
