"""Image networks, by name and size, with a signal that enters at a named stage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from it3_core import Classification, Conditioned, IT3Error, condition
from it3_core.engine.inner_optimizer import has_batch_norm
from it3_core.io.tensors import under
from it3_core.model.networks import misfit
from it3_vision.image_options import NetworkSettings, Normalisation, Pretrained, Size
from it3_vision.methods.rotation import with_rotation_head
from it3_vision.networks.cifar_resnet import CifarResNet
from it3_vision.networks.dla import DLA
from it3_vision.networks.efficientnet import EfficientNetLite, imagenet_weights
from it3_vision.networks.resnet import RESNETS, ResNet

__all__ = ["DLA", "CifarResNet", "EfficientNetLite", "NetworkSettings", "Normalisation", "ResNet",
           "bare", "build", "load_weights"]  # fmt: skip

_DLA: dict[Size, dict[str, Any]] = {
    "tiny": {"widths": (8, 8, 16, 24, 32, 48), "depths": (1, 1, 1, 1),
             "strides": (1, 2, 1, 2, 2, 1)},
    "small": {"widths": (16, 16, 24, 48, 96, 192), "depths": (1, 1, 1, 1),
              "strides": (1, 2, 1, 2, 2, 2)},
    "full": {},
}  # fmt: skip
_RESNET: dict[Size, int] = {"tiny": 8, "small": 16, "full": 64}
_CIFAR_RESNET: dict[Size, int] = {"tiny": 8, "small": 16, "full": 16}
_EFFICIENTNET: dict[Size, float] = {"tiny": 0.25, "small": 1.0, "full": 1.0}
_HEADS = ("fc.", "linear.")  # last layers
_HIDDEN = 64  # units of the embedding of a signal that enters at the pooled features


def bare(settings: NetworkSettings, classes: int) -> nn.Module:
    """The network without a signal, with first weights."""
    if settings.network == "efficientnet_lite0":
        if settings.norm != "batch":
            raise IT3Error("an efficientnet_lite0 is normalised by batch")
        return EfficientNetLite(classes, width=_EFFICIENTNET[settings.width])
    if settings.network == "dla":
        return DLA(classes, norm=settings.norm, **_DLA[settings.width])
    depth = int(settings.network.removeprefix("resnet"))
    if depth not in RESNETS:
        return CifarResNet(depth, classes, width=_CIFAR_RESNET[settings.width], norm=settings.norm)
    return ResNet(
        depth,
        classes,
        width=_RESNET[settings.width],
        stem="small" if settings.side <= 64 else "imagenet",
        norm=settings.norm,
    )


def build(
    settings: NetworkSettings,
    adapter: Classification,
    *,
    weights: str | os.PathLike[str] | None = None,
    new_head: bool = False,
    pretrained: bool = False,
    rotation: bool = False,
) -> Conditioned:
    """The network `f(x, signal)`; until it is trained, it predicts as the bare one does.

    Args:
        settings: which network.
        adapter: its classes.
        weights: a safetensors file to start from, see `load_weights`.
        new_head: whether these weights' last layer is for other classes.
        pretrained: whether to start from the weights that `settings.pretrained` names, if it does.
        rotation: whether to give it the head that `TTT` needs.

    Example:
        >>> import torch
        >>> adapter = Classification(10)
        >>> model, x = build(NetworkSettings(), adapter), torch.zeros(2, 3, 32, 32)
        >>> model(x, adapter.neutral(x)).shape
        torch.Size([2, 10])
    """
    network = bare(settings, adapter.classes)
    start(network, settings.pretrained if pretrained else None, weights, new_head=new_head)
    hidden = hidden_of(settings.stage)
    model = condition(network, adapter, layer=settings.stage, hidden=hidden)
    if not rotation:
        return model
    example = torch.zeros(1, 3, settings.side, settings.side)
    return with_rotation_head(model, adapter, f"model.{settings.stage}", example)


def hidden_of(stage: str) -> int | None:
    """Units of a hidden layer between the signal and the stage where it enters, if there is one."""
    return _HIDDEN if stage == "pool" else None


def start(
    network: nn.Module,
    pretrained: Pretrained | None,
    weights: str | os.PathLike[str] | None,
    *,
    new_head: bool = False,
) -> None:
    """Gives a bare network ImageNet's weights under a head of its own, or those of a file."""
    if pretrained is not None and weights is not None:
        raise IT3Error("training starts from --pretrained or from --weights: leave one out")
    if pretrained is not None:
        _load(network, imagenet_weights(), f"pretrained {pretrained}", new_head=True)
    if weights is not None:
        load_weights(network, weights, new_head=new_head)


def load_weights(
    network: nn.Module, path: str | os.PathLike[str], *, new_head: bool = False
) -> None:
    """Puts the weights of a safetensors file into a network, every one of them or none.

    A .pth file holds pickled code, so it is not read here; where torchvision is installed, one
    line makes a file of it: `safetensors.torch.save_file(resnet18(weights="DEFAULT").state_dict(),
    "resnet18.safetensors")`.

    Args:
        network: not yet conditioned: `condition` and `widen` start from its weights. One with
            group norm takes the weights of one with batch norm, without the statistics.
        path: the file; or an experiment's `0/network.safetensors`, whose network is taken without
            its signal.
        new_head: leave the last layer, `fc` or `linear`, as it is: the file's is for other classes.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> from it3_vision.networks import ResNet
        >>> there, here = ResNet(18, 10, width=8), ResNet(18, 10, width=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file(there.state_dict(), f"{folder}/resnet.safetensors")
        ...     load_weights(here, f"{folder}/resnet.safetensors")
        >>> bool((here.fc.weight == there.fc.weight).all())
        True
    """
    _load(network, _read(Path(path)), str(path), new_head)


def _load(network: nn.Module, weights: dict[str, Tensor], name: str, new_head: bool) -> None:
    for prefix in ("weights.model.", "model.model."):  # where the file is one of ours
        weights = under(prefix, weights) or weights
    own = network.state_dict()
    if new_head:
        weights = {key: value for key, value in weights.items() if not key.startswith(_HEADS)}
        weights |= {key: value for key, value in own.items() if key.startswith(_HEADS)}
    for key, value in own.items():  # older files lack these counters, which nothing depends on
        if key.endswith("num_batches_tracked"):
            weights.setdefault(key, torch.zeros_like(value))
    if not has_batch_norm(network):  # group norm can start from batch norm's scales and shifts
        ends = (".running_mean", ".running_var", ".num_batches_tracked")
        weights = {key: value for key, value in weights.items() if not key.endswith(ends)}
    wrong = misfit(weights, network)
    if wrong:
        known = new_head or not any(head in wrong for head in _HEADS)
        head = "" if known else "; for other classes, ask for a new head"
        raise IT3Error(f"{name} does not fit this network ({wrong}){head}")
    network.load_state_dict(weights)


def is_network(path: str | os.PathLike[str]) -> bool:
    """Whether a file of weights is a network that was trained here, and knows its images."""
    return any(name.startswith("weights.model.") for name in _read(Path(path)))


def _read(file: Path) -> dict[str, Tensor]:
    if file.suffix.lower() in (".pth", ".pt", ".bin", ".ckpt"):
        raise IT3Error(
            f"{file} may hold pickled code, which is not read here: save its state_dict with "
            f"safetensors.torch.save_file"
        )
    if not file.is_file():  # a pipe would be waited for
        raise IT3Error(f"there is no file {file}")
    try:
        return load_file(file)
    except (OSError, SafetensorError) as problem:
        raise IT3Error(f"{file} is no safetensors file: {problem}") from problem
