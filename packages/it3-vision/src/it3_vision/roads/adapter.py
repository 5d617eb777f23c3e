"""What IT³ must know about a map of roads: what does not count, how good one is, and its losses."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt
from torch import Tensor, nn

from it3_core import DenseMap, supervised_loss, zigzag_loss
from it3_core.model.adapters import Adapter
from it3_vision.roads.network import NO_DATA

SecondSignal = Literal["label", "noisy"]
SLACK = 5.0  # pixels, as in the paper
_PATCH = 16  # pixels: the side of what `perturb` replaces
_NOISE = 0.3  # the fraction of patches that it replaces


class Score(NamedTuple):
    """How good a predicted map is (Wiedemann et al. 1998), as fractions."""

    correctness: float  # of the predicted road, what is near a true one
    completeness: float  # of the true road, what is near a predicted one
    quality: float  # 1 / (1/correctness + 1/completeness − 1)
    iou: float  # intersection over union, without any slack
    mse: float  # mean squared error of the probabilities


def score(probability: NDArray[Any], label: NDArray[Any], slack: float = SLACK) -> Score:
    """All five numbers for one image; distances are Euclidean and exact, in pixels.

    A label below 0 is unknown, which is left out. Nothing predicted is correct (1), nothing to find
    is complete (1): if there are no roads, a map without roads has quality 1, any other quality 0.
    """
    p, known, true = np.asarray(probability, np.float64), label >= 0, label > 0
    found = (p >= 0.5) & known
    correctness, completeness = _near(found, true, slack), _near(true, found, slack)
    both = correctness > 0 and completeness > 0
    quality = 1 / (1 / correctness + 1 / completeness - 1) if both else 0.0
    union = int((found | true).sum())
    iou = int((found & true).sum()) / union if union else 1.0
    mse = float(np.square(p - true)[known].mean()) if known.any() else 0.0
    return Score(correctness, completeness, quality, iou, mse)


def _near(these: NDArray[np.bool_], those: NDArray[np.bool_], slack: float) -> float:
    """The fraction of these pixels that have one of those no further away than the slack."""
    if not these.any():
        return 1.0
    if not those.any():
        return 0.0
    return float((distance_transform_edt(~those)[these] <= slack + 1e-9).mean())


class RoadMap(DenseMap):
    """A binary `DenseMap` of roads: labels 1, 0 and, where there are no data, −1.

    Distances are means over the pixels that have data, of the measure that `distance_name` names
    (Jensen–Shannon; the paper's step takes L1); the error is 1 − quality.
    """

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"kind": "DenseMap"}  # the task makes a RoadMap of it

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        gap = self._gap(self.log_probabilities(first), self.log_probabilities(second)).flatten(1)
        known = (first != NO_DATA).flatten(1)
        return (gap * known).sum(1) / known.sum(1).clamp_min(1)

    def error(self, output: Tensor, label: Tensor) -> Tensor:
        """1 − quality."""
        label = self._check(label, output)
        maps = zip(output[:, 0].detach().sigmoid().cpu(), label.cpu(), strict=True)
        wrong = [1 - score(p.numpy(), t.numpy()).quality for p, t in maps]
        return torch.tensor(wrong, dtype=output.dtype, device=output.device)

    def perturb(self, signal: Tensor, noise: float) -> Tensor:
        """Replaces patches, this fraction of all, by those of the batch's next image.

        So a wrong road is a road elsewhere, and a missing one is missing in one piece: what a
        network gets wrong looks like this, and not like pixels drawn at random.
        """
        size = [-(-side // _PATCH) for side in signal.shape[2:]]
        drawn = torch.rand(len(signal), 1, *size, device=signal.device) < noise
        there = nnf.interpolate(drawn.float(), scale_factor=float(_PATCH)) > 0.5
        there = there[..., : signal.shape[2], : signal.shape[3]]
        return torch.where(there, signal.roll(1, 0), signal)


class _EveryStep(RoadMap):
    """For outputs of all recurrent steps: their losses' weighted mean, later ones weigh more.

    Only this fraction of the images' masks is perturbed.
    """

    def __init__(self, noisy_fraction: float = 1.0) -> None:
        super().__init__()
        self.noisy_fraction = noisy_fraction

    def loss(self, output: Any, label: Tensor) -> Tensor:
        total = torch.zeros(len(label), device=output[0].device)
        for step, logits in enumerate(output, 1):
            weight = 2 * step / (len(output) * (len(output) + 1))
            total = total + weight * super().loss(logits, label)
        return total

    def perturb(self, signal: Tensor, noise: float) -> Tensor:
        some = torch.rand(len(signal), 1, 1, 1, device=signal.device) < self.noisy_fraction
        return torch.where(some, super().perturb(signal, noise), signal)


def recurrent_zigzag(
    model: nn.Module,
    adapter: Adapter,
    x: Tensor,
    y: Tensor,
    *,
    second_signal: SecondSignal = "noisy",
    noisy_fraction: float = 0.5,
) -> Tensor:
    """ZigZag's loss of a `DRUNet`, each pass a mean over the recurrent steps.

    The second pass is given y, or y with wrong patches in this fraction of the images: given
    nothing but true masks, a network learns to copy what it is given.
    """
    every, unrolled = _EveryStep(noisy_fraction), cast(Any, model).unrolled
    return zigzag_loss(unrolled, every, x, y, second_signal=second_signal, noise=_NOISE)


def recurrent_supervised(model: nn.Module, adapter: Adapter, x: Tensor, y: Tensor) -> Tensor:
    """The first pass alone: how a vanilla network is trained."""
    return supervised_loss(cast(Any, model).unrolled, _EveryStep(), x, y)
