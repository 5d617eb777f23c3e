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
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from it3_core import IT3Error
from it3_vision.data.images import MOST_PIXELS, BadImage, Pixels, read_image
from it3_vision.data.trees import Parts, Tree, open_tree, shown
from it3_vision.roads.georeference import find_world_file
from it3_vision.roads.graphs import draw_graph, read_graph
from it3_vision.roads.scenes import Scene, Scenes, make_scene
from it3_vision.roads.tiff import declared_no_data, has_place, tiff_tags

__all__ = ["RESOLUTIONS", "Aerial", "open_roads", "read_aerial"]

RESOLUTIONS = {"massachusetts": 1.0, "roadtracer": 0.6}
"""Metres a pixel of the sets that say so; of any other folder you say it."""

_PAIRS = (("images", "masks"), ("sat", "map"), ("image", "mask"), ("images", "labels"))
_TILE = re.compile(r"(.+)_(-?\d+)_(-?\d+)_sat$")
_BITS, _SAMPLES, _EXTRA = 258, 277, 338  # TIFF's names for them


class Aerial(NamedTuple):
    """An aerial image as its file has it.

    Attributes:
        pixels: (H, W, 3) of uint8.
        no_data: the value that its file declares to be no data, in every band.
        upright: whether EXIF's rotation was followed, as it is where nothing says where it lies.
    """

    pixels: Pixels
    no_data: int | None
    upright: bool


def read_aerial(data: bytes, name: str, path: Path | None = None) -> Aerial:
    """An aerial image in 8 bits; a TIFF's bands and bits are looked at first.

    Transparent pixels become white, which is no data. A fourth band that is not said to be
    transparency is mostly infrared, and more than 8 bits have no one way to become 8: both are
    refused, with the command that helps. EXIF's rotation is left alone where there is a
    georeference: that is one of the pixels as they are stored.

    Args:
        data: the file.
        name: what to call it in an error.
        path: where it is, to look for a world file beside it.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (4, 2)).save(file, "tiff")
        >>> read_aerial(file.getvalue(), "a.tif").pixels.shape
        (2, 4, 3)
    """
    tags = tiff_tags(io.BytesIO(data))
    _check_tiff(tags, name)
    upright = not has_place(tags) and (path is None or find_world_file(path) is None)
    pixels = read_image(data, MOST_PIXELS, name=name, upright=upright)
    return Aerial(pixels, declared_no_data(tags), upright)


def _check_tiff(tags: Mapping[int, Any], name: str) -> None:
    try:
        bits = tags.get(_BITS, (1,))
        bands, extra = int(tags.get(_SAMPLES, 1)), tags.get(_EXTRA, ())
        most = max(bits if isinstance(bits, tuple) else (bits,))
    except Exception:  # a damaged header: the reader says so better
        return
    if most > 8:
        raise BadImage(
            name,
            f"has {most} bits a band: bring it to 8 first, as with gdal_translate -ot Byte -scale",
        )
    if bands not in (1, 3) and not (bands in (2, 4) and set(extra) & {1, 2}):
        raise BadImage(
            name,
            f"has {bands} bands: choose red, green and blue first, as with gdal_translate -b 1 "
            f"-b 2 -b 3",
        )


def open_roads(
    path: str | Path, *, resolution: float | None = None, split: str | None = None
) -> Scenes:
    """The scenes at a path, read one by one when they are asked for.

    Args:
        path: a folder or a tar, see this module's text.
        resolution: metres a pixel; by default what is known of Massachusetts and RoadTracer.
        split: which, where there are several folders: train, valid, test ...

    Example:
        >>> open_roads("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere does not exist: give a folder or a tar with images/ ...
    """
    place = Path(path)
    if not place.exists():
        raise IT3Error(f"{place} does not exist: give a folder or a tar with images/ and masks/")
    tree = open_tree(place)
    if place.is_dir() and "imagery" in tree.folders():
        return _roadtracer(place, tree, resolution or RESOLUTIONS["roadtracer"])
    images, masks = _folders(tree, split)
    if resolution is None and (images[-1:] == ("sat",) or "massachusetts" in place.name.lower()):
        resolution = RESOLUTIONS["massachusetts"]
    if resolution is None:
        raise IT3Error(
            f"say how many metres a pixel of {place} has: --resolution 0.3, for instance"
        )
    pairs = _pairs(tree, images, masks)
    names = tuple(shown(image) for image, _ in pairs)
    return Scenes(str(place), names, partial(_read_pair, tree, pairs, resolution))


def _folders(tree: Tree, split: str | None) -> tuple[Parts, Parts]:
    """Where images and masks are."""
    found: dict[str, tuple[Parts, Parts]] = {}
    places: list[Parts] = [()]
    places += [(name,) for name in tree.folders()]
    for at in places:
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
    """Images and masks of the same name; one that has no partner is told."""
    found = _by_stem(tree, images)
    there = _by_stem(tree, masks)
    if not found:
        raise IT3Error(f"{tree.title}/{'/'.join(images)} holds no image: put some there")
    lost = [name for stem, name in found.items() if stem not in there]
    if lost:
        more = "" if len(lost) == 1 else f" (and {len(lost) - 1} more)"
        raise IT3Error(
            f"{lost[0]}{more} has no mask in {tree.title}/{'/'.join(masks)}: a mask has its "
            f"image's name but for the suffix"
        )
    return [((*images, name), (*masks, there[stem])) for stem, name in found.items()]


def _by_stem(tree: Tree, folder: Parts) -> dict[str, str]:
    """Images by their name without a suffix; two of one name can't be told apart."""
    found: dict[str, str] = {}
    for name in tree.images(folder):
        other = found.setdefault(PurePosixPath(name).stem, name)
        if other != name:
            raise IT3Error(
                f"{tree.title}/{'/'.join(folder)} has both {other} and {name}: a mask belongs to "
                f"one image, so rename or remove one"
            )
    return found


def _read_pair(tree: Tree, pairs: list[tuple[Parts, Parts]], resolution: float, row: int) -> Scene:
    image, mask = pairs[row]
    read = read_aerial(tree.raw(image), shown(image), Path(tree.title, *image))
    data = tree.raw(mask)
    label = read_image(data, MOST_PIXELS, name=shown(mask), upright=read.upright).max(2)
    return make_scene(shown(image), read.pixels, label, resolution, read.no_data)


def _roadtracer(place: Path, tree: Tree, resolution: float) -> Scenes:
    tiles: list[tuple[str, str, int, int]] = []
    for name in tree.images(("imagery",)):
        match = _TILE.match(PurePosixPath(name).stem)
        if match:
            tiles.append((name, match[1], int(match[2]), int(match[3])))
    if not tiles:
        raise IT3Error(f"{place}/imagery holds no REGION_X_Y_sat.png: see 1_sat.go of RoadTracer")
    masks = set(tree.images(("masks",))) if "masks" in tree.folders() else set()
    for _, region, x, y in tiles:
        drawn = place / "graphs" / f"{region}.graph"
        if f"{region}_{x}_{y}_osm.png" not in masks and not drawn.is_file():
            raise IT3Error(f"{region}_{x}_{y}_sat.png has no mask, and there is no {drawn}")
    names = tuple(f"imagery/{name}" for name, *_ in tiles)
    return Scenes(str(place), names, partial(_read_tile, place, tree, tiles, masks, resolution))


def _read_tile(
    place: Path,
    tree: Tree,
    tiles: list[tuple[str, str, int, int]],
    masks: set[str],
    resolution: float,
    row: int,
) -> Scene:
    name, region, x, y = tiles[row]
    read = read_aerial(tree.raw(("imagery", name)), name, place / "imagery" / name)
    ready = f"{region}_{x}_{y}_osm.png"
    if ready in masks:
        data = tree.raw(("masks", ready))
        mask = read_image(data, MOST_PIXELS, name=ready, upright=read.upright).max(2)
    else:
        vertices, edges = read_graph(place / "graphs" / f"{region}.graph")
        height, width = read.pixels.shape[:2]
        mask = draw_graph(vertices, edges, (x * width, y * height), (height, width))
    label = np.asarray(mask)
    return make_scene(f"imagery/{name}", read.pixels, label, resolution, read.no_data)
