"""Noise, brightness, contrast, elastic, pixelate, JPEG; the extra ones are speckle and saturate."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from it3_vision.corruptions.blur import smooth
from it3_vision.corruptions.kinds import Floats, Images, Kind, Random, finish, unit


def gaussian_noise(images: Images, scale: float, random: Random) -> Images:
    """Normal noise of the given standard deviation, on each channel of its own."""
    x = _normal(images, random)
    x *= scale
    x += unit(images)
    return finish(x)


def shot_noise(images: Images, photons: float, random: Random) -> Images:
    """What a sensor counts where white is so many photons."""
    rate = unit(images) * photons
    x = np.stack([generator.poisson(one) for one, generator in zip(rate, random, strict=True)])
    return finish(x / photons)


def impulse_noise(images: Images, amount: float, random: Random) -> Images:
    """Salt and pepper, half and half, on each channel of its own."""
    out = images.copy()
    for one, generator in zip(out, random, strict=True):
        hit = generator.random(one.shape) <= amount
        salt = generator.random(one.shape) <= 0.5
        one[hit] = np.where(salt[hit], 255, 0)
    return out


def speckle_noise(images: Images, scale: float, random: Random) -> Images:
    """Normal noise in proportion to the brightness."""
    light = unit(images)
    x = _normal(images, random)
    x *= scale
    x *= light
    x += light
    return finish(x)


def _normal(images: Images, random: Random) -> Floats:
    return np.stack([generator.standard_normal(images.shape[1:]) for generator in random])


def brightness(images: Images, amount: float, random: Random) -> Images:
    """More of V in the space of hue, saturation and value.

    With hue and saturation as they are, every channel is in proportion to V, and black, which has
    neither, turns grey: no way through HSV and back is needed.
    """
    x = unit(images)
    value = x.max(axis=-1, keepdims=True)
    fraction = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    fraction *= np.clip(value + amount, 0, 1)
    return finish(fraction)


def contrast(images: Images, amount: float, random: Random) -> Images:
    """Closer to each channel's mean over the image."""
    x = unit(images)
    means = x.mean(axis=(1, 2), keepdims=True)
    return finish((x - means) * amount + means)


def saturate(images: Images, c: tuple[float, float], random: Random) -> Images:
    """Another S in the space of hue, saturation and value; grey, whose hue is 0, counts as red."""
    times, plus = c
    x = unit(images)
    value = x.max(axis=-1, keepdims=True)
    spread = value - x.min(axis=-1, keepdims=True)
    saturation = np.divide(spread, value, out=np.zeros_like(value), where=value > 0)
    saturation = np.clip(saturation * times + plus, 0, 1)
    red = np.broadcast_to(np.array([0.0, 1.0, 1.0]), x.shape)
    below = np.divide(value - x, spread, out=red.copy(), where=spread > 0)
    below *= saturation
    return finish(value * (1 - below))


def jpeg_compression(images: Images, quality: int, random: Random) -> Images:
    """Through a JPEG file and back."""
    out = np.empty_like(images)
    for one, opened in zip(images, out, strict=True):
        file = cv2.imencode(".jpg", one[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        opened[...] = np.asarray(cv2.imdecode(file, cv2.IMREAD_COLOR))[..., ::-1]
    return out


def pixelate(images: Images, fraction: float, random: Random) -> Images:
    """Made smaller and larger again, with a box filter both times."""
    height, width = images.shape[1:3]
    small = max(1, int(width * fraction)), max(1, int(height * fraction))
    coarse = [Image.fromarray(one).resize(small, Image.Resampling.BOX) for one in images]
    return np.stack([np.array(one.resize((width, height), Image.Resampling.BOX)) for one in coarse])


def elastic_transform(images: Images, c: tuple[float, float, float], random: Random) -> Images:
    """A random affine map, then a displacement of each pixel by a smooth random field."""
    strength, sigma, corner = c
    height, width = images.shape[1:3]
    middle = np.array([width // 2, height // 2], dtype=np.float32)
    side = max(1, min(height, width) // 3)
    square = middle + side * np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32)
    x = images.astype(np.float32) / 255
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


def _sample(x: Floats, down: Floats, right: Floats) -> Floats:
    """Images (N, H, W, 3) at positions (N, H, W), bilinearly; outside they are mirrored."""
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
    """The mirror stands half a pixel outside the border: 0, 0, 1, 2, 2, 1, 0, 0 ..."""
    inside = index.astype(np.int64) % (2 * size)
    return np.minimum(inside, 2 * size - 1 - inside)


NOISE = {
    "gaussian_noise": Kind(
        gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)
    ),
    "shot_noise": Kind(shot_noise, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": Kind(
        impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)
    ),
    "speckle_noise": Kind(
        speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.35, 0.45, 0.6)
    ),
}
KINDS = {
    "brightness": Kind(brightness, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": Kind(contrast, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    "elastic_transform": Kind(  # strength, sigma and shift of a corner, in pixels
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
    ),
    # the fraction of the size
    "pixelate": Kind(pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": Kind(jpeg_compression, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
    "saturate": Kind(  # factor, offset
        saturate,
        cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    ),
}
