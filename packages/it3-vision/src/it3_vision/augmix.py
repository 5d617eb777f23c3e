"""AugMix: copies of an image that a person would call the same, mixed from mild changes.

Hendrycks et al. 2020, with the operations that none of the benchmark's corruptions is among, at
the strength that MEMO has them (Zhang et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from it3_core import IT3Error

__all__ = ["AugMix"]

Pixels = NDArray[np.uint8]  # (height, width, channels)

_GREY = (128.0, 128.0, 128.0, 128.0)  # what comes in from outside the image
_VALUES = np.arange(256)


class AugMix:
    """Copies of a normalised image: m · x + (1 − m) · Σ_k w_k · chain_k(x), x shifted and flipped.

    w ~ Dirichlet(1, …, 1), m ~ Beta(1, 1), and a chain is one to three operations drawn at random.
    The image is turned into 8-bit pixels for the operations, as they are defined on those.

    Args:
        mean, std: what images were normalised with, one number a channel, for values from 0 to 1.
        severity: how strong an operation can be, up to 10. MEMO has 1, AugMix for training 3.
        width: chains in a copy.
        depth: most operations in a chain.
        shift: copies are shifted by up to so many pixels, black coming in; 4 for CIFAR.
        flip: whether half of the copies are mirrored. Not for characters.

    Example:
        >>> import torch
        >>> augment = AugMix(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        >>> augment(torch.zeros(3, 32, 32), 8, torch.Generator().manual_seed(0)).shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        severity: float = 1.0,
        width: int = 3,
        depth: int = 3,
        shift: int = 4,
        flip: bool = True,
    ) -> None:
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise IT3Error("give as many positive std as mean, one for each channel")
        if not 0.1 <= severity <= 10:
            raise IT3Error(f"severity runs from 0.1 to 10, not {severity}")
        if width < 1 or depth < 1 or shift < 0:
            raise IT3Error("width and depth are at least 1, and shift is at least 0")
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)
        self.severity = severity
        self.width = width
        self.depth = depth
        self.shift = shift
        self.flip = flip

    def __repr__(self) -> str:
        return f"AugMix(mean={self.mean}, std={self.std}, severity={self.severity})"

    def __call__(self, image: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        if image.dim() != 3 or image.shape[0] != len(self.mean):
            raise IT3Error(
                f"AugMix was made for images of {len(self.mean)} channels, and this has the shape "
                f"{tuple(image.shape)}"
            )
        mean, std = (image.new_tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        scaled = ((image.detach() * std + mean) * 255).round().clamp(0, 255)
        pixels = np.ascontiguousarray(scaled.to("cpu", torch.uint8).permute(1, 2, 0).numpy())
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        mixed = np.stack([self._copy(pixels, rng) for _ in range(copies)])
        made = torch.from_numpy(mixed).permute(0, 3, 1, 2).to(image)
        return (made / 255 - mean) / std

    def _copy(self, pixels: Pixels, rng: np.random.Generator) -> NDArray[np.float32]:
        start = self._moved(pixels, rng)
        weights = rng.dirichlet([1.0] * self.width)
        kept = rng.beta(1.0, 1.0)
        mixed = np.float32(kept) * start
        for weight in weights:
            link = start
            for _ in range(rng.integers(1, self.depth + 1)):
                operation = _OPERATIONS[rng.integers(len(_OPERATIONS))]
                link = operation(link, self._level(rng))
            mixed += np.float32((1 - kept) * weight) * link
        return mixed

    def _level(self, rng: np.random.Generator) -> float:
        """A strength from 0.01 to 1, half of them negative: only a direction can be."""
        level = rng.uniform(0.1, self.severity) / 10
        return float(level if rng.random() < 0.5 else -level)

    def _moved(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        if self.flip and rng.random() < 0.5:
            pixels = np.ascontiguousarray(pixels[:, ::-1])
        if not self.shift:
            return pixels
        down, right = rng.integers(-self.shift, self.shift + 1, size=2)
        matrix = np.array([[1, 0, right], [0, 1, down]], dtype=np.float64)
        return _warped(pixels, matrix, cv2.INTER_NEAREST, (0.0, 0.0, 0.0, 0.0))


def autocontrast(pixels: Pixels, level: float) -> Pixels:
    """Each channel from its darkest and brightest value to 0 and 255."""
    tables = np.empty((256, pixels.shape[2]), dtype=np.uint8)
    for channel in range(pixels.shape[2]):
        low, high = int(pixels[..., channel].min()), int(pixels[..., channel].max())
        scale = 255 / (high - low) if high > low else 1.0
        offset = -low * scale if high > low else 0.0
        tables[:, channel] = (_VALUES * scale + offset).clip(0, 255)
    return _looked_up(pixels, tables)


def equalize(pixels: Pixels, level: float) -> Pixels:
    """Each channel so that all its values are about equally frequent."""
    tables = np.empty((256, pixels.shape[2]), dtype=np.uint8)
    for channel in range(pixels.shape[2]):
        counts = np.bincount(pixels[..., channel].ravel(), minlength=256)
        present = counts[counts > 0]
        step = int(present.sum() - present[-1]) // 255
        if not step:
            tables[:, channel] = _VALUES
            continue
        below = np.concatenate([[0], counts.cumsum()[:-1]])
        tables[:, channel] = ((step // 2 + below) // step).clip(0, 255)
    return _looked_up(pixels, tables)


def posterize(pixels: Pixels, level: float) -> Pixels:
    """At most four bits a channel."""
    bits = 4 - int(abs(level) * 4)
    return pixels & np.uint8(256 - 2 ** (8 - bits))


def solarize(pixels: Pixels, level: float) -> Pixels:
    """The brightest values inverted."""
    threshold = 256 - int(abs(level) * 256)
    return np.where(pixels < threshold, pixels, 255 - pixels)


def rotate(pixels: Pixels, level: float) -> Pixels:
    """By up to 30 degrees, whole ones."""
    height, width = pixels.shape[:2]
    middle = ((width - 1) / 2, (height - 1) / 2)
    matrix = cv2.getRotationMatrix2D(middle, int(level * 30), 1.0)
    return _warped(pixels, np.asarray(matrix, dtype=np.float64))


def shear_x(pixels: Pixels, level: float) -> Pixels:
    """Rows against each other, by up to 0.3 of a pixel a row."""
    slope = level * 0.3
    return _warped(pixels, np.array([[1, -slope, -slope / 2], [0, 1, 0]]))


def shear_y(pixels: Pixels, level: float) -> Pixels:
    """Columns against each other, by up to 0.3 of a pixel a column."""
    slope = level * 0.3
    return _warped(pixels, np.array([[1, 0, 0], [-slope, 1, -slope / 2]]))


def translate_x(pixels: Pixels, level: float) -> Pixels:
    """Sideways by up to a third of the width, whole pixels."""
    return _warped(pixels, np.array([[1, 0, -int(level * pixels.shape[1] / 3)], [0, 1, 0]], float))


def translate_y(pixels: Pixels, level: float) -> Pixels:
    """Up or down by up to a third of the height, whole pixels."""
    return _warped(pixels, np.array([[1, 0, 0], [0, 1, -int(level * pixels.shape[0] / 3)]], float))


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


def _looked_up(pixels: Pixels, tables: Pixels) -> Pixels:
    """Every value replaced by its entry in its channel's table."""
    found = cv2.LUT(pixels, tables.reshape(1, 256, -1))
    return np.asarray(found, dtype=np.uint8).reshape(pixels.shape)


_OPERATIONS: list[Callable[[Pixels, float], Pixels]] = [
    autocontrast, equalize, posterize, rotate, solarize, shear_x, shear_y, translate_x, translate_y
]  # fmt: skip
