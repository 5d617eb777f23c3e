"""Whose statistics batch norms use at test time: a choice of its own, never a side effect."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core.errors import IT3Error

__all__ = [
    "Blend",
    "Norm",
    "affine_names",
    "batch_norm_names",
    "batch_share",
    "has_batch_norm",
    "use_batch_statistics",
]

Norm = Literal["source", "batch"] | float
"""The training data's statistics, the batch's, or the share of the batch's from 0 to 1."""


class Blend:
    """A share of the batch's statistics that is set anew for every pass, and what came of it.

    Attributes:
        share: the batch's, from 0 to 1.
        found: the blended statistics of the last pass, by the names of the buffers that hold the
            training data's: given in their place, the next pass goes on from them.

    Example:
        >>> import torch
        >>> net, blend = torch.nn.Sequential(torch.nn.BatchNorm1d(1)).eval(), Blend()
        >>> use_batch_statistics(net, blend)
        >>> blend.share = 0.5
        >>> _ = net(torch.tensor([[10.0], [12.0]]))
        >>> blend.found["0.running_mean"]
        tensor([5.5000])
    """

    def __init__(self) -> None:
        self.share = 0.0
        self.found: dict[str, Tensor] = {}


def batch_share(norm: Norm) -> float:
    """The share of the batch's statistics that `norm` asks for.

    Example:
        >>> batch_share("source"), batch_share("batch"), batch_share(0.3)
        (0.0, 1.0, 0.3)
    """
    if norm == "source":
        return 0.0
    if norm == "batch":
        return 1.0
    if isinstance(norm, int | float) and 0 <= norm <= 1:
        return float(norm)
    raise IT3Error(
        f'norm must be "source", "batch" or the batch\'s share from 0 to 1, not {norm!r}'
    )


def use_batch_statistics(module: nn.Module, share: float | Blend) -> None:
    """Makes every batch norm of `module` blend the batch's statistics into its own, in place.

    Gradients flow through the batch's statistics, as they do in training; the running ones
    are not updated.

    Example:
        >>> import torch
        >>> net = torch.nn.BatchNorm1d(1).eval()
        >>> use_batch_statistics(net, 1.0)
        >>> net(torch.tensor([[10.0], [12.0]])).round(decimals=3).flatten()
        tensor([-1.,  1.], grad_fn=<ViewBackward0>)
    """
    if share == 0:
        return
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
            forward = (
                partial(_recorded, layer, f"{name}." if name else "", share)
                if isinstance(share, Blend)
                else partial(_blended, layer, share)
            )
            layer.forward = forward  # type: ignore[method-assign]


def has_batch_norm(module: nn.Module) -> bool:
    """Whether there is a batch norm whose statistics could be chosen.

    Example:
        >>> import torch
        >>> has_batch_norm(torch.nn.Sequential(torch.nn.LayerNorm(3)))
        False
    """
    return bool(batch_norm_names(module))


def batch_norm_names(module: nn.Module) -> list[str]:
    """The batch norms of a network, by name.

    Example:
        >>> import torch
        >>> batch_norm_names(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)))
        ['1']
    """
    kind = nn.modules.batchnorm._BatchNorm
    return [name for name, layer in module.named_modules() if isinstance(layer, kind)]


def affine_names(module: nn.Module) -> list[str]:
    """The scales and shifts of all normalisation layers, by name.

    Example:
        >>> import torch
        >>> affine_names(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GroupNorm(2, 4)))
        ['1.weight', '1.bias']
    """
    kinds = (
        nn.modules.batchnorm._BatchNorm,
        nn.modules.instancenorm._InstanceNorm,
        nn.GroupNorm,
        nn.LayerNorm,
        nn.RMSNorm,
    )
    return [
        f"{name}.{leaf}" if name else leaf
        for name, layer in module.named_modules()
        if isinstance(layer, kinds)
        for leaf, _ in layer.named_parameters(recurse=False)
    ]


def _blended(layer: nn.modules.batchnorm._BatchNorm, share: float, x: Tensor) -> Tensor:
    if share == 1 and x.numel() == x.shape[1]:
        raise IT3Error(
            'norm="batch" needs more than one value per channel, and this batch has one: use '
            'norm="source" or a blend such as norm=0.1'
        )
    if share == 1:  # torch's own is several times faster
        return nnf.batch_norm(x, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)
    return _normalised(layer, x, *_statistics(layer, share, x))


def _recorded(layer: nn.modules.batchnorm._BatchNorm, name: str, blend: Blend, x: Tensor) -> Tensor:
    mean, var = _statistics(layer, blend.share, x)
    blend.found |= {
        f"{name}running_mean": mean.detach(),
        f"{name}running_var": var.detach(),
    }
    return _normalised(layer, x, mean, var)


def _statistics(
    layer: nn.modules.batchnorm._BatchNorm, share: float, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance: the layer's own, and this share of the batch's."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    over = [dimension for dimension in range(x.dim()) if dimension != 1]
    mean = x.mean(over)
    centred = x - mean.view(_along_channels(x))
    var = centred.square().mean(over)  # torch.var_mean takes four times as long
    return torch.lerp(layer.running_mean, mean, share), torch.lerp(layer.running_var, var, share)


def _normalised(
    layer: nn.modules.batchnorm._BatchNorm, x: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    scale = (var + layer.eps).rsqrt()
    if layer.weight is not None:
        scale = scale * layer.weight
    shift = -mean * scale if layer.bias is None else layer.bias - mean * scale
    shape = _along_channels(x)
    return torch.addcmul(shift.view(shape), x, scale.view(shape))


def _along_channels(x: Tensor) -> list[int]:
    return [-1 if dimension == 1 else 1 for dimension in range(x.dim())]
