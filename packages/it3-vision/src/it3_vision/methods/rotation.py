"""The rotation task of TTT: a head on a layer of the network, and the loss to train it with.

The head is trained, saved and loaded with the network, and runs in a pass for itself alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import Adapter, IT3Error, zigzag_loss
from it3_core.model.networks import find_layer

_Module = TypeVar("_Module", bound=nn.Module)

# Whether the pass under way is for the head alone. A context variable, as in core's
# conditioning: two threads may run the same network at once, one of them for its output.
_for_the_head: ContextVar[bool] = ContextVar("it3_rotation", default=False)


class _Found(Exception):  # noqa: N818  (no error: the quickest way out of a network's own code)
    """Carries the head's output past the rest of the network, which need not run."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits


class RotationHead(nn.Linear):
    """By how many quarter turns an image was rotated: of a layer's mean map, four logits."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 4)

    def forward(self, features: Tensor) -> Tensor:
        if features.dim() == 3:  # tokens
            features = features.mean(1)
        elif features.dim() > 3:
            features = features.flatten(2).mean(2)
        return super().forward(features)

    def hook(self, layer: nn.Module, inputs: Any, features: Tensor) -> None:
        if for_the_head():
            raise _Found(self(features))


def with_rotation_head(model: _Module, adapter: Adapter, layer: str, example: Tensor) -> _Module:
    """A copy of a conditioned network with a rotation head, called `rotation`, on a layer.

    Its predictions are the same. Do it before training (`joint_loss`) and before loading weights
    that were trained so.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        layer: name of the layer, as in `model.named_modules()`: `condition()` puts `model.` before
            a network's own names. All up to it is shared between the two tasks.
        example: a batch of images, to see what the layer returns.

    Example:
        >>> import torch
        >>> from it3_core import Classification, condition
        >>> adapter, x = Classification(10), torch.randn(2, 3, 8, 8)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(),
        ...                           torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
        >>> plain = condition(net, adapter, layer="0")
        >>> model = with_rotation_head(plain, adapter, layer="model.1", example=x)
        >>> torch.equal(model(x, adapter.neutral(x)), plain(x, adapter.neutral(x)))
        True
        >>> model.rotation
        RotationHead(in_features=8, out_features=4, bias=True)
    """
    find_layer(model, layer)
    if hasattr(model, "rotation"):
        raise IT3Error("the network has something called 'rotation' already: make it without")
    model = copy.deepcopy(model)
    features = _output_of(model, layer, example, adapter)
    head = RotationHead(features.shape[-1 if features.dim() == 3 else 1])
    model.add_module("rotation", head.to(features).train(model.training))
    # A bound method, not a closure: copy.deepcopy then binds the copy's hook to the copy.
    find_layer(model, layer).register_forward_hook(head.hook)
    return model


def rotation_logits(f: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    """The rotation head's logits of images; the network runs up to the head's layer only."""
    token = _for_the_head.set(True)
    try:
        f(x, *arguments)
    except _Found as found:
        return found.logits
    finally:
        _for_the_head.reset(token)
    raise IT3Error("the network has no rotation head: make it with with_rotation_head()")


def for_the_head() -> bool:
    """Whether the pass under way is the head's: then a batch must not be run in parts."""
    return _for_the_head.get()


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Each image of a batch by its number of quarter turns."""
    if x.shape[-1] != x.shape[-2]:
        sides = f"{x.shape[-2]}×{x.shape[-1]}"
        raise IT3Error(f"only square images can be rotated, not {sides}: crop or resize them")
    turned = torch.empty_like(x)
    for k in range(4):
        chosen = turns == k
        turned[chosen] = torch.rot90(x[chosen], k, (-2, -1))
    return turned


def joint_loss(
    model: nn.Module,
    adapter: Adapter,
    x: Tensor,
    y: Tensor,
    *,
    weight: float = 1.0,
    fraction: float = 0.25,
    base: Callable[..., Tensor] = zigzag_loss,
) -> Tensor:
    """l_m + weight · l_s: the task's loss, and the head's on rotated images (Sun et al. 2020).

    Give `fit` a partial of it, as `fit(…, loss=partial(joint_loss, weight=0.5))`.

    Args:
        model: a network made by `with_rotation_head`.
        adapter, x, y: what kind of answer it gives, images and their labels.
        weight: of the rotation loss; the paper has 1.
        fraction: of the batch that is rotated, each image by a turn drawn at random; the paper
            has 1, a fourth costs a fourth.
        base: the task's loss, called as `base(model, adapter, x, y)`.
    """
    if not (0 < fraction <= 1 and math.isfinite(weight) and weight >= 0):
        raise IT3Error(f"fraction must be in (0, 1], weight from 0 up, not {fraction}, {weight}")
    some = x[: math.ceil(fraction * len(x))]  # fit shuffles: the first are as good as any
    turns = torch.randint(4, (len(some),), device=x.device)
    logits = rotation_logits(model, rotate(some, turns), adapter.neutral(some))
    # After the rotated pass, not before: batch norms then remember upright images best.
    return base(model, adapter, x, y) + weight * nnf.cross_entropy(logits, turns)


def _output_of(model: nn.Module, layer: str, example: Tensor, adapter: Adapter) -> Tensor:
    seen: list[Tensor] = []
    trial = copy.deepcopy(model).eval()
    find_layer(trial, layer).register_forward_hook(lambda _m, _i, output: seen.append(output))
    with torch.no_grad():
        trial(example, adapter.neutral(example))
    if not seen or not isinstance(seen[0], Tensor) or seen[0].dim() < 2:
        raise IT3Error(f"layer {layer!r} returns no features on the example: name another layer")
    return seen[0]
