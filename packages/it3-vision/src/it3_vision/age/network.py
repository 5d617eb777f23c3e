"""The network: a ResNet whose last layer is a head of linear layers that ends in years."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from it3_core import Conditioned, IT3Error, Regression, condition
from it3_vision.networks import Normalisation, Preset, ResNet, load_weights

__all__ = ["FaceSettings", "bare", "build"]


class _Shape(NamedTuple):
    depth: int
    width: int
    head: tuple[int, ...]
    size: int


_PRESETS: dict[Preset, _Shape] = {
    "tiny": _Shape(18, 8, (16,), 32),
    "small": _Shape(18, 32, (128, 64, 32, 16), 64),
    "paper": _Shape(152, 64, (1024, 512, 256, 128), 224),
}
_FULL_SIZE = 48  # from here on a ResNet's stem shrinks the images, as for ImageNet


@dataclass(frozen=True)
class FaceSettings:
    """Which network, and where the signal enters.

    Attributes:
        preset: `"paper"` is a ResNet-152 with five linear layers; `"small"` a ResNet-18 of half
            the width with five narrower ones, for a CPU core; `"tiny"` is for demonstrations.
        norm: `"batch"` or `"group"`.
        layer: the stage where the signal enters.
        size: height and width of the images; by default the preset's 32, 64 or 224.

    Example:
        >>> FaceSettings("paper").pixels, FaceSettings("small", size=96).pixels
        (224, 96)
        >>> FaceSettings.from_description(FaceSettings().describe()) == FaceSettings()
        True
    """

    preset: Preset = "small"
    norm: Normalisation = "batch"
    layer: str = "layer2"
    size: int | None = None

    def __post_init__(self) -> None:
        if self.preset not in _PRESETS:
            raise IT3Error(f"a preset is {', '.join(_PRESETS)}, not {self.preset!r}")

    @property
    def pixels(self) -> int:
        """Height and width of the images."""
        return self.size or _PRESETS[self.preset].size

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> FaceSettings:
        """The settings that `describe` described."""
        try:
            return cls(**description)
        except TypeError as problem:
            raise IT3Error(f"these are no settings of a network: {dict(description)}") from problem


def bare(settings: FaceSettings, adapter: Regression) -> ResNet:
    """The network without a signal, with first weights; its head is the layer `fc`.

    Example:
        >>> import torch
        >>> bare(FaceSettings("tiny"), Regression(35.0, 10.0))(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 1])
    """
    shape = _PRESETS[settings.preset]
    stem = "imagenet" if settings.pixels >= _FULL_SIZE else "small"
    network = ResNet(shape.depth, 1, width=shape.width, stem=stem, norm=settings.norm)  # type: ignore[arg-type]
    widths = (network.fc.in_features, *shape.head)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        layers += [layer, nn.ReLU()]
    network.add_module("fc", nn.Sequential(*layers, nn.Linear(widths[-1], 1), adapter.rescale()))
    return network


def build(
    settings: FaceSettings,
    adapter: Regression,
    *,
    weights: str | os.PathLike[str] | None = None,
    new_head: bool = False,
) -> Conditioned:
    """The network `f(x, signal)`; until it is trained, it answers as the bare one does.

    Args:
        settings: which network.
        adapter: the training ages' mean and deviation.
        weights: a safetensors file to start from, see `it3_vision.networks.load_weights`.
        new_head: whether these weights' last layer answers something else, as ImageNet's does.

    Example:
        >>> import torch
        >>> adapter, x = Regression(35.0, 10.0), torch.zeros(2, 3, 32, 32)
        >>> build(FaceSettings("tiny"), adapter)(x, adapter.neutral(x)).shape
        torch.Size([2, 1])
    """
    network = bare(settings, adapter)
    if weights is not None:
        load_weights(network, weights, new_head=new_head)
    return condition(network, adapter, layer=settings.layer)
