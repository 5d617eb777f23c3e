"""What a TIFF's header says, without its pixels and without rasterio."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import IO, Any

from PIL import TiffImagePlugin

__all__ = ["declared_no_data", "has_place", "tiff_tags"]

_BITS, _KIND, _NO_DATA = 258, 262, 42113  # bits a band, what bands are, GDAL's no-data value
_PLACES = (34735, 33550, 34264)  # GeoTIFF's keys, a pixel's size on the map, the whole matrix
_PALETTE = 3  # a kind: then the no-data value is a number of the palette, and no colour
_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def tiff_tags(file: IO[bytes]) -> Mapping[int, Any]:
    """The tags of a TIFF's first image by their numbers; none of what is no TIFF, or damaged.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> made = io.BytesIO()
        >>> Image.new("RGB", (4, 2)).save(made, "tiff")
        >>> tiff_tags(io.BytesIO(made.getvalue()))[256], tiff_tags(io.BytesIO(b"no TIFF"))
        (4, {})
    """
    start = file.read(16)
    found: dict[int, Any] = {}
    if start[:4] in _STARTS:
        with contextlib.suppress(Exception):  # a damaged header: who reads pixels says it better
            tags = TiffImagePlugin.ImageFileDirectory_v2(start[: 16 if b"+" in start[:4] else 8])
            file.seek(tags.next)
            tags.load(file)
            for tag in tags:
                with contextlib.suppress(Exception):  # one broken tag does not lose the others
                    found[tag] = tags[tag]
    return found


def has_place(tags: Mapping[int, Any]) -> bool:
    """Whether a TIFF says where on Earth it lies.

    Example:
        >>> has_place({33550: (0.5, 0.5, 0.0)}), has_place({256: 4})
        (True, False)
    """
    return any(tag in tags for tag in _PLACES)


def declared_no_data(tags: Mapping[int, Any]) -> int | None:
    """The value that stands for no data, from 0 to 255; None where none is declared.

    Example:
        >>> declared_no_data({258: (8, 8, 8), 42113: "0"}), declared_no_data({42113: "-9999"})
        (0, None)
    """
    bits = tags.get(_BITS, 1)
    if set(bits if isinstance(bits, tuple) else (bits,)) != {8} or tags.get(_KIND) == _PALETTE:
        return None
    try:
        value = float(str(tags.get(_NO_DATA, "nan")).strip("\0 "))
    except ValueError:
        return None
    return int(value) if value in range(256) else None
