"""Image networks, by name and preset, with a signal that enters at a named stage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn

from it3_core import Classification, Conditioned, IT3Error, condition
from it3_vision.methods.rotation import with_rotation_head
from it3_vision.networks.dla import DLA
from it3_vision.networks.layers import Normalisation
from it3_vision.networks.resnet import RESNETS, ResNet
from it3_vision.networks.weights import load_weights

__all__ = [
    "DLA",
    "NETWORKS",
    "NetworkSettings",
    "Normalisation",
    "Preset",
    "ResNet",
    "bare",
    "build",
    "load_weights",
]

NETWORKS = ("dla", *(f"resnet{depth}" for depth in RESNETS))
"""Names of networks."""

Preset = Literal["tiny", "small", "paper"]
"""Sizes: for a demonstration, for a few CPU cores, and as published."""

_DLA: dict[Preset, dict[str, Any]] = {
    "tiny": {"widths": (8, 8, 16, 24, 32, 48), "depths": (1, 1, 1, 1),
             "strides": (1, 2, 1, 2, 2, 1)},
    "small": {"widths": (16, 16, 24, 48, 96, 192), "depths": (1, 1, 1, 1),
              "strides": (1, 2, 1, 2, 2, 2)},
    "paper": {},
}  # fmt: skip
_RESNET: dict[Preset, int] = {"tiny": 8, "small": 16, "paper": 64}


@dataclass(frozen=True)
class NetworkSettings:
    """Which network, and where the signal enters.

    Attributes:
        name: one of `NETWORKS`.
        preset: `"paper"` is the published size; `"small"` has fewer channels (and, for a DLA,
            blocks), for training on a few CPU cores; `"tiny"` still fewer, for a demonstration.
        norm: `"batch"` or `"group"`.
        layer: the stage where the signal enters; by default the authors' `level3` of a DLA, and
            its counterpart `layer2` of a ResNet.
        size: height and width of the images; up to 64 a ResNet's stem keeps them at their size.

    Example:
        >>> NetworkSettings("resnet18").stage
        'layer2'
        >>> NetworkSettings.from_description(NetworkSettings().describe()) == NetworkSettings()
        True
    """

    name: str = "dla"
    preset: Preset = "small"
    norm: Normalisation = "batch"
    layer: str | None = None
    size: int = 32

    def __post_init__(self) -> None:
        if self.name not in NETWORKS:
            raise IT3Error(f"there is no network {self.name!r}: take {', '.join(NETWORKS)}")
        if self.preset not in _DLA:
            raise IT3Error(f"a preset is {', '.join(_DLA)}, not {self.preset!r}")

    @property
    def stage(self) -> str:
        """Where the signal enters."""
        return self.layer or ("level3" if self.name == "dla" else "layer2")

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> NetworkSettings:
        """The settings that `describe` described."""
        try:
            return cls(**description)
        except TypeError as problem:
            raise IT3Error(f"these are no settings of a network: {dict(description)}") from problem


def bare(settings: NetworkSettings, classes: int) -> nn.Module:
    """The network without a signal, with first weights.

    Example:
        >>> network = bare(NetworkSettings("resnet18", "paper", size=224), 1000)
        >>> sum(p.numel() for p in network.parameters())
        11689512
    """
    if settings.name == "dla":
        return DLA(classes, norm=settings.norm, **_DLA[settings.preset])
    return ResNet(
        int(settings.name.removeprefix("resnet")),
        classes,
        width=_RESNET[settings.preset],
        stem="small" if settings.size <= 64 else "imagenet",
        norm=settings.norm,
    )


def build(
    settings: NetworkSettings,
    adapter: Classification,
    *,
    weights: str | os.PathLike[str] | None = None,
    new_head: bool = False,
    rotation: bool = False,
) -> Conditioned:
    """The network `f(x, signal)`; until it is trained, it answers as the bare one does.

    Args:
        settings: which network.
        adapter: its classes.
        weights: a safetensors file to start from, see `load_weights`.
        new_head: whether these weights' last layer knows other classes.
        rotation: whether to give it the head that `TTT` needs.

    Example:
        >>> import torch
        >>> adapter = Classification(10)
        >>> model, x = build(NetworkSettings(), adapter), torch.zeros(2, 3, 32, 32)
        >>> model(x, adapter.neutral(x)).shape
        torch.Size([2, 10])
    """
    network = bare(settings, adapter.classes)
    if weights is not None:
        load_weights(network, weights, new_head=new_head)
    model = condition(network, adapter, layer=settings.stage)
    if not rotation:
        return model
    example = torch.zeros(1, 3, settings.size, settings.size)
    return with_rotation_head(model, adapter, f"model.{settings.stage}", example)
