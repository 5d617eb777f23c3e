"""One image file: read with every guard, as 8-bit RGB; and brought to a wanted size."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any

import cv2
import numpy as np
from numpy.typing import NDArray

# Imported for what they register: Image.OPEN knows only the formats that were imported.
from PIL import (
    BmpImagePlugin,  # noqa: F401
    GifImagePlugin,  # noqa: F401
    Image,
    ImageFile,
    JpegImagePlugin,  # noqa: F401
    PngImagePlugin,  # noqa: F401
    PpmImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    WebPImagePlugin,  # noqa: F401
)

from it3_core import IT3Error

__all__ = ["MOST_PIXELS", "SUFFIXES", "BadImage", "Pixels", "Size", "fit_to", "read_image"]

Pixels = NDArray[np.uint8]
Size = int | tuple[int, int]

MOST_PIXELS = 100_000_000
"""Larger images are refused by default: decoded, this many take 300 MB."""

SUFFIXES = frozenset(
    f".{end}"
    for end in (
        "jpg",
        "jpeg",
        "jpe",
        "png",
        "bmp",
        "gif",
        "tif",
        "tiff",
        "webp",
        "ppm",
        "pgm",
        "pbm",
    )
)
"""A file is taken for an image by its name's end, in any case."""

# No others: Pillow starts Ghostscript for EPS, and has more obscure parsers than anyone needs.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION = 0x0112


class BadImage(IT3Error):  # noqa: N818
    """An image that can't be read: which one, and what is wrong with it.

    Example:
        >>> try:
        ...     read_image(b"no image at all")
        ... except BadImage as bad:
        ...     print(bad.name, "|", bad.problem)
        the image | is not an image of a known kind (JPEG, PNG, BMP, GIF, TIFF, WEBP, PPM)
    """

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
                name,
                f"has {width} × {height} pixels, more than the {most_pixels:,} allowed "
                f"(most_pixels)",
            )
        if smallest is not None and image.format == "JPEG":
            image.draft(None, (2 * smallest, 2 * smallest))
        # Pillow itself turns a TIFF while it loads it, and then forgets how.
        stored = _orientation(image) if image.format == "TIFF" and not upright else 1
        image.load()
        # Only a TIFF has more than 16 bits: in a PGM's or a PNG's mode I, white is 65535.
        wide = image.mode == "F" or (image.mode == "I" and image.format == "TIFF")
        turned = _upright(image) if upright else _as_stored(image, stored)
        return _from_wide(np.asarray(turned), name) if wide else _rgb(turned)
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
        found = image.getexif().get(_ORIENTATION, 1)
        return found if found in _TURNS else 1
    except Exception:  # the notes beside the pixels are broken, the pixels are not
        return 1


def _upright(image: Image.Image) -> Image.Image:
    turn = _TURNS.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _as_stored(image: Image.Image, stored: int) -> Image.Image:
    """Undoes the turn that the notes asked for before the image was loaded, if it was made."""
    if stored == 1 or _orientation(image) == stored:
        return image
    return image.transpose(_TURNS[{6: 8, 8: 6}.get(stored, stored)])


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

    Shrinking averages over areas, growing interpolates linearly.

    Args:
        image: (H, W, 3) or (H, W).
        size: side of a square, or (height, width).

    Example:
        >>> import numpy as np
        >>> fit_to(np.zeros((40, 60, 3), np.uint8), 20).shape
        (20, 20, 3)
        >>> fit_to(np.zeros((40, 60, 3), np.uint8), (10, 30)).shape
        (10, 30, 3)
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
