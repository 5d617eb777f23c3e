"""The two losses of the paper: ZigZag for training, idempotence for test time."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from it3_core.adapters import Adapter
from it3_core.conditioning import Conditioned
from it3_core.errors import IT3Error

__all__ = ["SecondSignal", "check_weight", "idempotence_loss", "zigzag_loss"]

SecondSignal = Literal["label", "noisy", "own", "mixed"]


def zigzag_loss(
    model: nn.Module,
    adapter: Adapter,
    x: Any,
    y: Tensor,
    *,
    given: float | None = None,
    second: SecondSignal = "label",
    noise: float = 0.1,
    weight: float = 1.0,
    together: bool = False,
) -> Tensor:
    """L_train = ‖f(x, neutral) − y‖ + w ‖f(x, encode(y)) − y‖, with the task's own loss as ‖·‖.

    Args:
        model: the conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer this is.
        x: a batch of inputs.
        y: its labels.
        given: None runs both passes, as in the paper. A probability runs one: each instance is
            given its answer with that probability, and the neutral signal otherwise (half the
            cost, what the authors' wing code does with 0.25).
        second: the answer that is given: the `"label"`, a `"noisy"` label, the network's
            `"own"` prediction, detached (recursive training), or `"mixed"`: for each instance
            the label or its own, at even odds.
        noise: how noisy a noisy label is, see the adapter's `perturb`.
        weight: of the second pass, where both are run: 1 is the paper's; a smaller one leaves more
            of a small network to the first answer.
        together: run both passes at once, and what lies below the layer where the signal enters
            once for both: see `Conditioned.several` for what it asks of the network.

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
    neutral = adapter.neutral(x)
    if given is not None and not 0 <= given <= 1:
        raise IT3Error(f"given is a probability from 0 to 1, or None for both passes, not {given}")
    check_weight(weight)
    if given is None and together and isinstance(model, Conditioned):
        own = _own_answer(model, adapter, x, neutral, second)
        signal = _second_signal(adapter, second, y, own, noise)
        first, output = model.several(x, neutral, signal.to(neutral))
        return (adapter.loss(first, y) + weight * adapter.loss(output, y)).mean()
    if given is None:
        first = model(x, neutral)
        signal = _second_signal(adapter, second, y, first, noise)
        output = model(x, signal.to(neutral))
        return (adapter.loss(first, y) + weight * adapter.loss(output, y)).mean()
    own = _own_answer(model, adapter, x, neutral, second)
    signal = _second_signal(adapter, second, y, own, noise).to(neutral)
    told = torch.rand(len(signal), *[1] * (signal.dim() - 1), device=signal.device) < given
    return adapter.loss(model(x, torch.where(told, signal, neutral)), y).mean()


def check_weight(weight: float) -> None:
    """Refuses what can't be the second pass's weight: without that pass, nothing is idempotent.

    Example:
        >>> check_weight(0.0)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: weight is a positive number, not 0.0
    """
    if not 0 < weight < math.inf:
        raise IT3Error(f"weight is a positive number, not {weight}")


def _own_answer(
    model: nn.Module, adapter: Adapter, x: Any, neutral: Tensor, second: SecondSignal
) -> Tensor | None:
    if second not in ("own", "mixed"):
        return None
    with torch.no_grad():
        return model(x, neutral)  # type: ignore[no-any-return]


def _second_signal(
    adapter: Adapter, second: SecondSignal, y: Tensor, own: Tensor | None, noise: float
) -> Tensor:
    if second == "label":
        return adapter.encode(y)
    if second == "noisy":
        return adapter.perturb(adapter.encode(y), noise)
    if second == "own" and own is not None:
        return adapter.encode(own.detach())
    if second == "mixed" and own is not None:
        told, guessed = adapter.encode(y), adapter.encode(own.detach())
        even = torch.rand(len(told), *[1] * (told.dim() - 1), device=told.device) < 0.5
        return torch.where(even, told.to(guessed), guessed)
    raise IT3Error(f'second must be "label", "noisy", "own" or "mixed", not {second!r}')


def idempotence_loss(adapter: Adapter, y1: Tensor, y0: Tensor, power: float = 1.0) -> Tensor:
    """L_IT³ = ‖F(x, f(x, neutral)) − f(x, neutral)‖, the mean over the batch.

    Args:
        adapter: its `distance` is the norm.
        y1: `F(x, encode(y0))`.
        y0: `f(x, neutral)`.
        power: 1 is the paper's loss. 2 makes a gradient step proportional to the gap, so that
            inputs the network knows are hardly moved.

    Example:
        >>> import torch
        >>> from it3_core import Regression, idempotence_loss
        >>> idempotence_loss(Regression(), torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0]))
        tensor(2.)
    """
    gap = adapter.distance(y1, y0)
    return gap.mean() if power == 1 else gap.pow(power).mean()
