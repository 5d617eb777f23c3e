"""Brightness, contrast, elastic, pixelate, JPEG, and the extra one, saturate."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from it3_vision.corruptions.blur import smooth
from it3_vision.corruptions.kinds import Floats, Images, Kind, Random, finish, unit

__all__ = [
    "BRIGHTNESS",
    "CONTRAST",
    "ELASTIC_TRANSFORM",
    "JPEG_COMPRESSION",
    "PIXELATE",
    "SATURATE",
]


def brightness(images: Images, amount: float, random: Random) -> Images:
    """More of V in the space of hue, saturation and value.

    With hue and saturation as they are, every channel is in proportion to V, and black, which has
    neither, turns grey: no way through HSV and back is needed.
    """
    x = unit(images)
    value = x.max(axis=-1, keepdims=True)
    share = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    share *= np.clip(value + amount, 0, 1)
    return finish(share)


def contrast(images: Images, amount: float, random: Random) -> Images:
    """Closer to each channel's mean over the image."""
    x = unit(images)
    means = x.mean(axis=(1, 2), keepdims=True)
    x -= means
    x *= amount
    x += means
    return finish(x)


def saturate(images: Images, c: tuple[float, float], random: Random) -> Images:
    """Another S in the space of hue, saturation and value; grey, whose hue is 0, counts as red."""
    times, plus = c
    x = unit(images)
    value = x.max(axis=-1, keepdims=True)
    spread = value - x.min(axis=-1, keepdims=True)
    saturation = np.divide(spread, value, out=np.zeros_like(value), where=value > 0)
    saturation *= times
    saturation += plus
    np.clip(saturation, 0, 1, out=saturation)
    red = np.broadcast_to(np.array([0.0, 1.0, 1.0]), x.shape)
    below = np.divide(value - x, spread, out=red.copy(), where=spread > 0)
    below *= saturation
    return finish(value * (1 - below))


def jpeg_compression(images: Images, quality: int, random: Random) -> Images:
    """Through a JPEG file and back."""
    out = np.empty_like(images)
    for one, opened in zip(images, out, strict=True):
        file = cv2.imencode(".jpg", one[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        back: Any = cv2.imdecode(file, cv2.IMREAD_COLOR)
        opened[...] = back[..., ::-1]
    return out


def pixelate(images: Images, part: float, random: Random) -> Images:
    """Made smaller and larger again, with a box filter both times."""
    height, width = images.shape[1:3]
    small = max(1, int(width * part)), max(1, int(height * part))
    out = np.empty_like(images)
    for one, coarse in zip(images, out, strict=True):
        picture = Image.fromarray(one).resize(small, Image.Resampling.BOX)
        coarse[...] = picture.resize((width, height), Image.Resampling.BOX)
    return out


def elastic_transform(images: Images, c: tuple[float, float, float], random: Random) -> Images:
    """A random affine map, then a displacement of each pixel by a smooth random field."""
    strength, sigma, corner = c
    height, width = images.shape[1:3]
    middle = np.array([width // 2, height // 2], dtype=np.float32)
    side = max(1, min(height, width) // 3)
    square = middle + side * np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32)
    x = images.astype(np.float32)
    x /= 255
    field = np.empty((len(images), 2, height, width), dtype=np.float32)
    for one, generator, shift in zip(x, random, field, strict=True):
        moved = square + generator.uniform(-corner, corner, size=(3, 2)).astype(np.float32)
        matrix = cv2.getAffineTransform(square, moved)
        one[...] = cv2.warpAffine(
            one, matrix, (width, height), borderMode=cv2.BORDER_REFLECT_101
        ).reshape(one.shape)
        for axis in range(2):  # to the right first
            noise = generator.uniform(-1, 1, size=(height, width))
            shift[axis] = smooth(noise, sigma, cv2.BORDER_REFLECT, truncate=3) * strength
    right = np.arange(width) + field[:, 0]
    down = np.arange(height)[:, None] + field[:, 1]
    return finish(_sample(x, down, right))


def _sample(x: NDArray[np.float32], down: Floats, right: Floats) -> Floats:
    """Images (N, H, W, 3) at places (N, H, W), bilinearly; beyond the border they are mirrored."""
    number, height, width = x.shape[:3]
    pixels = x.reshape(-1, 3)
    top, left = np.floor(down), np.floor(right)
    part_y, part_x = (down - top)[..., None], (right - left)[..., None]
    image = np.arange(number)[:, None, None] * height
    rows = [(image + _mirror(top + step, height)) * width for step in (0, 1)]
    columns = [_mirror(left + step, width) for step in (0, 1)]
    upper, lower = (
        pixels[row + columns[0]] * (1 - part_x) + pixels[row + columns[1]] * part_x for row in rows
    )
    return np.asarray(upper * (1 - part_y) + lower * part_y)


def _mirror(index: Floats, size: int) -> NDArray[np.int64]:
    """Half a pixel beyond the border stands the mirror: 0, 0, 1, 2, 2, 1, 0, 0 ..."""
    place = index.astype(np.int64) % (2 * size)
    return np.minimum(place, 2 * size - 1 - place)


BRIGHTNESS = Kind(
    brightness,
    cifar=(0.05, 0.1, 0.15, 0.2, 0.3),
    imagenet=(0.1, 0.2, 0.3, 0.4, 0.5),
)
CONTRAST = Kind(
    contrast,
    cifar=(0.75, 0.5, 0.4, 0.3, 0.15),
    imagenet=(0.4, 0.3, 0.2, 0.1, 0.05),
)
SATURATE = Kind(  # times, plus
    saturate,
    cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
)
JPEG_COMPRESSION = Kind(  # quality
    jpeg_compression, cifar=(80, 65, 58, 50, 40), imagenet=(25, 18, 15, 10, 7)
)
PIXELATE = Kind(  # part of the size
    pixelate, cifar=(0.95, 0.9, 0.85, 0.75, 0.65), imagenet=(0.6, 0.5, 0.4, 0.3, 0.25)
)
ELASTIC_TRANSFORM = Kind(  # strength, sigma and shift of a corner, in pixels
    elastic_transform,
    cifar=(
        (0, 0, 32 * 0.08),
        (32 * 0.05, 32 * 0.2, 32 * 0.07),
        (32 * 0.08, 32 * 0.06, 32 * 0.06),
        (32 * 0.1, 32 * 0.04, 32 * 0.05),
        (32 * 0.1, 32 * 0.03, 32 * 0.03),
    ),
    imagenet=(  # 244, as the benchmark has it for its images of 224
        (244 * 2, 244 * 0.7, 244 * 0.1),
        (244 * 2, 244 * 0.08, 244 * 0.2),
        (244 * 0.05, 244 * 0.01, 244 * 0.02),
        (244 * 0.07, 244 * 0.01, 244 * 0.02),
        (244 * 0.12, 244 * 0.01, 244 * 0.02),
    ),
)
