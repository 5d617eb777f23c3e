"""Whole images by overlapping tiles whose seams are blended, in bounded memory.

A method gets all tiles of an image (or of a batch of images) at once, so that it adapts to the
image and not to a tile; the network runs them in parts, see `DRUNet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor

from it3_core import IT3Error, Method
from it3_core.batching import Ragged
from it3_core.evaluation.evaluate import Predictor
from it3_core.methods.base import Adaptation
from it3_vision.roads.network import FACTOR

TILE = 256  # pixels
_OVERLAP = 32


def _starts(length: int, tile: int, overlap: int) -> list[int]:
    """Where tiles begin along a side: evenly spaced, so that none hangs over the end."""
    if length <= tile:
        return [0]
    number = -(-(length - overlap) // (tile - overlap))
    return [round(i * (length - tile) / (number - 1)) for i in range(number)]


class Tiled:
    """A method for whole images of any size; it is given all their tiles at once.

    Predictions are maps (H, W) of a road's probability, and -1 where there are no data.
    Idempotence errors are means over an image's tiles. Tiles without any data are left out, and a
    smaller image is filled up by no data. Neighbours have at least `overlap` pixels in common.
    """

    def __init__(self, method: Predictor, tile: int = TILE, overlap: int = _OVERLAP) -> None:
        self.method, self.tile, self.overlap = method, tile, overlap

    def __call__(self, x: Ragged) -> Adaptation:
        corners, tile = _corners(x.rows, self.tile, self.overlap)
        if not corners:
            empty: Any = Ragged([torch.full(one.shape[1:], -1.0) for one in x])
            return Adaptation(empty, empty, 0, before=torch.zeros(len(x)))
        cut = [_tile(x.rows[image], top, left, tile) for image, top, left in corners]
        found = self.method(torch.stack(cut).contiguous(memory_format=torch.channels_last))
        owner = torch.tensor([image for image, _, _ in corners])

        def maps(logits: Tensor) -> Any:
            return Ragged(_blended(logits.detach(), corners, x.rows, tile))

        def means(errors: Tensor) -> Tensor:
            total = torch.zeros(len(x)).index_add(0, owner, errors.detach().float().cpu())
            return total / owner.bincount(minlength=len(x)).clamp_min(1)

        if not isinstance(found, Adaptation):
            return Adaptation(plain := maps(found), plain, 0, before=torch.zeros(len(x)))
        initial = maps(found.initial)
        return Adaptation(
            initial if found.prediction is found.initial else maps(found.prediction),
            initial,
            found.steps,
            found.fallback,
            before=lambda: means(found.error_before),
            after=lambda: means(found.error_after),
        )

    def reset(self) -> None:
        """Forgets what came before, where the method remembers."""
        if isinstance(self.method, Method):
            self.method.reset()


def _corners(
    inputs: Sequence[Tensor], tile: int, overlap: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Image, top and left of each tile that has data; and the tiles' side."""
    if tile < FACTOR or tile % FACTOR:
        raise IT3Error(f"the side of a tile is a multiple of {FACTOR}, not {tile}")
    longest = max(max(x.shape[1:]) for x in inputs)
    tile = min(tile, -(-longest // FACTOR) * FACTOR)
    overlap = min(overlap, tile // 2)
    corners = [
        (image, top, left)
        for image, x in enumerate(inputs)
        for top in _starts(x.shape[1], tile, overlap)
        for left in _starts(x.shape[2], tile, overlap)
        if bool(x[3, top : top + tile, left : left + tile].any())
    ]
    return corners, tile


def _tile(x: Tensor, top: int, left: int, tile: int) -> Tensor:
    part = x[:, top : top + tile, left : left + tile]
    around = (0, tile - part.shape[2], 0, tile - part.shape[1])
    colours = nnf.pad(part[None, :3], around, mode="replicate")[0]
    return torch.cat([colours, nnf.pad(part[3:], around)])


def _blended(
    logits: Tensor, corners: Sequence[tuple[int, int, int]], inputs: Sequence[Tensor], tile: int
) -> list[Tensor]:
    """Probabilities, each tile's fading out towards its border."""
    ramp = torch.arange(1, tile + 1, dtype=torch.float32)
    ramp = torch.minimum(ramp, ramp.flip(0))
    weight = (ramp[:, None] * ramp[None, :]).sqrt()
    sums = [torch.zeros(x.shape[1:]) for x in inputs]
    weights = [torch.zeros(x.shape[1:]) for x in inputs]
    for (image, top, left), values in zip(corners, logits[:, 0], strict=True):
        there = (slice(top, top + tile), slice(left, left + tile))
        high, wide = sums[image][there].shape
        sums[image][there] += (values.float().sigmoid().cpu() * weight)[:high, :wide]
        weights[image][there] += weight[:high, :wide]
    return [
        torch.where(x[3].cpu() > 0.5, total / w.clamp_min(1e-6), -1.0)
        for total, w, x in zip(sums, weights, inputs, strict=True)
    ]
