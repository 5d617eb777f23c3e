"""The loss that a recurrent network is trained with: ZigZag's two passes, all steps of each."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from it3_core import IT3Error
from it3_core.adapters import Adapter
from it3_vision.roads.network import DRUNet

__all__ = ["Second", "recurrent_zigzag"]

Second = Literal["label", "noisy", "mixed"]
"""What the second pass is given: the true mask (the paper's way), one with wrong patches, or for
each image either, at even odds."""


def recurrent_zigzag(
    model: nn.Module,
    adapter: Adapter,
    x: Tensor,
    y: Tensor,
    *,
    second: Second = "mixed",
    noise: float = 0.3,
    blind: bool = False,
) -> Tensor:
    """‖f(x, neutral) − y‖ + ‖f(x, s) − y‖, each a mean over the recurrent steps, later ones more.

    Args:
        model: a `DRUNet`.
        adapter: a `RoadMap`.
        x: (batch, 4, H, W).
        y: labels (batch, H, W).
        second: what s is, see `Second`.
        noise: the share of wrong patches.
        blind: leaves the second pass out: the vanilla network's loss.

    Example:
        >>> from it3_vision.roads.adapter import RoadMap
        >>> from it3_vision.roads.network import DRUSettings, build
        >>> x, y = torch.ones(2, 4, 16, 16), torch.zeros(2, 16, 16).long()
        >>> recurrent_zigzag(build(DRUSettings("tiny")), RoadMap(), x, y).backward()
    """
    if not isinstance(model, DRUNet):
        raise IT3Error(f"recurrent_zigzag trains a DRUNet, not a {type(model).__name__}")
    signals = [adapter.neutral(x)]
    if not blind:
        told = adapter.encode(y).to(signals[0])
        if second != "label":
            told = _spoilt(adapter, told, noise, 1.0 if second == "noisy" else 0.5)
        signals.append(told)
    total = x.new_zeros(())
    for signal in signals:
        masks = model.unrolled(x, signal)
        for step, logits in enumerate(masks, 1):
            weight = 2 * step / (len(masks) * (len(masks) + 1))
            total = total + weight * adapter.loss(logits, y).mean()
    return total


def _spoilt(adapter: Adapter, told: Tensor, noise: float, share: float) -> Tensor:
    some = torch.rand(len(told), 1, 1, 1, device=told.device) < share
    return torch.where(some, adapter.perturb(told, noise), told)
