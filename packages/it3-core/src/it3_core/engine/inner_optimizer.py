"""What adapts: some weights and the steps that move them, and the statistics of batch norms."""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from it3_core.errors import IT3Error

Weights = dict[str, Tensor]

OptimizerFactory = str | Callable[..., torch.optim.Optimizer]
"""A class of torch.optim by name, or anything called as `factory(parameters, lr=…)`."""

Parameters = str | Sequence[str] | Callable[[str, Tensor], bool] | None
"""Which adapt: None (all), name patterns, a predicate, "above" the signal's layer, or "norms"."""


class InnerOptimizer:
    """Copies of some weights, and steps that lower a loss of them.

    For plain "SGD" and "Adam" the copies lie in one vector and so do their gradients: moving a
    dozen small tensors through torch.optim costs several forward passes of a small network.
    Any other optimiser is torch.optim's or the user's own. With `rows` there are so many sets of
    the weights, stacked, each to move on its own.
    """

    def __init__(
        self,
        source: Mapping[str, Tensor],
        optimizer: OptimizerFactory,
        lr: float,
        rows: int | None = None,
    ) -> None:
        self._lr = lr
        self._factory = optimizer
        values = list(source.values())
        if rows is not None:
            values = [value.expand(rows, *value.shape) for value in values]
        alike = len({(v.dtype, v.device) for v in values}) == 1 and not values[0].is_complex()
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

    def go_back(self, state: Mapping[str, Tensor], fraction: float) -> None:
        """Keeps only this fraction of the way from the weights in `state` to the present ones."""
        with torch.no_grad():
            for name, leaf in self.weights.items():
                leaf.copy_(torch.lerp(state[f"weights.{name}"], leaf, fraction))


def select(module: nn.Module, wanted: Parameters) -> tuple[str, ...]:
    """The names of the parameters that adapt."""
    named = {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.is_floating_point() or parameter.is_complex()
    }
    if wanted is None:  # a network that was frozen whole is one that was made for inference
        return tuple(name for name, p in named.items() if p.requires_grad) or tuple(named)
    if wanted == "norms":
        affine = frozenset(affine_names(module))
        chosen = [name for name in named if name in affine]
        if not chosen:
            raise IT3Error("the network has no normalisation layer, whose scales could adapt")
    elif callable(wanted):
        chosen = [name for name, parameter in named.items() if wanted(name, parameter)]
    else:
        patterns = [wanted] if isinstance(wanted, str) else list(wanted)
        for pattern in patterns:
            if not fnmatch.filter(named, pattern):
                near = difflib.get_close_matches(pattern, named, n=3, cutoff=0.3) or list(named)[:3]
                raise IT3Error(f"no parameter is called {pattern!r}; there are {', '.join(near)} …")
        chosen = [name for name in named if any(fnmatch.fnmatchcase(name, pat) for pat in patterns)]
    if not chosen:
        raise IT3Error("no parameter of the network is chosen to adapt")
    return tuple(chosen)


def make_optimizer(
    optimizer: OptimizerFactory, parameters: Sequence[Tensor], lr: float
) -> torch.optim.Optimizer:
    """An optimiser of torch.optim by name, or one of the caller's own making."""
    if callable(optimizer):
        return optimizer(list(parameters), lr=lr)
    factory = getattr(torch.optim, optimizer, None)
    if not (inspect.isclass(factory) and issubclass(factory, torch.optim.Optimizer)):
        raise IT3Error(f"torch.optim has no optimiser {optimizer!r}: name one, or give a factory")
    made: Callable[..., torch.optim.Optimizer] = factory
    return made(list(parameters), lr=lr)


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


Norm = Literal["source", "batch"] | float
"""The training data's statistics, the batch's, or the fraction of the batch's from 0 to 1."""


class Blend:
    """A fraction of the batch's statistics that is set anew for every pass, and what came of it."""

    def __init__(self) -> None:
        self.fraction = 0.0
        # The blended statistics of the last pass, by the names of the buffers that hold the
        # training data's: given in their place, the next pass goes on from them.
        self.found: dict[str, Tensor] = {}


def batch_fraction(norm: Norm) -> float:
    """The fraction of the batch's statistics that `norm` asks for."""
    if norm == "source":
        return 0.0
    if norm == "batch":
        return 1.0
    if isinstance(norm, int | float) and 0 <= norm <= 1:
        return float(norm)
    raise IT3Error(f'norm must be "source", "batch" or a fraction from 0 to 1, not {norm!r}')


def use_batch_statistics(module: nn.Module, fraction: float | Blend) -> None:
    """Makes every batch norm of `module` blend the batch's statistics into its own, in place.

    Gradients flow through the batch's statistics, as they do in training; the running ones
    are not updated.
    """
    if fraction == 0:
        return
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats:
            forward = (
                partial(_recorded, layer, f"{name}." if name else "", fraction)
                if isinstance(fraction, Blend)
                else partial(_blended, layer, fraction)
            )
            layer.forward = forward  # type: ignore[method-assign]


def has_batch_norm(module: nn.Module) -> bool:
    """Whether there is a batch norm whose statistics could be chosen."""
    return bool(batch_norm_names(module))


def batch_norm_names(module: nn.Module) -> list[str]:
    """The batch norms of a network, by name."""
    return [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]


def affine_names(module: nn.Module) -> list[str]:
    """The scales and shifts of all normalisation layers, by name.

    Libraries have their own, such as `LlamaRMSNorm`: what calls itself a norm is one.
    """
    kinds = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
    return [
        f"{name}.{leaf}" if name else leaf
        for name, layer in module.named_modules()
        if isinstance(layer, kinds) or type(layer).__name__.endswith("Norm")
        for leaf, _ in layer.named_parameters(recurse=False)
    ]


def _blended(layer: _BatchNorm, fraction: float, input: Tensor) -> Tensor:
    if fraction == 1 and input.numel() == input.shape[1]:
        raise IT3Error(
            'norm="batch" needs more than one value per channel, and this batch has one: use '
            'norm="source" or a blend such as norm=0.1'
        )
    if fraction == 1:  # torch's own is several times faster
        return nnf.batch_norm(input, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)
    return _normalised(layer, input, *_statistics(layer, fraction, input))


def _recorded(layer: _BatchNorm, name: str, blend: Blend, input: Tensor) -> Tensor:
    mean, var = _statistics(layer, blend.fraction, input)
    blend.found |= {f"{name}running_mean": mean.detach(), f"{name}running_var": var.detach()}
    return _normalised(layer, input, mean, var)


def _statistics(layer: _BatchNorm, fraction: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance: the layer's own, and this fraction of the batch's."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    over = [dimension for dimension in range(x.dim()) if dimension != 1]
    mean = x.mean(over)
    centred = x - mean.view(_along_channels(x))
    var = centred.square().mean(over)  # torch.var_mean takes four times as long
    return torch.lerp(layer.running_mean, mean, fraction), torch.lerp(
        layer.running_var, var, fraction
    )


def _normalised(layer: _BatchNorm, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    scale = (var + layer.eps).rsqrt()
    if layer.weight is not None:
        scale = scale * layer.weight
    shift = -mean * scale if layer.bias is None else layer.bias - mean * scale
    shape = _along_channels(x)
    return torch.addcmul(shift.view(shape), x, scale.view(shape))


def _along_channels(x: Tensor) -> list[int]:
    return [-1 if dimension == 1 else 1 for dimension in range(x.dim())]
