"""ResNets (He et al., CVPR 2016) with torchvision's parameter names, so that its weights fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from it3_core import IT3Error
from it3_vision.image_options import Normalisation
from it3_vision.networks.layers import Pool, convolution, initialise, normalisation

# For each depth: whether its blocks are bottlenecks, and how many of them each stage has.
RESNETS: dict[int, tuple[bool, tuple[int, int, int, int]]] = {
    18: (False, (2, 2, 2, 2)),
    34: (False, (3, 4, 6, 3)),
    50: (True, (3, 4, 6, 3)),
    152: (True, (3, 8, 36, 3)),
}


class ResNet(nn.Module):
    """ResNet-18, 34, 50 or 152; the stages are `conv1`, `layer1` … `layer4`, `pool` and `fc`.

    Args:
        depth: 18, 34, 50 or 152.
        classes: number of classes.
        width: channels of `layer1`; 64 in torchvision's.
        stem: `"imagenet"` (a 7×7 convolution of stride 2 and a max-pool) or `"small"` (a 3×3
            convolution, for images of up to 64 pixels).
        norm: `"batch"`, as torchvision's weights want it, or `"group"`.

    Example:
        >>> import torch
        >>> ResNet(18, 10, width=8, stem="small")(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 18,
        classes: int = 1000,
        *,
        width: int = 64,
        stem: Literal["imagenet", "small"] = "imagenet",
        norm: Normalisation = "batch",
    ) -> None:
        super().__init__()
        if depth not in RESNETS:
            raise IT3Error(f"there is no ResNet-{depth}: take {', '.join(map(str, RESNETS))}")
        if stem not in ("imagenet", "small"):
            raise IT3Error(f'a ResNet\'s stem is "imagenet" or "small", not {stem!r}')
        bottleneck, blocks = RESNETS[depth]
        self.conv1 = (
            convolution(3, width, size=7, stride=2) if stem == "imagenet" else convolution(3, width)
        )
        self.bn1 = normalisation(norm, width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        inputs = width
        for stage, number in enumerate(blocks):
            inner = width * 2**stage
            outputs = inner * (4 if bottleneck else 1)
            first = _Block(inputs, inner, 1 if stage == 0 else 2, bottleneck, norm)
            rest = [_Block(outputs, inner, 1, bottleneck, norm) for _ in range(number - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *rest))
            inputs = outputs
        self.pool = Pool(inputs)
        self.fc = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in ("layer1", "layer2", "layer3", "layer4"):
            x = self.get_submodule(stage)(x)
        return self.fc(self.pool(x).relu())  # type: ignore[no-any-return]


class _Block(nn.Module):
    """A residual block: two 3×3 convolutions, or the bottleneck's 1×1, 3×3 and 1×1."""

    def __init__(
        self, inputs: int, inner: int, stride: int, bottleneck: bool, norm: Normalisation
    ) -> None:
        super().__init__()
        outputs = inner * (4 if bottleneck else 1)
        # The bottleneck's stride is at its 3×3 convolution, as in torchvision's ("V1.5").
        shapes: Sequence[tuple[int, int, int, int]] = (
            [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
            if bottleneck
            else [(inputs, inner, 3, stride), (inner, inner, 3, 1)]
        )
        self.convolutions = len(shapes)
        for number, (taken, given, size, step) in enumerate(shapes, 1):
            self.add_module(f"conv{number}", convolution(taken, given, size, step))
            self.add_module(f"bn{number}", normalisation(norm, given))
        self.relu = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                convolution(inputs, outputs, size=1, stride=stride),
                normalisation(norm, outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number in range(1, self.convolutions + 1):
            y = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(y))
            if number < self.convolutions:
                y = self.relu(y)
        residual = x if self.downsample is None else self.downsample(x)
        return self.relu(y + residual)  # type: ignore[no-any-return]
