"""Training images, varied anew each time they are seen, by albumentations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import albumentations as A
import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from it3_vision.data import ImageSet, Preparation

__all__ = ["Feed", "augmentation", "face_augmentation"]


def augmentation(size: int, *, flip: bool = True) -> A.Compose:
    """What is usual for classifiers: crops, and flips unless the images can be read.

    Up to 64 pixels an image is shifted by up to an eighth of its size; a larger one is cropped at
    random and its colours are changed, as for ImageNet.

    Args:
        size: height and width of the images.
        flip: whether left and right may be exchanged; not for digits and letters.

    Example:
        >>> import numpy as np
        >>> vary = augmentation(32)
        >>> vary(image=np.zeros((32, 32, 3), np.uint8))["image"].shape
        (32, 32, 3)
    """
    steps: list[Any]
    if size <= 64:
        margin = size // 8
        steps = [
            A.Pad(padding=margin, border_mode=cv2.BORDER_REFLECT_101),
            A.RandomCrop(size, size),
        ]
    else:
        steps = [
            A.RandomResizedCrop((size, size), scale=(0.25, 1.0)),
            A.ColorJitter(0.2, 0.2, 0.2, 0.05, p=0.5),
        ]
    return A.Compose([*steps, A.HorizontalFlip(p=0.5)] if flip else steps)


def face_augmentation(size: int) -> A.Compose:
    """For faces that are aligned: a little turned, moved and scaled, flipped, in other light.

    Nothing that makes a face look older or younger, such as blur, is among it.

    Args:
        size: height and width of the images.

    Example:
        >>> import numpy as np
        >>> face_augmentation(32)(image=np.zeros((32, 32, 3), np.uint8))["image"].shape
        (32, 32, 3)
    """
    return A.Compose(
        [
            A.HorizontalFlip(p=0.5),
            A.Affine(
                scale=(0.9, 1.2),
                translate_percent=(-0.07, 0.07),
                rotate=(-12, 12),
                border_mode=cv2.BORDER_REFLECT_101,
                p=1.0,
            ),
            A.ColorJitter(0.25, 0.25, 0.25, 0.02, p=0.7),
            A.ToGray(p=0.1),
            A.CoarseDropout(
                num_holes_range=(1, 1),
                hole_height_range=(size // 8 / size, 0.4),
                hole_width_range=(size // 8 / size, 0.4),
                fill="random_uniform",
                p=0.3,
            ),
        ]
    )


@dataclass(frozen=True)
class Feed(Dataset[tuple[int, int]]):
    """Images for `fit`: a Dataset of row numbers, whose `collate` makes a batch of them.

    A batch is decoded, varied and prepared as one. The pipeline is seeded for each batch from
    torch's generator, which `fit` seeds for each step, so that a training that was killed goes on
    bit for bit.

    Args:
        images: the training images.
        prepare: makes a tensor of them.
        vary: augmentation, or None.

    Example:
        >>> import numpy as np
        >>> images = ImageSet.from_array(np.zeros((4, 8, 8, 3), np.uint8), [0, 1, 0, 1])
        >>> feed = Feed(images, Preparation(8, (0.5,) * 3, (0.25,) * 3), augmentation(8))
        >>> x, y = feed.collate([feed[0], feed[3]])
        >>> x.shape, y
        (torch.Size([2, 3, 8, 8]), tensor([0, 1]))
    """

    images: ImageSet
    prepare: Preparation
    vary: Callable[..., dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> int:  # type: ignore[override]
        return row

    def collate(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """A batch: a tensor of images, and their labels."""
        pixels = self.images.batch(rows, self.prepare.size)
        if self.vary is not None:
            if hasattr(self.vary, "set_random_seed"):
                self.vary.set_random_seed(int(torch.randint(2**31, ())))
            pixels = np.stack([self.vary(image=image)["image"] for image in pixels])
        return self.prepare(pixels), torch.from_numpy(self.images.labels[rows])
