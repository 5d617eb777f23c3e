"""The corruptions against plain, slow copies of their definitions; the command that writes them."""

from __future__ import annotations

import colorsys
import io
import json
import math
import os
import resource
import signal
import tarfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import typer
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from typer.testing import CliRunner, Result

from it3_core import IT3Error
from it3_vision.corrupting import corrupt as corrupt_command
from it3_vision.corrupting import corrupt_set, parse_severities, parse_types, pool
from it3_vision.corruptions import (
    CORRUPTIONS,
    EXTRA,
    Benchmark,
    constants,
    corrupt,
    corrupt_all,
    generator,
)
from it3_vision.corruptions.frost import texture
from it3_vision.corruptions.sheet import main as draw_sheet
from it3_vision.corruptions.sheet import specimen
from it3_vision.data import corruptions, open_images, severities

ALL = CORRUPTIONS + EXTRA
BENCHMARKS: tuple[Benchmark, ...] = ("cifar", "imagenet")
Pixels = NDArray[np.uint8]
Floats = NDArray[Any]


def stored(x: Floats) -> Pixels:
    """As the benchmark's scripts end: np.uint8(np.clip(x, 0, 1) * 255)."""
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


@cache
def picture(size: int = 32) -> Pixels:
    image = specimen(size)
    image.flags.writeable = False  # it is shared by all tests
    return image


def off(a: Pixels, b: Pixels) -> int:
    """The largest difference, in grey levels."""
    return int(np.abs(a.astype(int) - b).max())


# --- Golden: the published constants -------------------------------------------------------------

PUBLISHED: dict[str, dict[str, list[Any]]] = {
    "gaussian_noise": {
        "cifar": [0.04, 0.06, 0.08, 0.09, 0.10],
        "imagenet": [0.08, 0.12, 0.18, 0.26, 0.38],
    },
    "shot_noise": {"cifar": [500, 250, 100, 75, 50], "imagenet": [60, 25, 12, 5, 3]},
    "impulse_noise": {
        "cifar": [0.01, 0.02, 0.03, 0.05, 0.07],
        "imagenet": [0.03, 0.06, 0.09, 0.17, 0.27],
    },
    "speckle_noise": {
        "cifar": [0.06, 0.1, 0.12, 0.16, 0.2],
        "imagenet": [0.15, 0.2, 0.35, 0.45, 0.6],
    },
    "gaussian_blur": {"cifar": [0.4, 0.6, 0.7, 0.8, 1], "imagenet": [1, 2, 3, 4, 6]},
    "glass_blur": {
        "cifar": [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
        "imagenet": [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
    },
    "defocus_blur": {
        "cifar": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
        "imagenet": [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
    },
    "motion_blur": {
        "cifar": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
        "imagenet": [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
    },
    "fog": {
        "cifar": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
        "imagenet": [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
    },
    "frost": {  # and the scale of the frost's picture
        "cifar": [
            (1, 0.2, 0.2),
            (1, 0.3, 0.2),
            (0.9, 0.4, 0.2),
            (0.85, 0.4, 0.2),
            (0.75, 0.45, 0.2),
        ],
        "imagenet": [(1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)],
    },
    "snow": {
        "cifar": [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ],
        "imagenet": [
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ],
    },
    "spatter": {
        "cifar": [
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ],
        "imagenet": [
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ],
    },
    "contrast": {"cifar": [0.75, 0.5, 0.4, 0.3, 0.15], "imagenet": [0.4, 0.3, 0.2, 0.1, 0.05]},
    "brightness": {"cifar": [0.05, 0.1, 0.15, 0.2, 0.3], "imagenet": [0.1, 0.2, 0.3, 0.4, 0.5]},
    "saturate": {
        "cifar": [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
        "imagenet": [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)],
    },
    "jpeg_compression": {"cifar": [80, 65, 58, 50, 40], "imagenet": [25, 18, 15, 10, 7]},
    "pixelate": {"cifar": [0.95, 0.9, 0.85, 0.75, 0.65], "imagenet": [0.6, 0.5, 0.4, 0.3, 0.25]},
    "elastic_transform": {
        "cifar": [
            (0, 0, 2.56),
            (1.6, 6.4, 2.24),
            (2.56, 1.92, 1.92),
            (3.2, 1.28, 1.6),
            (3.2, 0.96, 0.96),
        ],
        "imagenet": [
            (488, 170.8, 24.4),
            (488, 19.52, 48.8),
            (12.2, 2.44, 4.88),
            (17.08, 2.44, 4.88),
            (29.28, 2.44, 4.88),
        ],
    },
}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_constants_are_the_published_ones(name: str, benchmark: Benchmark) -> None:
    found = [constants(name, severity, benchmark) for severity in range(1, 6)]
    assert np.asarray(found) == pytest.approx(np.asarray(PUBLISHED[name][benchmark]))


def test_zooms_are_the_published_ones() -> None:
    stops = {"cifar": [1.06, 1.11, 1.16, 1.21, 1.26], "imagenet": [1.11, 1.16, 1.21, 1.26, 1.31]}
    steps = {"cifar": [0.01] * 5, "imagenet": [0.01, 0.01, 0.02, 0.02, 0.03]}
    for benchmark in BENCHMARKS:
        for level in range(5):
            wanted = np.arange(1, stops[benchmark][level], steps[benchmark][level])
            assert constants("zoom_blur", level + 1, benchmark) == pytest.approx(wanted)


def test_names_are_in_the_benchmarks_order() -> None:
    assert " ".join(CORRUPTIONS) == (
        "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur "
        "snow frost fog brightness contrast elastic_transform pixelate jpeg_compression"
    )
    assert EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert set(ALL) == {*PUBLISHED, "zoom_blur"}


# --- Golden: the definitions, written out the slow way -------------------------------------------


def plain_gaussian(x: Floats, sigma: float) -> Floats:
    """skimage.filters.gaussian, as the benchmark calls it."""
    return np.asarray(ndimage.gaussian_filter(x, (sigma, sigma, 0)[: x.ndim], mode="nearest"))


def plain_motion(image: Pixels, radius: int, sigma: float, angle: float) -> Pixels:
    """ImageMagick's sum along a line, of the nearest pixels within the image."""
    width = 2 * radius + 1
    kernel = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(width)]
    height, length = image.shape[:2]
    out = np.zeros(image.shape)
    for i in range(width):
        dx = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        dy = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        rows = np.clip(np.arange(height) + dy, 0, height - 1)
        columns = np.clip(np.arange(length) + dx, 0, length - 1)
        out += kernel[i] / sum(kernel) * image[rows][:, columns]
    return np.rint(out).astype(np.uint8)


def plain_zoom(x: Floats, factor: float) -> Floats:
    height = len(x)
    kept = math.ceil(height / factor)
    top = (height - kept) // 2
    middle = x[top : top + kept, top : top + kept]
    large = ndimage.zoom(middle, (factor, factor, 1)[: x.ndim], order=1)
    trim = (len(large) - height) // 2
    return np.asarray(large[trim : trim + height, trim : trim + height])


def gaussian_noise(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    return stored(image / 255 + random.normal(scale=c, size=image.shape))


def shot_noise(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    return stored(random.poisson(image / 255 * c) / c)


def impulse_noise(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    x = image.copy()
    flipped = random.random(x.shape) <= c
    salted = random.random(x.shape) <= 0.5
    x[flipped & salted] = 255
    x[flipped & ~salted] = 0
    return x


def speckle_noise(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    x = image / 255
    return stored(x + x * random.normal(scale=c, size=x.shape))


def gaussian_blur(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    return stored(plain_gaussian(image / 255, c))


def glass_blur(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    sigma, reach, rounds = c
    x = (plain_gaussian(image / 255, sigma) * 255).astype(np.uint8)
    rows, columns = (range(size - reach, reach, -1) for size in x.shape[:2])
    count = rounds * len(rows) * len(columns)
    steps = iter(random.integers(-reach, reach, (count, 2), dtype=np.int8).tolist())
    for _ in range(rounds):
        for h in rows:
            for w in columns:
                dx, dy = next(steps)
                x[h, w], x[h + dy, w + dx] = x[h + dy, w + dx], x[h, w]  # views: this copies
    return stored(plain_gaussian(x / 255, sigma))


def defocus_blur(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    radius, alias = c
    reach = max(8, int(radius))
    at = np.arange(-reach, reach + 1)
    disk = ((at[:, None] ** 2 + at**2) <= radius**2).astype(float)
    edge = np.exp(-(np.arange(-2, 3.0) ** 2) / (2 * alias**2))
    edge[[0, 4]] *= radius > 8  # three taps up to a radius of 8, then five
    edge /= edge.sum()
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(edge, edge), mode="mirror")
    x = np.pad(image / 255, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    out = np.zeros(image.shape)
    for i, row in enumerate(kernel):
        for j, weight in enumerate(row):
            out += weight * x[i : i + image.shape[0], j : j + image.shape[1]]
    return stored(out)


def motion_blur(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    return plain_motion(image, *c, random.uniform(-45, 45))


def zoom_blur(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    x = (image / 255).astype(np.float32)
    return stored((x + sum(plain_zoom(x, factor) for factor in c)) / (len(c) + 1))


def snow(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    layer = plain_zoom(random.normal(c[0], c[1], size=image.shape[:2]), c[2])
    layer[layer < c[3]] = 0
    flakes = plain_motion(stored(layer), c[4], c[5], random.uniform(-135, -45)) / 255
    x = image / 255
    grey = x @ [0.299, 0.587, 0.114]
    x = c[6] * x + (1 - c[6]) * np.maximum(x, grey[..., None] * 1.5 + 0.5)
    return stored(x + (flakes + np.rot90(flakes, 2))[..., None])


def fog(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    x = image / 255
    highest = x.max()
    cloud = plain_plasma(1 << (len(image) - 1).bit_length(), c[1], random)[: len(x), : len(x)]
    return stored((x + c[0] * cloud[..., None]) * highest / (highest + c[0]))


def plain_plasma(size: int, decay: float, random: np.random.Generator) -> Floats:
    """Diamond-square, point by point, on a torus."""
    field: dict[tuple[int, int], float] = {(0, 0): 0.0}
    step, wibble = size, 100.0
    while step >= 2:
        half = step // 2
        for shift_y, shift_x in ((half, half), (0, half), (half, 0)):
            for y in range(shift_y, size, step):
                for x in range(shift_x, size, step):
                    square = shift_y == shift_x
                    ways = (
                        [(-1, -1), (-1, 1), (1, -1), (1, 1)]
                        if square
                        else [(0, 1), (0, -1), (1, 0), (-1, 0)]
                    )
                    near = [field[(y + a * half) % size, (x + b * half) % size] for a, b in ways]
                    field[y, x] = sum(near) / 4 + wibble * random.uniform(-wibble, wibble)
        step, wibble = half, wibble / decay
    values = np.array([[field[y, x] for x in range(size)] for y in range(size)])
    values -= values.min()
    return values / values.max()


def frost(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    ice = texture(int(random.integers(5)), c[2], len(image))
    top, left = random.integers(len(ice) - len(image)), random.integers(len(ice) - len(image))
    part = ice[top : top + len(image), left : left + len(image)]
    return np.clip(c[0] * image + c[1] * part, 0, 255).astype(np.uint8)


def spatter(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    layer = plain_gaussian(random.normal(c[0], c[1], size=image.shape[:2]), c[2])
    layer[layer < c[3]] = 0
    x = image / 255
    if c[5]:
        mud = plain_gaussian((layer > c[3]).astype(float), c[4])
        mud[mud < 0.8] = 0
        return stored(x * (1 - mud[..., None]) + mud[..., None] * [63 / 255, 42 / 255, 20 / 255])
    liquid = (layer * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(liquid, 50, 150), cv2.DIST_L2, 5)
    distance = cv2.blur(np.where(distance > 20, 20, distance), (3, 3)).astype(np.uint8)
    slope = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    rims = cv2.blur(cv2.filter2D(cv2.equalizeHist(distance), cv2.CV_8U, slope), (3, 3))
    water = liquid * rims.astype(np.float32)
    water = water / water.max() * c[4]
    return stored(x + water[..., None] * [175 / 255, 238 / 255, 238 / 255])


def brightness(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    return through_hsv(image, lambda h, s, v: (h, s, min(v + c, 1.0)))


def saturate(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    return through_hsv(image, lambda h, s, v: (h, min(max(s * c[0] + c[1], 0.0), 1.0), v))


def through_hsv(image: Pixels, change: Callable[..., tuple[float, float, float]]) -> Pixels:
    pixels = [
        colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel)))
        for pixel in (image.reshape(-1, 3) / 255).tolist()
    ]
    return stored(np.array(pixels).reshape(image.shape))


def contrast(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    x = image / 255
    means = x.mean(axis=(0, 1), keepdims=True)
    return stored((x - means) * c + means)


def jpeg_compression(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=c)
    return np.asarray(Image.open(file))


def pixelate(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * c), int(height * c)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX))


def elastic_transform(image: Pixels, c: Any, random: np.random.Generator) -> Pixels:
    strength, sigma, corner = c
    x = image.astype(np.float32) / 255
    side = len(x) // 3
    middle = np.float32([len(x) // 2, len(x) // 2])
    square = np.float32([middle + side, [middle[0] + side, middle[1] - side], middle - side])
    moved = square + random.uniform(-corner, corner, size=(3, 2)).astype(np.float32)
    matrix = cv2.getAffineTransform(square, moved)
    x = cv2.warpAffine(x, matrix, x.shape[1::-1], borderMode=cv2.BORDER_REFLECT_101)
    right, down = (
        ndimage.gaussian_filter(
            random.uniform(-1, 1, size=x.shape[:2]), sigma, mode="reflect", truncate=3
        )
        * strength
        for _ in range(2)
    )
    at = np.indices(x.shape[:2])
    places = [at[0] + down, at[1] + right]
    planes = [ndimage.map_coordinates(x[..., k], places, order=1, mode="reflect") for k in range(3)]
    return stored(np.stack(planes, axis=-1))


EXACT = {
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "contrast", "frost",
    "pixelate", "jpeg_compression",
}  # fmt: skip


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("name", ALL)
def test_equals_its_definition(name: str, benchmark: Benchmark, severity: int) -> None:
    """To the byte; or to a grey level, where a number that is nearly whole is cut off."""
    image = picture(48 if benchmark == "imagenet" else 32)
    c = constants(name, severity, benchmark)
    plain: Pixels = globals()[name](image, c, generator(7, 0, name))
    ours = corrupt(image, name, severity, benchmark=benchmark, seed=7)
    assert off(ours, plain) <= (0 if name in EXACT else 1)
    assert (ours != plain).mean() < 0.1


def test_large_zooms_are_the_same_as_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    small = corrupt(picture(64), "zoom_blur", 5)
    monkeypatch.setattr("it3_vision.corruptions.blur._SMALL", 0)
    assert off(small, corrupt(picture(64), "zoom_blur", 5)) <= 1


def test_albumentations_agrees_on_defocus_and_jpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask the network for news
    from albumentations.augmentations.blur.functional import defocus
    from albumentations.augmentations.pixel.functional import image_compression

    image = picture(64)
    radius, alias = constants("defocus_blur", 2)
    theirs = stored(defocus(image.astype(np.float32) / 255, radius, alias))
    assert off(corrupt(image, "defocus_blur", 2), theirs) <= 1
    quality = constants("jpeg_compression", 5)
    theirs = image_compression(np.ascontiguousarray(image[..., ::-1]), quality, ".jpg")[..., ::-1]
    assert off(corrupt(image, "jpeg_compression", 5), theirs) == 0


# --- Invariants ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_an_image_is_the_same_alone_and_in_any_batch(name: str) -> None:
    images = np.stack([np.roll(picture(), shift, axis=1) for shift in range(66)])
    before = images.copy()
    whole = corrupt_all(images, name, 4, benchmark="cifar", seed=3)
    assert (images == before).all()
    assert whole.dtype == np.uint8
    assert (whole != images).any()
    some = [65, 2, 41]
    part = corrupt_all(images[some], name, 4, benchmark="cifar", seed=3, numbers=some)
    assert (part == whole[some]).all()
    alone = corrupt(images[41], name, 4, benchmark="cifar", seed=generator(3, 41, name))
    assert (alone == whole[41]).all()
    assert (corrupt(images[0], name, 4, benchmark="cifar", seed=3) == whole[0]).all()


@pytest.mark.parametrize(
    "name", [n for n in ALL if n not in ("defocus_blur", "zoom_blur", "brightness", "contrast",
    "pixelate", "jpeg_compression", "gaussian_blur", "saturate")]
)  # fmt: skip
def test_another_seed_gives_another_image(name: str) -> None:
    first, second = (corrupt(picture(), name, 5, seed=seed) for seed in (0, 1))
    assert (first != second).any()


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize(
    "name", [n for n in ALL if n not in ("saturate", "elastic_transform", "spatter", "frost")]
)  # those four are not meant to rise steadily
def test_a_higher_severity_is_further_from_the_image(name: str, benchmark: Benchmark) -> None:
    image = picture(128 if benchmark == "imagenet" else 32)
    images = np.stack([np.roll(image, shift, axis=1) for shift in range(0, 24, 3)])
    distances = []
    for severity in range(1, 6):
        made = corrupt_all(images, name, severity, benchmark=benchmark)
        distances.append(float(np.abs(made.astype(int) - images).mean()))
    assert distances[0] < distances[2] < distances[4]
    assert all(a < b * 1.15 for a, b in pairwise(distances))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 2), (30, 50), (130, 3)])
def test_any_size_works(name: str, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    for benchmark in BENCHMARKS:
        for severity in (1, 5):
            made = corrupt(image, name, severity, benchmark=benchmark)
            assert made.shape == image.shape
            assert made.dtype == np.uint8


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [0, 255])
def test_black_and_white_images_work(name: str, value: int) -> None:
    image = np.full((32, 32, 3), value, dtype=np.uint8)
    assert corrupt(image, name, 5, benchmark="cifar").shape == image.shape


@pytest.mark.parametrize("name", ALL)
def test_grey_images_stay_grey(name: str) -> None:
    grey = picture()[..., 0]
    colour = np.repeat(grey[..., None], 3, axis=2)
    made = corrupt(grey, name, 3, benchmark="cifar")
    assert made.shape == (32, 32)
    assert (made == corrupt(colour, name, 3, benchmark="cifar")[..., 0]).all()
    assert corrupt_all(grey[None, ..., None], name, 3, benchmark="cifar").shape == (1, 32, 32, 1)


# --- Robustness ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "gausian_noise"}, "did you mean 'gaussian_noise'"),
        ({"name": "rain"}, "There are gaussian_noise, shot_noise"),
        ({"severity": 0}, "from 1 to 5, but is 0"),
        ({"severity": 6}, "from 1 to 5, but is 6"),
        ({"severity": 2.5}, "from 1 to 5, but is 2.5"),
        ({"severity": True}, "from 1 to 5, but is True"),
        ({"benchmark": "coco"}, "'cifar' or 'imagenet', but is 'coco'"),
        ({"image": np.zeros((8, 8, 3))}, "must be uint8, from 0 to 255, but are float64"),
        ({"image": np.zeros((8, 8, 4), np.uint8)}, r"must be \(H, W, 3\) or grey"),
        ({"image": np.zeros(8, np.uint8)}, r"must be \(H, W, 3\) or grey"),
        ({"image": np.zeros((0, 8, 3), np.uint8)}, "at least one pixel"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_bad_input_gets_one_sentence(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"image": picture(), "name": "fog", "severity": 3, **change}
    with pytest.raises(IT3Error, match=words):
        corrupt(given.pop("image"), given.pop("name"), given.pop("severity"), **given)


def test_empty_batches_and_wrong_numbers() -> None:
    assert corrupt_all(np.zeros((0, 8, 8, 3), np.uint8), "fog", 1).shape == (0, 8, 8, 3)
    with pytest.raises(IT3Error, match="there are 1 numbers for 2 images"):
        corrupt_all(np.zeros((2, 8, 8, 3), np.uint8), "fog", 1, numbers=[5])


@pytest.mark.parametrize("text", ["", "0", "6", "5-1", "x", "1,,2", "1-9", "-"])
def test_bad_severities(text: str) -> None:
    with pytest.raises(IT3Error, match="--severity must be like"):
        parse_severities(text)


def test_types() -> None:
    assert parse_types("all,extra") == ALL
    assert parse_types("snow,fog,snow") == ("snow", "fog")
    with pytest.raises(IT3Error, match="--type must be"):
        parse_types(" , ")
    with pytest.raises(IT3Error, match="did you mean 'snow'"):
        parse_types("fog,snw")


# --- Entry points: the command -------------------------------------------------------------------

app = typer.Typer()
app.command()(corrupt_command)


def run(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--quiet"])


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """CIFAR-10's binary version, small."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    random = np.random.default_rng(0)
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    (folder / "batches.meta.txt").write_text(names.replace(" ", "\n"))
    for file, count in (("data_batch_1.bin", 3), ("test_batch.bin", 12)):
        rows = random.integers(0, 256, (count, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(count) % 10
        (folder / file).write_bytes(rows.tobytes())
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Class folders with a JPEG, a PNG and a BMP in each, of different sizes."""
    folder = tmp_path / "images"
    for number, name in enumerate(["cat", "dog"]):
        (folder / name).mkdir(parents=True)
        image = Image.fromarray(picture(40 + 10 * number))
        image.save(folder / name / "one.JPEG", quality=95)
        image.crop((0, 0, 20, 30)).save(folder / name / "two.png")
        image.rotate(90).save(folder / name / "three.bmp")
    return folder


def test_arrays_become_cifar_10_c(arrays: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(arrays, out, "--split", "test", "--type", "fog,contrast", "--workers", "1")
    assert result.exit_code == 0, result.output
    assert "wrote 120 images" in result.output
    assert "cifar's constants" in result.output
    clean = open_images(arrays, split="test")
    fog = np.load(out / "fog.npy")
    assert fog.shape == (60, 32, 32, 3)
    assert fog.dtype == np.uint8
    assert (np.load(out / "labels.npy") == np.tile(clean.labels, 5)).all()
    for severity in range(1, 6):
        wanted = corrupt_all(clean.batch(slice(None)), "fog", severity, benchmark="cifar")
        assert (fog[12 * severity - 12 : 12 * severity] == wanted).all()
        again = open_images(out, corruption="fog", severity=severity)
        assert (again.labels == clean.labels).all()
        assert again.classes == clean.classes
        assert (again.batch(slice(None)) == wanted).all()


def test_fewer_severities_are_said_beside(arrays: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(
        arrays,
        out,
        "--split",
        "test",
        "--type",
        "fog",
        "--severity",
        "2,5",
        "--limit",
        4,
        "--workers",
        1,
    )
    assert result.exit_code == 0, result.output
    assert json.loads((out / "severities.json").read_text())["severities"] == [2, 5]
    assert len(np.load(out / "labels.npy")) == 8
    # A limit takes every third image here, each corrupted as it is in the whole set.
    whole = corrupt_all(
        open_images(arrays, split="test").batch(slice(None)), "fog", 5, benchmark="cifar"
    )
    assert (np.load(out / "fog.npy")[4:] == whole[::3]).all()


def test_grey_arrays_stay_grey(tmp_path: Path) -> None:
    digits = np.stack([picture(28)[..., 1]] * 3)
    corrupt_set(digits, tmp_path / "out", ["snow"], [1])
    made = np.load(tmp_path / "out" / "snow.npy")
    assert (made == corrupt_all(digits, "snow", 1, benchmark="cifar")).all()
    assert made.shape == (3, 28, 28)


def test_files_become_imagenet_c(folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(
        folders, out, "--type", "snow,pixelate", "--severity", "1-2", "--benchmark", "imagenet",
        "--workers", 1, "--seed", 5,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "wrote 24 images" in result.output
    wanted = {
        f"{name}/{severity}/{kind}/{file}"
        for name in ("snow", "pixelate")
        for severity in (1, 2)
        for kind in ("cat", "dog")
        for file in ("one.JPEG", "two.png", "three.png")
    }
    assert set(tree(out)) == wanted | {"corruptions.json"}
    clean = open_images(folders)
    row = list(clean.names).index("dog/two.png")
    own = generator(5, row, "snow")
    with Image.open(out / "snow/2/dog/two.png") as file:
        assert (np.asarray(file) == corrupt(clean.image(row), "snow", 2, seed=own)).all()
    with Image.open(out / "snow/2/dog/one.JPEG") as file:
        made = io.BytesIO()
        image = corrupt(clean.image(row - 2), "snow", 2, seed=generator(5, row - 2, "snow"))
        Image.fromarray(image).save(made, "JPEG", quality=85, optimize=True)
        assert file.format == "JPEG"
        assert (out / "snow/2/dog/one.JPEG").read_bytes() == made.getvalue()
    again = open_images(out, corruption="snow", severity=2)
    assert (again.labels == clean.labels).all()


def test_files_without_classes_are_read_back_without(folders: Path, tmp_path: Path) -> None:
    loose, out = open_images(folders / "cat"), tmp_path / "out"
    corrupt_set(loose, out, ["contrast", "pixelate"], [2, 5])
    with tarfile.open(tmp_path / "out.tar", "w") as tar:
        tar.add(out, "out")
    for path in (out, tmp_path / "out.tar"):
        assert (corruptions(path), severities(path)) == (["contrast", "pixelate"], [2, 5])
        made = open_images(path, corruption="pixelate", severity=5)
        assert [name[-4:] for name in made.names] == ["JPEG", ".png", ".png"]
        assert (made.labels.tolist(), made.classes) == ([-1] * 3, ())
    assert len(open_images(out / "contrast", severity=2)) == 3
    assert open_images(out / "contrast" / "2").classes == ()
    (out / "corruptions.json").unlink()  # it could be anything now
    assert open_images(out).classes == ("contrast", "pixelate")


def test_files_are_cut_to_a_size(folders: Path, tmp_path: Path) -> None:
    assert (
        run(folders, tmp_path / "out", "--type", "fog", "--size", 24, "--workers", 1).exit_code == 0
    )
    with Image.open(tmp_path / "out/fog/5/cat/two.png") as file:
        assert file.size == (24, 24)


class Killed(ThreadPoolExecutor):
    """Work that ends in the middle, as by Ctrl-C."""

    def __init__(self, after: int) -> None:
        super().__init__(1)
        self.left = after

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize("kind", ["arrays", "folders"])
def test_a_killed_run_goes_on_where_it_was(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(kind)
    images = open_images(path, split="test" if kind == "arrays" else None)
    names, out, whole = ["fog", "frost", "snow"], tmp_path / "out", tmp_path / "whole"
    corrupt_set(images, whole, names, [3, 5])
    with Killed(after=3) as executor, pytest.raises(KeyboardInterrupt):
        corrupt_set(images, out, names, [3, 5], executor=executor)
    left = tree(out)
    assert not [name for name in left if name.endswith(".part")]
    assert all(tree(whole)[name] == content for name, content in left.items())
    assert len(left) < len(tree(whole))
    times = {name: (out / name).stat().st_mtime_ns for name in left if "fog" in name}
    done = corrupt_set(images, out, names, [3, 5])
    assert tree(out) == tree(whole)
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times
    assert done.written + done.before == len(images) * 6
    assert done.written > 0
    again = corrupt_set(images, out, names, [3, 5])
    assert (again.written, again.before) == (0, len(images) * 6)


def test_workers_change_nothing(arrays: Path, folders: Path, tmp_path: Path) -> None:
    names = ["shot_noise", "glass_blur", "elastic_transform", "fog"]
    with pool(2) as executor:
        assert executor is not None
        # Ctrl-C is for the one who gives out the work, from a worker's first moment on.
        blocked = executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, [])
        assert signal.SIGINT in blocked.result()
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        for kind, images in (
            ("arrays", open_images(arrays, split="test")),
            ("folders", open_images(folders)),
        ):
            one, two = tmp_path / f"{kind}-1", tmp_path / f"{kind}-2"
            corrupt_set(images, one, names, [1, 5])
            corrupt_set(images, two, names, [1, 5], executor=executor)
            assert tree(one) == tree(two)


def test_bad_images_are_listed_and_left_out(folders: Path, tmp_path: Path) -> None:
    (folders / "cat" / "text.png").write_text("this is no picture")
    (folders / "dog" / "empty.jpg").touch()
    out = tmp_path / "out"
    result = run(folders, out, "--type", "fog", "--severity", 5, "--workers", 1)
    assert result.exit_code == 0, result.output
    assert "wrote 6 images" in result.output
    assert "2 images can't be read and are left out" in result.output
    listed = (out / "bad_images.txt").read_text().splitlines()
    assert [line.split()[0] for line in listed] == ["cat/text.png", "dog/empty.jpg"]
    assert not list(out.rglob("text.png"))


def test_only_bad_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "cat" / "empty.jpg").touch()
    for benchmark in ("auto", "cifar"):
        with pytest.raises(IT3Error, match="can be read"):
            corrupt_set(open_images(tmp_path / "in"), tmp_path / "out", benchmark=benchmark)  # type: ignore[arg-type]


def test_other_peoples_folders_are_left_alone(arrays: Path, tmp_path: Path) -> None:
    images = open_images(arrays, split="test")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "fog.npy").write_text("mine")
    with pytest.raises(IT3Error, match="holds other files"):
        corrupt_set(images, theirs)
    assert tree(theirs) == {"fog.npy": b"mine"}
    ours = tmp_path / "ours"
    corrupt_set(images, ours, ["fog"], [5])
    for change, words in (
        ({"seed": 1}, "begun with seed 0, now it is 1"),
        ({"benchmark": "imagenet"}, "begun with benchmark cifar, now it is imagenet"),
        ({"limit": 3}, "begun with"),
        ({"severities": [4]}, r"begun with severities \[5\], now it is \[4\]"),
    ):
        settings: dict[str, Any] = {"names": ["fog"], "severities": [5], **change}
        with pytest.raises(IT3Error, match=words):
            corrupt_set(images, ours, **settings)
    with pytest.raises(IT3Error, match="begun with checksum"):
        corrupt_set(images.take(np.arange(12)[::-1]), ours, ["fog"], [5])
    corrupt_set(images, ours, ["snow"], [5])  # another type may be added
    assert {"fog.npy", "snow.npy"} <= set(tree(ours))


def test_nothing_is_written_into_what_is_read(folders: Path) -> None:
    for out in (folders, folders / "out"):
        result = run(folders, out, "--type", "fog", "--workers", 1)
        assert "would be read as images" in str(result.exception)
    assert not (folders / "out").exists()


def test_a_folder_that_cant_be_written(tmp_path: Path) -> None:
    images = np.zeros((2, 8, 8, 3), np.uint8)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(IT3Error, match="can't write into"):
            corrupt_set(images, out, ["fog"], [5])


def test_a_full_disk_is_one_sentence(folders: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # no file longer than this
    try:
        for images, out in (
            (np.zeros((2, 32, 32, 3), np.uint8), tmp_path / "a"),
            (open_images(folders), tmp_path / "b"),
        ):
            with pytest.raises(IT3Error, match=r"can't write into .* \(File too large\)"):
                corrupt_set(images, out, ["gaussian_noise"], [5])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "gaussian_noise.npy" not in tree(tmp_path / "a")
    assert not [name for name in tree(tmp_path) if name.endswith(".part")]


def test_two_images_never_share_a_file(folders: Path, tmp_path: Path) -> None:
    Image.fromarray(picture()).save(folders / "cat" / "two.bmp")
    images = open_images(folders)
    corrupt_set(images, tmp_path / "out", ["contrast"], [5])
    made = open_images(tmp_path / "out", corruption="contrast", severity=5)
    shapes = {name.split("/")[-1]: made.image(i).shape for i, name in enumerate(made.names[:4])}
    assert shapes["two.bmp.png"] == picture().shape
    assert shapes["two.png"] == (30, 20, 3)
    corrupt_set(images.take([3]), tmp_path / "one", ["contrast"], [5])
    assert "contrast/5/cat/two.png" in tree(tmp_path / "one")  # nothing beside it
    Image.fromarray(picture()).save(folders / "cat" / "two.bmp.png")
    with pytest.raises(IT3Error, match=r"would both be written as cat/two\.bmp\.png"):
        corrupt_set(open_images(folders), tmp_path / "other", ["contrast"], [5])


def test_bad_requests(tmp_path: Path) -> None:
    images = np.zeros((2, 8, 8, 3), np.uint8)
    with pytest.raises(IT3Error, match="no images to corrupt"):
        corrupt_set(images[:0], tmp_path)
    with pytest.raises(IT3Error, match="limit must be at least 1"):
        corrupt_set(images, tmp_path, limit=0)
    with pytest.raises(IT3Error, match="at least one corruption"):
        corrupt_set(images, tmp_path, [])
    with pytest.raises(IT3Error, match="benchmark must be"):
        corrupt_set(images, tmp_path, benchmark="coco")  # type: ignore[arg-type]
    with pytest.raises(IT3Error, match="workers must be at least 1"), pool(0):
        pass
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_help_teaches() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    for word in ("CIFAR-10-C", "ImageNet-C", "stopped", "gaussian_noise", "--severity"):
        assert word in output


def test_the_sheet_is_drawn(tmp_path: Path) -> None:
    Image.fromarray(picture()).save(tmp_path / "one.png")
    assert draw_sheet([str(tmp_path / "sheet.jpg"), str(tmp_path / "one.png")]) == 0
    with Image.open(tmp_path / "sheet.jpg") as file:
        assert file.size == (850, 2228)
    assert draw_sheet([str(tmp_path / "sheet.jpg"), str(tmp_path / "none.png")]) == 2
    assert draw_sheet([str(tmp_path / "sheet.doc"), str(tmp_path / "one.png")]) == 2
    assert draw_sheet([]) == 2
