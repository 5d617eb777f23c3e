"""Noise: Gaussian, shot, impulse, and the extra one, speckle. All as the benchmark defines them."""

from __future__ import annotations

import numpy as np

from it3_vision.corruptions.kinds import Floats, Images, Kind, Random, finish, unit

__all__ = ["GAUSSIAN_NOISE", "IMPULSE_NOISE", "SHOT_NOISE", "SPECKLE_NOISE"]


def gaussian_noise(images: Images, scale: float, random: Random) -> Images:
    """Normal noise of the given standard deviation, on each channel of its own."""
    x = _normal(images, random)
    x *= scale
    x += unit(images)
    return finish(x)


def shot_noise(images: Images, photons: float, random: Random) -> Images:
    """What a sensor counts where white is so many photons."""
    rate = unit(images) * photons
    x = np.empty(images.shape)
    for one, generator, out in zip(rate, random, x, strict=True):
        out[...] = generator.poisson(one)
    x /= photons
    return finish(x)


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
    x = np.empty(images.shape)
    for generator, out in zip(random, x, strict=True):
        generator.standard_normal(out=out)
    return x


GAUSSIAN_NOISE = Kind(
    gaussian_noise,
    cifar=(0.04, 0.06, 0.08, 0.09, 0.10),
    imagenet=(0.08, 0.12, 0.18, 0.26, 0.38),
)
SHOT_NOISE = Kind(
    shot_noise,
    cifar=(500, 250, 100, 75, 50),
    imagenet=(60, 25, 12, 5, 3),
)
IMPULSE_NOISE = Kind(
    impulse_noise,
    cifar=(0.01, 0.02, 0.03, 0.05, 0.07),
    imagenet=(0.03, 0.06, 0.09, 0.17, 0.27),
)
SPECKLE_NOISE = Kind(
    speckle_noise,
    cifar=(0.06, 0.1, 0.12, 0.16, 0.2),
    imagenet=(0.15, 0.2, 0.35, 0.45, 0.6),
)
