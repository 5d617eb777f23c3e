"""Aerial images that are drawn: terrain, fields, houses, trees and a road network.

Nothing is downloaded, and the truth is exact. Two styles: an urban grid of wide streets between
roofs, and rural roads that wind between fields and woods, seen in another season's colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_vision.data.images import Pixels
from it3_vision.roads.scenes import Scene, Scenes, make_scene

Style = Literal["urban", "rural"]  # what a network is trained on, and what it then meets
_Line = NDArray[np.float64]  # (n, 2), x and y in pixels
_Canvas = NDArray[np.float32]

_GROUND = {"urban": ((96, 104, 88), (128, 124, 112)), "rural": ((74, 92, 52), (126, 108, 74))}
_ROAD = {"urban": (118, 118, 122), "rural": (150, 142, 130)}
_ROOFS = ((150, 70, 60), (92, 88, 92), (178, 170, 160), (120, 96, 76))


def draw_scene(
    style: Style, size: int = 256, seed: int = 0, resolution: float = 1.0, no_data: bool = False
) -> Scene:
    """One drawn scene with its mask, `resolution` metres a pixel: roads are 4 to 12 m wide.

    Without data in a corner, it is white there, as at the rim of a survey.
    """
    rng = np.random.default_rng(seed)
    canvas = _terrain(style, size, rng)
    if style == "rural":
        _fields(canvas, rng, resolution)
    roads = _streets(size, rng, resolution) if style == "urban" else _lanes(size, rng, resolution)
    mask: NDArray[Any] = np.zeros((size, size), np.uint8)
    colour = np.array(_ROAD[style]) + rng.normal(0, 8, 3)
    for line, width in roads:
        _stroke(canvas, line, width + 2, colour * 0.82)
        _stroke(canvas, line, width, colour + rng.normal(0, 6))
        _stroke(mask, line, width, (255,))
    _houses(canvas, mask, roads, rng, resolution, 0.75 if style == "urban" else 0.12)
    _trees(canvas, rng, resolution, 1.0 if style == "urban" else 1.6)
    blurred: NDArray[Any] = cv2.GaussianBlur(canvas, (0, 0), 0.6)
    blurred = blurred + rng.normal(0, 5, blurred.shape).astype(np.float32)
    image = blurred.clip(0, 245).astype(np.uint8)  # white is for where there are no data
    if no_data:
        _cut_off(image, rng)
    return make_scene(f"{style} {seed}", image, mask, resolution)


def drawn_scenes(
    style: Style, n: int, size: int = 256, seed: int = 0, resolution: float = 1.0
) -> Scenes:
    """So many drawn scenes; every third rural one lacks a corner."""
    names = tuple(f"{style} {seed + row}" for row in range(n))

    def read(row: int) -> Scene:
        lacking = style == "rural" and row % 3 == 2
        return draw_scene(style, size, seed + row, resolution, no_data=lacking)

    return Scenes(f"drawn, {style}", names, resolution, read)


def _noise(size: int, rng: np.random.Generator, coarsest: int = 4) -> NDArray[np.float32]:
    """Smooth noise from 0 to 1: random grids, each twice as fine and half as strong."""
    total: NDArray[Any] = np.zeros((size, size), np.float32)
    cells, strength = coarsest, 1.0
    while cells < size:
        grid = rng.random((cells, cells)).astype(np.float32)
        total += strength * cv2.resize(grid, (size, size), interpolation=cv2.INTER_CUBIC)
        cells, strength = cells * 2, strength * 0.55
    span = float(np.ptp(total)) or 1.0
    return np.asarray((total - total.min()) / span, np.float32)


def _terrain(style: Style, size: int, rng: np.random.Generator) -> _Canvas:
    low, high = (np.array(colour, np.float32) for colour in _GROUND[style])
    fraction = _noise(size, rng)[..., None]
    fine = _noise(size, rng, 32)[..., None]
    return np.asarray(low + fraction * (high - low) + 30 * (fine - 0.5))


def _fields(canvas: _Canvas, rng: np.random.Generator, resolution: float) -> None:
    """Ploughed or mown, in strips."""
    size = len(canvas)
    for _ in range(rng.integers(3, 7)):
        middle = rng.uniform(0, size, 2)
        sides = rng.uniform(40, 140, 2) / resolution
        turn = float(rng.uniform(0, 90))
        there: NDArray[Any] = np.zeros((size, size), np.uint8)
        cv2.fillPoly(there, [_box(middle, sides, turn).astype(np.int32)], 1)
        x, y = np.meshgrid(np.arange(size), np.arange(size))
        along = x * np.cos(np.radians(turn)) + y * np.sin(np.radians(turn))
        stripes = 9 * np.sin(2 * np.pi * along * resolution / rng.uniform(4, 9))
        colour = np.array([[120, 130, 60], [150, 130, 90], [90, 110, 50]])[rng.integers(3)]
        canvas[there > 0] = (colour + stripes[..., None])[there > 0]


def _streets(size: int, rng: np.random.Generator, resolution: float) -> list[tuple[_Line, int]]:
    """A grid, turned: streets and, between some of them, alleys."""
    turn = rng.uniform(-0.25, 0.25) + rng.choice([0, np.pi / 4])
    across = np.array([np.cos(turn), np.sin(turn)])
    found = []
    for direction, other in ((across, across[::-1] * [-1, 1]), (across[::-1] * [-1, 1], across)):
        at = rng.uniform(-30, 30) / resolution - size
        while at < size:
            alley = rng.random() < 0.3
            width = (4 if alley else rng.uniform(7, 12)) / resolution
            middle = np.array([size / 2, size / 2]) + at * other
            ends = np.stack([middle - 2 * size * direction, middle + 2 * size * direction])
            found.append((ends, max(1, round(width))))
            at += rng.uniform(35, 90) / resolution
    return found


def _lanes(size: int, rng: np.random.Generator, resolution: float) -> list[tuple[_Line, int]]:
    """Winding roads from side to side, and lanes that leave them."""
    found: list[tuple[_Line, int]] = []
    for _ in range(rng.integers(1, 3)):
        turn = rng.uniform(0, np.pi)
        along = np.array([np.cos(turn), np.sin(turn)])
        start = np.array([size / 2, size / 2]) + rng.uniform(-0.3, 0.3, 2) * size - along * size
        line = _winding(start, along, 2.2 * size, rng, resolution)
        found.append((line, max(1, round(rng.uniform(6, 8) / resolution))))
        for _ in range(rng.integers(1, 4)):
            place = line[rng.integers(len(line) // 4, 3 * len(line) // 4)]
            side = turn + rng.choice([-1, 1]) * rng.uniform(0.8, 2.0)
            leaves = np.array([np.cos(side), np.sin(side)])
            lane = _winding(place, leaves, rng.uniform(0.3, 0.9) * size, rng, resolution)
            found.append((lane, max(1, round(rng.uniform(4, 6) / resolution))))
    return found


def _winding(
    start: _Line, along: _Line, length: float, rng: np.random.Generator, resolution: float
) -> _Line:
    steps = max(2, int(length * resolution / 6))
    turns = np.cumsum(np.convolve(rng.normal(0, 0.06, steps), np.ones(5) / 5, mode="same"))
    angles = np.arctan2(along[1], along[0]) + turns
    moves = np.stack([np.cos(angles), np.sin(angles)], 1) * (length / steps)
    return np.asarray(start + np.cumsum(moves, 0))


def _stroke(canvas: NDArray[Any], line: _Line, width: int, colour: Any) -> None:
    points = np.rint(line * 16).astype(np.int32)
    cv2.polylines(canvas, [points], False, [*map(float, colour)], width, cv2.LINE_8, 4)


def _box(middle: _Line, sides: _Line, turn: float) -> NDArray[np.float32]:
    return np.asarray(cv2.boxPoints((middle.tolist(), sides.tolist(), turn)), np.float32)


def _houses(
    canvas: _Canvas,
    mask: NDArray[np.uint8],
    roads: Sequence[tuple[_Line, int]],
    rng: np.random.Generator,
    resolution: float,
    density: float,
) -> None:
    """Roofs beside the roads, each with its shadow."""
    size = len(canvas)
    for line, width in roads:
        lengths = np.hypot(*np.diff(line, axis=0).T).cumsum()
        for at in np.arange(0, lengths[-1], 16 / resolution):
            piece = int(np.searchsorted(lengths, at))
            along = line[piece + 1] - line[piece]
            along = along / max(np.hypot(*along), 1e-9)
            before = lengths[piece - 1] if piece else 0.0
            place = line[piece] + (at - before) * along
            for side in (-1, 1):
                if rng.random() > density:
                    continue
                off = (width / 2 + rng.uniform(9, 14) / resolution) * side
                middle = place + off * np.array([-along[1], along[0]])
                if not (0 <= middle[0] < size and 0 <= middle[1] < size):
                    continue
                sides = rng.uniform(7, 12, 2) / resolution
                turn = float(np.degrees(np.arctan2(along[1], along[0])))
                box = _box(middle, sides, turn)
                there = np.zeros((size, size), np.uint8)
                cv2.fillPoly(there, [box.astype(np.int32)], 1)
                if (mask[there > 0] > 0).any():
                    continue
                shadow = box + np.array([3.0, 3.0]) / resolution
                cv2.fillPoly(canvas, [shadow.astype(np.int32)], (52.0, 54.0, 56.0))
                roof = np.array(_ROOFS[rng.integers(len(_ROOFS))]) + rng.normal(0, 10, 3)
                cv2.fillPoly(canvas, [box.astype(np.int32)], roof.tolist())


def _trees(canvas: _Canvas, rng: np.random.Generator, resolution: float, much: float) -> None:
    """Crowns, in clumps; some hang over a road."""
    size = len(canvas)
    clumps = rng.uniform(0, size, (max(1, int(much * (size * resolution / 60) ** 2)), 2))
    for clump in clumps:
        for _ in range(rng.integers(2, 9)):
            place = clump + rng.normal(0, 8 / resolution, 2)
            colour = np.array([46, 62, 34]) + rng.normal(0, 9, 3)
            radius = max(1, round(rng.uniform(1.5, 4) / resolution))
            cv2.circle(canvas, place.astype(int).tolist(), radius, colour.tolist(), -1)


def _cut_off(image: Pixels, rng: np.random.Generator) -> None:
    size = len(image)
    corner = rng.integers(4)
    a, b = rng.uniform(0.3, 0.7, 2) * size
    triangle = np.array([[0, 0], [a, 0], [0, b]])
    triangle = np.where([corner & 1, corner & 2], size - triangle, triangle)
    cv2.fillPoly(image, [triangle.astype(np.int32)], (255, 255, 255))
