"""Weights that people have: safetensors files with torchvision's (or our own) parameter names."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from it3_core import IT3Error
from it3_core.checkpoint import misfit
from it3_core.norms import has_batch_norm
from it3_core.tensorfile import under

__all__ = ["load_weights"]


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
        path: the file; or a RUN's `model.safetensors`, whose network is taken without its signal.
        new_head: leave the last layer, `fc`, as it is: the file's knows other classes.

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
    place = Path(path)
    weights = _bare(_read(place))
    own = network.state_dict()
    if new_head:
        weights = {name: value for name, value in weights.items() if not name.startswith("fc.")}
        weights |= {name: value for name, value in own.items() if name.startswith("fc.")}
    for name, value in own.items():  # older files lack these counters, which nothing depends on
        if name.endswith("num_batches_tracked"):
            weights.setdefault(name, torch.zeros_like(value))
    if not has_batch_norm(network):  # group norm can start from batch norm's scales and shifts
        weights = {name: value for name, value in weights.items() if not _is_statistic(name)}
    wrong = misfit(weights, network)
    if wrong:
        head = "" if new_head or "fc." not in wrong else "; for other classes, ask for a new head"
        raise IT3Error(f"{place} does not fit this network ({wrong}){head}")
    network.load_state_dict(weights)


def _is_statistic(name: str) -> bool:
    return name.endswith((".running_mean", ".running_var", ".num_batches_tracked"))


def _bare(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the network's own names, also where the file is one of ours."""
    for prefix in ("weights.model.", "model.model."):
        if any(name.startswith(prefix) for name in weights):
            return under(prefix, weights)
    return weights


def _read(place: Path) -> dict[str, Tensor]:
    if place.suffix.lower() in (".pth", ".pt", ".bin", ".ckpt"):
        raise IT3Error(
            f"{place} may hold pickled code, which is not read here: save its state_dict with "
            f"safetensors.torch.save_file"
        )
    try:
        return load_file(place)
    except FileNotFoundError as problem:
        raise IT3Error(f"there is no file {place}") from problem
    except (OSError, SafetensorError) as problem:
        raise IT3Error(f"{place} is no safetensors file: {problem}") from problem
