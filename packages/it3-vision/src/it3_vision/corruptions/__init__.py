"""The corruptions of ImageNet-C and CIFAR-10-C: nineteen kinds, five severities, two sizes.

`corrupt` takes one image, `corrupt_all` many of one size. docs/corruptions.md says for each kind
how it relates to the benchmark's own code (Hendrycks and Dietterich, ICLR 2019).
"""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from it3_core import IT3Error
from it3_vision.corruptions import blur, digital, weather
from it3_vision.corruptions.kinds import Benchmark, Images

_KINDS = digital.NOISE | blur.KINDS | weather.KINDS | digital.KINDS

EXTRA: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The names of the benchmark's four extra corruptions, meant for choosing settings on."""

CORRUPTIONS: tuple[str, ...] = tuple(name for name in _KINDS if name not in EXTRA)[:15]
"""The names of its fifteen corruptions, in its order; kinds of our own stand behind them."""

_CHUNK = 1 << 16  # pixels that are worked on at once: what a core's cache holds
_SMALL = 84  # pixels: halfway, as factors go, between the benchmark's 32 and its 224


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
            with three equal channels, of which the first comes back.
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
    c = constants(name, severity, benchmark)
    rgb = _as_rgb(np.asarray(image)[None])
    own = seed if isinstance(seed, np.random.Generator) else generator(seed, 0, name)
    return _like(_KINDS[name].apply(rgb, c, [own])[0], np.asarray(image))


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
    c = constants(name, severity, benchmark)
    rgb = _as_rgb(images)
    numbers = range(len(rgb)) if numbers is None else numbers
    if len(numbers) != len(rgb):
        raise IT3Error(f"there are {len(numbers)} numbers for {len(rgb)} images")
    size = max(1, _CHUNK // (rgb.shape[1] * rgb.shape[2]))
    out = np.empty_like(rgb)
    for start in range(0, len(rgb), size):
        some = slice(start, start + size)
        random = [generator(seed, number, name) for number in numbers[some]]
        out[some] = _KINDS[name].apply(rgb[some], c, random)
    return _like(out, images)


def generator(seed: int, index: int, name: str) -> np.random.Generator:
    """The generator that image number `index` draws from."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise IT3Error(f"seed must be a whole number, 0 or more, but is {seed!r}")
    return np.random.Generator(np.random.SFC64([int(seed), int(index), zlib.crc32(name.encode())]))


def constants(name: str, severity: int, benchmark: Benchmark = "imagenet") -> Any:
    """What the benchmark's script sets for a corruption: a number, or several."""
    if name not in _KINDS:
        near = difflib.get_close_matches(str(name), _KINDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise IT3Error(f"no corruption is called {name!r}: {hint}There are {', '.join(_KINDS)}")
    if severity not in range(1, 6):
        raise IT3Error(f"severity must be a whole number from 1 to 5, but is {severity!r}")
    if benchmark not in get_args(Benchmark):
        raise IT3Error(f"benchmark must be 'cifar' or 'imagenet', but is {benchmark!r}")
    kind = _KINDS[name]
    return (kind.cifar if benchmark == "cifar" else kind.imagenet)[severity - 1]


def benchmark_for(size: int) -> Benchmark:
    """Whose constants suit images of this many pixels a side: CIFAR-10-C's are milder."""
    return "cifar" if size <= _SMALL else "imagenet"


def _as_rgb(images: Images) -> Images:
    """The images as (N, H, W, 3), after a look at what they are."""
    if images.dtype != np.uint8:
        raise IT3Error(
            f"images must be uint8, from 0 to 255, but are {images.dtype}: "
            "for floats from 0 to 1, give (255 * image).round().astype('uint8')"
        )
    shape = images.shape[1:]
    if len(shape) not in (2, 3) or shape[2:] not in ((), (1,), (3,)):
        raise IT3Error(f"an image must be (H, W, 3) or grey, (H, W), but is {shape}")
    if 0 in shape:
        raise IT3Error(f"an image must have at least one pixel, but is {shape}")
    if shape[2:] != (3,):
        images = np.repeat(images.reshape(*images.shape[:3], 1), 3, axis=3)
    return np.ascontiguousarray(images)


def _like(corrupted: Images, images: Images) -> Images:
    """With as many channels as the images had."""
    if corrupted.shape == images.shape:
        return corrupted
    return corrupted[..., 0].reshape(images.shape)
