"""Blur: defocus, glass, motion, zoom, and the extra one, Gaussian."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from it3_vision.corruptions.kinds import Floats, Images, Kind, Random, finish, unit

_SMALL = 64 * 64  # pixels up to which one sparse matrix holds a whole zoom blur


def gaussian_blur(images: Images, sigma: float, random: Random) -> Images:
    """Convolution with a Gaussian."""
    return finish(np.stack([smooth(one, sigma) for one in unit(images)]))


def defocus_blur(images: Images, c: tuple[float, float], random: Random) -> Images:
    """Convolution with a disk whose edge is smoothed."""
    kernel = _disk(*c)
    return finish(np.stack([cv2.filter2D(one, -1, kernel) for one in unit(images)]))


def glass_blur(images: Images, c: tuple[float, int, int], random: Random) -> Images:
    """A Gaussian blur, pixels displaced one after the other, and the blur again.

    The benchmark's line `x[a], x[b] = x[b], x[a]` means to swap two pixels, but both sides are
    views of the same array, so that it copies b to a and leaves b as it is. Its published images
    were made so, and so are ours.
    """
    sigma, reach, rounds = c
    soft = [(smooth(one, sigma) * 255).astype(np.uint8) for one in unit(images)]
    x = np.stack(soft).reshape(len(images), -1, 3)
    height, width = images.shape[1:3]
    rows = np.arange(height - reach, reach, -1)
    columns = np.arange(width - reach, reach, -1)
    if len(rows) and len(columns):
        turns = (rows[:, None] * width + columns).ravel()
        drawn = (rounds, len(turns), 2)
        steps = np.stack([g.integers(-reach, reach, drawn, dtype=np.int8) for g in random])
        steps = steps.astype(np.int32)
        jump = steps[..., 1] * width + steps[..., 0]  # dx is drawn first, then dy
        for number in range(rounds):
            source = _copied_from(turns, jump[:, number], height * width)
            x = np.take_along_axis(x, source[..., None], axis=1)
    return finish(np.stack([smooth(one, sigma) for one in unit(x.reshape(images.shape))]))


def motion_blur(images: Images, c: tuple[int, float], random: Random) -> Images:
    """A streak in a direction of up to 45° from the horizontal."""
    pairs = zip(images, random, strict=True)
    return np.stack([streak(one, *c, generator.uniform(-45, 45)) for one, generator in pairs])


def zoom_blur(images: Images, c: tuple[float, ...], random: Random) -> Images:
    """The mean of the image and of ever larger zooms into it."""
    number, height, width = images.shape[:3]
    x = unit(images)
    if height * width <= _SMALL:
        flat = x.transpose(1, 2, 0, 3).reshape(height * width, -1)
        total = (_all_zooms(height, width, c) @ flat).reshape(height, width, number, 3)
        out = np.ascontiguousarray(total.transpose(2, 0, 1, 3))
    else:
        out = np.zeros_like(x)
        for factor in c:
            out += zoom(x, factor)
    out += x
    out /= len(c) + 1
    return finish(out)


def smooth(
    x: Floats, sigma: float, border: int = cv2.BORDER_REPLICATE, truncate: float = 4.0
) -> Floats:
    """A Gaussian filter of one image, (H, W) or (H, W, C), with scipy's and skimage's kernel."""
    if sigma <= 0:
        return x
    kernel = _gaussian(sigma, int(truncate * sigma + 0.5))
    out: Any = cv2.sepFilter2D(x, -1, kernel, kernel, borderType=border)
    return np.asarray(out.reshape(x.shape))  # OpenCV drops a channel that is alone


def streak(image: Images, radius: int, sigma: float, angle: float) -> Images:
    """Motion blur as ImageMagick, which the benchmark calls, does it; the angle is in degrees.

    Half a Gaussian, laid on 2·radius + 1 whole pixels of a line that starts at the pixel; outside
    the border, the nearest pixels inside count.
    """
    width = 2 * radius + 1
    steps = np.arange(width)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    turn = math.radians(angle)
    right = np.ceil(steps * math.cos(turn) - 0.5).astype(int)
    down = np.ceil(steps * math.sin(turn) - 0.5).astype(int)
    left, up = -int(right.min()), -int(down.min())
    below, beside = int(down.max()), int(right.max())
    near = cv2.BORDER_REPLICATE
    wide = cv2.copyMakeBorder(image, up, below, left, beside, near).astype(np.float32)
    height, length = image.shape[:2]
    total = np.zeros(image.shape, dtype=np.float32)
    for dx, dy, weight in zip(right + left, down + up, weights.tolist(), strict=True):
        cv2.scaleAdd(wide[dy : dy + height, dx : dx + length], weight, total, total)
    return np.rint(np.minimum(total, 255)).astype(np.uint8)


def zoom(x: Floats, factor: float) -> Floats:
    """The middle of images (N, H, W, ...) enlarged to their size, linearly, with scipy's grid."""
    for axis in (1, 2):
        low, high, part = _grid(x.shape[axis], factor)
        part = part.reshape(-1, *[1] * (x.ndim - 1 - axis)).astype(x.dtype)
        lower = x.take(low, axis)
        x = x.take(high, axis)
        x -= lower
        x *= part
        x += lower
    return x


@lru_cache(maxsize=64)
def _grid(size: int, factor: float) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Along one axis: the two pixels that each pixel of a zoom lies between, and how far along."""
    kept = math.ceil(size / factor)
    enlarged = round(kept * factor)
    at = np.arange(enlarged) * ((kept - 1) / (enlarged - 1) if enlarged > 1 else 0.0)
    first = (enlarged - size) // 2
    at = np.minimum(at[first : first + size], kept - 1)
    low = at.astype(np.int64)
    start = (size - kept) // 2
    return low + start, np.minimum(low + 1, kept - 1) + start, at - low


@lru_cache(maxsize=8)
def _all_zooms(height: int, width: int, factors: tuple[float, ...]) -> Any:
    """The sum of the zooms of an image as one matrix: 400 times as fast as zooming, when small."""

    def along(size: int, factor: float) -> Any:
        low, high, part = _grid(size, factor)
        here = np.arange(size)
        entries = np.concatenate([1 - part, part]), (np.tile(here, 2), np.concatenate([low, high]))
        return sparse.csr_matrix(entries, shape=(size, size))

    parts = [sparse.kron(along(height, f), along(width, f), format="csr") for f in factors]
    return sum(parts[1:], start=parts[0])


@lru_cache(maxsize=32)
def _gaussian(sigma: float, radius: int) -> Floats:
    kernel = np.exp(-0.5 / sigma**2 * np.arange(-radius, radius + 1) ** 2)
    return np.asarray(kernel / kernel.sum())


@lru_cache(maxsize=32)
def _disk(radius: float, alias: float) -> Floats:
    """The benchmark's disk, without the zeros around it, for which OpenCV would take a detour."""
    reach = np.arange(-8, 9) if radius <= 8 else np.arange(-radius, radius + 1)
    disk = ((reach[:, None] ** 2 + reach**2) <= radius**2).astype(np.float32)
    disk /= disk.sum()
    width = 3 if radius <= 8 else 5
    kernel: Any = cv2.GaussianBlur(disk, (width, width), sigmaX=alias)
    used = np.flatnonzero(kernel.any(axis=0))
    inside = slice(used[0], used[-1] + 1)
    return np.asarray(kernel[inside, inside].copy())


def _copied_from(
    turns: NDArray[np.int64], jump: NDArray[np.int32], pixels: int
) -> NDArray[np.int64]:
    """Where each pixel's value comes from, when those of `turns` copy from afar, one by one.

    A pixel that copies from one whose turn was before gets what that one got: chains, which are
    followed for all pixels at once, in twice as long steps each time.
    """
    source = np.tile(np.arange(pixels), (len(jump), 1))
    source[:, turns] += jump
    turn = np.full(pixels, len(turns))  # those that never copy keep their value
    turn[turns] = np.arange(len(turns))
    follow = turn[source] < turn
    # A chain's next link, or the pixel itself where the chain ends.
    link = np.where(follow, source, np.arange(pixels))
    while True:
        further = np.take_along_axis(link, link, axis=1)
        if np.array_equal(further, link):
            return np.take_along_axis(source, link, axis=1)
        link = further


def _factors(step: float, *stops: float) -> list[tuple[float, ...]]:
    return [tuple(np.arange(1, stop, step).tolist()) for stop in stops]


KINDS = {
    "defocus_blur": Kind(  # radius, blur of the edge
        defocus_blur,
        cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    "glass_blur": Kind(  # sigma, reach of a displacement, rounds
        glass_blur,
        cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    "motion_blur": Kind(  # radius, sigma
        motion_blur,
        cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    "zoom_blur": Kind(  # the zooms
        zoom_blur,
        cifar=(*_factors(0.01, 1.06, 1.11, 1.16, 1.21, 1.26),),
        imagenet=(*_factors(0.01, 1.11, 1.16), *_factors(0.02, 1.21, 1.26), *_factors(0.03, 1.31)),
    ),
    "gaussian_blur": Kind(gaussian_blur, cifar=(0.4, 0.6, 0.7, 0.8, 1), imagenet=(1, 2, 3, 4, 6)),
}
