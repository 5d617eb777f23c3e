"""Scenes: aerial images with their road masks, and what a network sees of them.

A scene knows where it has data and its ground resolution. In training it is cut into crops, which
are varied anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt
from torch import Tensor
from torch.utils.data import Dataset

from it3_core import IT3Error
from it3_core.io.progress import Progress
from it3_vision.data import Preprocessing
from it3_vision.data.images import BadImage, Pixels

_WHITE = 250  # and above, in every channel: JPEGs don't keep a plain 255
_RIM = 30  # below white: how grey compression makes an area's rim
_LEAST = 256  # pixels of an area at the border
_HUGE = 0.05  # of the image: no roof is that large, so it need not touch the border
_OPEN = 5  # pixels: the width below which things are cut from an area
_LARGEST = 4e8  # pixels of an enlarged image: more is a mistaken resolution


@dataclass(frozen=True)
class Scene:
    """An aerial image and its roads."""

    name: str
    image: Pixels  # (H, W, 3)
    known: NDArray[np.bool_]  # (H, W), false where there are no data
    label: NDArray[np.int8]  # (H, W): 1 road, 0 none, −1 unknown, as all is without a mask
    resolution: float  # metres a pixel

    def at(self, resolution: float) -> Scene:
        """The scene at another ground resolution: shrunk by areas, or enlarged."""
        scale = self.resolution / resolution
        height, width = (max(1, round(side * scale)) for side in self.image.shape[:2])
        if scale > 1 and height * width > _LARGEST:
            big = f"{width} × {height} pixels of {resolution:g} m"
            raise IT3Error(f"{self.name} would have {big}: check its ground resolution")
        if (height, width) == self.image.shape[:2]:
            return replace(self, resolution=resolution)
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR

        def resized(values: NDArray[Any]) -> NDArray[Any]:
            values = values if values.dtype == np.uint8 else values.astype(np.float32)
            return np.asarray(cv2.resize(values, (width, height), interpolation=how))

        road = resized(self.label > 0) >= 0.5
        label = np.where(resized(self.label >= 0) > 0.99, road, -1).astype(np.int8)
        known = resized(self.known) > 0.99
        return Scene(self.name, resized(self.image).astype(np.uint8), known, label, resolution)

    def window(self, size: int) -> Scene:
        """The square with the most data; of several, the one nearest to the middle of the data."""
        height, width = self.image.shape[:2]
        if size >= height and size >= width:
            return self
        h, w = min(size, height), min(size, width)
        total = cv2.integral(self.known.astype(np.uint8))
        sums = total[h:, w:] - total[:-h, w:] - total[h:, :-w] + total[:-h, :-w]
        tops, lefts = np.nonzero(sums == sums.max())
        ys, xs = np.nonzero(self.known) if self.known.any() else (np.zeros(1), np.zeros(1))
        far = np.hypot(tops + h / 2 - ys.mean(), lefts + w / 2 - xs.mean())
        top, left = int(tops[far.argmin()]), int(lefts[far.argmin()])
        there = (slice(top, top + h), slice(left, left + w))
        cut = {name: getattr(self, name)[there] for name in ("image", "known", "label")}
        return replace(self, **cut)


def make_scene(
    name: str,
    image: Pixels,
    mask: NDArray[np.generic] | None,
    resolution: float,
    no_data: int | None = None,
) -> Scene:
    """A scene from an image, a mask (H, W) of zeros and one other value, and metres a pixel.

    `no_data` is what the image's file declares to be no data, see `find_no_data`.
    """
    if not 0 < resolution < 1000:
        raise IT3Error(f"{name}: a resolution is in metres a pixel, not {resolution:g}")
    known = ~find_no_data(image, no_data)
    if mask is None:
        return Scene(name, image, known, np.full(known.shape, -1, np.int8), resolution)
    if mask.shape != known.shape:
        sizes = [f"{one.shape[1]} × {one.shape[0]}" for one in (known, mask)]
        raise IT3Error(f"{name}: the image has {sizes[0]} pixels, but its mask {sizes[1]}")
    label = np.where(known, _binary(name, mask), -1).astype(np.int8)
    return Scene(name, image, known, label, resolution)


def _binary(name: str, mask: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask has two values: black, and one more (1, 255 …). JPEG's blur around them is let pass.

    What lies between is neither road nor ground, and guessing would be a choice of ours.
    """
    fraction = mask / max(mask.max(), 1)
    grey = (fraction > 0.2) & (fraction < 0.8)
    # Roads are a few per cent of an image, so that a grey one is a small fraction of all pixels.
    if grey.mean() > 0.02 or grey.sum() > 0.5 * (fraction > 0.2).sum():
        raise IT3Error(f"{name}: {grey.mean():.1%} of its mask are grey: threshold it to 0 and 255")
    return np.asarray(fraction >= 0.5)


@dataclass(frozen=True)
class Scenes:
    """Scenes of one resolution, in metres a pixel, that are read when they are needed."""

    title: str
    names: tuple[str, ...]
    resolution: float
    read: Callable[[int], Scene]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: int) -> Scene:
        return self.read(range(len(self))[row])


class Images(NamedTuple):
    """Scenes at the network's resolution, and what was left out, in words."""

    scenes: Sequence[Scene]
    skipped: Sequence[str]


def _readable(
    scenes: Scenes, resolution: float, rows: Sequence[int], progress: bool = False
) -> Images:
    found: list[Scene] = []
    bad: list[str] = []
    bar = Progress(len(rows), "read", progress)
    for done, row in enumerate(rows, 1):
        try:
            found.append(scenes[row].at(resolution))
        except BadImage as problem:
            bad.append(str(problem))
        bar.show(done, scenes.names[row], last=done == len(rows))
    bar.close()
    return Images(found, bad)


def gathered(scenes: Scenes, resolution: float, progress: bool) -> Images:
    """The scenes to train on that can be read and have data."""
    found, bad = _readable(scenes, resolution, range(len(scenes)), progress)
    found = [scene for scene in found if scene.known.any()]
    if len(found) < 10:
        first = f" ({bad[0]})" if bad else ""
        raise IT3Error(f"there are {len(found)} scenes to train on{first}: give 10 at least")
    return Images(found, bad)


def images_of(
    scenes: Scenes, resolution: float, *, window: int | None = None, most: int | None = None
) -> Images:
    """The scenes to test on, at a network's resolution.

    Images without a single road pixel among their data are left out: nothing can be complete
    there, and whatever is predicted is wrong. A window is the side of a square that is cut from
    each, the one with the most data; `most` images are evenly spread over the set.
    """
    count = len(scenes) if most is None else min(most, len(scenes))
    rows = np.linspace(0, len(scenes) - 1, count).round().astype(int).tolist()
    found, skipped = _readable(scenes, resolution, rows)
    found = [scene if window is None else scene.window(window) for scene in found]
    empty = [f"{one.name}: no road where it has data" for one in found if not (one.label > 0).any()]
    found = [scene for scene in found if (scene.label > 0).any()]
    if not found:
        raise IT3Error(f"no image in {scenes.title} can be read and has data and roads")
    return Images(found, [*skipped, *empty])


def find_no_data(image: Pixels, declared: int | None = None) -> NDArray[np.bool_]:
    """Where an image has no data: white or black areas that reach its border, or are huge.

    A white roof, or a line of white cars, is smaller or lies inside, and stays. Black is exactly
    that: shadows and water are nearly so. What the file declares to be no data, in every channel,
    is none anywhere.
    """
    darkest, black = image.min(2), image.max(2) == 0
    found = _areas(darkest >= _WHITE, darkest >= _WHITE - _RIM) | _areas(black, black)
    if declared is not None:
        found |= (image == declared).all(2)
    return found


def _areas(core: NDArray[np.bool_], rim: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Areas of `core` that reach the border or are huge, with what is `rim` beside them."""
    candidate: NDArray[np.uint8] = core.astype(np.uint8)
    if int(candidate.sum()) < _LEAST:
        return np.zeros(candidate.shape, np.bool_)
    kernel = np.ones((_OPEN, _OPEN), np.uint8)
    # Framed by itself: what lies at the border is not eroded from outside.
    framed = cv2.copyMakeBorder(candidate, _OPEN, _OPEN, _OPEN, _OPEN, cv2.BORDER_REPLICATE)
    opened = cv2.morphologyEx(framed, cv2.MORPH_OPEN, kernel)[_OPEN:-_OPEN, _OPEN:-_OPEN]
    _, labels, stats, _ = cv2.connectedComponentsWithStats(np.ascontiguousarray(opened))
    left, top, wide, high, area = stats.T
    height, width = candidate.shape
    border = (left == 0) | (top == 0) | (left + wide == width) | (top + high == height)
    chosen = (area >= _HUGE * candidate.size) | (border & (area >= _LEAST))
    found = chosen[labels] & (labels > 0)  # 0 is what lies around
    # What opening took off corners, and the rim that compression leaves.
    near = cv2.dilate(found.astype(np.uint8), kernel) > 0
    return np.asarray(near & rim, np.bool_)


def mirrored(image: Pixels, known: NDArray[np.bool_]) -> Pixels:
    """The image with its no-data areas filled by a mirror image of what lies beside them.

    So normalisation sees ordinary ground there, and not a colour that no camera ever saw.
    """
    if known.all() or not known.any():
        return image
    nearest = distance_transform_edt(~known, return_distances=False, return_indices=True)
    here = np.indices(known.shape)
    reach = np.array(known.shape).reshape(2, 1, 1) - 1
    across = np.clip(2 * nearest - here, 0, reach)
    rows, columns = np.where(known[across[0], across[1]], across, nearest)
    return np.asarray(image[rows, columns], np.uint8)


def fitted(scenes: Sequence[Scene], size: int) -> Preprocessing:
    """How images become tensors: by the mean and deviation of the pixels that have data."""
    pixels = np.concatenate([scene.image[scene.known] for scene in scenes]) / 255
    mean, std = pixels.mean(0).round(6), pixels.std(0) + 1e-3
    return Preprocessing(size, tuple(mean.tolist()), tuple(std.tolist()))


def as_input(prepare: Preprocessing, image: Pixels, known: NDArray[np.bool_]) -> Tensor:
    """(4, H, W): normalised colours, mirrored into what has no data, and 1 where there are data."""
    colours = torch.from_numpy(np.ascontiguousarray(mirrored(image, known))).float() / 255
    colours = (colours - torch.tensor(prepare.mean)) / torch.tensor(prepare.std)
    there = torch.from_numpy(np.ascontiguousarray(known)).float()
    return torch.cat([colours.movedim(-1, 0), there[None]])


@dataclass(frozen=True)
class Crops(Dataset[int]):
    """Crops for `fit`: a Dataset of numbers, whose `collate` cuts a batch.

    Each epoch takes from every scene as many crops as fit into it. All that is random is drawn
    from torch's generator, which `fit` seeds for each step.
    """

    scenes: Sequence[Scene]  # at the network's resolution
    prepare: Preprocessing
    size: int  # side of a crop

    @cached_property
    def rows(self) -> list[int]:
        """Of each crop its scene."""
        areas = [scene.known.sum() / self.size**2 for scene in self.scenes]
        return [row for row, area in enumerate(areas) for _ in range(max(1, round(area)))]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> int:
        return row

    def collate(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(int(torch.randint(2**31, ())))
        cut = [self._crop(self.scenes[self.rows[row]], rng) for row in rows]
        x = torch.stack([x for x, _ in cut]).contiguous(memory_format=torch.channels_last)
        return x, torch.stack([y for _, y in cut])

    def _crop(self, scene: Scene, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        for _ in range(4):  # a crop without data teaches nothing
            image, label = _turned(scene, self.size, rng)
            if (label >= 0).mean() > 0.5:
                break
        x = as_input(self.prepare, _coloured(image, rng), label >= 0)
        return x, torch.from_numpy(label)


def middle_crops(
    scenes: Sequence[Scene], prepare: Preprocessing, size: int
) -> tuple[Tensor, Tensor]:
    """One crop of each scene, the one with the most data, as it is, filled up with no data."""
    inputs, labels = [], []
    for scene in (scene.window(size) for scene in scenes):
        around = [(0, size - side) for side in scene.known.shape]
        image = np.pad(scene.image, (*around, (0, 0)))
        inputs.append(as_input(prepare, image, np.pad(scene.known, around)))
        label = np.pad(scene.label, around, constant_values=-1)
        labels.append(torch.from_numpy(label.astype(np.int64)))
    return torch.stack(inputs), torch.stack(labels)


def _turned(scene: Scene, size: int, rng: np.random.Generator) -> tuple[Pixels, NDArray[np.int64]]:
    """A crop around a random position, turned, flipped or not, a little larger or smaller."""
    sides = scene.image.shape[1::-1]
    scale = float(np.exp(rng.uniform(np.log(0.75), np.log(1.33))))
    angle = float(rng.choice([0, 90, 180, 270])) + float(rng.uniform(-20, 20))
    half = [min(side / 2, size / (2 * scale)) for side in sides]
    middle = [rng.uniform(h, side - h) for h, side in zip(half, sides, strict=True)]
    turn: NDArray[Any] = cv2.getRotationMatrix2D((middle[0], middle[1]), angle, scale)
    turn[:, 2] += size / 2 - np.array(middle)
    if rng.random() < 0.5:
        turn = np.array([[-1.0, 0, size - 1], [0, 1, 0]]) @ np.vstack([turn, [0, 0, 1]])

    def warped(values: NDArray[Any], how: int) -> NDArray[Any]:
        edge = cv2.BORDER_REFLECT_101
        return np.asarray(cv2.warpAffine(values, turn, (size, size), flags=how, borderMode=edge))

    label = warped(scene.label.astype(np.float32), cv2.INTER_NEAREST)
    return warped(scene.image, cv2.INTER_LINEAR), label.astype(np.int64)


def _coloured(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Another camera on another day: gains, contrast, gamma, sometimes blur and noise."""
    values = image.astype(np.float32) / 255
    values = values ** float(np.exp(rng.uniform(-0.35, 0.35)))
    values = (values - values.mean()) * rng.uniform(0.75, 1.3) + values.mean()
    values = values * rng.uniform(0.85, 1.15) * rng.uniform(0.93, 1.07, 3).astype(np.float32)
    if rng.random() < 0.3:
        values = cv2.GaussianBlur(values, (0, 0), float(rng.uniform(0.4, 1.2)))
    if rng.random() < 0.3:
        values = values + rng.normal(0, rng.uniform(0.01, 0.04), values.shape)
    return np.asarray((values * 255).clip(0, 255), np.uint8)


def _coarser(image: Tensor) -> Tensor:
    """As seen from higher up: details below two pixels are gone."""
    small = nnf.interpolate(image, scale_factor=0.5, mode="area")
    return nnf.interpolate(small, size=image.shape[2:], mode="bilinear")


def _browner(image: Tensor) -> Any:
    """Another season: less green, more red, darker."""
    gain, offset = image.new_tensor([[0.9, 0.8, 0.8], [-0.2, -0.7, -0.9]]).view(2, 1, 3, 1, 1)
    return image * gain + offset


def _shift(change: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([change(x[:, :3]), x[:, 3:]], 1)


SHIFTS = {
    "resolution": _shift(_coarser),
    "colour": _shift(_browner),
    "blur": _shift(lambda x: nnf.avg_pool2d(nnf.pad(x, (2, 2, 2, 2), mode="replicate"), 5, 1)),
    "haze": _shift(lambda image: image * 0.5 + 0.8),
}
"""What may happen to inputs between training and use."""
