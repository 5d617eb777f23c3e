"""Whole images by overlapping tiles whose seams are blended, in bounded memory.

A method gets all tiles of an image (or of a batch of images) at once, so that it adapts to the
image and not to a tile; the network runs them in parts, see `DRUNet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor

from it3_core import IT3Error
from it3_core.evaluation import Predictor
from it3_core.methods import Adaptation
from it3_vision.roads.network import FACTOR

__all__ = ["OVERLAP", "TILE", "Answer", "answer", "corners", "tiles"]

TILE = 256
"""Pixels: the side of a tile."""

OVERLAP = 32
"""Pixels that neighbours share at least."""


@dataclass(frozen=True)
class Answer:
    """What a method said about one image.

    Attributes:
        probability: (H, W) of a road; 0 where there are no data.
        error: the idempotence error before adaptation, a mean over the image's tiles; None where
            it was not asked for.
        fallback: why the answer is that of the network as it is, or None.
    """

    probability: NDArray[np.float32]
    error: float | None = None
    fallback: str | None = None


def corners(length: int, tile: int, overlap: int) -> list[int]:
    """Where tiles begin along a side: evenly spaced, so that none hangs over the end.

    Example:
        >>> corners(500, 256, 32)
        [0, 122, 244]
        >>> corners(200, 256, 32)
        [0]
    """
    if not 0 <= overlap < tile:
        raise IT3Error(f"an overlap lies between 0 and the tile's {tile} pixels, not {overlap}")
    if length <= tile:
        return [0]
    number = -(-(length - overlap) // (tile - overlap))
    return [round(i * (length - tile) / (number - 1)) for i in range(number)]


def answer(
    method: Predictor,
    inputs: Sequence[Tensor],
    *,
    tile: int = TILE,
    overlap: int = OVERLAP,
    errors: bool = False,
) -> list[Answer]:
    """What a method says about some images that it meets together.

    Tiles without any data are left out. An image that is smaller than a tile is filled up, and
    what was filled up counts as no data.

    Args:
        method: anything that answers a batch of tiles.
        inputs: (4, H, W) each, of any size; of `as_input`.
        tile: side of a tile, a multiple of 16.
        overlap: what neighbours share, in pixels.
        errors: whether to keep idempotence errors, which may cost two more passes.

    Example:
        >>> from it3_core import Source
        >>> from it3_vision.roads.adapter import RoadMap
        >>> from it3_vision.roads.network import DRUSettings, build
        >>> source = Source(build(DRUSettings("tiny")), RoadMap())
        >>> [found.probability.shape for found in answer(source, [torch.ones(4, 50, 70)], tile=64)]
        [(50, 70)]
    """
    places, tile = tiles(inputs, tile, overlap)
    if not places:
        return [Answer(np.zeros(x.shape[1:], np.float32)) for x in inputs]
    cut = [_tile(inputs[image], top, left, tile) for image, top, left in places]
    said = method(torch.stack(cut).contiguous(memory_format=torch.channels_last))
    logits = said.prediction if isinstance(said, Adaptation) else said
    gaps: list[list[float]] = [[] for _ in inputs]
    if errors and isinstance(said, Adaptation):
        for (image, _, _), gap in zip(places, said.error_before.tolist(), strict=True):
            gaps[image].append(gap)
    maps = _blended(logits.detach(), places, inputs, tile)
    why = said.fallback if isinstance(said, Adaptation) else None
    return [
        Answer(found, sum(gap) / len(gap) if gap else None, why)
        for found, gap in zip(maps, gaps, strict=True)
    ]


def tiles(
    inputs: Sequence[Tensor], tile: int = TILE, overlap: int = OVERLAP
) -> tuple[list[tuple[int, int, int]], int]:
    """Where the tiles with data lie: image, top and left of each; and their side.

    Example:
        >>> tiles([torch.ones(4, 50, 70)], tile=64)
        ([(0, 0, 0), (0, 0, 6)], 64)
    """
    if tile < FACTOR or tile % FACTOR:
        raise IT3Error(f"the side of a tile is a multiple of {FACTOR}, not {tile}")
    longest = max(max(x.shape[1:]) for x in inputs)
    tile = min(tile, -(-longest // FACTOR) * FACTOR)
    overlap = min(overlap, tile // 2)
    places = [
        (image, top, left)
        for image, x in enumerate(inputs)
        for top in corners(x.shape[1], tile, overlap)
        for left in corners(x.shape[2], tile, overlap)
        if bool(x[3, top : top + tile, left : left + tile].any())
    ]
    return places, tile


def _tile(x: Tensor, top: int, left: int, tile: int) -> Tensor:
    part = x[:, top : top + tile, left : left + tile]
    below, right = tile - part.shape[1], tile - part.shape[2]
    if not below and not right:
        return part
    colours = nnf.pad(part[None, :3], (0, right, 0, below), mode="replicate")[0]
    return torch.cat([colours, nnf.pad(part[3:], (0, right, 0, below))])


def _blended(
    logits: Tensor, places: Sequence[tuple[int, int, int]], inputs: Sequence[Tensor], tile: int
) -> list[NDArray[np.float32]]:
    """Probabilities, each tile's fading out towards its border."""
    ramp = torch.arange(1, tile + 1, dtype=torch.float32)
    ramp = torch.minimum(ramp, ramp.flip(0))
    weight = (ramp[:, None] * ramp[None, :]).sqrt()
    sums = [torch.zeros(x.shape[1:]) for x in inputs]
    weights = [torch.zeros(x.shape[1:]) for x in inputs]
    for (image, top, left), values in zip(places, logits[:, 0], strict=True):
        high, wide = (min(tile, s - at) for s, at in
                      zip(inputs[image].shape[1:], (top, left), strict=True))  # fmt: skip
        there = (slice(top, top + high), slice(left, left + wide))
        sums[image][there] += (values.float().sigmoid().cpu() * weight)[:high, :wide]
        weights[image][there] += weight[:high, :wide]
    return [
        (total / w.clamp_min(1e-6) * (x[3].cpu() > 0.5)).numpy()
        for total, w, x in zip(sums, weights, inputs, strict=True)
    ]
