"""Which adaptation, if any: chosen on held-out training crops under shifts of their own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as nnf
from torch import Tensor

from it3_core.candidates import Candidate
from it3_core.norms import Norm, has_batch_norm
from it3_core.tuning import Tuning, tune
from it3_vision.roads.adapter import RoadMap
from it3_vision.roads.network import DRUNet

__all__ = ["BATCHES", "CHEAP", "SHIFTS", "candidates", "choose"]

BATCHES = (4,)
"""Numbers of crops that are tuned for: a whole image makes more."""

CHEAP = ["cell.up.0.*", "cell.head.*"]
"""The last layers: with these alone, a backward pass ends where it began."""

HARM = 0.02
"""How much of the quality on clean crops a choice may cost: two points."""


def coarser(x: Tensor) -> Tensor:
    """As seen from higher up: details below two pixels are gone.

    Example:
        >>> coarser(torch.ones(1, 4, 16, 16)).shape
        torch.Size([1, 4, 16, 16])
    """
    small = nnf.interpolate(x[:, :3], scale_factor=0.5, mode="area")
    image = nnf.interpolate(small, size=x.shape[2:], mode="bilinear")
    return torch.cat([image, x[:, 3:]], 1)


def browner(x: Tensor) -> Tensor:
    """Another season: less green, more red, darker.

    Example:
        >>> browner(torch.ones(1, 4, 1, 1)).flatten()
        tensor([ 0.7000,  0.1000, -0.1000,  1.0000])
    """
    gain = x.new_tensor([0.9, 0.8, 0.8]).view(1, 3, 1, 1)
    moved = x.new_tensor([-0.2, -0.7, -0.9]).view(1, 3, 1, 1)
    return torch.cat([x[:, :3] * gain + moved, x[:, 3:]], 1)


def blurred(x: Tensor) -> Tensor:
    """Out of focus.

    Example:
        >>> blurred(torch.ones(1, 4, 8, 8)).shape
        torch.Size([1, 4, 8, 8])
    """
    image = nnf.avg_pool2d(nnf.pad(x[:, :3], (2, 2, 2, 2), mode="replicate"), 5, 1)
    return torch.cat([image, x[:, 3:]], 1)


def hazy(x: Tensor) -> Tensor:
    """Less contrast, and brighter.

    Example:
        >>> hazy(torch.zeros(1, 4, 1, 1)).flatten()
        tensor([0.8000, 0.8000, 0.8000, 0.0000])
    """
    return torch.cat([x[:, :3] * 0.5 + 0.8, x[:, 3:]], 1)


SHIFTS = {"resolution": coarser, "colour": browner, "blur": blurred, "haze": hazy}
"""What may happen to inputs between training and use."""


def choose(
    model: DRUNet, adapter: RoadMap, x: Tensor, y: Tensor, *, progress: bool = True
) -> dict[int, Tuning]:
    """What `tune` chooses for crops that come several at once, as those of an image do.

    Args:
        model: the trained network.
        adapter: its answers.
        x: held-out crops.
        y: their labels.
        progress: whether to show how far it is.
    """
    found: dict[int, Tuning] = {}
    for size in BATCHES:
        wrong = float(_wrong(model, adapter, x, y))
        found[size] = tune(
            model,
            adapter,
            x,
            y,
            shifts=SHIFTS,
            candidates=candidates(model),
            batch_size=size,
            harm=HARM / max(wrong, HARM),  # tune counts in shares of the error
            progress=progress,
        )
    return found


def _wrong(model: DRUNet, adapter: RoadMap, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return adapter.error(model(x, adapter.neutral(x)), y).mean()


def candidates(model: DRUNet) -> list[Candidate]:
    """What tuning tries, the cheapest first.

    Example:
        >>> from it3_vision.roads.network import DRUSettings, build
        >>> candidates(build(DRUSettings("tiny")))[0]
        Source(norm=0.5)
    """
    norms: list[Norm] = ["source"]
    if has_batch_norm(model):
        norms += [0.5, "batch"]
    found = [Candidate("Source", {"norm": norm}) for norm in norms[1:]]
    found += [Candidate("AnswerStep", {"alpha": alpha}) for alpha in (0.5, 1.0)]
    for norm in norms[:2]:
        cheap: Mapping[str, object] = {"parameters": CHEAP, "norm": norm}
        found.append(Candidate("IT3", {**cheap, "lr": 1e-3}))
        for lr in (1e-4, 1e-3):  # the paper's own step
            paper = {"anchor_gradient": True, "trust_region": False}
            found.append(Candidate("IT3", {**paper, "norm": norm, "lr": lr}))
    return found
