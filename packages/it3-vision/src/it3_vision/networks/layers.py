"""What the networks share: the choice of normalisation, and first weights."""

from __future__ import annotations

from torch import Tensor, nn

from it3_core import IT3Error
from it3_vision.image_options import Normalisation

_GROUP = 8  # channels of a group: the group norm paper's 16, scaled down with our widths


def normalisation(kind: Normalisation, channels: int) -> nn.Module:
    """A normalisation layer for maps of that many channels."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        groups = channels // _GROUP if channels % _GROUP == 0 else 1
        return nn.GroupNorm(groups, channels)
    raise IT3Error(f'a network is normalised by "batch" or "group", not {kind!r}')


class Pool(nn.AdaptiveAvgPool2d):
    """The pooled features, `(batch, channels)`: a map's mean, where a signal can enter late.

    ReLU must follow: it leaves pooled features, which are positive, alone, and what a signal adds
    to them then does more than shift the answer.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(1)
        self.num_features = channels  # by which `condition` knows how many there are

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(1)


_FEW = 16  # channels, from which on oneDNN's strided 1×1 convolution is sound


class _Strided1x1(nn.Conv2d):
    """A 1×1 convolution of every `stride`-th pixel: the same numbers as `Conv2d`'s own stride.

    Its backward pass in torch 2.13 (oneDNN 3.12, AVX-512, two threads or more, channels last)
    writes beyond its memory where there are few channels, and the process dies.
    """

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.stride
        return nn.functional.conv2d(x[..., ::rows, ::columns], self.weight)


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias (a normalisation follows) that keeps a map's size at stride 1."""
    if size == 1 and stride > 1 and inputs < _FEW:  # else as it is, bit for bit
        return _Strided1x1(inputs, outputs, size, stride, bias=False)
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def initialise(network: nn.Module) -> None:
    """He's first weights for every convolution."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.groups > 1:  # each output feeds its own channel alone
                layer.weight.data *= layer.groups**0.5
