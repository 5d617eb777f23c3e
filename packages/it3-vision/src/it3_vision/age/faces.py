"""Faces whose file names say how old they are, and the interval of ages that is trained on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from it3_core import IT3Error
from it3_vision.data import MOST_PIXELS, ImageSet
from it3_vision.data.images import Pixels
from it3_vision.data.trees import FileSource, Parts, deep_images, is_tar, open_tree, shown

__all__ = ["OLDEST", "Faces", "Interval", "age_of", "from_arrays", "read_faces", "set_apart"]

OLDEST = 130
"""No face is older: a larger number in a name is no age."""

_AGES = tuple(str(age) for age in range(OLDEST + 1))
_NAME = re.compile(r"(\d{1,3})_([01])_([0-4])_(\d+)\..+", re.ASCII)


@dataclass(frozen=True)
class Faces:
    """What `read_faces` found.

    Attributes:
        images: the faces; their labels are ages in whole years.
        problems: a line for each file that is left out, and why.
    """

    images: ImageSet
    problems: list[str]


def age_of(name: str) -> int | None:
    """The age in a name AGE_GENDER_RACE_DATE.jpg; None where it has another form.

    Example:
        >>> age_of("26_1_2_20170116155807484.jpg.chip.jpg")
        26
        >>> age_of("61_1_20170109150557335.jpg")  # there is no race: the date may be cut, too
    """
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) > OLDEST:
        return None
    return int(match[1])


def read_faces(path: str | Path, most_pixels: int = MOST_PIXELS) -> Faces:
    """The faces in a folder, in folders of parts below it, or in a tar; none is decoded yet.

    A file whose name has another form is listed, and so is one whose name was there before: the
    aligned faces and the parts of UTKFace overlap, and a face must not be tested on that was
    trained on.

    Args:
        path: the folder, or a .tar or .tar.gz.
        most_pixels: larger images are refused before they are decoded.

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
    place = Path(path)
    if not place.is_dir() and not (place.is_file() and is_tar(place.name)):
        raise IT3Error(f"{place} is neither a folder nor a tar of faces")
    tree = open_tree(place)
    found = deep_images(tree, ())
    if not found:
        raise IT3Error(f"{place} holds no images: give the folder or the tar of UTKFace")
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
            f"no image in {place} is named AGE_GENDER_RACE_DATE.jpg, as UTKFace's are: "
            f"{shown(found[0])}, for example, says no age"
        )
    source = FileSource(tree, list(files.values()), most_pixels)
    return Faces(ImageSet(source, ages, _AGES), problems)


def from_arrays(pixels: Pixels, ages: ArrayLike, title: str = "faces") -> ImageSet:
    """Faces from an array (N, H, W, 3) of uint8, and their ages in whole years.

    Example:
        >>> from_arrays(np.zeros((2, 8, 8, 3), np.uint8), [31, 64]).labels
        array([31, 64])
    """
    return ImageSet.from_array(pixels, ages, _AGES, title)


def set_apart(names: Sequence[str], share: float) -> NDArray[np.bool_]:
    """Which faces are for testing: by their names, so that it is always the same ones.

    Example:
        >>> names = [f"part1/{age}_0_0_1.jpg" for age in range(100)]
        >>> int(set_apart(names, 0.2).sum())
        21
        >>> bool((set_apart(names, 0.2) == set_apart([n[6:] for n in names], 0.2)).all())
        True
    """
    hashes = [hashlib.sha256(name.rsplit("/", 1)[-1].encode()).digest()[:8] for name in names]
    return np.array([int.from_bytes(one, "big") < share * 2**64 for one in hashes], dtype=bool)


@dataclass(frozen=True)
class Interval:
    """The ages that are trained on, both ends included, and levels by the distance from them.

    Attributes:
        low, high: the youngest and the oldest.
        edges: a level ends at each of these distances, in years; another goes on from the last.

    Example:
        >>> Interval(20, 60).levels(np.array([35, 12, 19, 61, 90]))
        {'20–60': array([0]), 'younger by 1–10': array([1, 2]), 'older by 1–10': array([3]),
         'older by more than 20': array([4])}
    """

    low: int = 20
    high: int = 60
    edges: tuple[int, ...] = (10, 20)

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
            told = f"{start + 1}–{end}" if end < OLDEST else f"more than {start}"
            for side, distance in (("younger", self.low - ages), ("older", ages - self.high)):
                found[f"{side} by {told}"] = (distance > start) & (distance <= end)
        return {name: np.flatnonzero(rows) for name, rows in found.items() if rows.any()}
