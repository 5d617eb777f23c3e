"""The roads in one aerial image: a mask, an overlay, and centre lines on the map."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from it3_core import IT3, IT3Error, Method, Source
from it3_core.files import write_bytes, write_text
from it3_core.progress import Progress
from it3_vision.data.images import BadImage
from it3_vision.methods import BatchNormStats
from it3_vision.predicting import unusual
from it3_vision.roads.feed import as_input
from it3_vision.roads.georeference import find_georeference, geojson
from it3_vision.roads.lines import centre_lines
from it3_vision.roads.pictures import overlay
from it3_vision.roads.reading import read_aerial
from it3_vision.roads.runs import Run
from it3_vision.roads.scenes import Scene, make_scene
from it3_vision.roads.tiling import TILE, answer, tiles

__all__ = ["Adapt", "Prediction", "check_files", "method_for", "predict", "read_scene",
           "write_prediction"]  # fmt: skip

Adapt = Literal["auto", "it3", "statistics", "none"]
"""What tuning chose; IT³ on the image; its own statistics in the batch norms; nothing."""

_EXACT = (".png", ".tif", ".tiff", ".bmp")  # kinds that keep every pixel's value


@dataclass(frozen=True)
class Prediction:
    """What is said about an image.

    Attributes:
        name: the file.
        probability: (H, W) of a road, in the image's own pixels.
        known: (H, W), false where it has no data.
        roads: the share of the known area that is road.
        changed: the share whose answer adaptation changed.
        percentile: of the training crops, how many per cent are less unusual.
        flagged: whether that is more than the RUN's trust allows.
    """

    name: str
    probability: NDArray[np.float32]
    known: NDArray[np.bool_]
    roads: float
    changed: float
    percentile: float
    flagged: bool

    def __str__(self) -> str:
        return (
            f"{self.name}: {100 * self.roads:.1f} % road on {100 * self.known.mean():.0f} % of the "
            f"image, adaptation changed {100 * self.changed:.2f} %; "
            f"{unusual(self.percentile, self.flagged, 'crops')}"
        )


def read_scene(path: str | os.PathLike[str], resolution: float | None, default: float) -> Scene:
    """An image file as a scene without a mask.

    Args:
        path: the image.
        resolution: metres a pixel; by default what its georeference says, or `default`.
        default: the network's.
    """
    place = Path(path)
    try:
        data = place.read_bytes()
    except OSError as problem:
        raise BadImage(str(place), f"can't be opened ({problem.strerror})") from None
    if not data:
        raise BadImage(str(place), "is empty (0 bytes)")
    if resolution is None:
        found = find_georeference(place)
        resolution = (found.resolution if found else None) or default
    read = read_aerial(data, str(place), place)
    return make_scene(str(place), read.pixels, None, resolution, read.no_data)


def predict(run: Run, scene: Scene, adapt: Adapt = "auto", *, steps: int = 1, tile: int = TILE,
            progress: bool = True) -> Prediction:  # fmt: skip
    """The roads of a scene, before and after adaptation, in the scene's own pixels.

    Args:
        run: the trained network.
        scene: the image.
        adapt: what to do with the network.
        steps: of IT³, where `adapt` is "it3".
        tile: side of a tile, in pixels of the network's resolution.
        progress: whether to show how far it is.
    """
    here = scene.at(run.resolution)
    if not here.known.any():
        raise IT3Error(f"{scene.name} has no data: all of it is white, black or declared empty")
    x = [as_input(run.prepare, here.image, here.known).to(run.device)]
    crops = len(tiles(x, tile)[0])
    method = method_for(run, adapt, steps, crops)
    bar = Progress(2, "map", progress)
    bar.show(0, f"{crops} tiles, as the network is", last=True)
    before = answer(Source(run.model, run.adapter), x, tile=tile, errors=True)[0]
    bar.show(1, f"{crops} tiles, adapted", last=True)
    after = answer(method, x, tile=tile)[0]
    bar.close()
    gap = torch.tensor([before.error or 0.0])
    height, width = scene.image.shape[:2]
    maps = [
        np.asarray(cv2.resize(one.probability, (width, height), interpolation=cv2.INTER_LINEAR))
        * scene.known
        for one in (before, after)
    ]
    changed = ((maps[0] >= 0.5) != (maps[1] >= 0.5))[scene.known].mean()
    return Prediction(
        scene.name,
        maps[1].astype(np.float32),
        scene.known,
        float((maps[1] >= 0.5)[scene.known].mean()),
        float(changed),
        float(run.trust.percentile(gap)),
        bool(run.trust.flag(gap)),
    )


def method_for(run: Run, adapt: Adapt, steps: int = 1, crops: int | None = None) -> Method:
    """The method that `--adapt` names.

    Args:
        run: the trained network.
        adapt: the name.
        steps: of IT³, where it is "it3".
        crops: how many tiles it will meet together, by default as many as it was tuned for.
    """
    if adapt not in get_args(Adapt):
        raise IT3Error(f"adapt is one of {', '.join(get_args(Adapt))}, not {adapt!r}")
    if adapt == "auto":
        return run.method(crops or max(run.tunings, default=1))
    if adapt == "none":
        return Source(run.model, run.adapter)
    if adapt == "statistics":
        return BatchNormStats(run.model, run.adapter)
    chosen = run.tuning(max(run.tunings, default=1)).chosen
    settings: dict[str, Any] = {"lr": 1e-4}
    if chosen.method == "IT3":
        settings = dict(chosen.settings)
    return IT3(run.model, run.adapter, **(settings | {"steps": steps}))


def write_prediction(
    found: Prediction,
    scene: Scene,
    out: Path,
    over: Path | None = None,
    lines: Path | None = None,
) -> None:
    """Writes the mask and, where asked for, the overlay and the centre lines.

    Args:
        found: the prediction.
        scene: its image.
        out: the mask's file: 255 for a road, 0 for none.
        over: the file of the image with its roads in red.
        lines: the GeoJSON file; needs a georeference.
    """
    check_files(Path(scene.name), out, over, lines)
    road = found.probability >= 0.5
    where = None
    if lines is not None:
        where = find_georeference(scene.name)
        if where is None:
            raise IT3Error(
                f"{scene.name} has no georeference: put a world file beside it, or leave out "
                f"--lines"
            )
    _write_image(out, (255 * road).astype(np.uint8))
    if over is not None:
        drawn = overlay(scene.image, found.probability, found.known)
        _write_image(over, np.ascontiguousarray(drawn[..., ::-1]))
    if lines is not None and where is not None:
        text = geojson(centre_lines(road), where, {"source": Path(scene.name).name})
        write_text(lines, text)


def check_files(
    image: Path, out: Path, over: Path | None = None, lines: Path | None = None
) -> None:
    """Says what could not be written, or would be written over, before the work is done.

    Args:
        image: what is to be mapped.
        out: the mask's file.
        over: the overlay's.
        lines: the centre lines'.

    Example:
        >>> check_files(Path("town.jpg"), Path("town.jpg"))
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: town.jpg is named twice: ...
    """
    named = [path for path in (out, over, lines) if path is not None]
    seen = {os.path.realpath(image)}
    for path in named:
        if os.path.realpath(path) in seen:
            raise IT3Error(
                f"{path} is named twice: the image, --out, --overlay and --lines are four files"
            )
        seen.add(os.path.realpath(path))
        if not path.parent.is_dir():
            raise IT3Error(f"there is no folder {path.parent} to write {path.name} into: make it")
    _check_kind(out, _EXACT)
    if over is not None:
        _check_kind(over, (*_EXACT, ".jpg", ".jpeg"))


def _check_kind(path: Path, kinds: tuple[str, ...]) -> None:
    """A mask has two values, which JPEG would blur."""
    if path.suffix.lower() not in kinds:
        raise IT3Error(f"{path} can't be written: name it {', '.join(kinds[:-1])} or {kinds[-1]}")


def _write_image(path: Path, pixels: NDArray[np.uint8]) -> None:
    fine, data = cv2.imencode(path.suffix.lower(), pixels)
    if not fine:
        raise IT3Error(f"{path} can't be written: name it .png")
    write_bytes(path, data.tobytes())
