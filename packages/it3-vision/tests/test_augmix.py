"""AugMix's operations against Pillow's, which the published code calls, and its mixing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from it3_vision import augmix
from it3_vision.augmix import AugMix


def picture(channels=3):
    """Smooth, with noise: bilinear rounding would hide nothing, and edges show a wrong sign."""
    rows, columns = np.mgrid[:24, :32]
    base = (60 + 90 * (columns > 32 / 3) + rows * 2)[..., None] + 8 * np.arange(channels)
    return np.random.default_rng(0).normal(base, 12).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("level", [0.2, -0.5])
def test_operations_follow_pillow_s(level):
    """Those on positions up to two roundings, and the very edge of the image."""
    pixels, slope = picture(), 0.3 * level
    image, how = Image.fromarray(pixels), {"fillcolor": (128,) * 3, "resample": 2}

    def affine(*data):
        return image.transform(image.size, Image.Transform.AFFINE, data, **how)  # type: ignore[arg-type]

    near = {
        ("shear", 0): affine(1, slope, 0, 0, 1, 0),
        ("shear", 1): affine(1, 0, 0, slope, 1, 0),
        ("translate", 0): affine(1, 0, int(level * 32 / 3), 0, 1, 0),
        ("translate", 1): affine(1, 0, 0, 0, 1, int(level * 8)),
        ("rotate",): image.rotate(int(level * 30), **how),  # type: ignore[arg-type]
    }
    for (name, *axis), wanted in near.items():
        found = getattr(augmix, name)(pixels, level, *axis).astype(int)
        gap = np.abs(found - np.asarray(wanted, int))
        assert (gap > 6).mean() < 0.06, name
        assert np.median(gap) <= 1, name
        assert (np.abs(found - pixels) > 6).mean() > 0.3, name


def copies_of(image, number, seed=0, **options):
    augment = AugMix([0.4] * len(image), [0.2] * len(image), **options)
    return augment((image - 0.4) / 0.2, number, torch.Generator().manual_seed(seed)) * 0.2 + 0.4


@pytest.mark.parametrize("channels", [1, 3])
def test_copies_are_of_the_image_s_kind_and_repeat_by_seed(channels):
    image = torch.from_numpy(picture(channels)).permute(2, 0, 1).double() / 255
    first, again, other = (copies_of(image, 6, seed) for seed in (0, 0, 1))
    assert (first.shape, first.dtype) == ((6, channels, 24, 32), torch.float64)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert -1e-6 < float(first.min()) <= float(first.max()) < 1 + 1e-6
    assert len({round(float(copy.sum()), 6) for copy in first}) == 6


def test_a_copy_is_the_published_mixture(monkeypatch):
    """With one known operation the mixture can be undone: m·x + (1 − m)·inverted."""
    for name, value in (("_OPERATIONS", [lambda x, level: 255 - x]), ("_WIDTH", 1), ("_DEPTH", 1)):
        monkeypatch.setattr(augmix, name, value)
    image = torch.from_numpy(picture(1)).permute(2, 0, 1) / 255
    copies = copies_of(image, 200, shift=0, flip=False)
    kept = ((copies - (1 - image)) / (2 * image - 1)).flatten(1).median(1).values  # each copy's m
    torch.testing.assert_close(copies[0], kept[0] * image + (1 - kept[0]) * (1 - image))
    assert abs(float(kept.mean()) - 0.5) < 0.07  # Beta(1, 1) is uniform
    assert abs(float(kept.std()) - 12**-0.5) < 0.04


def test_shifts_and_flips(monkeypatch):
    monkeypatch.setattr(augmix, "_OPERATIONS", [lambda pixels, level: pixels])
    image = torch.zeros(1, 15, 15)
    image[0, 7, 5] = 1
    _, _, rows, columns = torch.nonzero(copies_of(image, 200, shift=3) > 0.5, as_tuple=True)
    assert set(rows.tolist()) == set(range(4, 11))
    assert set(columns.tolist()) == set(range(2, 13))  # as it was, and mirrored
