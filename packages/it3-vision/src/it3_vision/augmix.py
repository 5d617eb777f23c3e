"""AugMix: copies of an image that a person would call the same, mixed from mild changes.

Hendrycks et al. 2020, with the operations that none of the benchmark's corruptions is among, at
the strength that MEMO has them (Zhang et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from it3_core import IT3Error

Pixels = NDArray[np.uint8]  # (height, width, channels)
Operation = Callable[[Pixels, float], Pixels]  # of a strength from -1 to 1

_GREY = (128.0, 128.0, 128.0, 128.0)  # what comes in from outside the image
_SEVERITY = 1.0  # of up to 10; AugMix for training has 3
_WIDTH = 3  # chains in a copy
_DEPTH = 3  # operations in a chain at most


class AugMix:
    """Copies of a normalised image: m · x + (1 − m) · Σ_k w_k · chain_k(x), x shifted and flipped.

    w ~ Dirichlet(1, …, 1), m ~ Beta(1, 1), and a chain is one to three operations drawn at random.
    The image is turned into 8-bit pixels for the operations, as they are defined on those.

    Args:
        mean, std: what images were normalised with, one number a channel, for values from 0 to 1.
        shift: copies are shifted by up to so many pixels, filled with black; 4 for CIFAR.
        flip: whether half of the copies are mirrored. Not for characters.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        shift: int = 4,
        flip: bool = True,
    ) -> None:
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise IT3Error("give as many positive std as mean, one for each channel")
        if shift < 0:
            raise IT3Error(f"shift is a number of pixels from 0 up, not {shift}")
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)
        self.shift = shift
        self.flip = flip

    def __call__(self, image: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        if image.dim() != 3 or image.shape[0] != len(self.mean):
            shape = tuple(image.shape)
            raise IT3Error(f"this AugMix is for images of {len(self.mean)} channels, not {shape}")
        mean, std = (image.new_tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        scaled = ((image.detach() * std + mean) * 255).round().clamp(0, 255)
        pixels = np.ascontiguousarray(scaled.to("cpu", torch.uint8).permute(1, 2, 0).numpy())
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        mixed = np.stack([self._copy(pixels, rng) for _ in range(copies)])
        made = torch.from_numpy(mixed).permute(0, 3, 1, 2).to(image)
        return (made / 255 - mean) / std

    def _copy(self, pixels: Pixels, rng: np.random.Generator) -> NDArray[np.float32]:
        start = self._moved(pixels, rng)
        weights = rng.dirichlet([1.0] * _WIDTH)
        kept = rng.beta(1.0, 1.0)
        mixed = np.float32(kept) * start
        for weight in weights:
            link = start
            for _ in range(rng.integers(1, _DEPTH + 1)):
                operation = _OPERATIONS[rng.integers(len(_OPERATIONS))]
                link = operation(link, _level(rng))
            mixed += np.float32((1 - kept) * weight) * link
        return mixed

    def _moved(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        if self.flip and rng.random() < 0.5:
            pixels = np.ascontiguousarray(pixels[:, ::-1])
        if not self.shift:
            return pixels
        down, right = rng.integers(-self.shift, self.shift + 1, size=2)
        matrix = np.array([[1, 0, right], [0, 1, down]], dtype=np.float64)
        return _warped(pixels, matrix, cv2.INTER_NEAREST, (0.0, 0.0, 0.0, 0.0))


def _level(rng: np.random.Generator) -> float:
    """A strength from 0.01 to 0.1, half of them negative: only a direction can be."""
    level = rng.uniform(0.1, _SEVERITY) / 10
    return float(level if rng.random() < 0.5 else -level)


def _by_pillow(change: Callable[[Image.Image, float], Image.Image]) -> Operation:
    def operation(pixels: Pixels, level: float) -> Pixels:
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        return np.asarray(change(image, abs(level)), dtype=np.uint8).reshape(pixels.shape)

    return operation


def rotate(pixels: Pixels, level: float) -> Pixels:
    """By up to 30 degrees, whole ones."""
    height, width = pixels.shape[:2]
    middle = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, int(level * 30), 1.0)
    return _warped(pixels, np.asarray(matrix, dtype=np.float64))


def shear(pixels: Pixels, level: float, axis: int) -> Pixels:
    """Rows or columns against each other, by up to 0.3 of a pixel each."""
    matrix = np.eye(2, 3)
    matrix[axis, [1 - axis, 2]] = -0.3 * level, -0.3 * level / 2
    return _warped(pixels, matrix)


def translate(pixels: Pixels, level: float, axis: int) -> Pixels:
    """By up to a third of the width or height, whole pixels."""
    matrix = np.eye(2, 3)
    matrix[axis, 2] = -int(level * pixels.shape[1 - axis] / 3)
    return _warped(pixels, matrix)


def _warped(
    pixels: Pixels,
    matrix: NDArray[np.float64],
    how: int = cv2.INTER_LINEAR,
    outside: tuple[float, ...] = _GREY,
) -> Pixels:
    height, width, channels = pixels.shape
    moved = cv2.warpAffine(
        pixels, matrix, (width, height), flags=how,
        borderMode=cv2.BORDER_CONSTANT, borderValue=outside,
    )  # fmt: skip
    return np.asarray(moved, dtype=np.uint8).reshape(height, width, channels)


_OPERATIONS: list[Operation] = [
    _by_pillow(lambda image, _: ImageOps.autocontrast(image)),
    _by_pillow(lambda image, _: ImageOps.equalize(image)),
    _by_pillow(lambda image, level: ImageOps.posterize(image, 4 - int(level * 4))),
    rotate,
    _by_pillow(lambda image, level: ImageOps.solarize(image, 256 - int(level * 256))),
    *(partial(shear, axis=axis) for axis in (0, 1)),
    *(partial(translate, axis=axis) for axis in (0, 1)),
]
