"""Where on Earth a pixel lies: from a world file beside the image, or from a GeoTIFF's own tags."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_vision.roads.tiff import has_place, tiff_tags

__all__ = ["Georeference", "find_georeference", "find_world_file", "geojson"]

_RADIUS = 6371008.8  # of the Earth, in metres
_SPAN = 50  # pixels on either side of the middle that a pixel's size is measured over


@dataclass(frozen=True)
class Georeference:
    """From pixels to a map.

    Attributes:
        numbers: a, d, b, e, c, f as a world file has them: x = a·column + b·row + c and
            y = d·column + e·row + f for a pixel's middle.
        system: the coordinate system, such as EPSG:26986; None where nobody said.
        metres: a pixel's side on the ground, where the coordinate system tells: its unit may be
            feet or degrees, and Mercator's metres shrink towards the poles.
    """

    numbers: tuple[float, float, float, float, float, float]
    system: str | None = None
    metres: float | None = None

    def __call__(self, line: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, 2) of columns and rows to (n, 2) of map coordinates.

        Example:
            >>> metres = Georeference((0.5, 0.0, 0.0, -0.5, 1000.0, 2000.0))
            >>> metres(np.array([[0.0, 0.0], [10.0, 2.0]])).tolist()
            [[1000.0, 2000.0], [1005.0, 1999.0]]
        """
        a, d, b, e, c, f = self.numbers
        x, y = line[:, 0], line[:, 1]
        return np.stack([a * x + b * y + c, d * x + e * y + f], 1)

    @property
    def resolution(self) -> float | None:
        """Metres a pixel; without a coordinate system, where the numbers can be metres."""
        if self.metres is not None:
            return self.metres
        side = float(np.hypot(self.numbers[0], self.numbers[1]))
        return side if side > 0.01 else None


def find_georeference(image: str | os.PathLike[str]) -> Georeference | None:
    """The world file beside an image (a.tfw, a.tifw or a.wld), else a GeoTIFF's tags, or None.

    A GeoTIFF is read with rasterio, which comes with `pip install 'it3-vision[geo]'`.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp())
        >>> _ = (place / "a.pgw").write_text("0.5\\n0\\n0\\n-0.5\\n1000\\n2000\\n")
        >>> find_georeference(place / "a.png").resolution
        0.5
    """
    path = Path(image)
    world = find_world_file(path)
    if world is not None:
        return Georeference(_world_file(world))
    return _geotiff(path) if path.suffix.lower() in (".tif", ".tiff") else None


def find_world_file(image: Path) -> Path | None:
    """The world file beside an image, or None.

    Example:
        >>> find_world_file(Path("/nowhere/a.tif"))
    """
    end = image.suffix.removeprefix(".")
    for suffix in (f".{end[:1]}{end[-1:]}w", f".{end}w", ".wld"):
        for name in (image.with_suffix(suffix), image.with_suffix(suffix.upper())):
            if name.is_file():
                return name
    return None


def _world_file(path: Path) -> tuple[float, float, float, float, float, float]:
    try:
        numbers = [float(line) for line in path.read_text(encoding="ascii").split()]
    except (OSError, ValueError) as problem:
        raise IT3Error(f"{path} is no world file ({problem}): it has six numbers") from problem
    if len(numbers) != 6 or not np.isfinite(numbers).all():
        raise IT3Error(f"{path} is no world file: it has six numbers, and not {len(numbers)}")
    a, d, b, e, c, f = numbers
    if a * e == b * d:
        raise IT3Error(f"{path}: its pixels have no area (a, d, b, e are {a}, {d}, {b}, {e})")
    return a, d, b, e, c, f


def _geotiff(path: Path) -> Georeference | None:
    try:
        with path.open("rb") as file:
            tags = tiff_tags(file)
    except OSError:
        return None  # whoever reads the pixels says what is wrong
    if not has_place(tags):
        return None
    try:
        import rasterio
    except ImportError:
        raise IT3Error(
            f"{path} is a GeoTIFF: install rasterio to read where it lies, with pip install "
            f"'it3-vision[geo]', or put a world file beside it"
        ) from None
    with rasterio.open(path) as opened:
        t = opened.transform
        system = None if opened.crs is None else opened.crs.to_string()
        metres = None if opened.crs is None else _metres(opened)
    # Rasterio counts from a pixel's corner, a world file from its middle.
    middle = t.c + (t.a + t.b) / 2, t.f + (t.d + t.e) / 2
    return Georeference((t.a, t.d, t.b, t.e, *middle), system, metres)


def _metres(opened: Any) -> float | None:
    """A pixel's side in the middle of an open GeoTIFF, whatever its coordinates are in."""
    from rasterio.warp import transform

    t = opened.transform
    columns = opened.width / 2 + np.array([-_SPAN, _SPAN, 0, 0])
    rows = opened.height / 2 + np.array([0, 0, -_SPAN, _SPAN])
    x, y = t.a * columns + t.b * rows + t.c, t.d * columns + t.e * rows + t.f
    east, north = (np.radians(one) for one in transform(opened.crs, "EPSG:4326", x, y))
    east = east * np.cos(north.mean())
    across, along = (_RADIUS * np.hypot(east[i + 1] - east[i], north[i + 1] - north[i])
                     for i in (0, 2))  # fmt: skip
    side = float(np.sqrt(across * along)) / (2 * _SPAN)
    return side if np.isfinite(side) and side > 0 else None


def geojson(
    lines: Sequence[NDArray[np.float64]], where: Georeference, properties: dict[str, Any]
) -> str:
    """Lines as GeoJSON: in longitude and latitude, where the coordinate system is known.

    With a world file alone nobody knows the system: then the coordinates are the file's own, and
    the collection says so.

    Args:
        lines: in pixels.
        where: from pixels to the map.
        properties: of every line.

    Example:
        >>> text = geojson([np.array([[0.0, 0.0], [9.0, 0.0]])],
        ...                Georeference((1.0, 0, 0, -1.0, 100.0, 50.0)), {"road": True})
        >>> json.loads(text)["features"][0]["geometry"]["coordinates"]
        [[100.0, 50.0], [109.0, 50.0]]
    """
    features = []
    for line in lines:
        placed = where(line)
        if where.system is not None:
            placed = _degrees(placed, where.system)
        points = [[round(float(x), 7), round(float(y), 7)] for x, y in placed]
        geometry = {"type": "LineString", "coordinates": points}
        features.append({"type": "Feature", "properties": properties, "geometry": geometry})
    whole: dict[str, Any] = {"type": "FeatureCollection", "features": features}
    if where.system is None:
        whole["coordinates"] = "as in the image's world file, whose coordinate system is not known"
    return json.dumps(whole, ensure_ascii=False, allow_nan=False)


def _degrees(points: NDArray[np.float64], system: str) -> NDArray[np.float64]:
    from rasterio.warp import transform

    x, y = transform(system, "EPSG:4326", points[:, 0].tolist(), points[:, 1].tolist())
    return np.stack([x, y], 1)
