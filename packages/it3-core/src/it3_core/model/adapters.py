"""What IT³ must know about a kind of answer: the protocol, and the adapters of numbers.

A *label* is what the training data holds, an *output* is what the network returns. For regression
both are numbers in the user's units; elsewhere labels are integers and outputs are float logits,
which is how `encode` tells them apart.

A *signal* is an answer encoded for the network's second input. Its last channel is an indicator:
1 says "this is an answer", 0 says "don't know", and then the other channels hold a neutral value.
With the indicator no answer can be mistaken for the neutral signal, whatever its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core.batching import count, is_graph, tensors
from it3_core.errors import IT3Error


@runtime_checkable
class Adapter(Protocol):
    """What IT³ must know about a kind of answer.

    Everything that returns "one number per instance" returns a tensor of shape `(batch,)`.

    Example:
        >>> isinstance(Regression(), Adapter)
        True
    """

    @property
    def channels(self) -> int:
        """Channels of a signal, the indicator among them."""

    def neutral(self, x: Any) -> Tensor:
        """The don't-know signal for this batch of inputs."""

    def encode(self, answer: Tensor) -> Tensor:
        """A label or an output as a signal; differentiable in outputs."""

    def perturb(self, signal: Tensor, noise: float) -> Tensor:
        """The signal of a slightly wrong answer; `noise` from 0 (unchanged) to 1."""

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        """How far two outputs are apart: one number per instance, differentiable."""

    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        """The supervised loss: one number per instance, differentiable."""

    def error(self, output: Tensor, label: Tensor) -> Tensor:
        """The error people report for this task: one number per instance."""

    def describe(self) -> dict[str, Any]:
        """This adapter as JSON, from which `adapter_from` makes it again."""


Each = Literal["node"]
"""Whose answers they are, where not an instance's: each node's of a graph batch."""

_KINDS: dict[str, Callable[..., Adapter]] = {}
_Kind = TypeVar("_Kind", bound=Callable[..., Adapter])


def register_adapter(kind: _Kind) -> _Kind:
    """Lets `load` make adapters of this class again, from what their `describe()` gives.

    A decorator for a class of your own. `describe()` gives the class's name as "kind", and beside
    it the arguments of the class, as JSON.

    Example:
        >>> @register_adapter
        ... class Angle(Regression):
        ...     "An angle in degrees."
        >>> adapter_from(Angle([0.0], [90.0]).describe())
        Angle(mean=[0.0], std=[90.0])
    """
    _KINDS[kind.__name__] = kind
    return kind


@register_adapter
class Regression:
    """Real numbers, one or several per instance, in the user's units.

    A signal is the standardised value and the indicator; the training statistics travel with
    the adapter. Distances are absolute, in training standard deviations, averaged over the answers
    of an instance.

    Args:
        mean: mean of the training labels, one number per answer.
        std: their standard deviation.
        each: `"node"` for an answer for each node of a graph batch, see `Classification`.

    Example:
        >>> import torch
        >>> adapter = Regression.fit(torch.tensor([10.0, 20.0, 30.0]))
        >>> adapter.encode(torch.tensor([20.0, 30.0]))
        tensor([[0.0000, 1.0000],
                [1.2247, 1.0000]])
        >>> adapter.neutral(torch.zeros(1, 5))
        tensor([[0., 0.]])
    """

    def __init__(
        self,
        mean: float | Sequence[float] | Tensor = 0.0,
        std: float | Sequence[float] | Tensor = 1.0,
        each: Each | None = None,
    ) -> None:
        if each not in (None, "node"):
            raise IT3Error(f'each must be "node" or None, not {each!r}')
        self.each = each
        self.mean = tuple(torch.as_tensor(mean, dtype=torch.float64).flatten().tolist())
        self.std = tuple(torch.as_tensor(std, dtype=torch.float64).flatten().tolist())
        if len(self.mean) != len(self.std):
            raise IT3Error(f"mean has {len(self.mean)} values but std has {len(self.std)}")
        if not all(0 < value < float("inf") for value in self.std):
            raise IT3Error(f"std must be positive and finite, but is {list(self.std)}")
        if not all(map(math.isfinite, self.mean)):
            raise IT3Error(f"mean must be finite, but is {list(self.mean)}")
        self._standard = set(self.mean) == {0.0} and set(self.std) == {1.0}

    @classmethod
    def fit(cls, labels: Tensor, *, each: Each | None = None) -> Regression:
        """The adapter with the statistics of these training labels.

        A constant label gets standard deviation 1: there is no scale to learn from it.
        """
        rows = _rows(torch.as_tensor(labels)).double()
        if rows.numel() == 0:
            raise IT3Error("can't take statistics of no labels at all")
        if not torch.isfinite(rows).all():
            raise IT3Error("the training labels hold NaN or Inf: drop those rows first")
        std = rows.std(0, correction=0)
        std = torch.where(std > 1e-12 * rows.abs().amax(0), std, torch.ones_like(std))
        return cls(rows.mean(0).tolist(), std.tolist(), each)

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self.describe().items() if name != "kind"]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def channels(self) -> int:
        return len(self.mean) + 1

    def neutral(self, x: Any) -> Tensor:
        x = per_node(x) if self.each == "node" else x
        return torch.zeros(count(x), self.channels, **like(x))

    def encode(self, answer: Tensor) -> Tensor:
        values = _rows(answer)
        if values.shape[1] != len(self.mean):
            raise IT3Error(
                f"an instance has {values.shape[1]} answers, but the adapter {len(self.mean)}"
            )
        if not values.is_floating_point():
            values = values.to(torch.get_default_dtype())
        if not self._standard:
            mean, std = self._statistics(values)
            values = (values - mean) / std
        return torch.constant_pad_nd(values, (0, 1), 1.0)

    def perturb(self, signal: Tensor, noise: float) -> Tensor:
        """Adds Gaussian noise of `noise` training standard deviations to the value."""
        return signal + nnf.pad(torch.randn_like(signal[:, :-1]) * noise, (0, 1))

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        gap = self._scale(self._residual(first, second)).abs()
        # The mean of one number is that number, for a fraction of the cost.
        return gap.squeeze(1) if gap.shape[1] == 1 else gap.mean(1)

    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        """Mean squared error in training standard deviations."""
        return self._scale(self._residual(output, label)).square().mean(1)

    def error(self, output: Tensor, label: Tensor) -> Tensor:
        """Absolute error in the user's units, averaged over the answers of an instance."""
        return self._residual(output, label).abs().mean(1)

    def rescale(self) -> nn.Module:
        """A last layer from standardised outputs to the user's units, for networks from scratch."""
        return _Rescale(self.mean, self.std)

    def describe(self) -> dict[str, Any]:
        found = {"kind": type(self).__name__, "mean": list(self.mean), "std": list(self.std)}
        return found | ({"each": self.each} if self.each else {})

    def _residual(self, output: Tensor, label: Tensor) -> Tensor:
        # Both as (batch, answers): (batch, 1) minus (batch,) would broadcast to a square.
        first, second = _rows(output), _rows(label)
        if first.shape != second.shape:
            shapes = f"{tuple(output.shape)} and {tuple(label.shape)}"
            raise IT3Error(f"outputs and labels of shapes {shapes} don't fit")
        return first - second

    def _scale(self, gap: Tensor) -> Tensor:
        return gap if self._standard else gap / self._statistics(gap)[1]

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor] | tuple[float, float]:
        if len(self.mean) == 1:  # plain numbers are faster
            return self.mean[0], self.std[0]
        dtype = like.dtype if like.is_floating_point() else None
        mean, std = torch.tensor([self.mean, self.std], device=like.device, dtype=dtype)
        return mean, std


@register_adapter
class Quantiles(Regression):
    """Quantiles of one number, by the pinball loss: labels `(batch,)`, outputs `(batch, levels)`.

    A label's signal is the label at every level. The error is that of the level nearest to 0.5.

    Args:
        levels: of the quantiles, ascending between 0 and 1.
        mean, std, each: see `Regression`.

    Example:
        >>> import torch
        >>> adapter = Quantiles.fit(torch.tensor([10.0, 20.0, 30.0]), levels=(0.1, 0.5, 0.9))
        >>> adapter.error(torch.tensor([[5.0, 18.0, 40.0]]), torch.tensor([20.0]))
        tensor([2.])
    """

    def __init__(
        self,
        levels: Sequence[float] = (0.05, 0.5, 0.95),
        mean: float = 0.0,
        std: float = 1.0,
        each: Each | None = None,
    ) -> None:
        self.levels = tuple(map(float, levels))
        if not self.levels or [*self.levels] != sorted({q for q in self.levels if 0 < q < 1}):
            raise IT3Error(f"levels must ascend between 0 and 1, and are {list(self.levels)}")
        super().__init__([mean] * len(self.levels), [std] * len(self.levels), each)

    @classmethod
    def fit(
        cls,
        labels: Tensor,
        levels: Sequence[float] = (0.05, 0.5, 0.95),
        *,
        each: Each | None = None,
    ) -> Quantiles:
        one = Regression.fit(labels)
        if len(one.mean) != 1:
            raise IT3Error(f"quantiles are of one number an instance, not of {len(one.mean)}")
        return cls(levels, one.mean[0], one.std[0], each)

    def encode(self, answer: Tensor) -> Tensor:
        return super().encode(self._every_level(answer))

    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        """Pinball loss in training standard deviations, averaged over the levels."""
        gap = self._scale(self._residual(self._every_level(label), output))
        levels = gap.new_tensor(self.levels)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean(1)

    def error(self, output: Tensor, label: Tensor) -> Tensor:
        middle = min(range(len(self.levels)), key=lambda place: abs(self.levels[place] - 0.5))
        return self._residual(output, self._every_level(label))[:, middle].abs()

    def _every_level(self, answer: Tensor) -> Tensor:
        values = _rows(answer)
        return values.expand(-1, len(self.levels)) if values.shape[1] == 1 else values

    def describe(self) -> dict[str, Any]:
        own = {"levels": list(self.levels), "mean": self.mean[0], "std": self.std[0]}
        return super().describe() | own


def adapter_from(description: dict[str, Any]) -> Adapter:
    """The adapter that `describe()` described."""
    import it3_core.model.classes  # noqa: F401 - they are registered there

    settings = dict(description)
    kind = str(settings.pop("kind", None))
    if kind not in _KINDS:
        raise IT3Error(
            f"no adapter is called {kind!r}; there are {sorted(_KINDS)}, and register_adapter adds "
            f"one of your own"
        )
    try:
        return _KINDS[kind](**settings)
    except (TypeError, ValueError, RuntimeError, OverflowError) as problem:
        reason = " ".join(str(problem).split())
        raise IT3Error(f"this is no description of an adapter: {reason}") from problem


class _Rescale(nn.Module):
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean


def _rows(values: Tensor) -> Tensor:
    """(batch,) or (batch, …) as (batch, answers)."""
    return values.unsqueeze(1) if values.dim() == 1 else values.flatten(1)


def per_node(x: Any) -> Any:
    """A tensor with a row for each node of a graph batch; anything else as it is."""
    return torch.empty(len(x.batch), **like(x)) if is_graph(x) else x


def like(x: Any) -> dict[str, Any]:
    """Device and floating dtype for a tensor that goes with `x`."""
    parts = list(tensors(x)) or [torch.empty(0)]
    floating = next((part.dtype for part in parts if part.is_floating_point()), None)
    return {"device": parts[0].device, "dtype": floating}
