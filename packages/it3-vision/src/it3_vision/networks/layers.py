"""What the networks share: the choice of normalisation, and first weights."""

from __future__ import annotations

from typing import Literal

from torch import nn

from it3_core import IT3Error

__all__ = ["Normalisation", "convolution", "initialise", "normalisation"]

Normalisation = Literal["batch", "group"]
"""Batch norm, whose statistics are the batch's or the training data's; or group norm, which has
none to choose from, so that a batch of one is answered as a batch of many."""

_GROUP = 8  # channels of a group: the group norm paper's 16, scaled down with our widths


def normalisation(kind: Normalisation, channels: int) -> nn.Module:
    """A normalisation layer for maps of that many channels.

    Example:
        >>> normalisation("group", 32).num_groups
        4
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        groups = channels // _GROUP if channels % _GROUP == 0 else 1
        return nn.GroupNorm(groups, channels)
    raise IT3Error(f'a network is normalised by "batch" or "group", not {kind!r}')


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias (a normalisation follows) that keeps a map's size at stride 1.

    Example:
        >>> convolution(3, 8).padding
        (1, 1)
    """
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def initialise(network: nn.Module) -> None:
    """He's first weights for every convolution.

    Example:
        >>> initialise(convolution(3, 8))
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
