"""Weather: snow, frost, fog, and the extra one, spatter.

The benchmark's frost is five photographs, which we don't have: ours is drawn. Ice grows on a pane
in curved feathers, with barbs at a steady angle and finer barbs on those; between them lies a rough
film. Each of the five pictures comes from a fixed seed of its own, so that all machines have the
same ones; what is random is which of them an image gets, and which part.
"""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_vision.corruptions.blur import smooth, streak, zoom
from it3_vision.corruptions.kinds import Floats, Images, Kind, Random, finish, unit

_WATER = np.array([175, 238, 238]) / 255  # pale turquoise
_MUD = np.array([63, 42, 20]) / 255
_TEXTURES, _SIDE = 5, 1024  # pictures of frost, and their side in pixels


def snow(images: Images, c: tuple[float, ...], random: Random) -> Images:
    """A whitened image, with noise enlarged and blurred to streaks, and the same upside down."""
    mean, scale, enlarged, least, radius, sigma, kept = c
    height, width = images.shape[1:3]
    noise = np.stack([g.normal(mean, scale, size=(height, width)) for g in random])
    layer = zoom(noise, enlarged)
    layer[layer < least] = 0
    flakes = finish(layer)
    for one, generator in zip(flakes, random, strict=True):
        one[...] = streak(one, int(radius), sigma, generator.uniform(-135, -45))
    x = images.astype(np.float32) / 255
    grey = cv2.cvtColor(x.reshape(-1, width, 3), cv2.COLOR_RGB2GRAY)
    white = np.maximum(x, grey.reshape(*x.shape[:3], 1) * 1.5 + 0.5)
    fallen = unit(flakes)[..., None]
    return finish(kept * x + (1 - kept) * white + fallen + fallen[:, ::-1, ::-1])


def frost(images: Images, c: tuple[float, float, float], random: Random) -> Images:
    """A part of a picture of frost on top, anywhere in it."""
    kept, amount, scale = c
    height, width = images.shape[1:3]
    out = np.empty_like(images)
    for one, generator, frosted in zip(images, random, out, strict=True):
        picture = texture(int(generator.integers(_TEXTURES)), scale, max(height, width))
        top = generator.integers(picture.shape[0] - height)
        left = generator.integers(picture.shape[1] - width)
        part = picture[top : top + height, left : left + width]
        frosted[...] = np.minimum(kept * one + amount * part, 255)
    return out


def fog(images: Images, c: tuple[float, float], random: Random) -> Images:
    """A cloud of fractal noise on top, then no brighter than before."""
    amount, decay = c
    height, width = images.shape[1:3]
    x = unit(images)
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    cloud = plasma(1 << (max(height, width) - 1).bit_length(), decay, random)
    x += amount * cloud[:, :height, :width, None]
    x *= brightest / (brightest + amount)
    return finish(x)


def plasma(size: int, decay: float, random: Random) -> Floats:
    """Fractal noise by the diamond-square algorithm: maps (N, size, size) from 0 to 1.

    `size` is a power of two; from one scale to the next smaller one the noise shrinks by `decay`.
    """
    maps = np.zeros((len(random), size, size))
    draws = np.stack([g.uniform(-1, 1, size * size - 1) for g in random])
    step, wibble, used = size, 100.0, 0

    def wibbled(total: Floats) -> Floats:
        nonlocal used
        count = total[0].size
        noise = draws[:, used : used + count].reshape(total.shape)
        used += count
        return total / 4 + wibble**2 * noise

    while step >= 2:
        half = step // 2
        corners = maps[:, ::step, ::step]
        square = corners + np.roll(corners, -1, axis=1)
        square += np.roll(square, -1, axis=2)
        maps[:, half::step, half::step] = wibbled(square)
        middles = maps[:, half::step, half::step]
        across = middles + np.roll(middles, 1, axis=1) + corners + np.roll(corners, -1, axis=2)
        maps[:, ::step, half::step] = wibbled(across)
        along = middles + np.roll(middles, 1, axis=2) + corners + np.roll(corners, -1, axis=1)
        maps[:, half::step, ::step] = wibbled(along)
        step, wibble = half, wibble / decay
    maps -= maps.min(axis=(1, 2), keepdims=True)
    highest = maps.max(axis=(1, 2), keepdims=True)
    np.divide(maps, highest, out=maps, where=highest > 0)
    return maps


def spatter(images: Images, c: tuple[float, ...], random: Random) -> Images:
    """Drops of water, or of mud, on the lens."""
    mean, scale, sigma, least, amount, mud = c
    height, width = images.shape[1:3]
    x = unit(images)
    for one, generator in zip(x, random, strict=True):
        layer = smooth(generator.normal(mean, scale, size=(height, width)), sigma)
        layer[layer < least] = 0
        if mud:
            cover = smooth(np.where(layer > least, 1.0, 0.0), amount)
            cover[cover < 0.8] = 0
            one *= 1 - cover[..., None]
            one += cover[..., None] * _MUD
        else:
            one += _drops(layer, amount)[..., None] * _WATER
    return finish(x)


def _drops(layer: Floats, amount: float) -> Floats:
    """How much light drops add where the layer is: their rims, seen from one side."""
    liquid: Images = (np.clip(layer, 0, 1) * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(liquid, 50, 150), cv2.DIST_L2, 5)
    rims = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
    slope = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)
    rims = cv2.blur(cv2.filter2D(rims, cv2.CV_8U, slope), (3, 3))
    drops: Floats = liquid.astype(np.float32) * rims
    highest = float(drops.max())
    # An image too small to hold a drop gets none; the benchmark would divide by zero.
    return np.asarray(drops * (amount / highest)) if highest > 0 else drops


@lru_cache(maxsize=2 * _TEXTURES)
def texture(number: int, scale: float, least: int) -> Images:
    """Picture of frost number 0 to 4, RGB, and larger than `least` pixels in each direction."""
    picture, side = _drawn(number), max(round(_SIDE * scale), round(1.1 * least) + 1)
    way = cv2.INTER_AREA if side < len(picture) else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(picture, (side, side), interpolation=way), dtype=np.uint8)


@lru_cache(maxsize=_TEXTURES)
def _drawn(number: int) -> Images:
    random = np.random.default_rng([2019, number])
    ice = np.zeros((_SIDE, _SIDE), dtype=np.float32)
    for _ in range(110 + 10 * number):
        _feather(ice, random)
    ice += 0.8 * _blurred(ice, 4)
    film = np.zeros_like(ice)
    for grain, weight in ((1, 0.05), (2, 0.06), (8, 0.06), (64, 0.08)):
        film += _cloud(random, grain) * weight
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


KINDS = {
    "snow": Kind(  # mean and scale of the noise, zoom, threshold, radius, sigma, image's weight
        snow,
        cifar=(
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        imagenet=(
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    "frost": Kind(  # weights of the image and of the frost, size of the frost's picture
        frost,
        cifar=((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
        imagenet=((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    ),
    "fog": Kind(  # amount, decay of the noise from scale to scale
        fog,
        cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        imagenet=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    "spatter": Kind(  # mean and scale of the noise, sigma, threshold, amount (mud: its sigma), mud?
        spatter,
        cifar=(
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        imagenet=(
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    ),
}
