"""Training crops: cut from scenes at any angle and size, varied in colour, anew each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from it3_core import IT3Error
from it3_vision.data import Preparation
from it3_vision.data.images import Pixels
from it3_vision.roads.nodata import mirrored
from it3_vision.roads.scenes import Scene

__all__ = ["Crops", "as_input", "fitted", "middle_crops"]


def fitted(scenes: Sequence[Scene], size: int) -> Preparation:
    """How images become tensors: by the mean and deviation of the pixels that have data.

    Example:
        >>> from it3_vision.roads.scenes import make_scene
        >>> fitted([make_scene("a", np.full((8, 8, 3), 51, np.uint8), None, 1.0)], 8).mean
        (0.2, 0.2, 0.2)
    """
    pixels = np.concatenate([scene.image[scene.known] for scene in scenes]) / 255
    if not len(pixels):
        raise IT3Error("none of the images has any data: all are white, black or declared empty")
    mean, std = pixels.mean(0).round(6), pixels.std(0) + 1e-3
    return Preparation(size, tuple(mean.tolist()), tuple(std.tolist()))


def as_input(prepare: Preparation, image: Pixels, known: NDArray[np.bool_]) -> Tensor:
    """(4, H, W): normalised colours, and 1 where there are data.

    What has no data is filled with what lies beside it.

    Example:
        >>> prepare = Preparation(8, (0.5,) * 3, (0.25,) * 3)
        >>> as_input(prepare, np.zeros((8, 8, 3), np.uint8), np.ones((8, 8), bool))[:, 0, 0]
        tensor([-2., -2., -2.,  1.])
    """
    colours = torch.from_numpy(np.ascontiguousarray(mirrored(image, known))).float() / 255
    colours = (colours - torch.tensor(prepare.mean)) / torch.tensor(prepare.std)
    there = torch.from_numpy(np.ascontiguousarray(known)).float()
    return torch.cat([colours.movedim(-1, 0), there[None]])


@dataclass(frozen=True)
class Crops(Dataset[int]):
    """Crops for `fit`: a Dataset of numbers, whose `collate` cuts a batch.

    Each epoch takes from every scene as many crops as fit into it. All that is random is drawn
    from torch's generator, which `fit` seeds for each step.

    Args:
        scenes: labelled, at the network's resolution.
        prepare: makes inputs.
        size: side of a crop.

    Example:
        >>> from it3_vision.roads.scenes import make_scene
        >>> mask = np.eye(64, dtype=np.uint8)
        >>> scene = make_scene("a", np.full((64, 64, 3), 90, np.uint8), mask, 1.0)
        >>> crops = Crops([scene], Preparation(32, (0.5,) * 3, (0.25,) * 3), 32)
        >>> len(crops), crops.collate([0, 1])[0].shape
        (4, torch.Size([2, 4, 32, 32]))
    """

    scenes: Sequence[Scene]
    prepare: Preparation
    size: int

    def __post_init__(self) -> None:
        areas = [scene.known.sum() / self.size**2 for scene in self.scenes]
        rows = [row for row, area in enumerate(areas) for _ in range(max(1, round(area)))]
        object.__setattr__(self, "_rows", rows)

    def __len__(self) -> int:
        return len(self._rows)  # type: ignore[attr-defined]

    def __getitem__(self, row: int) -> int:
        return row

    def collate(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Inputs and labels."""
        rng = np.random.default_rng(int(torch.randint(2**31, ())))
        cut = [self._crop(self.scenes[self._rows[row]], rng) for row in rows]  # type: ignore[attr-defined]
        x = torch.stack([x for x, _ in cut]).contiguous(memory_format=torch.channels_last)
        return x, torch.stack([y for _, y in cut])

    def _crop(self, scene: Scene, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        for _ in range(4):  # a crop without data teaches nothing
            image, known, label = _turned(scene, self.size, rng)
            if known.mean() > 0.5:
                break
        image = _coloured(image, rng)
        return as_input(self.prepare, image, known), torch.from_numpy(label)


def middle_crops(scenes: Sequence[Scene], prepare: Preparation, size: int) -> tuple[Tensor, Tensor]:
    """One crop of each scene, the one with the most data, as it is: to judge by.

    Example:
        >>> from it3_vision.roads.scenes import make_scene
        >>> mask = np.eye(64, dtype=np.uint8)
        >>> scene = make_scene("a", np.full((64, 64, 3), 90, np.uint8), mask, 1.0)
        >>> middle_crops([scene], Preparation(32, (0.5,) * 3, (0.25,) * 3), 32)[1].shape
        torch.Size([1, 32, 32])
    """
    inputs, labels = [], []
    for scene in scenes:
        part = scene.window(size)
        image, known, label = _filled(part, size)
        inputs.append(as_input(prepare, image, known))
        labels.append(torch.from_numpy(label))
    return torch.stack(inputs), torch.stack(labels)


def _filled(scene: Scene, size: int) -> tuple[Pixels, NDArray[np.bool_], NDArray[np.int64]]:
    """A scene that is smaller than a crop, with no data around it."""
    assert scene.label is not None
    below, right = size - scene.image.shape[0], size - scene.image.shape[1]
    around = ((0, below), (0, right))
    image = np.pad(scene.image, (*around, (0, 0)))
    known = np.pad(scene.known, around)
    return image, known, np.pad(scene.label, around, constant_values=-1).astype(np.int64)


def _turned(
    scene: Scene, size: int, rng: np.random.Generator
) -> tuple[Pixels, NDArray[np.bool_], NDArray[np.int64]]:
    """A crop about a random place, turned, flipped or not, a little larger or smaller."""
    assert scene.label is not None
    height, width = scene.image.shape[:2]
    scale = float(np.exp(rng.uniform(np.log(0.75), np.log(1.33))))
    angle = float(rng.choice([0, 90, 180, 270])) + float(rng.uniform(-20, 20))
    half = [min(side / 2, size / (2 * scale)) for side in (width, height)]
    middle = [rng.uniform(h, side - h) for h, side in zip(half, (width, height), strict=True)]
    turn: NDArray[Any] = cv2.getRotationMatrix2D((middle[0], middle[1]), angle, scale)
    turn[:, 2] += size / 2 - np.array(middle)
    if rng.random() < 0.5:
        turn = np.array([[-1.0, 0, size - 1], [0, 1, 0]]) @ np.vstack([turn, [0, 0, 1]])
    to = (size, size)
    edge = cv2.BORDER_REFLECT_101
    image = cv2.warpAffine(scene.image, turn, to, flags=cv2.INTER_LINEAR, borderMode=edge)
    label = cv2.warpAffine(scene.label.astype(np.float32), turn, to, flags=cv2.INTER_NEAREST,
                           borderMode=edge)  # fmt: skip
    whole = label.astype(np.int64)
    return np.asarray(image, np.uint8), whole >= 0, whole


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
