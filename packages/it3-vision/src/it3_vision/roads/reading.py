"""Aerial images and their road masks from the layouts that people have them in.

- `images/` and `masks/`, or `sat/` and `map/` (Massachusetts), with files of the same name but for
  the suffix; below a folder for each split or not; in a tar as well.
- `train/` and `train_labels/` and the like, as Massachusetts is passed on by others.
- RoadTracer's `imagery/REGION_X_Y_sat.png` with `masks/REGION_X_Y_osm.png` or, drawn here,
  `graphs/REGION.graph`.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_vision.data.images import MOST_PIXELS, BadImage, Pixels, read_image
from it3_vision.data.trees import Parts, Tree, open_tree, shown
from it3_vision.roads.geo import find_world_file, is_placed, tiff_tags
from it3_vision.roads.scenes import Scene, Scenes, make_scene

_MASSACHUSETTS, _ROADTRACER = 1.0, 0.6  # metres a pixel
_PAIRS = (("images", "masks"), ("sat", "map"), ("image", "mask"), ("images", "labels"))
_WIDTH = 9  # pixels of a drawn road, as RoadTracer's own masks have it: 5.4 m at 0.6 m a pixel
_TILE = re.compile(r"(.+)_(-?\d+)_(-?\d+)_sat$")
_BITS, _KIND, _SAMPLES, _EXTRA, _NO_DATA = 258, 262, 277, 338, 42113  # TIFF's names for them
_PALETTE = 3  # a kind: then the no-data value is a number of the palette, and no colour


class Aerial(NamedTuple):
    """An aerial image as its file has it."""

    pixels: Pixels
    no_data: int | None  # the value that its file declares to be no data, in every band
    upright: bool  # whether EXIF's rotation was followed


def read_aerial(data: bytes, name: str, path: Path | None = None) -> Aerial:
    """An aerial image in 8 bits; transparent pixels become white, which is no data.

    A fourth band that is not said to be transparency is mostly infrared, and more than 8 bits have
    no one way to become 8: both are refused. EXIF's rotation is not followed if there is a
    georeference, which is one of the pixels as they are stored.
    """
    tags = tiff_tags(io.BytesIO(data))
    _check_tiff(tags, name)
    upright = not is_placed(tags) and (path is None or find_world_file(path) is None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # the error says what is wrong
        pixels = read_image(data, MOST_PIXELS, name=name, upright=upright)
    return Aerial(pixels, declared_no_data(tags), upright)


def _check_tiff(tags: Mapping[int, Any], name: str) -> None:
    try:
        bands, extra, most = int(tags.get(_SAMPLES, 1)), set(tags.get(_EXTRA, ())), max(_bits(tags))
    except Exception:  # a damaged header: the reader says so better
        return
    if most > 8:
        what, command = f"{most} bits a band: bring it to 8", "-ot Byte -scale"
    elif bands not in (1, 3) and not (bands in (2, 4) and extra & {1, 2}):
        what, command = f"{bands} bands: choose red, green and blue", "-b 1 -b 2 -b 3"
    else:
        return
    raise BadImage(name, f"has {what} first, as with gdal_translate {command}")


def declared_no_data(tags: Mapping[int, Any]) -> int | None:
    """The value from 0 to 255 that stands for no data, as GDAL notes it, or None."""
    try:
        value = float(str(tags.get(_NO_DATA, "nan")).strip("\0 "))
        if set(_bits(tags)) != {8} or tags.get(_KIND) == _PALETTE:
            return None
    except ValueError:
        return None
    return int(value) if value in range(256) else None


def _bits(tags: Mapping[int, Any]) -> list[int]:
    bits = tags.get(_BITS, 1)
    return [int(one) for one in (bits if isinstance(bits, tuple) else (bits,))]


def read_scene(path: Path, resolution: float) -> Scene:
    """An image file as a scene without a mask; `resolution` is in metres a pixel."""
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise BadImage(str(path), f"{problem}: name an image file")
    try:
        read = read_aerial(path.read_bytes(), str(path), path)
    except OSError as problem:
        raise BadImage(str(path), f"can't be opened ({problem.strerror})") from None
    return make_scene(str(path), read.pixels, None, resolution, read.no_data)


def open_roads(
    path: str | Path, *, resolution: float | None = None, split: str | None = None
) -> Scenes:
    """The scenes in a folder or a tar, read one by one when they are needed.

    `resolution` is in metres a pixel, by default that of Massachusetts and RoadTracer; `split` says
    which, if there are several folders: train, valid, test ...
    """
    root = Path(path)
    if not root.exists():
        raise IT3Error(f"{root} does not exist: give a folder or a tar with images/ and masks/")
    tree = open_tree(root)
    if root.is_dir() and "imagery" in tree.folders():
        return _roadtracer(root, tree, resolution or _ROADTRACER)
    images, masks = _folders(tree, split)
    if resolution is None and (images[-1:] == ("sat",) or "massachusetts" in root.name.lower()):
        resolution = _MASSACHUSETTS
    if resolution is None:
        raise IT3Error(f"say how many metres a pixel of {root} has, such as --resolution 0.3")
    pairs = _pairs(tree, images, masks)
    names = tuple(shown(image) for image, _ in pairs)

    def read(row: int) -> Scene:
        image, mask = pairs[row]
        found = read_aerial(tree.raw(image), names[row], Path(tree.title, *image))
        label = _read_mask(tree.raw(mask), shown(mask), found.upright)
        return make_scene(names[row], found.pixels, label, resolution, found.no_data)

    return Scenes(str(root), names, resolution, read)


def _folders(tree: Tree, split: str | None) -> tuple[Parts, Parts]:
    found: dict[str, tuple[Parts, Parts]] = {}
    above: list[Parts] = [(), *((name,) for name in tree.folders())]
    for at in above:
        folders = tree.folders(at)
        for images, masks in _PAIRS:
            if images in folders and masks in folders:
                found.setdefault("/".join(at), ((*at, images), (*at, masks)))
        for name in folders:
            if f"{name}_labels" in folders:
                found.setdefault(name, ((*at, name), (*at, f"{name}_labels")))
    if split is not None:
        found = {name: pair for name, pair in found.items() if name.split("/")[-1] == split}
    if len(found) == 1:
        return next(iter(found.values()))
    if found and split is None:
        names = ", ".join(sorted(name for name in found if name))
        raise IT3Error(f"{tree.title} has several parts: name one with --split, of {names}")
    seen = ", ".join(tree.seen()) or "nothing"
    wanted = "images/ and masks/" if split is None else f"{split}/ with images and masks"
    raise IT3Error(f"{tree.title} has no {wanted}, but {seen}: see 'it3-vision roads train --help'")


def _pairs(tree: Tree, images: Parts, masks: Parts) -> list[tuple[Parts, Parts]]:
    """Images and masks of the same name but for the suffix."""
    found, there = _by_stem(tree, images), _by_stem(tree, masks)
    if not found:
        raise IT3Error(f"{tree.title}/{'/'.join(images)} holds no image: put some there")
    for lost in (name for stem, name in found.items() if stem not in there):
        raise IT3Error(f"{lost} has no mask of the same name in {tree.title}/{'/'.join(masks)}")
    return [((*images, name), (*masks, there[stem])) for stem, name in found.items()]


def _by_stem(tree: Tree, folder: Parts) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in tree.images(folder):
        other = found.setdefault(PurePosixPath(name).stem, name)
        if other != name:
            where = "/".join((tree.title, *folder))
            raise IT3Error(f"{where} has both {other} and {name}: rename or remove one")
    return found


def _read_mask(data: bytes, name: str, upright: bool) -> Pixels:
    return np.asarray(read_image(data, MOST_PIXELS, name=name, upright=upright).max(2))


def _roadtracer(root: Path, tree: Tree, resolution: float) -> Scenes:
    found = [(name, _TILE.match(PurePosixPath(name).stem)) for name in tree.images(("imagery",))]
    tiles = [(name, m[1], int(m[2]), int(m[3])) for name, m in found if m is not None]
    if not tiles:
        raise IT3Error(f"{root}/imagery holds no REGION_X_Y_sat.png: see 1_sat.go of RoadTracer")
    masks = set(tree.images(("masks",))) if "masks" in tree.folders() else set()
    for _, region, x, y in tiles:
        graph = root / "graphs" / f"{region}.graph"
        if f"{region}_{x}_{y}_osm.png" not in masks and not graph.is_file():
            raise IT3Error(f"{region}_{x}_{y}_sat.png has no mask, and there is no {graph}")
    names = tuple(f"imagery/{name}" for name, *_ in tiles)

    def read(row: int) -> Scene:
        name, region, x, y = tiles[row]
        image = read_aerial(tree.raw(("imagery", name)), name, root / "imagery" / name)
        mask = f"{region}_{x}_{y}_osm.png"
        if mask in masks:
            label = _read_mask(tree.raw(("masks", mask)), mask, image.upright)
        else:
            vertices, edges = read_graph(root / "graphs" / f"{region}.graph")
            height, width = image.pixels.shape[:2]
            label = draw_graph(vertices, edges, (x * width, y * height), (height, width))
        return make_scene(names[row], image.pixels, label, resolution, image.no_data)

    return Scenes(str(root), names, resolution, read)


def read_graph(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Vertices (n, 2) as x and y in pixels of the region, and edges (m, 2) between them.

    The file has a line `x y` for each vertex, an empty line, and a line `i j` for each edge.
    """
    try:
        text = path.read_text(encoding="ascii").replace("\r", "")
        above, _, below = text.partition("\n\n")
        vertices = np.array([line.split() for line in above.splitlines()], float).reshape(-1, 2)
        ends = np.array([line.split() for line in below.splitlines()], int).reshape(-1, 2)
    except (OSError, ValueError) as problem:
        raise IT3Error(f"{path} is no road graph of RoadTracer's: {problem}") from problem
    edges = np.unique(np.sort(ends, axis=1), axis=0)
    if edges.size and (edges.min() < 0 or edges.max() >= len(vertices)):
        raise IT3Error(f"{path}: an edge names vertex {edges.max()}, but there are {len(vertices)}")
    if not np.isfinite(vertices).all() or np.abs(vertices).max(initial=0) > 1e7:
        raise IT3Error(f"{path} has a vertex that is nowhere: coordinates are pixels")
    return vertices, edges


def draw_graph(
    vertices: NDArray[np.float64],
    edges: NDArray[np.int64],
    corner: tuple[float, float],
    size: tuple[int, int],
) -> NDArray[np.uint8]:
    """The part of a graph that lies in a window (x and y; height and width), as 0 and 255."""
    # Lines one pixel wide, then every pixel within the radius: OpenCV's own wide lines are wider.
    radius = _WIDTH // 2
    mask: NDArray[Any] = np.zeros((size[0] + 2 * radius, size[1] + 2 * radius), np.uint8)
    lines = (vertices - np.asarray(corner, np.float64) + radius)[edges]
    near = (lines.max(1) >= 0).all(1) & (lines.min(1) < mask.shape[::-1]).all(1)
    for start, end in np.rint(lines[near]).astype(int).tolist():
        cv2.line(mask, start, end, 255, 1)
    y, x = np.indices((2 * radius + 1, 2 * radius + 1)) - radius
    disc = (y**2 + x**2 <= radius**2).astype(np.uint8)
    drawn = cv2.dilate(mask, disc)
    return np.asarray(drawn[radius : radius + size[0], radius : radius + size[1]], np.uint8)
