"""The paper's graph network on airfoil outlines: GMM layers, ELU, skips, pooling, a small head."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_aero.gmm import RingGMM, gaussian_weights, ring_pseudo
from it3_core import Adapter, Conditioned, IT3Error, Regression, condition, zigzag_loss

__all__ = ["PRESETS", "NetworkSettings", "OutlineTrunk", "WingNet", "build", "zigzag"]

Entrance = Literal["head", "nodes"]

_ENTRANCES: dict[str, str] = {"head": "trunk", "nodes": "trunk.encode"}


@dataclass(frozen=True)
class NetworkSettings:
    """All that a network is made from, as plain values that a checkpoint can hold.

    Attributes:
        layers: GMM layers.
        channels: features of a node.
        kernels: Gaussians of a layer.
        hidden: width of the head.
        stride: 2 takes every second node of an outline: half the cost, and each layer sees twice
            as far along it.
        entrance: where the signal enters: `"head"` (added to the pooled features, so that `f` and
            `F` share all GMM layers) or `"nodes"` (added to every node's first features, the
            paper's way).

    Example:
        >>> NetworkSettings(layers=3).describe()["layers"]
        3
    """

    layers: int = 25
    channels: int = 16
    kernels: int = 2
    hidden: int = 64
    stride: int = 2
    entrance: Entrance = "head"

    def describe(self) -> dict[str, Any]:
        """These settings as JSON; `NetworkSettings.from_description` makes them again."""
        return asdict(self)

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> NetworkSettings:
        """The settings that `describe()` described.

        Example:
            >>> NetworkSettings.from_description({"layers": 2, "width": 3})
            Traceback (most recent call last):
            ...
            it3_core.errors.IT3Error: these are no settings of a wing network: ...
        """
        try:
            return cls(**description)
        except TypeError as problem:
            raise IT3Error(f"these are no settings of a wing network: {problem}") from problem


PRESETS = {
    "small": NetworkSettings(),
    "paper": NetworkSettings(channels=64, kernels=3, stride=1),
}
"""`small` trains on two CPU cores in minutes; `paper` has the paper's width."""


class OutlineTrunk(nn.Module):
    """Outlines `(batch, nodes, 2)` to pooled features: GMM layers, each with ELU and a skip.

    Example:
        >>> import torch
        >>> OutlineTrunk(NetworkSettings(layers=2, channels=4))(torch.rand(3, 20, 2)).shape
        torch.Size([3, 4])
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        width, kernels = settings.channels, settings.kernels
        self.stride = settings.stride
        self.encode = nn.Linear(2, width)
        self.layers = nn.ModuleList(
            RingGMM(width, width, dim=2, kernel_size=kernels) for _ in range(settings.layers)
        )
        # Node features `(batch, nodes, channels)` after each fifth layer, for ActMAD to watch.
        self.taps = nn.ModuleList(nn.Identity() for _ in range(settings.layers // 5))

    def forward(self, pos: Tensor) -> Tensor:
        pos = pos[..., :: self.stride, :]
        # About zero and of size one: a chord is 1 long, its outline a tenth as high.
        centred = torch.stack([2 * pos[..., 0] - 1, 10 * pos[..., 1]], -1)
        x = nnf.elu(self.encode(centred)).movedim(-1, 0).contiguous()
        weights = self.weights(pos)
        for index, layer in enumerate(self.layers):
            x = x + nnf.elu(layer(x, weights[index]), inplace=True)
            if index % 5 == 4:
                self.taps[index // 5](x.movedim(0, -1))
        return x.mean(-1).t()

    def weights(self, pos: Tensor) -> tuple[Tensor, ...]:
        """The Gaussian weights of every layer: they depend on the outline alone, so all at once."""
        layers = [layer for layer in self.layers if isinstance(layer, RingGMM)]
        mu = torch.cat([layer.mu for layer in layers])
        sigma = torch.cat([layer.sigma for layer in layers])
        return gaussian_weights(ring_pseudo(pos), mu, sigma).chunk(len(layers), 1)


class WingNet(nn.Module):
    """L/D from an outline, in standardised units turned into the user's by the last layer.

    Example:
        >>> import torch
        >>> net = WingNet(NetworkSettings(layers=2, channels=4), Regression(40.0, 10.0))
        >>> net(torch.rand(3, 20, 2)).shape
        torch.Size([3, 1])
    """

    def __init__(self, settings: NetworkSettings, adapter: Regression) -> None:
        super().__init__()
        self.trunk = OutlineTrunk(settings)
        self.head = nn.Sequential(
            nn.Linear(settings.channels, settings.hidden),
            nn.ELU(),
            nn.Linear(settings.hidden, settings.hidden),
            nn.ELU(),
            nn.Linear(settings.hidden, 1),
            adapter.rescale(),
        )

    def forward(self, pos: Tensor) -> Tensor:
        output: Tensor = self.head(self.trunk(pos))
        return output


def build(settings: NetworkSettings, adapter: Regression) -> Conditioned:
    """The conditioned network `f(outlines, signal)`; until it is trained it ignores the signal.

    Example:
        >>> import torch
        >>> adapter, x = Regression(40.0, 10.0), torch.rand(3, 20, 2)
        >>> net = build(NetworkSettings(layers=2, channels=4), adapter)
        >>> net(x, adapter.neutral(x)).shape
        torch.Size([3, 1])
    """
    if settings.entrance not in _ENTRANCES:
        raise IT3Error(f"the signal enters at 'head' or 'nodes', not at {settings.entrance!r}")
    return condition(
        WingNet(settings, adapter),
        adapter,
        layer=_ENTRANCES[settings.entrance],
        channels=settings.channels,
    )


def zigzag(model: nn.Module, adapter: Adapter, x: Tensor, y: Tensor) -> Tensor:
    """`zigzag_loss`, for half its cost where the signal enters at the head.

    What comes before the head is the same for both passes, so it is run once.

    Example:
        >>> import torch
        >>> adapter, x, y = Regression(40.0, 10.0), torch.rand(3, 20, 2), torch.rand(3) * 60
        >>> net = build(NetworkSettings(layers=2, channels=4), adapter)
        >>> bool(torch.isclose(zigzag(net, adapter, x, y), zigzag_loss(net, adapter, x, y)))
        True
    """
    if not (isinstance(model, Conditioned) and isinstance(model.model, WingNet)):
        raise IT3Error("this loss is for networks of `build`: use it3_core.zigzag_loss")
    if model.layer != _ENTRANCES["head"] or model.embed is None:
        return zigzag_loss(model, adapter, x, y)
    net = model.model
    features = net.trunk.forward(x)  # not a call: that would add a signal to what it returns
    first = net.head(features + model.embed(adapter.neutral(x)))
    second = net.head(features + model.embed(adapter.encode(y)))
    return (adapter.loss(first, y) + adapter.loss(second, y)).mean()
