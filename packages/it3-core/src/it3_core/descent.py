"""The weights that adapt, and the steps that move them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from it3_core.errors import IT3Error

__all__ = ["Descent", "OptimizerFactory", "Weights", "make_optimizer"]

Weights = dict[str, Tensor]

OptimizerFactory = str | Callable[..., torch.optim.Optimizer]
"""A class of torch.optim by name, or anything called as `factory(parameters, lr=…)`."""


class Descent:
    """Copies of some weights, and steps that lower a loss of them.

    For plain "SGD" and "Adam" the copies lie in one vector and so do their gradients: moving a
    dozen small tensors through torch.optim costs several forward passes of a small network.
    Any other optimiser is torch.optim's or the user's own.

    Args:
        source: the weights to start from; they are copied, never changed.
        optimizer: a class of torch.optim by name, or a factory `(parameters, lr=…)`.
        lr: learning rate.
        rows: so many sets of the weights, stacked, each to move on its own.

    Example:
        >>> import torch
        >>> from it3_core.descent import Descent
        >>> descent = Descent({"w": torch.tensor([3.0, 4.0])}, "SGD", lr=0.5)
        >>> descent.step(descent.weights["w"].square().sum())
        >>> descent.weights["w"].detach()
        tensor([0., 0.])
    """

    def __init__(
        self,
        source: Mapping[str, Tensor],
        optimizer: OptimizerFactory,
        lr: float,
        rows: int | None = None,
    ) -> None:
        if not (math.isfinite(lr) and lr >= 0):
            raise IT3Error(f"a learning rate must be a finite number from 0 up, not {lr}")
        self._lr = lr
        self._factory = optimizer
        values = list(source.values())
        if rows is not None:
            values = [value.expand(rows, *value.shape) for value in values]
        alike = len({(value.dtype, value.device) for value in values}) == 1
        self._rule = _RULES.get(optimizer) if isinstance(optimizer, str) and alike else None
        if self._rule is None:
            copies = [v.clone(memory_format=torch.contiguous_format) for v in values]
            self._leaves = [copy.requires_grad_() for copy in copies]
            self._optimizer = make_optimizer(optimizer, self._leaves, lr)
        else:
            self._vector = torch.cat([value.reshape(-1) for value in values])
            self._gradient = torch.zeros_like(self._vector)
            self._memory: dict[str, Tensor] = {}
            self._leaves = []
            for value, part, gradient in zip(
                values, _cut(self._vector, values), _cut(self._gradient, values), strict=True
            ):
                leaf = part.view(value.shape).requires_grad_()
                leaf.grad = gradient.view(value.shape)
                self._leaves.append(leaf)
        self.weights: Weights = dict(zip(source, self._leaves, strict=True))

    def step(self, loss: Tensor) -> None:
        """One step along the gradient of `loss`."""
        if self._rule is None:
            self._optimizer.zero_grad()
            torch.autograd.backward(loss, inputs=self._leaves)
            self._optimizer.step()
        else:
            self._gradient.zero_()
            torch.autograd.backward(loss, inputs=self._leaves)
            self._rule(self._vector, self._gradient, self._lr, self._memory)
        torch.clear_autocast_cache()  # it holds what the weights were before the step

    def restart(self, source: Mapping[str, Tensor]) -> None:
        """Starts anew from `source`, as a new object would, for less."""
        with torch.no_grad():
            for name, leaf in self.weights.items():
                leaf.copy_(source[name])  # into every row, where there are rows
        if self._rule is None:
            self._optimizer = make_optimizer(self._factory, self._leaves, self._lr)
        else:
            self._memory = {}

    def finite(self) -> bool:
        """Whether every weight is a finite number."""
        return all(bool(torch.isfinite(leaf).all()) for leaf in self._leaves)

    def state(self) -> dict[str, Tensor]:
        """Weights and optimiser, as named tensors of their own."""
        state = {f"weights.{name}": leaf.detach().clone() for name, leaf in self.weights.items()}
        if self._rule is not None:
            state |= {f"optimizer.{key}": value.clone() for key, value in self._memory.items()}
            return state
        for name, leaf in self.weights.items():
            for key, value in self._optimizer.state[leaf].items():
                copied = value.clone() if isinstance(value, Tensor) else torch.tensor(value)
                state[f"optimizer.{key}|{name}"] = copied
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes back to what `state` returned."""
        shapes = {f"weights.{name}": leaf.shape for name, leaf in self.weights.items()}
        if shapes != {k: v.shape for k, v in state.items() if k.startswith("weights.")}:
            raise IT3Error("this state is of other weights: make the method as it was made")
        self.restart({name: state[f"weights.{name}"] for name in self.weights})
        kept = {
            name.removeprefix("optimizer."): value.detach().clone()
            for name, value in state.items()
            if name.startswith("optimizer.")
        }
        if self._rule is not None:
            self._memory = kept
            return
        for name, leaf in self.weights.items():
            ending = f"|{name}"
            entries = {k.removesuffix(ending): v for k, v in kept.items() if k.endswith(ending)}
            if entries:
                self._optimizer.state[leaf] = entries

    def go_back(self, state: Mapping[str, Tensor], share: float) -> None:
        """Keeps only this share of the way from the weights in `state` to the present ones."""
        with torch.no_grad():
            for name, leaf in self.weights.items():
                leaf.copy_(torch.lerp(state[f"weights.{name}"], leaf, share))


def make_optimizer(
    optimizer: OptimizerFactory, parameters: Sequence[Tensor], lr: float
) -> torch.optim.Optimizer:
    """An optimiser of torch.optim by name, or one of the caller's own making.

    Example:
        >>> import torch
        >>> from it3_core.descent import make_optimizer
        >>> type(make_optimizer("AdamW", [torch.zeros(2, requires_grad=True)], 0.1)).__name__
        'AdamW'
    """
    if callable(optimizer):
        return optimizer(list(parameters), lr=lr)
    factory = getattr(torch.optim, optimizer, None)
    if not (inspect.isclass(factory) and issubclass(factory, torch.optim.Optimizer)):
        raise IT3Error(
            f"torch.optim has no optimiser {optimizer!r}: name one such as 'Adam' or 'SGD', or "
            f"give a factory called as factory(parameters, lr=…)"
        )
    known: Callable[..., torch.optim.Optimizer] = factory
    return known(list(parameters), lr=lr)


def _cut(vector: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return torch.split(vector, [value.numel() for value in like])


def _sgd(weights: Tensor, gradient: Tensor, lr: float, memory: dict[str, Tensor]) -> None:
    """torch.optim.SGD with its defaults."""
    with torch.no_grad():
        weights.add_(gradient, alpha=-lr)


def _adam(weights: Tensor, gradient: Tensor, lr: float, memory: dict[str, Tensor]) -> None:
    """torch.optim.Adam with its defaults; half-precision weights have moments in float32."""
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8
    with torch.no_grad():
        if gradient.dtype in (torch.float16, torch.bfloat16):
            gradient = gradient.float()
        if not memory:
            # From zero both moments are the gradient's own, and the step is g / (|g| + ε). Most
            # episodes end here, so the moments are made when a second step needs them.
            memory["first"] = gradient.clone()
            _move(weights, gradient, gradient.abs().add_(epsilon), -lr)
            return
        if "first" in memory:
            first = memory.pop("first")
            memory["step"] = torch.ones(())
            memory["mean"] = first * (1 - beta1)
            memory["square"] = first.square_().mul_(1 - beta2)
        memory["step"] += 1
        memory["mean"].lerp_(gradient, 1 - beta1)
        memory["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        step = int(memory["step"])
        spread = memory["square"].sqrt().div_(math.sqrt(1 - beta2**step)).add_(epsilon)
        _move(weights, memory["mean"], spread, -lr / (1 - beta1**step))


def _move(weights: Tensor, towards: Tensor, spread: Tensor, rate: float) -> None:
    if spread.dtype == weights.dtype:
        weights.addcdiv_(towards, spread, value=rate)
    else:
        weights.add_((towards / spread).mul_(rate).to(weights.dtype))


_RULES: dict[str, Callable[[Tensor, Tensor, float, dict[str, Tensor]], None]] = {
    "SGD": _sgd,
    "Adam": _adam,
}
