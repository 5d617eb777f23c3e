"""From a mask to lines on the map: centre lines, and where on Earth a pixel lies."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from it3_core import IT3Error

_RADIUS = 6371008.8  # of the Earth, in metres
_SPAN = 50  # pixels on either side of the middle that a pixel's size is measured over
_TAGS = (34735, 33550, 34264)  # GeoTIFF's keys, a pixel's size on the map, the whole matrix
_DEGREES = "EPSG:4326"
_AROUND = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))  # clockwise

Line = NDArray[np.float64]  # (n, 2), x and y


class Georeference(NamedTuple):
    """From pixels to a map."""

    # a, d, b, e, c, f as in a world file: x = a·column + b·row + c and y = d·column + e·row + f of
    # a pixel's middle
    numbers: tuple[float, float, float, float, float, float]
    system: str | None = None  # the coordinate system, such as EPSG:26986, if it is known
    # A pixel's side on the ground, if the coordinate system says it: its unit may be feet or
    # degrees, and Mercator's metres shrink towards the poles.
    metres: float | None = None

    def on_map(self, line: Line) -> Line:
        """(n, 2) of columns and rows to (n, 2) of map coordinates."""
        a, d, b, e, c, f = self.numbers
        return np.asarray(line @ np.array([[a, d], [b, e]]) + [c, f])

    @property
    def resolution(self) -> float | None:
        """Metres a pixel; without a coordinate system, where the numbers can be metres."""
        if self.metres is not None:
            return self.metres
        side = float(np.hypot(self.numbers[0], self.numbers[1]))
        return side if side > 0.01 else None


def find_georeference(path: Path) -> Georeference | None:
    """The world file beside an image (a.tfw, a.tifw or a.wld), else a GeoTIFF's tags, or None.

    A GeoTIFF is read with rasterio, which comes with `pip install 'it3-vision[geo]'`.
    """
    if (world := find_world_file(path)) is not None:
        return _world_file(world)
    if path.suffix.lower() not in (".tif", ".tiff") or not path.is_file():
        return None
    with path.open("rb") as file:
        return _geotiff(path) if is_placed(tiff_tags(file)) else None


def find_world_file(image: Path) -> Path | None:
    """The world file beside an image, or None."""
    end = image.suffix.removeprefix(".")
    suffixes = (f".{end[:1]}{end[-1:]}w", f".{end}w", ".wld")
    names = [image.with_suffix(s) for suffix in suffixes for s in (suffix, suffix.upper())]
    return next((name for name in names if name.is_file()), None)


def tiff_tags(file: IO[bytes]) -> Mapping[int, Any]:
    """The tags of a TIFF's first image by their numbers; none of what is no TIFF, or damaged.

    Pillow reads them of images too that it can't open: those with seven bands, say.
    """
    start = file.read(16)
    found: dict[int, Any] = {}
    if start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        # A damaged header: who reads pixels says it better.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tags = ImageFileDirectory_v2(start[: 16 if b"+" in start[:4] else 8])
            file.seek(tags.next)
            tags.load(file)
            for tag in tags:
                with contextlib.suppress(Exception):  # one broken tag does not lose the others
                    found[tag] = tags[tag]
    return found


def is_placed(tags: Mapping[int, Any]) -> bool:
    """Whether a TIFF says where on Earth it lies."""
    return any(tag in tags for tag in _TAGS)


def _world_file(path: Path) -> Georeference:
    try:
        a, d, b, e, c, f = map(float, path.read_text(encoding="ascii").split())
    except (OSError, ValueError) as problem:
        raise IT3Error(f"{path} is no world file ({problem}): it has six numbers") from problem
    if not np.isfinite([a, d, b, e, c, f]).all() or a * e == b * d:
        raise IT3Error(f"{path}: its pixels have no area (a, d, b, e are {a}, {d}, {b}, {e})")
    return Georeference((a, d, b, e, c, f))


def _geotiff(path: Path) -> Georeference | None:
    try:
        import rasterio
        from rasterio.warp import transform
    except ImportError:
        needed = "pip install 'it3-vision[geo]', or put a world file beside it"
        raise IT3Error(f"{path} is a GeoTIFF: {needed}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", rasterio.errors.NotGeoreferencedWarning)
            with rasterio.open(path) as opened:
                t, system, size = opened.transform, opened.crs, (opened.width, opened.height)
    except rasterio.errors.NotGeoreferencedWarning:  # a coordinate system, and no position in it
        return None
    except rasterio.errors.RasterioError as problem:
        raise IT3Error(f"rasterio can't read where {path} lies: {problem}") from problem
    # Rasterio counts from a pixel's corner, a world file from its middle.
    numbers = (t.a, t.d, t.b, t.e, t.c + (t.a + t.b) / 2, t.f + (t.d + t.e) / 2)
    if system is None:
        return Georeference(numbers)
    ends = np.array(size) / 2 + _SPAN * np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])
    x, y = Georeference(numbers).on_map(ends).T
    east, north = (np.radians(one) for one in transform(system, _DEGREES, x, y))
    east = east * np.cos(north.mean())
    sides = np.hypot(east[1::2] - east[::2], north[1::2] - north[::2]) * _RADIUS / (2 * _SPAN)
    metres = float(np.sqrt(sides.prod()))
    return Georeference(numbers, system.to_string(), metres if 0 < metres < np.inf else None)


def geojson(lines: Sequence[Line], where: Georeference, properties: dict[str, Any]) -> str:
    """Lines in pixels as GeoJSON: in longitude and latitude, if the coordinate system is known.

    With a world file alone it is not: then the coordinates are the file's own, and the collection
    says so. Every line has the properties.
    """
    features = []
    for line in map(where.on_map, lines):
        if where.system is not None:
            from rasterio.warp import transform

            line = np.stack(transform(where.system, _DEGREES, *line.T), 1)
        geometry = {"type": "LineString", "coordinates": line.round(7).tolist()}
        features.append({"type": "Feature", "properties": properties, "geometry": geometry})
    whole: dict[str, Any] = {"type": "FeatureCollection", "features": features}
    if where.system is None:
        whole["coordinates"] = "as in the image's world file, whose coordinate system is not known"
    return json.dumps(whole, ensure_ascii=False, allow_nan=False)


def centre_lines(mask: NDArray[Any], least: float = 10.0) -> list[Line]:
    """The centre lines of a mask's roads, from junction to junction, in pixels.

    A pixel's middle has whole coordinates, as in OpenCV and world files. A line with a loose end
    that is shorter than `least` is a spur of the skeleton, and dropped.
    """
    beside = _neighbours(_thinned(mask))
    degree = {pixel: len(near) for pixel, near in beside.items()}
    lines = []
    # From ends and junctions first; what is left then are rings.
    for start in sorted(beside, key=lambda pixel: (degree[pixel] == 2, pixel)):
        while beside[start]:
            path = [start]
            while len(path) == 1 or (degree[path[-1]] == 2 and path[-1] != start):
                path.append(beside[path[-1]].pop(0))
                beside[path[-1]].remove(path[-2])
            line = np.array(path, np.float64)[:, ::-1]
            length = float(np.hypot(*np.diff(line, axis=0).T).sum())
            loose = 1 in (degree[path[0]], degree[path[-1]])
            if length >= (least if loose else 2):
                lines.append(_simplified(line))
    return lines


def _thinned(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """The skeleton of a mask, one pixel wide and as connected as the mask (Zhang and Suen 1984)."""
    here = np.pad(np.asarray(mask, bool), 1)
    while True:
        before = int(here.sum())
        for first in (True, False):
            p = [np.roll(here, (-dy, -dx), (0, 1)) for dy, dx in _AROUND]
            number = sum(part.astype(np.int8) for part in p)
            turns = sum((~a & b).astype(np.int8) for a, b in zip(p, [*p[1:], p[0]], strict=True))
            north, east, south, west = p[::2]
            if first:
                open_side = ~(north & east & south) & ~(east & south & west)
            else:
                open_side = ~(north & east & west) & ~(north & south & west)
            here &= ~((number >= 2) & (number <= 6) & (turns == 1) & open_side)
        if int(here.sum()) == before:
            return here[1:-1, 1:-1]


def _neighbours(skeleton: NDArray[np.bool_]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """For each pixel those beside it; a diagonal only where no straight way leads there too."""
    there = {(int(y), int(x)) for y, x in np.argwhere(skeleton)}
    return {
        (y, x): [
            (y + dy, x + dx)
            for dy, dx in _AROUND
            if (y + dy, x + dx) in there
            and not (dy and dx and ((y + dy, x) in there or (y, x + dx) in there))
        ]
        for y, x in there
    }


def _simplified(line: Line) -> Line:
    """With fewer points, at most a pixel away from it."""
    if line[0].tolist() == line[-1].tolist():  # a ring: each half by itself
        half = len(line) // 2
        first, second = _simplified(line[: half + 1]), _simplified(line[half:])
        return np.concatenate([first, second[1:]])
    simple = cv2.approxPolyDP(line.astype(np.float32)[:, None], 1.0, False)
    return np.asarray(simple[:, 0], np.float64)
