"""Images: a file read with every guard, as 8-bit RGB; brought to a size; as a network's tensor."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps
from torch import Tensor

from it3_core import IT3Error

Pixels = NDArray[np.uint8]
Size = int | tuple[int, int]

MOST_PIXELS = 100_000_000
"""Larger images are refused by default: decoded, this many take 300 MB."""

# No others: Pillow starts Ghostscript for EPS, and has more obscure parsers than anyone needs.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_ENDS = Image.registered_extensions()  # which also fills Image.OPEN

SUFFIXES = frozenset(end for end, kind in _ENDS.items() if kind in _FORMATS)
"""A file is taken for an image by its name's end, in any case."""

_ORIENTATION = 0x0112


class BadImage(IT3Error):  # noqa: N818
    """An image that can't be read: which one, and what is wrong with it."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.name} {self.problem}"


def read_image(
    source: str | Path | bytes,
    most_pixels: int = MOST_PIXELS,
    *,
    name: str | None = None,
    smallest: int | None = None,
    upright: bool = True,
) -> Pixels:
    """One image as (H, W, 3) RGB of uint8, whatever the file holds.

    Greyscale, palette and CMYK become RGB, 16 bits are scaled to 8, transparency is laid over
    white, EXIF's rotation is applied, and of an animation the first frame is taken. In 32 bits,
    white is the first of 1 (floats only), 255 and 65535 that no pixel exceeds. What can't be
    read raises `BadImage`.

    Args:
        source: a file, or the bytes of one.
        most_pixels: an image whose header says more is refused before it is decoded.
        name: what to call the image in an error; the file's name unless given.
        smallest: a JPEG may be decoded at a half, a quarter or an eighth of its size as long as
            both sides keep twice this many pixels, which is several times as fast.
        upright: whether to apply EXIF's rotation; without it, pixels are as they are stored.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("L", (4, 2), 200).save(file, "png")
        >>> read_image(file.getvalue()).shape
        (2, 4, 3)
    """
    if isinstance(source, bytes):
        name = name or "the image"
        if not source:
            raise BadImage(name, "is empty (0 bytes)")
        return _read(io.BytesIO(source), name, most_pixels, smallest, upright)
    path = Path(source)
    name = name or str(path)
    try:
        # A pipe or a device would block or never end.
        if not path.is_file():
            raise BadImage(name, "is not a file" if path.exists() else "does not exist")
        if path.stat().st_size == 0:
            raise BadImage(name, "is empty (0 bytes)")
        with path.open("rb") as file:
            return _read(file, name, most_pixels, smallest, upright)
    except OSError as error:
        raise BadImage(name, f"can't be opened ({error.strerror or error})") from None


def _read(
    file: IO[bytes], name: str, most_pixels: int, smallest: int | None, upright: bool
) -> Pixels:
    try:
        image = _opened(file, name)
        width, height = image.size
        if width * height > most_pixels:
            raise BadImage(
                name, f"has {width} × {height} pixels, more than the {most_pixels:,} allowed"
            )
        if smallest is not None and image.format == "JPEG":
            image.draft(None, (2 * smallest, 2 * smallest))
        stored = _orientation(image)
        image.load()
        if not upright and stored != _orientation(image):  # Pillow turns a TIFF while it loads it
            image.getexif()[_ORIENTATION] = {6: 8, 8: 6}.get(stored, stored)  # and back
            ImageOps.exif_transpose(image, in_place=True)
        elif upright and _orientation(image) != 1:
            with suppress(Exception):  # other notes are broken
                ImageOps.exif_transpose(image, in_place=True)
        # Only a TIFF has more than 16 bits: in a PGM's or a PNG's mode I, white is 65535.
        wide = image.mode == "F" or (image.mode == "I" and image.format == "TIFF")
        return _from_wide(np.asarray(image), name) if wide else _rgb(image)
    except BadImage:
        raise
    except MemoryError:
        raise BadImage(name, "does not fit into memory") from None
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        raise BadImage(name, f"is damaged ({_reason(error)})") from None


def _opened(file: IO[bytes], name: str) -> ImageFile.ImageFile:
    """As `Image.open`, without its own limit on pixels: ours is an argument, not a global."""
    start = file.read(16)
    for kind in _FORMATS:
        factory, accept = Image.OPEN[kind]
        if accept is not None and accept(start) is True:
            file.seek(0)
            try:
                return factory(file, "")
            except Exception as error:
                reason = _reason(error)
                raise BadImage(name, f"is a {kind} file with a damaged header ({reason})") from None
    raise BadImage(name, f"is not an image of a known kind ({', '.join(_FORMATS)})")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # the notes beside the pixels are broken, the pixels are not
        return 1


def _rgb(image: Image.Image) -> Pixels:
    if image.mode.startswith("I"):
        return _from_grey(np.asarray(image), 0xFFFF)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return np.array(image)  # a copy that may be written to


def _from_wide(values: NDArray[Any], name: str) -> Pixels:
    """32 bits mostly hold what was made in fewer: which, the largest value tells."""
    whites = (1, 0xFF, 0xFFFF) if values.dtype.kind == "f" else (0xFF, 0xFFFF)
    least, most = values.min(), values.max()  # not a number, if one of them is none
    white = next((white for white in whites if least >= 0 and most <= white), None)
    if white is None:
        raise BadImage(
            name,
            f"holds 32-bit pixels from {least:g} to {most:g}: store it with 8 or 16 bits a channel",
        )
    return _from_grey(values, white)


def _from_grey(values: NDArray[Any], white: int) -> Pixels:
    grey = np.rint(values.astype(np.float32) * np.float32(255 / white)).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def fit_to(image: Pixels, size: Size) -> Pixels:
    """The largest centred window of the wanted shape, resized: short side to size, then cropped.

    Shrinking averages over areas, growing interpolates linearly. A size is the side of a square, or
    (height, width).
    """
    height, width = checked_size(size)
    h, w = image.shape[:2]
    if (h, w) == (height, width):
        return image
    # Cropped first: the other order makes a picture of 1 × 100,000 into a bomb.
    scale = max(height / h, width / w)
    crop_h = min(h, max(1, round(height / scale)))
    crop_w = min(w, max(1, round(width / scale)))
    top, left = (h - crop_h) // 2, (w - crop_w) // 2
    window = image[top : top + crop_h, left : left + crop_w]
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(window, (width, height), interpolation=how), dtype=np.uint8)


def checked_size(size: Size) -> tuple[int, int]:
    """Height and width, both at least 1, and no larger together than an image may be."""
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise IT3Error(f"size must be at least 1, but is {size}")
    if height * width > MOST_PIXELS:
        raise IT3Error(f"size must be at most {MOST_PIXELS:,} pixels in all, but is {size}")
    return height, width


@dataclass(frozen=True)
class Preprocessing:
    """Images of uint8, (N, H, W, 3), as a normalised float32 tensor, (N, 3, size, size).

    It belongs to the network: it is stored with it, so that test images are treated as the
    training images were. Images of another size are brought to it with `fit_to`.

    Args:
        size: side of the square that the network sees.
        mean, std: of each channel, where white is 1.

    Example:
        >>> import numpy as np
        >>> preprocess = Preprocessing(32, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        >>> x = preprocess(np.full((2, 32, 32, 3), 255, np.uint8))
        >>> x.shape, x.max()
        (torch.Size([2, 3, 32, 32]), tensor(2.))
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.size < 1:
            raise IT3Error(f"size must be at least 1, but is {self.size}")
        if not len(self.mean) == len(self.std) == 3:
            raise IT3Error(f"mean and std need 3 numbers each, not {self.mean} and {self.std}")
        if not (np.isfinite([*self.mean, *self.std]).all() and min(self.std) > 0):
            raise IT3Error(f"mean must be finite and std positive, but std is {self.std}")

    def __call__(self, pixels: Pixels) -> Tensor:
        if pixels.dtype != np.uint8:
            raise IT3Error(f"images are uint8, from 0 to 255, not {pixels.dtype}")
        if pixels.ndim != 4 or pixels.shape[3] != 3:
            raise IT3Error(f"images are (N, H, W, 3), not {pixels.shape}")
        if pixels.shape[1:3] != (self.size, self.size):
            whole = np.empty((len(pixels), self.size, self.size, 3), np.uint8)
            for row, image in enumerate(pixels):
                whole[row] = fit_to(image, self.size)
            pixels = whole
        # torch warns of arrays that can't be written to, such as memory-mapped ones.
        x = torch.from_numpy(pixels if pixels.flags.writeable else np.array(pixels))
        # Converted and transposed in one pass, then scaled in place: the fastest of ten ways tried.
        x = x.permute(0, 3, 1, 2)
        mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (self.mean, self.std))
        return torch.empty(x.shape).copy_(x).mul_(1 / (255 * std)).add_(-mean / std)

    def describe(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return asdict(self) | {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def fit(cls, pixels: Pixels) -> Preprocessing:
        """Mean and deviation of the training pixels, (N, size, size, 3), to four places."""
        if not pixels.size or pixels.ndim != 4 or pixels.shape[1] != pixels.shape[2]:
            raise IT3Error(
                f"preprocessing is fitted to square images of one size, not {pixels.shape}"
            )
        counts = np.zeros((3, 256))
        for start in range(0, len(pixels), 1024):  # memory-mapped arrays stay on disk
            part = pixels[start : start + 1024].reshape(-1, 3)
            for c in range(3):
                counts[c] += np.bincount(part[:, c], minlength=256)
        frequency, value = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
        mean = frequency @ value
        std = np.sqrt((frequency * (value - mean[:, None]) ** 2).sum(1))
        if std.min() < 1e-4:
            raise IT3Error("all training pixels of a channel are equal: there is nothing to see")
        return cls(pixels.shape[1], tuple(mean.round(4).tolist()), tuple(std.round(4).tolist()))
