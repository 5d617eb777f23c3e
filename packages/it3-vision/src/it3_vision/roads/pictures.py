"""Pictures of roads: an overlay, the paper's qualitative figure, and quality by level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from it3_core import IT3, Source
from it3_vision.data.images import Pixels
from it3_vision.roads.ccq import score
from it3_vision.roads.evaluate import Evaluation, Views
from it3_vision.roads.runs import Run
from it3_vision.roads.tiling import TILE, answer

__all__ = ["Iterated", "bars", "iterated", "overlay", "qualitative"]

ITERATIONS = (5, 15)
"""Of IT³, as in the paper's figure."""

_COLOURS = {
    "source": "#8d99a6",
    "batch statistics": "#d49a3a",
    "ActMAD": "#2a5db0",
    "IT³, source statistics": "#b58bd6",
    "IT³, batch statistics": "#5b2a9d",
    "IT³ auto": "#0f766e",
    "online IT³": "#b42318",
}


class Iterated(NamedTuple):
    """An image and what the network says of it: at first, and after some iterations of IT³."""

    name: str
    image: Pixels
    label: NDArray[np.int8]
    answers: list[NDArray[np.float32]]


def overlay(image: Pixels, probability: NDArray[Any], known: NDArray[Any] | None = None) -> Pixels:
    """The image with its roads in red, and what has no data in grey stripes.

    Example:
        >>> found = overlay(np.zeros((4, 4, 3), np.uint8), np.eye(4))
        >>> found[0, 0].tolist(), found[0, 1].tolist()
        ([140, 19, 22], [0, 0, 0])
    """
    road = np.asarray(probability)[..., None] >= 0.5
    red = np.array([255, 36, 40])
    mixed = np.where(road, 0.45 * image + 0.55 * red, image)
    if known is not None:
        rows, columns = np.indices(image.shape[:2])
        stripes = np.where((rows + columns) // 8 % 2, 205, 225)[..., None]
        mixed = np.where(np.asarray(known, bool)[..., None], mixed, stripes)
    return mixed.astype(np.uint8)


def iterated(
    run: Run, tested: Views, rows: Sequence[int], *, lr: float, tile: int = TILE
) -> list[Iterated]:
    """Some images before IT³, and after 5 and 15 iterations, each adapted to alone.

    Args:
        run: the trained network.
        tested: the images.
        rows: which of them.
        lr: of each iteration.
        tile: side of a tile.
    """
    methods: list[Any] = [Source(run.model, run.adapter)]
    for steps in ITERATIONS:
        settings: dict[str, Any] = {"steps": steps, "lr": lr, "trust_region": False}
        methods.append(IT3(run.model, run.adapter, **settings))
    return [
        Iterated(
            tested.names[row],
            tested.images[row],
            tested.labels[row],
            [answer(m, [tested.inputs[row]], tile=tile)[0].probability for m in methods],
        )
        for row in rows
    ]


def qualitative(shown: Sequence[Iterated], slack: float) -> Figure:
    """The paper's figure: image, before, after 5 and after 15 iterations, truth."""
    titles = ["image", "before", *(f"after {n} iterations" for n in ITERATIONS), "truth"]
    figure = Figure(figsize=(11.0, 2.35 * len(shown) + 0.3), layout="constrained")
    for number, one in enumerate(shown):
        known = one.label >= 0
        truth = np.where(known, one.label, 0.35)
        maps = [np.where(known, found, 0.35) for found in one.answers]
        for column, picture in enumerate([one.image, *maps, truth]):
            axes = figure.add_subplot(len(shown), 5, 5 * number + column + 1)
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="antialiased")
            axes.set_xticks([])
            axes.set_yticks([])
            if number == 0:
                axes.set_title(titles[column], fontsize=10)
            if 0 < column < 4:
                found = score(one.answers[column - 1], one.label, slack)
                three = (found.correctness, found.completeness, found.quality)
                axes.set_xlabel(" / ".join(f"{100 * v:.0f}" for v in three), fontsize=9)
            if column == 0:
                axes.set_xlabel(one.name[-28:], fontsize=7, parse_math=False)
    return figure


def bars(found: Evaluation) -> Figure:
    """Quality by quartile of the source's MSE, at the largest number of images at once."""
    levels = [level for level in dict.fromkeys(r["level"] for r in found.rows) if "MSE" in level]
    largest = max((r["batch_size"] or 0 for r in found.rows), default=0)
    cells = {
        (row["method"], row["level"]): row["error"]
        for row in found.rows
        if row["batch_size"] in (None, largest)
    }
    methods = [m for m in _COLOURS if any((m, level) in cells for level in levels)]
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    width = 0.86 / max(1, len(methods))
    for number, method in enumerate(methods):
        errors = [cells.get((method, level)) for level in levels]
        heights = [np.nan if error is None else 100 - error for error in errors]
        places = np.arange(len(levels)) + (number - (len(methods) - 1) / 2) * width
        axes.bar(places, heights, width, label=method, color=_COLOURS[method])
    axes.set_xticks(np.arange(len(levels)), [level.replace("MSE ", "") for level in levels])
    axes.set_ylabel("quality, %")
    axes.set_title(f"by the source's MSE, {largest} images at once", loc="left", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure
