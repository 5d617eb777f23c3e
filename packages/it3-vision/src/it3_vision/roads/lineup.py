"""Every line of the table of roads: which methods, with which settings."""

from __future__ import annotations

from it3_core import IT3, AnswerStep
from it3_vision.lineup import Lineup, common, norm_for, shown
from it3_vision.roads.runs import Run
from it3_vision.roads.shifting import CHEAP

__all__ = ["ONCE", "STREAM", "lineup"]

ONCE = ("source", "second pass", "answer step", "vanilla net")
"""Methods whose answers don't depend on how many images come together."""

STREAM = "online IT³"
"""The one that goes through all images without starting anew."""

_LEAST = 4  # tiles of an image, as far as tuning is concerned


def lineup(run: Run, images: int) -> Lineup:
    """The methods that are compared where so many images come together.

    Args:
        run: the trained network.
        images: how many; each is several tiles, which is what the methods count.

    Example:
        >>> ONCE[0]
        'source'
    """
    tiles = _LEAST * images
    found = common(run, tiles, fewest=1)  # a tile has pixels enough for statistics of its own
    half = AnswerStep(run.model, run.adapter, alpha=0.5)
    found.add("answer step", half, "half of the way from y0 to F(x, y0)")
    norm = norm_for(run, tiles, fewest=1)
    cheap = IT3(run.model, run.adapter, parameters=CHEAP, lr=1e-3, norm=norm)
    told = f"the last layers alone, one step of Adam at 1e-3, norm={shown(norm)}"
    found.add("IT³, cheap", cheap, told)
    return found
