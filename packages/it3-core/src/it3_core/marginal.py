"""What a batch's answers are like on the whole: an opt-in anchor for streams whose mix holds.

The idempotence gap looks at one answer at a time, and on a stream nothing keeps all answers from
drifting to one side together. Where the labels to come are known to be mixed as training's were,
the batch's answers can be held to that mix. Where they are not (half of the classes, the heaviest
cars alone), the same anchor pulls right answers away: nothing here is on by default.
"""

from __future__ import annotations

import torch
from torch import Tensor

from it3_core.adapters import Adapter, Regression
from it3_core.errors import IT3Error

__all__ = ["Marginal"]

_LEAST = 1e-6  # a share below which a class counts as one that hardly comes


class Marginal:
    """The training labels' mix, and how far a batch's answers are from it.

    Of classes (of instances or pixels) the mix is their shares, and the gap KL(mix ‖ the batch's
    mean probabilities); of numbers it is their mean and deviation, and the gap the squares of what
    the batch's lack, in training's deviations.

    Args:
        adapter: what kind of answer it is.
        labels: training labels, as the adapter takes them.

    Attributes:
        mean: the classes' shares, or the numbers' mean in training's deviations.
        spread: the numbers' deviation; None of classes.

    Example:
        >>> import torch
        >>> from it3_core import Classification
        >>> mix = Marginal(Classification(2), torch.tensor([0, 0, 0, 1]))
        >>> mix.mean
        tensor([0.7500, 0.2500])
        >>> even, as_trained = torch.zeros(2, 2), torch.tensor([[3.0, 1.0]]).log()
        >>> float(mix.gap(as_trained)) < 1e-6 < float(mix.gap(even))
        True
    """

    def __init__(self, adapter: Adapter, labels: Tensor) -> None:
        if len(labels) < 2:
            raise IT3Error(f"a mix of {len(labels)} labels is none: give the training labels")
        self.adapter = adapter
        values = _values(adapter, labels)
        if not bool(torch.isfinite(values).all()):
            raise IT3Error("the training labels hold NaN or Inf: drop those rows first")
        numbers = isinstance(adapter, Regression)
        self.mean = values.mean(0) if numbers else _shares(values)
        self.spread = values.std(0, correction=0) if numbers else None

    def gap(self, output: Tensor) -> Tensor:
        """How far the batch's answers are from the mix: one number, differentiable."""
        values = _values(self.adapter, output)
        mean = self.mean.to(values)
        if self.spread is None:
            return (mean * (mean.log() - _shares(values).log())).sum()
        gap = (values.mean(0) - mean).square().mean()
        if len(values) == 1:  # one answer has no deviation
            return gap
        # The root's gradient is infinite where all answers are the same.
        spread = (values.var(0, correction=0) + _LEAST).sqrt()
        return gap + (spread - self.spread.to(values)).square().mean()


def _values(adapter: Adapter, answer: Tensor) -> Tensor:
    """Answers as signals without the indicator, of every instance or pixel: (number, channels)."""
    signal = adapter.encode(answer)
    values = signal[:, :-1]
    if values.dim() == 2:
        return values
    known = (signal[:, -1] > 0).flatten()
    rows: Tensor = values.movedim(1, -1).flatten(0, -2)
    return rows[known]


def _shares(probabilities: Tensor) -> Tensor:
    mean = probabilities.mean(0)
    if len(mean) == 1:  # a binary map
        mean = torch.cat([1 - mean, mean])
    return mean.clamp_min(_LEAST)
