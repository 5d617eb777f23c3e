"""What people see: masks, overlays and centre lines of `predict`, and the report's pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_core.evaluation.records import Record
from it3_core.experiment.figures import box_by_level, difference_by_level
from it3_core.experiment.predict import in_words
from it3_core.experiment.types import Item, Prediction
from it3_core.io.files import write_bytes, write_text
from it3_core.io.typed import printable
from it3_vision.data.images import Pixels
from it3_vision.roads.adapter import score
from it3_vision.roads.cli import Predict, files_of
from it3_vision.roads.geo import centre_lines, find_georeference, geojson
from it3_vision.roads.reading import read_scene
from it3_vision.roads.scenes import Scene

_SHOWN = ("source", "batch statistics", "TTT", "ActMAD", "IT³ (paper)",
          "IT³ (paper), batch statistics", "IT³ auto", "online IT³ (paper)")  # fmt: skip
_PAPER = ("source", "TTT", "ActMAD", "IT³ (paper)")


def read_items(options: Predict, own: float, path: Path) -> Iterator[Item]:
    """The image at a path with its georeference; `own` is the network's resolution."""
    try:
        wanted = options.resolution is None or options.lines is not None
        where = find_georeference(path) if wanted and path.is_file() else None
        stated = options.resolution or (None if where is None else where.resolution)
        scene = read_scene(path, own if stated is None else stated)
        if options.lines is not None and where is None:
            raise IT3Error(f"{path} has no georeference: add a world file, or leave out --lines")
        if not scene.at(own).known.any():
            raise IT3Error(f"{path} has no data: all of it is white, black or declared empty")
    except IT3Error as problem:
        yield Item(printable(path), problem=str(problem))
        return
    fields = {"resolution": scene.resolution, "resolution_stated": stated is not None}
    yield Item(str(path), (scene, where), fields=fields)


def write_files(options: Predict, one: Prediction) -> None:
    """Writes the files that were named, in the image's own pixels."""
    image, (scene, where), (road,) = Path(one.item.name), one.item.value, one.output
    size = scene.image.shape[1], scene.image.shape[0]
    resized = cv2.resize(road.clamp_min(0).numpy(), size, interpolation=cv2.INTER_LINEAR)
    found = (np.asarray(resized) >= 0.5) & scene.known
    for option, path in files_of(options, image).items():
        if option == "--lines":
            write_text(path, geojson(centre_lines(found), where, {"source": image.name}))
            continue
        pixels = (255 * found).astype(np.uint8) if option == "--out" else _overlay(scene, found)
        write_bytes(path, cv2.imencode(path.suffix.lower(), pixels)[1].tobytes())


def _overlay(scene: Scene, found: NDArray[np.bool_]) -> Pixels:
    """The image with its roads in red, and what has no data in grey stripes; BGR, as OpenCV's."""
    red = np.array([255, 36, 40])
    mixed = np.where(found[..., None], 0.45 * scene.image + 0.55 * red, scene.image)
    rows, columns = np.indices(found.shape)
    stripes = np.where((rows + columns) // 8 % 2, 205, 225)[..., None]
    drawn = np.where(scene.known[..., None], mixed, stripes).astype(np.uint8)
    return np.ascontiguousarray(drawn[..., ::-1])


def words(one: Prediction) -> str:
    """The road, what adaptation changed, and how unusual the image is."""
    (before,), (after,), fields = one.first_output, one.output, one.item.fields or {}
    text = in_words(lambda found: f"{found['prediction']:.1f} % road", one)
    if one.adapted:
        changed = ((before >= 0.5) != (after >= 0.5)).sum() / (after >= 0).sum()
        text += f"; adaptation changed {100 * float(changed):.2f} % of the map"
    if not (known := one.item.value[0].known).all():
        text += f"; {100 * known.mean():.0f} % of the image has data"
    if not fields["resolution_stated"]:
        text += f"; ground resolution unknown, assumed {fields['resolution']:g} m a pixel"
    return text


def boxes(records: Iterable[Record]) -> Figure:
    """The paper's figure: errors by quartile of the source's MSE, a box for each batch size."""
    found, own = list(records), "ActMAD, source statistics"
    if any(record["method"] == own for record in found):  # else there is no batch norm
        found = [record for record in found if record["method"] != "ActMAD"]
        found = [{**r, "method": "ActMAD"} if r["method"] == own else r for r in found]
    found = [record for name in _PAPER for record in found if record["method"] == name]
    return box_by_level(found, error="100 − quality, %")


def by_quartile(rows: Iterable[Mapping[str, Any]]) -> Figure | None:
    """What each method changes by quartile of the source's MSE, in batches of the largest size."""
    shown = [dict(r) for r in rows if r["level"].startswith("MSE") and r["method"] in _SHOWN]
    largest = max((row["batch_size"] or 0 for row in shown), default=0)
    shown = [row for row in shown if row["batch_size"] in (None, largest)]
    if all(row["method"] == "source" for row in shown):
        return None
    return difference_by_level(shown, error="100 − quality, %", title=f"batches of {largest}")


def qualitative(
    scenes: Sequence[Scene], predictions: Sequence[Mapping[str, NDArray[Any]]], slack: float
) -> Figure:
    """The paper's figure: each image, some predictions by name, and the truth."""
    columns = len(predictions[0]) + 2
    height = 0.3 + (11 / columns + 0.25) * len(scenes)  # of titles, and of pictures with labels
    figure = Figure(figsize=(11.0, height), layout="constrained")
    axes = figure.subplots(len(scenes), columns, squeeze=False)
    for number, (scene, found) in enumerate(zip(scenes, predictions, strict=True)):
        scores = [score(one, scene.label, slack)[:3] for one in found.values()]
        below = [" / ".join(f"{100 * value:.0f}" for value in three) for three in scores]
        maps = [np.where(scene.label >= 0, one, 0.35) for one in (*found.values(), scene.label)]
        labels = [printable(scene.name)[-28:], *below, ""]
        titles = ["image", *found, "truth"] if number == 0 else [""] * len(labels)
        pictures = [scene.image, *maps]
        for ax, drawn, label, title in zip(axes[number], pictures, labels, titles, strict=True):
            ax.imshow(drawn, cmap="gray", vmin=0, vmax=1, interpolation="antialiased")
            ax.set(xticks=[], yticks=[])
            ax.set_xlabel(label, fontsize=8, parse_math=False)
            ax.set_title(title, fontsize=10)
    return figure
