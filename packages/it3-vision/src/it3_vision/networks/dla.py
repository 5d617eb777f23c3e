"""Deep Layer Aggregation for small images (Yu, Wang, Shelhamer and Darrell, CVPR 2018).

A stage is a tree: two halves after each other, and a root that merges what both of them, and the
trees before them in the same stage, have found. The names of the stages are the authors'.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from it3_core import IT3Error
from it3_vision.image_options import Normalisation
from it3_vision.networks.layers import Pool, convolution, initialise, normalisation


class DLA(nn.Module):
    """DLA-34 whose stem keeps an image of 32×32 at its size; the defaults are the paper's widths.

    The stages are `base`, `level0` … `level5`, `pool` and `fc`. A signal can enter at any of them:
    `condition(net, adapter, layer="level3")` is where the authors of IT³ put it.

    Args:
        classes: number of classes.
        widths: channels of `level0` … `level5`.
        depths: depth of the trees in `level2` … `level5`; a tree of depth d has 2^d blocks.
        strides: of `level0` … `level5`.
        norm: `"batch"` or `"group"`.

    Example:
        >>> import torch
        >>> net = DLA(10, widths=(8, 8, 16, 16, 32, 32))
        >>> net(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int,
        *,
        widths: Sequence[int] = (16, 32, 64, 128, 256, 512),
        depths: Sequence[int] = (1, 2, 2, 1),
        strides: Sequence[int] = (1, 1, 1, 2, 2, 2),
        norm: Normalisation = "batch",
    ) -> None:
        super().__init__()
        if len(widths) != 6 or len(strides) != 6 or len(depths) != 4:
            raise IT3Error("a DLA has six widths, six strides and four depths, one a stage")
        self.base = _layer(3, widths[0], 1, norm)
        self.level0 = _layer(widths[0], widths[0], strides[0], norm)
        self.level1 = _layer(widths[0], widths[1], strides[1], norm)
        for level in range(2, 6):
            tree = _Tree(
                depths[level - 2],
                widths[level - 1],
                widths[level],
                strides[level],
                norm,
                # From level3 on a root also sees what came into the stage.
                keep_input=level > 2,
            )
            self.add_module(f"level{level}", tree)
        self.pool = Pool(widths[5])
        self.fc = nn.Linear(widths[5], classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        for stage in ("base", "level0", "level1", "level2", "level3", "level4", "level5"):
            x = self.get_submodule(stage)(x)
        return self.fc(self.pool(x).relu())  # type: ignore[no-any-return]


def _layer(inputs: int, outputs: int, stride: int, norm: Normalisation) -> nn.Sequential:
    return nn.Sequential(
        convolution(inputs, outputs, stride=stride), normalisation(norm, outputs), nn.ReLU()
    )


class _Block(nn.Module):
    """Two convolutions beside a residual that the tree hands in."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, stride=stride)
        self.bn1 = normalisation(norm, outputs)
        self.conv2 = convolution(outputs, outputs)
        self.bn2 = normalisation(norm, outputs)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(y)) + residual).relu()  # type: ignore[no-any-return]


class _Root(nn.Module):
    """The aggregation node: a 1×1 convolution over all that it merges."""

    def __init__(self, inputs: int, outputs: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv = convolution(inputs, outputs, size=1)
        self.bn = normalisation(norm, outputs)

    def forward(self, children: Sequence[Tensor]) -> Tensor:
        return self.bn(self.conv(torch.cat(tuple(children), 1))).relu()  # type: ignore[no-any-return]


class _Tree(nn.Module):
    """Two subtrees of depth d − 1, or two blocks and a root at depth 1."""

    def __init__(
        self,
        depth: int,
        inputs: int,
        outputs: int,
        stride: int,
        norm: Normalisation,
        keep_input: bool = False,  # whether the root sees the (pooled) input too
        passed: int = 0,  # channels of the earlier trees' outputs that the root gets
    ) -> None:
        super().__init__()
        self.keep_input = keep_input
        self.pool = nn.MaxPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        self.project = (
            nn.Sequential(convolution(inputs, outputs, size=1), normalisation(norm, outputs))
            if inputs != outputs
            else nn.Identity()
        )
        passed += inputs if keep_input else 0
        self.first: _Tree | _Block
        self.second: _Tree | _Block
        if depth == 1:
            self.first = _Block(inputs, outputs, stride, norm)
            self.second = _Block(outputs, outputs, 1, norm)
            self.root = _Root(2 * outputs + passed, outputs, norm)
        else:
            self.first = _Tree(depth - 1, inputs, outputs, stride, norm)
            self.second = _Tree(depth - 1, outputs, outputs, 1, norm, passed=passed + outputs)

    def forward(self, x: Tensor, earlier: Sequence[Tensor] = ()) -> Tensor:
        pooled = self.pool(x)
        if self.keep_input:
            earlier = [*earlier, pooled]
        if isinstance(self.first, _Tree):
            first = self.first(x)
            return self.second(first, [*earlier, first])  # type: ignore[no-any-return]
        first = self.first(x, self.project(pooled))
        second = self.second(first, first)
        return self.root([second, first, *earlier])  # type: ignore[no-any-return]
