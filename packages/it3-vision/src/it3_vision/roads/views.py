"""Images to test on, as the network sees them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from it3_core import IT3Error
from it3_vision.data import BadImage
from it3_vision.data.images import Pixels
from it3_vision.roads.feed import as_input
from it3_vision.roads.runs import Run
from it3_vision.roads.scenes import Scenes

__all__ = ["Views", "views_of"]


@dataclass(frozen=True)
class Views:
    """Images to test on, at the network's resolution.

    Attributes:
        names: of the files.
        images: (H, W, 3) each, for pictures.
        inputs: (4, H, W) each.
        labels: (H, W) each: 1, 0 and −1.
        skipped: files that were left out, and why.
    """

    names: list[str]
    images: list[Pixels]
    inputs: list[Tensor]
    labels: list[NDArray[np.int8]]
    skipped: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)


def views_of(
    run: Run, scenes: Scenes, *, window: int | None = None, most: int | None = None
) -> Views:
    """The scenes as the network sees them.

    Images without a single road pixel among their data are left out: nothing can be complete
    there, and whatever is predicted is wrong.

    Args:
        run: the trained network.
        scenes: with masks.
        window: the side of the square, in pixels of the network's resolution, that is cut from
            each: the one with the most data. None takes all of it.
        most: images at most, evenly spread over the set.
    """
    rows = range(len(scenes))
    if most is not None and most < len(scenes):
        rows = np.linspace(0, len(scenes) - 1, most).round().astype(int).tolist()
    found = Views([], [], [], [])
    for row in rows:
        try:
            scene = scenes[row].at(run.resolution)
        except BadImage as problem:
            found.skipped.append(str(problem))
            continue
        scene = scene if window is None else scene.window(window)
        if scene.label is None:
            raise IT3Error(f"{scene.name} has no mask: there is nothing to compare with")
        if not (scene.label > 0).any():
            found.skipped.append(f"{scene.name}: no road where it has data")
            continue
        found.names.append(scene.name)
        found.images.append(scene.image)
        found.inputs.append(as_input(run.prepare, scene.image, scene.known).to(run.device))
        found.labels.append(scene.label)
    if not len(found):
        raise IT3Error(
            f"none of the images in {scenes.title} can be read and has both data and roads"
        )
    return found
