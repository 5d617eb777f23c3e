"""Faces whose file names say how old they are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from it3_core import IT3Error
from it3_vision.data import ImageSet
from it3_vision.data.images import Pixels
from it3_vision.data.trees import FileSource, Parts, deep_images, is_tar, open_tree, shown

OLDEST = 130  # a larger number in a name is no age

_AGES = tuple(str(age) for age in range(OLDEST + 1))
_NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_(\d+)\..+", re.ASCII)


class Faces(NamedTuple):
    """What `read_faces` found."""

    images: ImageSet  # their labels are ages in whole years
    problems: list[str]  # a line for each file that is left out, and why


def age_of(name: str) -> int | None:
    """The age in a name AGE_GENDER_RACE_DATE.jpg; None where it has another form."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) > OLDEST:
        return None
    return int(match[1])


def read_faces(path: str | Path) -> Faces:
    """The faces in a folder, in folders of parts below it, or in a tar; none is decoded yet.

    A file whose name has another form is listed, and so is one whose name was there before: the
    aligned faces and the parts of UTKFace overlap, and a face must not be tested on that was
    trained on.

    Args:
        path: the folder, or a .tar or .tar.gz.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ["7_0_0_1.jpg", "61_1_2.jpg"]:
        ...         Image.new("RGB", (8, 8)).save(Path(folder) / name)
        ...     faces = read_faces(folder)
        >>> faces.images.labels, faces.problems
        (array([7]), ['61_1_2.jpg is not named AGE_GENDER_RACE_DATE.jpg'])
    """
    path = Path(path)
    if not path.is_dir() and not (path.is_file() and is_tar(path.name)):
        raise IT3Error(f"{path} is neither a folder nor a tar of faces")
    tree = open_tree(path)
    found = deep_images(tree, ())
    if not found:
        raise IT3Error(f"{path} holds no images: give the folder or the tar of UTKFace")
    files: dict[str, Parts] = {}
    ages: list[int] = []
    problems: list[str] = []
    for file in found:
        age = age_of(file[-1])
        if age is None:
            problems.append(f"{shown(file)} is not named AGE_GENDER_RACE_DATE.jpg")
        elif file[-1] in files:
            problems.append(f"{shown(file)} has the name of {shown(files[file[-1]])}")
        else:
            files[file[-1]] = file
            ages.append(age)
    if not files:
        raise IT3Error(
            f"no image in {path} is named AGE_GENDER_RACE_DATE.jpg, as UTKFace's are: "
            f"{shown(found[0])}, for example, names no age"
        )
    source = FileSource(tree, list(files.values()))
    return Faces(ImageSet(source, ages, _AGES), problems)


def from_arrays(pixels: Pixels, ages: ArrayLike, title: str = "faces") -> ImageSet:
    """Faces from an array (N, H, W, 3) of uint8, and their ages in whole years."""
    return ImageSet.from_array(pixels, ages, _AGES, title)


def for_testing(names: Sequence[str], fraction: float) -> NDArray[np.bool_]:
    """Which faces are for testing: by their names, so that it is always the same ones."""
    hashes = [hashlib.sha256(name.rsplit("/", 1)[-1].encode()).digest()[:8] for name in names]
    return np.array([int.from_bytes(one, "big") < fraction * 2**64 for one in hashes], dtype=bool)


@dataclass(frozen=True)
class Interval:
    """The ages that are trained on, both ends included, and levels by the distance from them."""

    low: int = 20
    high: int = 60
    edges: tuple[int, ...] = (10, 20)  # years where levels end; another goes on from the last

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= OLDEST:
            raise IT3Error(f"ages are trained on from 0 to {OLDEST}, not {self.low} to {self.high}")
        if not self.edges or list(self.edges) != sorted({*self.edges}) or self.edges[0] < 1:
            raise IT3Error(f"levels end at growing distances from 1 on, not at {self.edges}")

    @property
    def name(self) -> str:
        """Of the level without a shift."""
        return f"{self.low}–{self.high}"

    def inside(self, ages: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which ages are in it."""
        return (ages >= self.low) & (ages <= self.high)

    def levels(self, ages: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The rows of each level that has any, in the order of growing distance."""
        found = {self.name: self.inside(ages)}
        starts = (0, *self.edges)
        for start, end in zip(starts, (*self.edges, OLDEST), strict=True):
            years = f"{start + 1}–{end}" if end < OLDEST else f"more than {start}"
            for side, distance in (("younger", self.low - ages), ("older", ages - self.high)):
                found[f"{side} by {years}"] = (distance > start) & (distance <= end)
        return {name: np.flatnonzero(rows) for name, rows in found.items() if rows.any()}


_LARGER = 4  # drawn so many times larger, and shrunk: smooth edges


def draw_faces(n: int, seed: int = 0, *, size: int = 32) -> ImageSet:
    """n faces, their ages drawn evenly from 2 to 90."""
    rng = np.random.default_rng(seed)
    ages = rng.integers(2, 91, n)
    pixels = np.stack([draw_face(int(age), rng, size) for age in ages])
    return from_arrays(pixels, ages, f"drawn-{seed}")


def draw_face(age: int, rng: np.random.Generator, size: int = 32) -> Pixels:
    """One face: with age it grows longer, its eyes smaller, its hair greyer, and wrinkles come."""
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
