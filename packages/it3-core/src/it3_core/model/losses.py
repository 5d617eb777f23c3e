"""Every equation of the paper under its number: the two passes, and the losses made of them.

(1) is what idempotence means: f(f(x)) = f(x). (13) to (15) and (20) say it again for f(x, ·), and
(8) says what (9) asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

from torch import Tensor, nn

from it3_core.errors import IT3Error
from it3_core.model.adapters import Adapter
from it3_core.model.conditioning import Conditioned

SecondSignal = Literal["label", "noisy"]


def zigzag_loss(
    model: nn.Module,
    adapter: Adapter,
    x: Any,
    y: Tensor,
    *,
    second_signal: SecondSignal = "label",
    noise: float = 0.1,
    second_weight: float = 1.0,
    shared_prefix: bool = False,
) -> Tensor:
    """(2) = (9): L_train = ‖f(x, neutral) − y‖ + w ‖f(x, encode(y)) − y‖; the task's loss is ‖·‖.

    Args:
        model: the conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer this is.
        x: a batch of inputs.
        y: its labels.
        second_signal: what the second pass is given: the `"label"`, or a `"noisy"` label.
        noise: how noisy a noisy label is, see the adapter's `perturb`.
        second_weight: of the second pass: 1 is the paper's; a smaller one leaves more of a small
            network to the first answer.
        shared_prefix: run both passes at once, and what lies below the layer where the signal
            enters once for both: see `Conditioned.several` for what it asks of the network.

    Returns:
        The mean over the batch, a scalar to call `backward()` on.

    Example:
        >>> import torch
        >>> from it3_core import Regression, condition, zigzag_loss
        >>> adapter = Regression()
        >>> net = condition(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1)),
        ...                 adapter, layer="0")
        >>> zigzag_loss(net, adapter, torch.randn(4, 3), torch.randn(4)).backward()
    """
    if not 0 < second_weight < math.inf:  # without that pass, nothing is idempotent
        raise IT3Error(f"second_weight is a positive number, not {second_weight}")
    neutral = adapter.neutral(x)
    if second_signal not in get_args(SecondSignal):
        raise IT3Error(f'second_signal must be "label" or "noisy", not {second_signal!r}')
    signal = adapter.encode(y)
    if second_signal == "noisy":
        signal = adapter.perturb(signal, noise)
    signal = signal.to(neutral)
    if shared_prefix and isinstance(model, Conditioned):
        first, output = model.several(x, neutral, signal)
    else:
        first, output = model(x, neutral), model(x, signal)
    return (adapter.loss(first, y) + second_weight * adapter.loss(output, y)).mean()


def supervised_loss(model: nn.Module, adapter: Adapter, x: Any, y: Tensor) -> Tensor:
    """‖f(x, neutral) − y‖ alone: how a vanilla network, which is given no signal, is trained."""
    return adapter.loss(model(x, adapter.neutral(x)), y).mean()


def first_pass(f: Callable[..., Tensor], adapter: Adapter, x: Any) -> Tensor:
    """(3) = (10): y0 = f(x, neutral), with f called as `f(x, signal)`."""
    return f(x, adapter.neutral(x))


def second_pass(
    f: Callable[..., Tensor], adapter: Adapter, x: Any, y0: Tensor, *, gradient: bool = True
) -> Tensor:
    """(4) = (11): y1 = f(x, encode(y0)); with a frozen F in place of f, (17).

    `gradient`: whether it flows through the signal, as in the paper's loss.
    """
    return f(x, adapter.encode(y0 if gradient else y0.detach()))


def idempotence_loss(
    adapter: Adapter, y1: Tensor, y0: Tensor, power: float = 1.0, *, each: bool = False
) -> Tensor:
    """‖y1 − y0‖, the mean over the batch; whose second pass y1 is makes it one of the paper's.

    - y1 = F(x, y0) with F frozen: (6) = (18) = (19), L_IT³.
    - y1 = f_EMA(x, y0) with a moving average of f: (7), L_online.
    - y1 = f(x, y0) with f itself: (5) = (12) = (16), the loss without an anchor. It can also be
      lowered by making f copy its signal, or by moving a right y1 to a wrong y0.

    Args:
        adapter: its `distance` is the norm.
        y1: of the second pass.
        y0: of the first pass.
        power: 1 is the paper's loss. 2 makes a gradient step proportional to the gap, so that
            inputs the network knows are hardly moved.
        each: the sum over rows in place of their mean, where each row has weights of its own.
    """
    gap = adapter.distance(y1, y0)
    gap = gap if power == 1 else gap.pow(power)
    return gap.sum() if each else gap.mean()
