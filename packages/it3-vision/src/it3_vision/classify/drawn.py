"""Characters drawn with OpenCV's own fonts, so that nothing is downloaded."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_vision.data import ImageSet

CHARACTERS = "ABEGHKMPRSTXYZ247"
"""What is drawn: characters that can be told apart in all fonts."""

_FONTS = (
    cv2.FONT_HERSHEY_SIMPLEX,
    cv2.FONT_HERSHEY_PLAIN,
    cv2.FONT_HERSHEY_DUPLEX,
    cv2.FONT_HERSHEY_COMPLEX,
    cv2.FONT_HERSHEY_TRIPLEX,
    cv2.FONT_HERSHEY_COMPLEX_SMALL,
)
_SIZE = 32
_LARGER = 4  # drawn so many times larger, and shrunk: smooth edges


def characters(n: int, seed: int = 0) -> ImageSet:
    """Images of single characters: font, place, slant, size, colours and light differ.

    Args:
        n: how many; the classes come in turn.
        seed: of everything else.

    Example:
        >>> images = characters(20)
        >>> images.image(0).shape, images.classes[images.labels[0]]
        ((32, 32, 3), 'A')
    """
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % len(CHARACTERS)
    pixels = np.stack([_drawn(CHARACTERS[label], rng) for label in labels])
    return ImageSet.from_array(pixels, labels, list(CHARACTERS), title="characters")


def _drawn(character: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    side = _SIZE * _LARGER
    font, thickness = _FONTS[int(rng.integers(len(_FONTS)))], int(rng.integers(6, 14))
    (width, height), _ = cv2.getTextSize(character, font, 1.0, 1)
    scale = side * rng.uniform(0.5, 0.72) / max(width, height, 1)
    (width, height), _ = cv2.getTextSize(character, font, scale, thickness)
    mask: NDArray[Any] = np.zeros((side, side), np.uint8)
    corner = ((side - width) // 2, (side + height) // 2)
    cv2.putText(mask, character, corner, font, scale, 255, thickness, cv2.LINE_AA)
    middle = (side / 2, side / 2)
    turn: NDArray[Any] = cv2.getRotationMatrix2D(middle, rng.uniform(-15, 15), 1.0)
    turn[:, 2] += rng.uniform(-0.08, 0.08, 2) * side
    turn[0, 1] += rng.uniform(-0.15, 0.15)  # a slant
    mask = cv2.warpAffine(mask, turn, (side, side))
    mask = cv2.resize(mask, (_SIZE, _SIZE), interpolation=cv2.INTER_AREA)
    paper = rng.uniform(140, 240) + rng.uniform(-30, 30, 3)
    ink = rng.uniform(0, 90) + rng.uniform(-30, 30, 3)
    towards = rng.uniform(-1, 1, 2)
    places = np.linspace(-1, 1, _SIZE)
    light = 30 * (towards[0] * places[:, None] + towards[1] * places[None, :])[..., None]
    part = (mask / 255.0)[..., None]
    image = part * ink + (1 - part) * paper + light + rng.normal(0, 4, (_SIZE, _SIZE, 3))
    drawn: NDArray[np.uint8] = image.clip(0, 255).astype(np.uint8)
    return drawn
