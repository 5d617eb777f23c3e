"""The paper's graph network: a trunk of GMM layers up to pooled features, and a small head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from it3_aero.learning.task import NetworkSettings
from it3_core import Adapter, Conditioned, IT3Error, Regression, condition, zigzag_loss
from it3_core.losses import check_weight

__all__ = ["GraphNet", "build", "zigzag"]

_ENTRANCES: dict[str, str] = {"head": "trunk", "nodes": "trunk.encode"}


class GraphNet(nn.Module):
    """A number from a shape, in standardised units turned into the user's by the last layer.

    Args:
        trunk: shapes to pooled features `(batch, channels)`; its `encode` makes a node's first.
        settings: its width and the head's.
        adapter: of the training labels.

    Example:
        >>> import torch
        >>> from it3_aero.wings.network import OutlineTrunk
        >>> settings = NetworkSettings(layers=2, channels=4)
        >>> net = GraphNet(OutlineTrunk(settings), settings, Regression(40.0, 10.0))
        >>> net(torch.rand(3, 20, 2)).shape
        torch.Size([3, 1])
    """

    def __init__(self, trunk: nn.Module, settings: NetworkSettings, adapter: Regression) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Sequential(
            nn.Linear(settings.channels, settings.hidden),
            nn.ELU(),
            nn.Linear(settings.hidden, settings.hidden),
            nn.ELU(),
            nn.Linear(settings.hidden, 1),
            adapter.rescale(),
        )

    def forward(self, x: Any) -> Tensor:
        output: Tensor = self.head(self.trunk(x))
        return output


def build(
    trunk: Callable[[NetworkSettings], nn.Module], settings: NetworkSettings, adapter: Regression
) -> Conditioned:
    """The conditioned network `f(shapes, signal)`; until it is trained it ignores the signal.

    Example:
        >>> import torch
        >>> from it3_aero.wings.network import OutlineTrunk
        >>> adapter, x = Regression(40.0, 10.0), torch.rand(3, 20, 2)
        >>> net = build(OutlineTrunk, NetworkSettings(layers=2, channels=4), adapter)
        >>> net(x, adapter.neutral(x)).shape
        torch.Size([3, 1])
    """
    if settings.entrance not in _ENTRANCES:
        raise IT3Error(f"the signal enters at 'head' or 'nodes', not at {settings.entrance!r}")
    return condition(
        GraphNet(trunk(settings), settings, adapter),
        adapter,
        layer=_ENTRANCES[settings.entrance],
        channels=settings.channels,
    )


def zigzag(model: nn.Module, adapter: Adapter, x: Any, y: Tensor, *, weight: float = 1.0) -> Tensor:
    """`zigzag_loss`, for half its cost where the signal enters at the head.

    What comes before the head is the same for both passes, so it is run once.

    Example:
        >>> import torch
        >>> from it3_aero.wings.network import OutlineTrunk
        >>> adapter, x, y = Regression(40.0, 10.0), torch.rand(3, 20, 2), torch.rand(3) * 60
        >>> net = build(OutlineTrunk, NetworkSettings(layers=2, channels=4), adapter)
        >>> whole = zigzag_loss(net, adapter, x, y, weight=0.5)
        >>> bool(torch.isclose(zigzag(net, adapter, x, y, weight=0.5), whole))
        True
    """
    if not (isinstance(model, Conditioned) and isinstance(model.model, GraphNet)):
        raise IT3Error("this loss is for networks of `build`: use it3_core.zigzag_loss")
    if model.layer != _ENTRANCES["head"] or model.embed is None:
        return zigzag_loss(model, adapter, x, y, weight=weight)
    check_weight(weight)
    net = model.model
    features = net.trunk.forward(x)  # not a call: that would add a signal to what it returns
    first = net.head(features + model.embed(adapter.neutral(x)))
    second = net.head(features + model.embed(adapter.encode(y)))
    return (adapter.loss(first, y) + weight * adapter.loss(second, y)).mean()
