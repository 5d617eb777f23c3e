"""What IT³ must know about a map of roads: no-data pixels don't count, and slack does."""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from torch import Tensor

from it3_core import DenseMap
from it3_core.adapters import ProbabilityDistance
from it3_core.distances import js_divergence, kl_divergence, l2_distance
from it3_vision.roads.ccq import SLACK, score
from it3_vision.roads.network import NO_DATA

__all__ = ["RoadMap"]

_MEASURES = {"js": js_divergence, "kl": kl_divergence, "l2": l2_distance}
_PATCH = 16  # pixels: the side of what `perturb` replaces


class RoadMap(DenseMap):
    """A binary `DenseMap` of roads: labels 1, 0 and, where there are no data, −1.

    Distances are means over the pixels that have data; the error is 1 − quality, see `ccq`.

    Args:
        distance: the measure of the idempotence error.
        slack: of the error, in pixels.

    Example:
        >>> adapter = RoadMap()
        >>> sure = torch.full((1, 1, 2, 2), 9.0)
        >>> sure[..., 0] = NO_DATA  # the left half has no data
        >>> adapter.distance(sure, sure.clamp_max(0.0)) == adapter.distance(
        ...     sure[..., 1:], sure[..., 1:].clamp_max(0.0))
        tensor([True])
    """

    def __init__(self, distance: ProbabilityDistance = "js", slack: float = SLACK) -> None:
        super().__init__(1, distance)
        self.slack = slack

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        gap = _MEASURES[self.distance_name](self._log(first), self._log(second)).flatten(1)
        known = (first != NO_DATA).flatten(1)
        return (gap * known).sum(1) / known.sum(1).clamp_min(1)

    def error(self, output: Tensor, label: Tensor) -> Tensor:
        """1 − quality."""
        label = self._check(label, output)
        wrong = [
            1 - score(p.numpy(), t.numpy(), self.slack).quality
            for p, t in zip(output[:, 0].detach().sigmoid().cpu(), label.cpu(), strict=True)
        ]
        return torch.tensor(wrong, dtype=output.dtype, device=output.device)

    def perturb(self, signal: Tensor, noise: float) -> Tensor:
        """Replaces patches, this share of all, by those of the batch's next image.

        So a wrong road is a road elsewhere, and a missing one is missing in one piece: what a
        network gets wrong looks like this, and not like pixels drawn at random.
        """
        size = [-(-side // _PATCH) for side in signal.shape[2:]]
        drawn = torch.rand(len(signal), 1, *size, device=signal.device) < noise
        there = nnf.interpolate(drawn.float(), scale_factor=float(_PATCH)) > 0.5
        there = there[..., : signal.shape[2], : signal.shape[3]]
        return torch.where(there, signal.roll(1, 0), signal)
