"""DRU-Net (Wang et al. 2019): a U-Net that looks again at the image and at its previous mask.

Its input is the image beside the previous mask, and its bottleneck is a gated recurrent unit. The
previous mask of the first step is IT³'s signal: neutral, or a prediction to be improved on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from it3_core import DenseMap, IT3Error
from it3_vision.image_options import Normalisation, Size
from it3_vision.methods.rotation import for_the_head, with_rotation_head
from it3_vision.networks.layers import convolution, initialise, normalisation

Weights = dict[str, Tensor] | None

FACTOR = 16  # height and width of an input are multiples of it: four times halved
NO_DATA = -30.0  # the logit of a pixel without data: no road, and nothing to learn from

ENCODED = "cell.down.3"
"""The encoder's last layer, where TTT's rotation head is."""

_FILTERS, _STATE = (32, 64, 128, 256), 512
_SCALES: dict[str, int] = {"tiny": 8, "small": 4, "full": 1}  # filters are divided by
_MOST = 2**18  # pixels of a part
_LATE = ("up.0.", "head.")  # the layers after which nothing is kept for a backward pass
_MOST_LATE = 2**21


@dataclass(frozen=True)
class DRUSettings:
    """Which network; `steps` are recurrent ones, not IT³'s."""

    size: Size = "small"
    steps: int = 3
    norm: Normalisation = "batch"


def build(settings: DRUSettings, *, rotation: bool = False) -> DRUNet:
    """The network, with its first weights; `rotation`: with the head that TTT needs."""
    if settings.size not in _SCALES or settings.steps < 1:
        raise IT3Error(f"there is no such network: {settings}")
    model = DRUNet(_SCALES[settings.size], settings.steps, settings.norm)
    if not rotation:
        return model
    example = torch.zeros(1, 4, FACTOR, FACTOR)
    return with_rotation_head(model, DenseMap(), ENCODED, example)


class DRUNet(nn.Module):
    """`f(x, signal)`: logits of roads after some recurrent steps.

    `x` is (batch, 4, H, W): a normalised image, and 1 where there are data. Where there are none
    the logit is `NO_DATA`, so that these pixels take no part in a loss or a distance.

    In evaluation mode gradients flow through the recurrent state, and not through the masks, and
    a batch of many pixels is run in parts, whose activations are computed again in a backward
    pass: the memory of an adaptation is that of a part, and batch statistics are a part's.
    """

    def __init__(self, scale: int, steps: int, norm: Normalisation) -> None:
        super().__init__()
        self.cell = _Cell(scale, norm)
        self.steps = steps
        self.most = _MOST
        initialise(self)
        nn.init.constant_(self.cell.head.bias, -2.0)  # type: ignore[arg-type]  # roads are rare

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        _check(x, signal)
        rows = max(1, self.most // (x.shape[2] * x.shape[3]))
        parts = -(-len(x) // rows)
        if self.training or parts <= 1 or for_the_head():
            return self._last(x, signal)
        weights = {**dict(self.cell.named_parameters()), **dict(self.cell.named_buffers())}
        again = torch.is_grad_enabled() and (
            signal.requires_grad
            or x.shape[0] * x.shape[2] * x.shape[3] > _MOST_LATE
            or any(w.requires_grad for k, w in weights.items() if not k.startswith(_LATE))
        )
        # A part that is run again in the backward pass leaves nothing until then. It runs with
        # these very weights: by then, a method may have put other ones into the network.
        how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        run = partial(checkpoint, self._last, weights=weights, **how) if again else self._last
        found = [run(x[i::parts], signal[i::parts]) for i in range(parts)]
        order = torch.cat([torch.arange(i, len(x), parts) for i in range(parts)])
        return torch.cat(found)[order.argsort().to(x.device)]

    def _last(self, x: Tensor, signal: Tensor, weights: Weights = None) -> Tensor:
        return self.unrolled(x, signal, weights)[-1]

    def unrolled(self, x: Tensor, signal: Tensor, weights: Weights = None) -> list[Tensor]:
        """The logits after each recurrent step, by these weights instead of its own."""
        image, known = x[:, :3], x[:, 3:] > 0.5
        found: list[Tensor] = []
        state: Tensor | None = None
        for _ in range(self.steps):
            if found:
                mask = found[-1].sigmoid()
                mask = mask if self.training else mask.detach()
                signal = torch.cat([mask, torch.ones_like(mask)], 1)
            given = bool(signal[:, 1:].any())
            inputs = (image, signal.to(image.dtype), given, known, state)
            own = weights or {}
            logits, state = functional_call(self.cell, own, inputs) if own else self.cell(*inputs)
            logits = logits.float() if logits.dtype == torch.bfloat16 else logits
            found.append(torch.where(known, logits, torch.full_like(logits, NO_DATA)))
        return found


class _Cell(nn.Module):
    """One recurrent step."""

    def __init__(self, scale: int, norm: Normalisation) -> None:
        super().__init__()
        filters, state = [f // scale for f in _FILTERS], _STATE // scale
        inputs, above = [5, *filters[:-1]], [*filters[1:], state]
        self.down = nn.ModuleList(_Block(i, o, norm) for i, o in zip(inputs, filters, strict=True))
        self.update = _Gate(filters[-1], state, norm)
        self.reset = _Gate(filters[-1], filters[-1], norm)
        self.candidate = _Gate(filters[-1], state, norm)
        self.up = nn.ModuleList(_Block(a + f, f, norm) for a, f in zip(above, filters, strict=True))
        self.head = nn.Conv2d(filters[0], 1, 1)

    def forward(
        self, image: Tensor, signal: Tensor, given: bool, known: Tensor, state: Tensor | None
    ) -> tuple[Any, Tensor]:
        e = torch.cat([image, signal], 1)
        skips: list[Tensor] = []
        for block in self.down:
            e = block(e, given, known)
            skips.append(e)
            e = nnf.max_pool2d(e, 2)
        u = self.update(e, given).sigmoid()
        candidate = self.candidate(self.reset(e, given).sigmoid() * e, given).tanh()
        state = u * candidate if state is None else (1 - u) * state + u * candidate
        d = state
        for block, skip in zip(reversed(self.up), reversed(skips), strict=True):
            d = block(torch.cat([nnf.interpolate(d, scale_factor=2.0), skip], 1), given, known)
        return self.head(d), state


class _Norm(nn.Module):
    """A normalisation for passes without a mask, and one for those that are given one.

    A network that has seen no mask yet has other statistics than one that has: with statistics
    in common, batch norms would be right for neither.
    """

    def __init__(self, kind: Normalisation, channels: int) -> None:
        super().__init__()
        self.without = normalisation(kind, channels)
        self.given = normalisation(kind, channels)

    def forward(self, x: Tensor, given: bool) -> Any:
        return self.given(x) if given else self.without(x)


class _Block(nn.Module):
    """Two convolutions, each normalised and rectified."""

    def __init__(self, inputs: int, outputs: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution(inputs, outputs), _Norm(norm, outputs)
        self.conv2, self.norm2 = convolution(outputs, outputs), _Norm(norm, outputs)
        self.pixels = Pixels()

    def forward(self, x: Tensor, given: bool, known: Tensor) -> Tensor:
        x = nnf.relu(self.norm1(self.conv1(x), given), inplace=True)
        x = self.norm2(self.conv2(x), given)
        if self.pixels.watched:
            self.pixels(x, known)
        return nnf.relu(x, inplace=not self.pixels.watched)


class _Gate(nn.Module):
    """conv₂: two convolutions, the first of them normalised and rectified."""

    def __init__(self, inputs: int, outputs: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1, self.norm = convolution(inputs, outputs), _Norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)

    def forward(self, x: Tensor, given: bool) -> Any:
        return self.conv2(nnf.relu(self.norm(self.conv1(x), given), inplace=True))


class Pixels(nn.Module):
    """A map's pixels as rows, those without data left out: what ActMAD watches.

    A fully convolutional network has no locations to compare, and images come in all sizes. So
    every pixel counts as an instance, and ActMAD compares each channel's mean and variance.
    """

    @property
    def watched(self) -> bool:
        """Whether anybody looks: otherwise this is not run."""
        return bool(self._forward_hooks)

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        there = nnf.interpolate(known.float(), x.shape[2:], mode="area")[:, 0] > 0.5
        return x.movedim(1, -1)[there]


def _check(x: Tensor, signal: Tensor) -> None:
    if x.dim() != 4 or x.shape[1] != 4:
        raise IT3Error(f"an input is (batch, 4, H, W): colours and 'known', not {tuple(x.shape)}")
    if x.shape[2] % FACTOR or x.shape[3] % FACTOR:
        raise IT3Error(f"height and width are multiples of {FACTOR}, not {tuple(x.shape[2:])}")
    if signal.shape != (x.shape[0], 2, *x.shape[2:]):
        raise IT3Error(f"a signal for {tuple(x.shape)} can't be {tuple(signal.shape)}")
