"""What IT³ must know about a kind of answer: the protocol, and the three ready ones.

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
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core.batching import count, tensors
from it3_core.errors import IT3Error
from it3_core.model.distances import MEASURES

ProbabilityDistance = Literal["js", "kl", "l1", "l2"]


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


class Regression:
    """Real numbers, one or several per instance, in the user's units.

    A signal is the standardised value and the indicator; the training statistics travel with
    the adapter. Distances are absolute, in training standard deviations, averaged over the answers
    of an instance.

    Args:
        mean: mean of the training labels, one number per answer.
        std: their standard deviation.

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
    ) -> None:
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
    def fit(cls, labels: Tensor) -> Regression:
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
        return cls(rows.mean(0).tolist(), std.tolist())

    def __repr__(self) -> str:
        return f"Regression(mean={list(self.mean)}, std={list(self.std)})"

    @property
    def channels(self) -> int:
        return len(self.mean) + 1

    def neutral(self, x: Any) -> Tensor:
        return torch.zeros(count(x), self.channels, **_like(x))

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
        return {"kind": "Regression", "mean": list(self.mean), "std": list(self.std)}

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


class _Classes:
    """What `Classification` and `DenseMap` share: labels are integers, outputs are logits."""

    kind: ClassVar[str]

    def __init__(self, classes: int, least: int, distance: ProbabilityDistance) -> None:
        if classes < least:
            raise IT3Error(f"there must be at least {least} classes, not {classes}")
        if distance not in MEASURES:
            raise IT3Error(f"distance must be one of {', '.join(MEASURES)}, not {distance!r}")
        self.classes = int(classes)  # numpy's are no JSON
        self.distance_name = distance

    def __repr__(self) -> str:
        return f"{self.kind}({self.classes}, distance={self.distance_name!r})"

    @property
    def channels(self) -> int:
        return self.classes + 1

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "classes": self.classes, "distance": self.distance_name}

    def _checked(self, label: Tensor, lowest: int | None = 0) -> Tensor:
        if label.is_floating_point():
            raise IT3Error("labels must be integers: call labels.long()")
        label, largest = label.long(), max(self.classes, 2) - 1
        if label.numel() == 0:
            return label
        low, high = int(label.min()), int(label.max())
        if high > largest or (lowest is not None and low < lowest):
            raise IT3Error(f"labels run from {low} to {high}, but must lie in 0 … {largest}")
        return label

    def _gap(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return MEASURES[self.distance_name](log_p, log_q)


class Classification(_Classes):
    """One of several classes: labels are integers `(batch,)`, outputs logits `(batch, classes)`.

    A signal is the class probabilities and the indicator; the neutral is uniform. Distances are
    between the two outputs' probabilities: `"js"` (Jensen–Shannon), `"kl"`, `"l1"` (the sum of the
    absolute differences) or `"l2"` (Euclidean).

    Args:
        classes: number of classes, at least two.
        distance: the measure of the idempotence error; L1 goes best with accuracy.

    Example:
        >>> import torch
        >>> adapter = Classification(2)
        >>> adapter.encode(torch.tensor([1]))
        tensor([[0., 1., 1.]])
        >>> adapter.neutral(torch.zeros(1, 5))
        tensor([[0.5000, 0.5000, 0.0000]])
    """

    kind = "Classification"

    def __init__(self, classes: int, distance: ProbabilityDistance = "l1") -> None:
        super().__init__(classes, 2, distance)

    def neutral(self, x: Any) -> Tensor:
        uniform = torch.full((count(x), self.classes), 1 / self.classes, **_like(x))
        return nnf.pad(uniform, (0, 1))

    def encode(self, answer: Tensor) -> Tensor:
        if answer.is_floating_point():
            if answer.dim() != 2 or answer.shape[1] != self.classes:
                raise IT3Error(
                    f"outputs must be logits of shape (batch, {self.classes}), labels integers"
                )
            return torch.constant_pad_nd(answer.softmax(1), (0, 1), 1.0)
        onehot = nnf.one_hot(self._check(answer), self.classes)
        return nnf.pad(onehot.to(torch.get_default_dtype()), (0, 1), value=1.0)

    def perturb(self, signal: Tensor, noise: float) -> Tensor:
        """With probability `noise`, replaces an answer by a class drawn at random."""
        drawn = torch.randint(self.classes, signal.shape[:1], device=signal.device)
        other = nnf.pad(nnf.one_hot(drawn, self.classes).to(signal), (0, 1), value=1.0)
        replaced = torch.rand(signal.shape[0], 1, device=signal.device) < noise
        return torch.where(replaced, other, signal)

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        return self._gap(first.log_softmax(1), second.log_softmax(1))

    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        """Cross-entropy, in nats."""
        return nnf.cross_entropy(output, self._check(label), reduction="none")

    def error(self, output: Tensor, label: Tensor) -> Tensor:
        """1 where the most probable class is wrong, else 0."""
        return (output.argmax(1) != self._check(label)).to(output.dtype)

    def _check(self, label: Tensor) -> Tensor:
        if label.dim() == 1:
            return self._checked(label)
        raise IT3Error(f"class labels must have shape (batch,), not {tuple(label.shape)}")


class DenseMap(_Classes):
    """A class for every pixel. Outputs are logits `(batch, classes, *size)`.

    With `classes=1` the map is binary: one logit a pixel. Labels are integers `(batch, *size)`
    (or `(batch, 1, height, width)`); a negative label means "unknown", is left out of loss and
    error, and is encoded as neutral. A signal is a map of probabilities and an indicator plane.
    Distances are means over the pixels of the measures that `Classification` has.

    Args:
        classes: 1 for a binary map, else the number of classes.
        distance: the measure of the idempotence error.

    Example:
        >>> import torch
        >>> adapter = DenseMap()
        >>> adapter.neutral(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 2, 8, 8])
        >>> adapter.encode(torch.tensor([[[0, 1, -1]]])).squeeze()
        tensor([[0.0000, 1.0000, 0.5000],
                [1.0000, 1.0000, 0.0000]])
    """

    kind = "DenseMap"

    def __init__(self, classes: int = 1, distance: ProbabilityDistance = "js") -> None:
        super().__init__(classes, 1, distance)

    @property
    def _uniform(self) -> float:
        return 0.5 if self.classes == 1 else 1 / self.classes

    def neutral(self, x: Any) -> Tensor:
        size = next(tensors(x)).shape[2:]
        uniform = torch.full((count(x), self.classes, *size), self._uniform, **_like(x))
        return torch.cat([uniform, torch.zeros_like(uniform[:, :1])], 1)

    def encode(self, answer: Tensor) -> Tensor:
        if answer.is_floating_point():
            values = answer.sigmoid() if self.classes == 1 else answer.softmax(1)
            return torch.cat([values, torch.ones_like(values[:, :1])], 1)
        label = self._check(answer)
        known = (label >= 0).unsqueeze(1)
        values = self._planes(label.clamp_min(0)).to(torch.get_default_dtype())
        values = torch.where(known, values, torch.full_like(values, self._uniform))
        return torch.cat([values, known.to(values)], 1)

    def perturb(self, signal: Tensor, noise: float) -> Tensor:
        """With probability `noise`, replaces a pixel's answer by a class drawn at random."""
        values, known = signal[:, :-1], signal[:, -1:]
        shape = (signal.shape[0], *signal.shape[2:])
        drawn = torch.randint(max(self.classes, 2), shape, device=signal.device)
        other = self._planes(drawn).to(values)
        replaced = (torch.rand_like(known) < noise) & (known > 0)
        return torch.cat([torch.where(replaced, other, values), known], 1)

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        return self._gap(self._log(first), self._log(second)).flatten(1).mean(1)

    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        """Cross-entropy, in nats, averaged over the known pixels."""
        label = self._check(label, output)
        picked = self._log(output).gather(1, label.clamp_min(0).unsqueeze(1)).squeeze(1)
        return _mean_known(-picked, label)

    def error(self, output: Tensor, label: Tensor) -> Tensor:
        """Fraction of the known pixels whose most probable class is wrong."""
        label = self._check(label, output)
        wrong = self._log(output).argmax(1) != label
        return _mean_known(wrong.to(output.dtype), label)

    def _planes(self, label: Tensor) -> Tensor:
        """A plane for each class, or the one of a binary map."""
        if self.classes == 1:
            return label.unsqueeze(1)
        return nnf.one_hot(label, self.classes).movedim(-1, 1)

    def _log(self, output: Tensor) -> Tensor:
        """Log-probabilities with at least two classes."""
        if self.classes == 1:
            return torch.cat([nnf.logsigmoid(-output), nnf.logsigmoid(output)], 1)
        return output.log_softmax(1)

    def _check(self, label: Tensor, output: Tensor | None = None) -> Tensor:
        label = self._checked(label, lowest=None)  # a negative one is unknown
        dimensions = 4 if output is None else output.dim()
        if label.dim() == dimensions and label.shape[1] == 1:
            label = label.squeeze(1)
        if output is not None and label.shape != (output.shape[0], *output.shape[2:]):
            raise IT3Error(f"maps {tuple(output.shape)} don't fit labels {tuple(label.shape)}")
        return label


def adapter_from(description: dict[str, Any]) -> Adapter:
    """The adapter that `describe()` described."""
    settings = dict(description)
    kinds: dict[Any, Callable[..., Adapter]] = {
        kind.__name__: kind for kind in (Regression, Classification, DenseMap)
    }
    kind = str(settings.pop("kind", None))
    if kind not in kinds:
        raise IT3Error(f"no adapter of it3-core is called {kind!r}; there are {sorted(kinds)}")
    try:
        return kinds[kind](**settings)
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


def _like(x: Any) -> dict[str, Any]:
    """Device and floating dtype for a tensor that goes with `x`."""
    parts = list(tensors(x)) or [torch.empty(0)]
    floating = next((part.dtype for part in parts if part.is_floating_point()), None)
    return {"device": parts[0].device, "dtype": floating}


def _mean_known(values: Tensor, label: Tensor) -> Tensor:
    known = (label >= 0).flatten(1)
    total = torch.where(known, values.flatten(1), torch.zeros_like(values.flatten(1))).sum(1)
    return total / known.sum(1).clamp_min(1)
