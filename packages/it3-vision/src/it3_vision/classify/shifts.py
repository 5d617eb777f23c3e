"""Test images, and what happens to them: corruptions made here, or read from a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from it3_core import IT3Error
from it3_vision.classify.runs import Run
from it3_vision.corruptions import CORRUPTIONS, benchmark_for, corrupt_all
from it3_vision.data import ImageSet, open_images

__all__ = ["CLEAN", "Level", "Shifts"]

CLEAN = "clean"
"""The name of the level without a corruption."""

Level = tuple[Tensor, Tensor]

_FEW = 20  # names in a sentence


@dataclass(frozen=True)
class Shifts:
    """Test images, and what happens to them.

    Attributes:
        images: the clean ones, labelled by the network's classes.
        corruptions: which.
        severities: from 1 to 5.
        folder: a folder with the corrupted images in CIFAR-10-C's or ImageNet-C's layout; without
            it, they are made here, with `seed`.
        seed: of the corruptions.

    Example:
        >>> import numpy as np
        >>> images = ImageSet.from_array(np.zeros((2, 8, 8, 3), np.uint8), [0, 1])
        >>> Shifts(images, ("fog",), (1, 5)).names()
        ['clean', 'fog 1', 'fog 5']
    """

    images: ImageSet
    corruptions: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = (5,)
    folder: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.corruptions or not self.severities:
            raise IT3Error("name at least one corruption and one severity")

    def unmeasured(self) -> str:
        """Which classes have no test image, in one sentence; empty if all have some.

        Example:
            >>> import numpy as np
            >>> pixels = np.zeros((2, 8, 8, 3), np.uint8)
            >>> Shifts(ImageSet.from_array(pixels, [0, 0], ["cat", "dog"])).unmeasured()
            'none of the 2 test images is of the class dog: its error is not measured'
        """
        there = set(self.images.labels.tolist())
        lost = [name for row, name in enumerate(self.images.classes) if row not in there]
        if not lost:
            return ""
        what, whose = ("class", "its") if len(lost) == 1 else ("classes", "their")
        more = f" and {len(lost) - _FEW} more" if len(lost) > _FEW else ""
        return (
            f"none of the {len(self.images):,} test images is of the {what} "
            f"{', '.join(lost[:_FEW])}{more}: {whose} error is not measured"
        )

    def names(self) -> list[str]:
        """The levels' names: severity by severity, in the benchmark's order."""
        pairs = [f"{name} {severity}" for severity in self.severities for name in self.corruptions]
        return [CLEAN, *pairs]

    def levels(self, run: Run) -> dict[str, Callable[[], Level]]:
        """What `it3_core.evaluation` wants: each level is made when its turn comes."""
        return {name: partial(self.load, run, name) for name in self.names()}

    def load(self, run: Run, name: str) -> Level:
        """The images of a level, ready for the network, and their labels."""
        pixels = self.pixels(run.prepare.size, name)
        return run.tensor(pixels), torch.from_numpy(self.images.labels).to(run.device)

    def pixels(self, size: int, name: str, most: int | None = None) -> Any:
        """The images of a level, as arrays."""
        if self.folder is not None and name != CLEAN:
            return self._read(name).batch(slice(most), size)
        clean = self.images.batch(slice(most), size)
        if name == CLEAN:
            return clean
        kind, severity = name.split()
        return corrupt_all(
            clean, kind, int(severity), benchmark=benchmark_for(size), seed=self.seed
        )

    def check(self) -> None:
        """Whether the folder holds all that is asked for: now, and not after an hour."""
        if self.folder is not None:
            for name in self.names()[1:]:
                self._read(name)

    def _read(self, name: str) -> ImageSet:
        """Our images in a folder of corrupted ones: the same names, or the same numbers."""
        kind, severity = name.split()
        found = open_images(
            Path(self.folder or ""),
            corruption=kind,
            severity=int(severity),
            classes=self.images.classes,
        )
        places = {text: row for row, text in enumerate(_bare(found))}
        # Of a.png and a.tif, `corrupt` writes the latter as a.tif.png.
        ours = zip(_bare(self.images), _bare(self.images, suffix=True), strict=True)
        if len(places) < len(found):
            raise IT3Error(
                f"{self.folder}: two images of {name!r} have the same name but for their suffix: "
                f"rename one of them"
            )
        try:
            rows = [places[whole if whole in places else bare] for bare, whole in ours]
        except KeyError as problem:
            raise IT3Error(
                f"{self.folder}: the images of {name!r} are not those of the clean set (there is "
                f"no {problem}): corrupt the same images"
            ) from problem
        if len(set(rows)) < len(rows):
            raise IT3Error(
                f"{self.folder}: an image of {name!r} fits two of the clean set, whose names "
                f"differ by their suffix alone: corrupt the same images"
            )
        if list(found.labels[rows]) != list(self.images.labels):
            raise IT3Error(f"{self.folder}: the labels of {name!r} are not those of the clean set")
        return found.take(rows)


def _bare(images: ImageSet, suffix: bool = False) -> list[str]:
    """What corrupted images and the clean ones have in common.

    Of files it is the class and what follows it, without the suffix, since bitmaps become PNGs,
    or with it; of rows of an array their numbers.
    """
    found = []
    for text, label in zip(images.names, images.labels, strict=True):
        path, folder = PurePosixPath(text), images.classes[label]
        above = path.parts[:-1]
        if not path.suffix:
            found.append(path.name)
            continue
        # The last of that name: in fog/5/5 the first is a severity.
        inside = above[len(above) - above[::-1].index(folder) :] if folder in above else ()
        last = path.name if suffix else path.stem
        found.append(str(PurePosixPath(folder, *inside, last)))
    return found
