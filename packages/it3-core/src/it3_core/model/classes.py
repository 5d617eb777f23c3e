"""Adapters of classes: labels are integers, outputs float logits, signals probabilities.

They differ in their shapes alone: which places an instance has, each with an answer of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as nnf
from torch import Tensor

from it3_core.batching import count, tensors
from it3_core.errors import IT3Error
from it3_core.model.adapters import Each, like, per_node, register_adapter
from it3_core.model.distances import MEASURES

ProbabilityDistance = Literal["js", "kl", "l1", "l2"]


class _Classes:
    """What they share: classes on dimension 1 (of tokens on the last), an indicator a place."""

    _logits: str  # shape of the outputs
    _each: ClassVar[Sequence[str | None]] = (None, "node")  # that make sense
    _dimensions: int | None = 2  # of them, classes among these; None: any number
    _least: ClassVar[int] = 1
    _usual: ClassVar[ProbabilityDistance] = "l1"
    _yes_or_no: ClassVar[bool] = False  # by one logit; else with one class alone
    _negative: bool = True  # whether a negative label means "unknown"

    def __init__(
        self,
        classes: int = 1,
        distance: ProbabilityDistance | None = None,
        weights: Sequence[float] | None = None,
        ignore_index: int | None = None,
        each: Each | Literal["token"] | None = None,
    ) -> None:
        if classes < self._least:
            raise IT3Error(f"there must be at least {self._least} classes, not {classes}")
        self.classes = int(classes)  # numpy's are no JSON
        self.ignore_index, self.each = ignore_index, each
        self.distance_name = distance = self._usual if distance is None else distance
        if distance not in MEASURES:
            raise IT3Error(f"distance must be one of {', '.join(MEASURES)}, not {distance!r}")
        if each not in self._each:
            raise IT3Error(f"each must be {' or '.join(map(repr, self._each))}, not {each!r}")
        if each == "token":
            self._logits, self._dimensions, self._negative = "(batch, tokens, classes)", 3, True
        self._columns = 1 if self._yes_or_no else classes  # logits of a place
        self.weights = None if weights is None else [*map(float, weights)]
        size = max(self._columns, 2)
        if self.weights is not None and [0 <= w < math.inf for w in self.weights] != [True] * size:
            raise IT3Error(f"weights must be {size} numbers from 0 up, one for each class")

    def __repr__(self) -> str:
        _, size, *own = self.describe().items()
        shown = [str(size[1]), *(f"{name}={value!r}" for name, value in own)]
        return f"{type(self).__name__}({', '.join(shown)})"

    def describe(self) -> dict[str, Any]:
        size: dict[str, Any] = {"kind": type(self).__name__, "classes": self.classes}
        found = {"weights": self.weights, "ignore_index": self.ignore_index, "each": self.each}
        chosen = {name: value for name, value in found.items() if value is not None}
        return size | {"distance": self.distance_name} | chosen

    @property
    def channels(self) -> int:
        return self._columns + 1

    def neutral(self, x: Any) -> Tensor:
        x = per_node(x) if self.each == "node" else x
        shape = (count(x), self._columns, *self._places(x))
        uniform = torch.full(shape, 1 / max(self._columns, 2), **like(x))
        return _with_indicator(uniform, 0.0)

    def encode(self, answer: Tensor) -> Tensor:
        if answer.is_floating_point():
            logits = self._second(answer)
            fits = self._dimensions is None or self._dimensions == logits.dim()
            if not fits or logits.shape[1:2] != (self._columns,):
                raise IT3Error(
                    f"outputs of {self} must be logits of shape {self._logits}, not "
                    f"{tuple(answer.shape)}: give the network, or the adapter, as many outputs"
                )
            values = logits.sigmoid() if self._columns == 1 else logits.softmax(1)
            return _with_indicator(values, 1.0)
        label = self._check(answer)
        known = (label >= 0).unsqueeze(1)
        values = self._planes(label.clamp_min(0)).to(torch.get_default_dtype())
        values = values.where(known, 1 / max(self._columns, 2))
        return torch.cat([values, known.to(values)], 1)

    def perturb(self, signal: Tensor, noise: float) -> Tensor:
        """With probability `noise`, replaces an answer by a class drawn at random."""
        values, known = signal[:, :-1], signal[:, -1:]
        shape = (signal.shape[0], *signal.shape[2:])
        drawn = torch.randint(max(self._columns, 2), shape, device=signal.device)
        other = self._planes(drawn).to(values)
        replaced = (torch.rand_like(known) < noise) & (known > 0)
        return torch.cat([torch.where(replaced, other, values), known], 1)

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        gap = self._gap(self.log_probabilities(first), self.log_probabilities(second))
        return gap.view(len(gap), -1).mean(1)

    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        """Cross-entropy, in nats, averaged over the known places; times the class's weight."""
        label = self._check(label, output)
        known = label.clamp_min(0)
        picked = self.log_probabilities(output).gather(1, known.unsqueeze(1)).squeeze(1)
        if self.weights is not None:
            picked = picked * picked.new_tensor(self.weights)[known]
        return _mean_known(-picked, label)

    def error(self, output: Tensor, label: Tensor) -> Tensor:
        """Fraction of the known places whose most probable class is wrong."""
        label = self._check(label, output)
        wrong = self.log_probabilities(output).argmax(1) != label
        return _mean_known(wrong.to(output.dtype), label)

    def log_probabilities(self, output: Tensor) -> Tensor:
        """Of two classes at least, on dimension 1."""
        output = self._second(output)
        if self._columns == 1:
            return torch.cat([nnf.logsigmoid(-output), nnf.logsigmoid(output)], 1)
        return output.log_softmax(1)

    def logits(self, output: Tensor) -> Tensor:
        """Of two classes at least, on dimension 1; one logit z is the two −z/2 and z/2."""
        output = self._second(output)
        return torch.cat([-output, output], 1) / 2 if self._columns == 1 else output

    def _places(self, x: Any) -> Sequence[int]:
        """The places of an instance: none, where it has one answer."""
        return next(tensors(x)).shape[1:2] if self.each == "token" else ()

    def _second(self, output: Tensor) -> Tensor:
        """Outputs with the classes on dimension 1."""
        return output.movedim(-1, 1) if self.each == "token" else output

    def _planes(self, label: Tensor) -> Tensor:
        """A plane for each class, or the one of a single logit."""
        if self._columns == 1:
            return label.unsqueeze(1)
        return nnf.one_hot(label, self._columns).movedim(-1, 1)

    def _gap(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return MEASURES[self.distance_name](log_p, log_q)

    def _check(self, label: Tensor, output: Tensor | None = None) -> Tensor:
        """The labels as integers, those that are unknown negative."""
        if label.is_floating_point():
            raise IT3Error("labels must be integers: call labels.long()")
        label = label.long()
        if self.ignore_index is not None:
            label = label.masked_fill(label == self.ignore_index, -1)
        lowest = None if self._negative or self.ignore_index is not None else 0
        largest = max(self._columns, 2) - 1
        if label.numel():
            low, high = int(label.min()), int(label.max())
            if high > largest or (lowest is not None and low < lowest):
                raise IT3Error(f"labels run from {low} to {high}, but must lie in 0 … {largest}")
        shape = None if output is None else self._second(output).shape
        dimensions = self._dimensions or (4 if shape is None else len(shape))
        if label.dim() == dimensions and label.shape[1] == 1:
            label = label.squeeze(1)
        if self._dimensions is not None and label.dim() != dimensions - 1:
            raise IT3Error(
                f"labels {tuple(label.shape)} of {self} have one dimension too many or few"
            )
        if shape is not None and label.shape != (shape[0], *shape[2:]):
            raise IT3Error(f"labels {tuple(label.shape)} don't fit logits {tuple(shape)}")
        return label


@register_adapter
class Classification(_Classes):
    """One of several classes: labels are integers `(batch,)`, outputs logits `(batch, classes)`.

    A signal is the class probabilities and the indicator; the neutral is uniform. Distances are
    between the two outputs' probabilities: `"js"` (Jensen–Shannon), `"kl"`, `"l1"` (the sum of the
    absolute differences) or `"l2"` (Euclidean).

    Args:
        classes: number of classes, at least two.
        distance: the measure of the idempotence error; L1 goes best with accuracy.
        weights: of the classes in the loss.
        ignore_index: a label that means "unknown": its loss and error are 0, its signal neutral.
        each: `"token"` for outputs `(batch, tokens, classes)`: negative labels, such as the −100 of
            padding, are unknown, and distances are means over all tokens, since outputs don't say
            which are padding. `"node"` for outputs `(nodes, classes)` of a graph batch: what is
            per instance elsewhere is per node.

    Example:
        >>> import torch
        >>> adapter = Classification(2)
        >>> adapter.encode(torch.tensor([1]))
        tensor([[0., 1., 1.]])
        >>> adapter.neutral(torch.zeros(1, 5))
        tensor([[0.5000, 0.5000, 0.0000]])
        >>> words = Classification(2, each="token")
        >>> words.error(torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]), torch.tensor([[1, -100]]))
        tensor([0.])
    """

    _logits = "(batch, classes)"
    _each = (None, "node", "token")
    _least = 2
    _negative = False


@register_adapter
class DenseMap(_Classes):
    """A class for every pixel. Outputs are logits `(batch, classes, *size)`.

    With `classes=1` the map is binary: one logit a pixel. Labels are integers `(batch, *size)`
    (or `(batch, 1, height, width)`); a negative label means "unknown", is left out of loss and
    error, and is encoded as neutral. A signal is a map of probabilities and an indicator plane.
    Distances are means over the pixels of the measures that `Classification` has.

    Args:
        classes: 1 for a binary map, else the number of classes.
        distance: the measure of the idempotence error.
        weights: of the classes in the loss; of no and yes for a binary map.
        ignore_index: another label that means "unknown", such as 255.

    Example:
        >>> import torch
        >>> adapter = DenseMap()
        >>> adapter.neutral(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 2, 8, 8])
        >>> adapter.encode(torch.tensor([[[0, 1, -1]]])).squeeze()
        tensor([[0.0000, 1.0000, 0.5000],
                [1.0000, 1.0000, 0.0000]])
    """

    _logits = "(batch, classes, *size)"
    _each = (None,)
    _dimensions = None
    _usual = "js"

    def _places(self, x: Any) -> Sequence[int]:
        return next(tensors(x)).shape[2:]


@register_adapter
class MultiLabel(_Classes):
    """Labels that don't exclude each other: outputs are logits `(batch, labels)`, one a label.

    Labels are integers `(batch, labels)`: 1, 0, or negative where unknown. A signal is each label's
    probability, then each label's indicator. The error is the fraction of wrong labels.

    Args:
        classes: the number of labels.
        distance, ignore_index, each: as for `Classification`.
        weights: of no and of yes in the loss.

    Example:
        >>> import torch
        >>> MultiLabel(2).encode(torch.tensor([[1, -1]]))
        tensor([[1.0000, 0.5000, 1.0000, 0.0000]])
    """

    _logits = "(batch, labels)"
    _dimensions = 3
    _yes_or_no = True

    @property
    def channels(self) -> int:
        return 2 * self.classes

    def neutral(self, x: Any) -> Tensor:
        return super().neutral(x).flatten(1)

    def encode(self, answer: Tensor) -> Tensor:
        return super().encode(answer).flatten(1)

    def perturb(self, signal: Tensor, noise: float) -> Tensor:
        return super().perturb(signal.view(len(signal), 2, self.classes), noise).flatten(1)

    def _places(self, x: Any) -> Sequence[int]:
        return (self.classes,)

    def _second(self, output: Tensor) -> Tensor:
        return output.unsqueeze(1)


@register_adapter
class Binary(_Classes):
    """Yes or no by one logit: outputs are `(batch,)` or `(batch, 1)`, labels 1 and 0 `(batch,)`.

    Args:
        distance, ignore_index, each: as for `Classification`.
        weights: of no and of yes in the loss.

    Example:
        >>> import torch
        >>> Binary().error(torch.tensor([2.0, 1.0]), torch.tensor([1, 0]))
        tensor([0., 1.])
    """

    _logits = "(batch, 1)"
    _yes_or_no = True

    def _second(self, output: Tensor) -> Tensor:
        return output.unsqueeze(1) if output.dim() == 1 else output


def _with_indicator(values: Tensor, known: float) -> Tensor:
    return torch.constant_pad_nd(values, [0, 0] * (values.dim() - 2) + [0, 1], known)


def _mean_known(values: Tensor, label: Tensor) -> Tensor:
    """The mean over an instance's places whose label is known; 0 where none is."""
    known = (label >= 0).view(len(label), -1)
    values = values.view(known.shape)
    return values.where(known, 0.0).sum(1) / known.sum(1).clamp_min(1)
