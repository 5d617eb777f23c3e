"""AugMix's operations against Pillow's, which the published code calls, and its mixing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from it3_vision import augmix
from it3_vision.augmix import AugMix, Pixels


def picture(channels: int = 3, height: int = 24, width: int = 32, seed: int = 0) -> Pixels:
    """Smooth, with noise: bilinear rounding would hide nothing, and edges show a wrong sign."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    base = 60 + 90 * (columns > width / 3) + rows * 2
    noisy = base[..., None] + rng.normal(0, 12, (height, width, channels)) + 8 * np.arange(channels)
    return noisy.clip(0, 255).astype(np.uint8)


def pillow(pixels: Pixels, change: Callable[[Image.Image], Image.Image]) -> Pixels:
    return np.asarray(change(Image.fromarray(pixels)), dtype=np.uint8)


@pytest.mark.parametrize("level", [0.05, -0.3, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_operations_on_values_equal_pillow_s(level: float, seed: int) -> None:
    pixels = picture(seed=seed)
    strength = abs(level)
    changes: dict[str, Callable[[Image.Image], Image.Image]] = {
        "autocontrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
        "posterize": lambda image: ImageOps.posterize(image, 4 - int(strength * 4)),
        "solarize": lambda image: ImageOps.solarize(image, 256 - int(strength * 256)),
    }
    for name, change in changes.items():
        found = getattr(augmix, name)(pixels, level)
        np.testing.assert_array_equal(found, pillow(pixels, change), err_msg=name)


@pytest.mark.parametrize("level", [0.2, -0.5])
def test_operations_on_places_follow_pillow_s(level: float) -> None:
    """Up to the rounding of two bilinear interpolations, and the very edge of the image."""
    pixels = picture()
    slope, right, down = 0.3 * level, int(level * 32 / 3), int(level * 24 / 3)
    affine = {
        "shear_x": (1, slope, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, slope, 1, 0),
        "translate_x": (1, 0, right, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, down),
    }
    how: dict[str, Any] = {"resample": Image.Resampling.BILINEAR, "fillcolor": (128,) * 3}

    def moved(data: tuple[float, ...]) -> Pixels:
        return pillow(pixels, lambda i: i.transform(i.size, Image.Transform.AFFINE, data, **how))

    expected = {name: moved(data) for name, data in affine.items()}
    expected["rotate"] = pillow(pixels, lambda image: image.rotate(int(level * 30), **how))
    for name, wanted in expected.items():
        found = getattr(augmix, name)(pixels, level)
        gap = np.abs(found.astype(int) - wanted.astype(int))
        assert (gap > 6).mean() < 0.06, name
        assert np.median(gap) <= 1, name
        assert (np.abs(found.astype(int) - pixels.astype(int)) > 6).mean() > 0.3, name


@pytest.mark.parametrize("channels", [1, 3])
def test_copies_are_of_the_image_s_kind_and_repeat_by_seed(channels: int) -> None:
    mean, std = [0.4] * channels, [0.2] * channels
    pixels = torch.from_numpy(picture(channels)).permute(2, 0, 1)
    image = (pixels.double() / 255 - 0.4) / 0.2
    before = image.clone()
    augment = AugMix(mean, std)
    first, again, other = (
        augment(image, 6, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert first.shape == (6, channels, 24, 32)
    assert first.dtype == torch.float64
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(image, before)
    seen = first * 0.2 + 0.4
    assert -1e-6 < float(seen.min()) <= float(seen.max()) < 1 + 1e-6
    assert len({round(float(copy_.sum()), 6) for copy_ in first}) == 6


def test_a_copy_is_the_published_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one known operation the mixture can be undone: m·x + (1 − m)·inverted."""
    monkeypatch.setattr(augmix, "_OPERATIONS", [lambda pixels, level: 255 - pixels])
    augment = AugMix([0.0], [1.0], width=1, depth=1, shift=0, flip=False)
    pixels = picture(1)
    image = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    copies = augment(image, 200, torch.Generator().manual_seed(0))
    shares = ((copies - (1 - image)) / (2 * image - 1)).flatten(1)  # m, the same at every place
    kept = shares.median(1).values
    torch.testing.assert_close(copies[0], kept[0] * image + (1 - kept[0]) * (1 - image))
    assert abs(float(kept.mean()) - 0.5) < 0.07  # Beta(1, 1) is uniform
    assert abs(float(kept.std()) - 12**-0.5) < 0.04


def test_shifts_and_flips() -> None:
    image = torch.zeros(1, 15, 15)
    image[0, 7, 5] = 1
    augment = AugMix([0.0], [1.0], shift=3)
    places = set()
    for seed in range(200):
        moved = augment._moved(
            (image.permute(1, 2, 0) * 255).numpy().astype(np.uint8), np.random.default_rng(seed)
        )
        ((row, column, _),) = np.argwhere(moved)
        places.add((int(row), int(column)))
    rows, columns = {row for row, _ in places}, {column for _, column in places}
    assert rows == set(range(4, 11))
    assert columns == set(range(2, 9)) | set(range(6, 13))  # as it was, and mirrored
