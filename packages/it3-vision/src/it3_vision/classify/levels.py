"""Test images, and what happens to them: corruptions made here, or read from a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from it3_core import IT3Error
from it3_vision.corruptions import CORRUPTIONS, benchmark_for, corrupt_all
from it3_vision.data import ImageSet, open_images

CLEAN = "clean"
"""The name of the level without a corruption."""

_FEW = 20  # names in a sentence


@dataclass(frozen=True)
class Shifts:
    """Test images, and what happens to them."""

    images: ImageSet  # the clean ones, labelled by the network's classes
    corruptions: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = (5,)  # from 1 to 5
    folder: Path | None = None  # like CIFAR-10-C or ImageNet-C; without it, they are made here
    seed: int = 0  # of the corruptions

    def __post_init__(self) -> None:
        if not self.corruptions or not self.severities:
            raise IT3Error("name at least one corruption and one severity")

    def unmeasured(self) -> list[str]:
        """A sentence that names the classes without a test image, if there are any."""
        there = set(self.images.labels.tolist())
        lost = [name for row, name in enumerate(self.images.classes) if row not in there]
        more = f" and {len(lost) - _FEW} more" if len(lost) > _FEW else ""
        some = ", ".join(lost[:_FEW]) + more
        return [f"Without a test image, so that no error is measured: {some}."] if lost else []

    def names(self) -> list[str]:
        """The levels' names: severity by severity, in the benchmark's order."""
        pairs = [f"{name} {severity}" for severity in self.severities for name in self.corruptions]
        return [CLEAN, *pairs]

    def pixels(self, size: int, name: str, most: int | None = None) -> Any:
        """The images of a level, as arrays."""
        if self.folder is not None and name != CLEAN:
            return self._read(name).batch(slice(most), size)
        clean = self.images.batch(slice(most), size)
        if name == CLEAN:
            return clean
        kind, severity = name.split()
        how: dict[str, Any] = {"benchmark": benchmark_for(size), "seed": self.seed}
        return corrupt_all(clean, kind, int(severity), **how)

    def check(self) -> None:
        """Refuses a folder that lacks a level now, and not after an hour."""
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
        index = {text: row for row, text in enumerate(_bare(found))}
        # Of a.png and a.tif, `corrupt` writes the latter as a.tif.png.
        ours = zip(_bare(self.images), _bare(self.images, suffix=True), strict=True)
        if len(index) < len(found):
            raise IT3Error(
                f"{self.folder}: two images of {name!r} have the same name but for their suffix: "
                f"rename one of them"
            )
        try:
            rows = [index[whole if whole in index else bare] for bare, whole in ours]
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
        if not path.suffix:
            found.append(path.name)
            continue
        # The last of that name: in fog/5/5 the first is a severity.
        above = path.parts[:-1]
        inside = above[len(above) - above[::-1].index(folder) :] if folder in above else ()
        found.append(str(PurePosixPath(folder, *inside, path.name if suffix else path.stem)))
    return found
