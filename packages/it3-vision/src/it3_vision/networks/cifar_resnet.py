"""ResNets for CIFAR (He et al., CVPR 2016, section 4.2), with the names of Idelbayev's weights."""

from __future__ import annotations

import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import IT3Error
from it3_vision.image_options import Normalisation
from it3_vision.networks.layers import Pool, convolution, initialise, normalisation


class CifarResNet(nn.Module):
    """ResNet-20, 32, 44, 56 or 110; the stages are `conv1`, `layer1` … `layer3`, `pool`, `linear`.

    Shortcuts have no parameters: where a stage halves the maps, they take every second pixel and
    pad with channels of zeros (option A). Any size of images will do; 32 pixels are CIFAR's.

    Args:
        depth: 6n + 2, with n blocks in each of three stages.
        classes: number of classes.
        width: channels of `layer1`; 16 in the paper.
        norm: `"batch"`, as trained weights want it, or `"group"`.

    Example:
        >>> import torch
        >>> CifarResNet(20)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 20,
        classes: int = 10,
        *,
        width: int = 16,
        norm: Normalisation = "batch",
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)
        if blocks < 1 or rest:
            raise IT3Error(f"a ResNet for CIFAR has 6n + 2 layers, such as 20 or 56, not {depth}")
        self.conv1 = convolution(3, width)
        self.bn1 = normalisation(norm, width)
        self.relu = nn.ReLU()  # a module: nothing but modules runs before a late signal enters
        inputs = width
        for stage in range(3):
            outputs = width * 2**stage
            first = _Block(inputs, outputs, norm)
            others = [_Block(outputs, outputs, norm) for _ in range(blocks - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *others))
            inputs = outputs
        self.pool = Pool(inputs)
        self.linear = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in ("layer1", "layer2", "layer3"):
            x = self.get_submodule(stage)(x)
        return self.linear(self.pool(x).relu())  # type: ignore[no-any-return]


class _Block(nn.Module):
    """Two 3×3 convolutions; with more channels than it takes, it halves the maps."""

    def __init__(self, inputs: int, outputs: int, norm: Normalisation) -> None:
        super().__init__()
        self.more = outputs - inputs
        self.conv1 = convolution(inputs, outputs, stride=2 if self.more else 1)
        self.bn1 = normalisation(norm, outputs)
        self.conv2 = convolution(outputs, outputs)
        self.bn2 = normalisation(norm, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.more:
            before = self.more // 2
            x = nnf.pad(x[..., ::2, ::2], (0, 0, 0, 0, before, self.more - before))
        return (y + x).relu()  # type: ignore[no-any-return]
