"""`corrupt` and `corrupt_all`: what a caller sees of the corruptions."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from it3_core import IT3Error
from it3_vision.corruptions import blur, digital, noise, weather
from it3_vision.corruptions.kinds import Benchmark, Images, Kind

__all__ = ["CORRUPTIONS", "EXTRA", "constants", "corrupt", "corrupt_all", "generator"]

_KINDS: dict[str, Kind] = {
    "gaussian_noise": noise.GAUSSIAN_NOISE,
    "shot_noise": noise.SHOT_NOISE,
    "impulse_noise": noise.IMPULSE_NOISE,
    "defocus_blur": blur.DEFOCUS_BLUR,
    "glass_blur": blur.GLASS_BLUR,
    "motion_blur": blur.MOTION_BLUR,
    "zoom_blur": blur.ZOOM_BLUR,
    "snow": weather.SNOW,
    "frost": weather.FROST,
    "fog": weather.FOG,
    "brightness": digital.BRIGHTNESS,
    "contrast": digital.CONTRAST,
    "elastic_transform": digital.ELASTIC_TRANSFORM,
    "pixelate": digital.PIXELATE,
    "jpeg_compression": digital.JPEG_COMPRESSION,
    "speckle_noise": noise.SPECKLE_NOISE,
    "gaussian_blur": blur.GAUSSIAN_BLUR,
    "spatter": weather.SPATTER,
    "saturate": digital.SATURATE,
}

CORRUPTIONS: tuple[str, ...] = tuple(_KINDS)[:15]
"""The names of the benchmark's fifteen corruptions, in its order."""

EXTRA: tuple[str, ...] = tuple(_KINDS)[15:]
"""The names of its four extra ones, meant for choosing settings on."""

_CHUNK = 1 << 16  # pixels that are worked on at once: what a core's cache holds


def corrupt(
    image: Images,
    name: str,
    severity: int,
    *,
    benchmark: Benchmark = "imagenet",
    seed: int | np.random.Generator = 0,
) -> Images:
    """One image, corrupted as in ImageNet-C or CIFAR-10-C.

    Args:
        image: uint8, RGB, of shape (H, W, 3). A grey one, (H, W) or (H, W, 1), is taken as RGB
            with three equal channels, of which the answer's first comes back.
        name: one of `CORRUPTIONS` or `EXTRA`.
        severity: 1 to 5.
        benchmark: whose constants: "imagenet", made for 224 × 224, or "cifar", for 32 × 32.
        seed: of everything that is random, or a generator to draw from.

    Example:
        >>> import numpy as np
        >>> image = np.full((32, 32, 3), 128, dtype=np.uint8)
        >>> noisy = corrupt(image, "gaussian_noise", 3, benchmark="cifar")
        >>> noisy.shape, noisy.dtype, bool(15 < noisy.std() < 25)
        ((32, 32, 3), dtype('uint8'), True)
    """
    whole = _as_rgb(np.asarray(image)[None])
    c = constants(name, severity, benchmark)
    own = seed if isinstance(seed, np.random.Generator) else generator(seed, 0, name)
    return _like(_KINDS[name].apply(whole, c, [own])[0], np.asarray(image))


def corrupt_all(
    images: Images,
    name: str,
    severity: int,
    *,
    benchmark: Benchmark = "imagenet",
    seed: int = 0,
    numbers: Sequence[int] | None = None,
) -> Images:
    """Images of one size, corrupted; each is what it would be alone, in any batch or order.

    Image `i` draws from a generator of its own, made of the seed, its number and the name.

    Args:
        images: uint8, (N, H, W, 3); or grey ones, (N, H, W) or (N, H, W, 1), see `corrupt`.
        name: one of `CORRUPTIONS` or `EXTRA`.
        severity: 1 to 5.
        benchmark: whose constants: "imagenet" or "cifar".
        seed: of everything that is random.
        numbers: the images' numbers, where they are a part of a larger set; 0, 1, 2 ... if not.

    Example:
        >>> import numpy as np
        >>> images = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
        >>> whole = corrupt_all(images, "snow", 5, benchmark="cifar")
        >>> part = corrupt_all(images[4:], "snow", 5, benchmark="cifar", numbers=[4, 5])
        >>> bool((part == whole[4:]).all())
        True
    """
    images = np.asarray(images)
    whole = _as_rgb(images)
    c = constants(name, severity, benchmark)
    known = range(len(whole)) if numbers is None else numbers
    if len(known) != len(whole):
        raise IT3Error(f"there are {len(known)} numbers for {len(whole)} images")
    size = max(1, _CHUNK // (whole.shape[1] * whole.shape[2]))
    out = np.empty_like(whole)
    for start in range(0, len(whole), size):
        part = whole[start : start + size]
        random = [generator(seed, number, name) for number in known[start : start + size]]
        out[start : start + size] = _KINDS[name].apply(part, c, random)
    return _like(out, images)


def generator(seed: int, index: int, name: str) -> np.random.Generator:
    """The generator that image number `index` draws from.

    Example:
        >>> generator(0, 5, "fog").random() == generator(0, 5, "fog").random()
        True
    """
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise IT3Error(f"seed must be a whole number, 0 or more, but is {seed!r}")
    return np.random.Generator(np.random.SFC64([int(seed), int(index), zlib.crc32(name.encode())]))


def constants(name: str, severity: int, benchmark: Benchmark = "imagenet") -> Any:
    """What the benchmark's script sets for a corruption: a number, or several.

    Example:
        >>> constants("jpeg_compression", 5), constants("jpeg_compression", 5, "cifar")
        (7, 40)
        >>> constants("defocus_blurr", 5)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: no corruption is called 'defocus_blurr': did you mean \
'defocus_blur'? There are gaussian_noise, ...
    """
    if name not in _KINDS:
        near = difflib.get_close_matches(str(name), _KINDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise IT3Error(f"no corruption is called {name!r}: {hint}There are {', '.join(_KINDS)}")
    whole = isinstance(severity, int | np.integer) and not isinstance(severity, bool)
    if not whole or not 1 <= severity <= 5:
        raise IT3Error(f"severity must be a whole number from 1 to 5, but is {severity!r}")
    if benchmark not in get_args(Benchmark):
        raise IT3Error(f"benchmark must be 'cifar' or 'imagenet', but is {benchmark!r}")
    kind = _KINDS[name]
    return (kind.cifar if benchmark == "cifar" else kind.imagenet)[severity - 1]


def _as_rgb(images: Images) -> Images:
    """The images as (N, H, W, 3), after a look at what they are."""
    if images.dtype != np.uint8:
        raise IT3Error(
            f"images must be uint8, from 0 to 255, but are {images.dtype}: "
            "for floats from 0 to 1, give (255 * image).round().astype('uint8')"
        )
    shape = images.shape[1:]
    if len(shape) == 2:
        images = images[..., None]
    if len(shape) not in (2, 3) or images.shape[3] not in (1, 3):
        raise IT3Error(f"an image must be (H, W, 3) or grey, (H, W), but is {shape}")
    if 0 in shape:
        raise IT3Error(f"an image must have at least one pixel, but is {shape}")
    if images.shape[3] == 1:
        images = np.repeat(images, 3, axis=3)
    return np.ascontiguousarray(images)


def _like(corrupted: Images, images: Images) -> Images:
    """With as many channels as the images had."""
    if corrupted.shape == images.shape:
        return corrupted
    return corrupted[..., 0].reshape(images.shape)
