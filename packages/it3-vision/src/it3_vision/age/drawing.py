"""Faces drawn with OpenCV, whose proportions, hair and wrinkles say how old they are."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_vision.age.faces import from_arrays
from it3_vision.data import ImageSet
from it3_vision.data.images import Pixels

__all__ = ["draw_face", "draw_faces"]

_LARGER = 4  # drawn so many times larger, and shrunk: smooth edges


def draw_faces(
    n: int, seed: int = 0, *, size: int = 32, youngest: int = 2, oldest: int = 90
) -> ImageSet:
    """Faces of all ages, drawn evenly from the youngest to the oldest.

    Args:
        n: how many.
        seed: of everything.
        size: height and width of the images.
        youngest, oldest: their ages in years.

    Example:
        >>> faces = draw_faces(3)
        >>> faces.image(0).shape, faces.labels.min() >= 2
        ((32, 32, 3), np.True_)
    """
    rng = np.random.default_rng(seed)
    ages = rng.integers(youngest, oldest + 1, n)
    pixels = np.stack([draw_face(int(age), rng, size) for age in ages])
    return from_arrays(pixels, ages, f"drawn-{seed}")


def draw_face(age: int, rng: np.random.Generator, size: int = 32) -> Pixels:
    """One face: with age it grows longer, its eyes smaller, its hair greyer, and wrinkles come.

    Example:
        >>> draw_face(70, np.random.default_rng(0)).dtype
        dtype('uint8')
    """
    side = size * _LARGER
    grown = min(age / 20, 1.0)
    old = max(0.0, (age - 20) / 70)
    skin = np.array([225, 180, 150]) * rng.uniform(0.55, 1.05) - 20 * old
    canvas: NDArray[Any] = np.empty((side, side, 3))
    canvas[:] = rng.uniform(40, 220, 3)
    middle = np.array([0.5, 0.54]) * side + rng.uniform(-0.03, 0.03, 2) * side
    wide, high = side * (0.34 - 0.03 * grown), side * (0.34 + 0.08 * grown)
    dark = rng.uniform(20, 110) * np.array([1.0, 0.75, 0.5])
    grey = np.clip(old * 1.3 + rng.normal(0, 0.08), 0, 1)
    hair = (1 - grey) * dark + grey * np.array([215.0, 215.0, 220.0])
    line = 0.3 + 0.25 * old  # how far up the hair begins
    _ellipse(canvas, _moved(middle, -0.1 * high), (1.12 * wide, 1.05 * high), hair)
    _ellipse(canvas, _moved(middle, (0.45 - line) * 0.3 * high), (wide, high), skin)
    eye = (wide * (0.24 - 0.09 * grown), wide * (0.2 - 0.1 * grown - 0.02 * old))
    for towards in (-1, 1):
        at = _moved(middle, (0.12 - 0.16 * grown) * high, towards * 0.42 * wide)
        _ellipse(canvas, at, eye, np.array([245.0, 245.0, 245.0]))
        _ellipse(canvas, at, (eye[1] * 0.7, eye[1] * 0.9), rng.uniform(20, 120, 3))
        _wrinkles(canvas, _moved(at, 1.8 * eye[1]), 0.5 * wide, skin, old, 2)  # bags
    _wrinkles(canvas, _moved(middle, -0.45 * high), wide, skin, old, 4)  # the forehead
    _wrinkles(canvas, _moved(middle, 0.72 * high), 0.8 * wide, skin, old, 2)  # the chin
    mouth = _moved(middle, 0.5 * high)
    _ellipse(canvas, mouth, (0.35 * wide, (0.08 - 0.04 * old) * high), skin * [0.85, 0.5, 0.5])
    small = cv2.resize(canvas, (size, size), interpolation=cv2.INTER_AREA)
    places = np.linspace(-1, 1, size)
    light = 25 * (rng.uniform(-1, 1) * places[:, None] + rng.uniform(-1, 1) * places[None, :])
    lit = small + light[..., None] + rng.normal(0, 4, small.shape)
    drawn: Pixels = np.asarray(lit.clip(0, 255), dtype=np.uint8)
    return drawn


def _moved(at: Any, down: float, right: float = 0.0) -> NDArray[Any]:
    there: NDArray[Any] = np.asarray(at) + np.array((right, down))
    return there


def _ellipse(canvas: NDArray[Any], at: Any, axes: Any, colour: Any) -> None:
    centre, half = tuple(int(v) for v in at), tuple(max(1, int(v)) for v in axes)
    cv2.ellipse(canvas, centre, half, 0, 0, 360, tuple(float(c) for c in colour), -1)


def _wrinkles(
    canvas: NDArray[Any], at: Any, wide: float, skin: Any, old: float, number: int
) -> None:
    """Lines below each other: the older, the darker."""
    shade = tuple(float(c) for c in skin * (1 - 0.45 * min(1.0, old)))
    gap = canvas.shape[0] // 24
    for line in range(round(number * min(1.0, 1.5 * old))):
        centre = (int(at[0]), int(at[1]) + gap * line)
        half = (max(1, int(0.5 * wide)), max(1, gap // 2))
        cv2.ellipse(canvas, centre, half, 0, 200, 340, shade, max(1, gap // 3))
