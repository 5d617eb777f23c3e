"""Pictures of frost, drawn: the benchmark's are photographs, which we don't have.

Ice grows on a pane in curved feathers, with barbs at a steady angle and finer barbs on those;
between them lies a rough film. Each of the five pictures comes from a fixed seed of its own, so
that all machines have the same ones; what is random is which of them an image gets, and which part.
"""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_vision.corruptions.kinds import Floats, Images

__all__ = ["TEXTURES", "texture"]

TEXTURES = 5
_SIDE = 1024


def texture(number: int, scale: float, least: int) -> Images:
    """A picture of frost, RGB, and larger than `least` pixels in each direction.

    Args:
        number: which, from 0 to 4.
        scale: 1 for large images; the benchmark takes 0.2 for those of 32 × 32.
        least: the longer side of the image that will be frosted.

    Example:
        >>> texture(0, 0.2, 32).shape
        (205, 205, 3)
    """
    return _resized(number, max(round(_SIDE * scale), round(1.1 * least) + 1))


@lru_cache(maxsize=2 * TEXTURES)
def _resized(number: int, side: int) -> Images:
    picture = _drawn(number)
    if side == len(picture):
        return picture
    way = cv2.INTER_AREA if side < len(picture) else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(picture, (side, side), interpolation=way), dtype=np.uint8)


@lru_cache(maxsize=TEXTURES)
def _drawn(number: int) -> Images:
    random = np.random.default_rng([2019, number])
    ice = np.zeros((_SIDE, _SIDE), dtype=np.float32)
    for _ in range(110 + 10 * number):
        _feather(ice, random)
    ice += 0.8 * _blurred(ice, 4)
    film = sum(
        (
            _cloud(random, grain) * weight
            for grain, weight in ((1, 0.05), (2, 0.06), (8, 0.06), (64, 0.08))
        ),
        start=np.zeros_like(ice),
    )
    light = np.clip(0.24 + film + (0.8 + film) * ice, 0, 1)[..., None]
    dark, bright = np.array([38, 56, 84]), np.array([232, 241, 250])
    picture: Images = (dark + (bright - dark) * light).astype(np.uint8)
    return picture


def _feather(ice: NDArray[np.float32], random: np.random.Generator) -> None:
    """One feather: a bent shaft with barbs on both sides, and straight finer barbs on those."""
    start = random.uniform(-0.05, 1.05, (1, 2)) * _SIDE
    length = random.uniform(0.08, 0.3, 1) * _SIDE
    turn, bend = random.uniform(0, 2 * np.pi, 1), random.normal(0, 1.2, 1)
    lean, glow = random.uniform(0.7, 1.1), random.uniform(0.3, 1.0)
    shaft = _curves(start, turn, bend, length, 48)
    part = np.repeat(np.linspace(0.02, 0.98, int(length[0] / 9)), 2)
    side = np.where(np.arange(len(part)) % 2, 1.0, -1.0)
    way = turn + bend * part
    reach = length * 0.32 * (1 - part) * random.uniform(0.5, 1.1, len(part))
    roots = shaft[0, (part * 48).astype(int)]
    barbs = _curves(roots, way + side * lean, -0.3 * side, reach, 12)
    spots = barbs[:, 2::2].reshape(-1, 2)
    times = len(spots) // len(barbs)
    fine = np.repeat(reach * 0.22, times) * random.uniform(0.4, 1.0, len(spots))
    angle = np.repeat(way, times) + random.normal(0, 0.15, len(spots))
    hairs = _curves(spots, angle, np.zeros(len(spots)), fine, 1)
    layer = np.zeros(ice.shape, dtype=np.uint8)
    for lines in (shaft, barbs, hairs):
        points = list(np.rint(lines * 16).astype(np.int32))
        cv2.polylines(layer, points, False, (255,), 1, cv2.LINE_AA, shift=4)
    np.maximum(ice, layer * np.float32(glow / 255), out=ice)


def _curves(start: Floats, turn: Floats, bend: Floats, length: Floats, steps: int) -> Floats:
    """Arcs (N, steps + 1, 2) from starts (N, 2), which set out at `turn` and turn by `bend`."""
    way = turn[:, None] + bend[:, None] * np.arange(steps) / steps
    moves = np.stack([np.cos(way), np.sin(way)], axis=-1) * (length / steps)[:, None, None]
    return np.concatenate([start[:, None], start[:, None] + np.cumsum(moves, axis=1)], axis=1)


def _cloud(random: np.random.Generator, grain: int) -> NDArray[np.float32]:
    """Noise as coarse as the grain, with a standard deviation of 1."""
    noise = random.standard_normal((_SIDE // grain, _SIDE // grain), dtype=np.float32)
    cloud = cv2.resize(_blurred(noise, 1), (_SIDE, _SIDE), interpolation=cv2.INTER_CUBIC)
    return np.asarray(cloud / cloud.std(), dtype=np.float32)


def _blurred(x: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
    return np.asarray(cv2.GaussianBlur(x, (0, 0), sigma), dtype=np.float32)
