"""What a practitioner would try first: the mean, and gradient boosting on shape parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from it3_aero.learning.baselines import FromParameters
from it3_aero.learning.shapes import Shapes
from it3_core.batching import count

__all__ = ["gradient_boosting", "train_mean"]


def train_mean(known: Shapes) -> Callable[[Any], Tensor]:
    """The mean of the training labels, whatever it is asked about.

    Example:
        >>> import torch
        >>> cars = Shapes(torch.rand(2, 8, 2), torch.tensor([0.25, 0.75]), ["a", "b"])
        >>> train_mean(cars)(torch.rand(3, 8, 2)).flatten()
        tensor([0.5000, 0.5000, 0.5000])
    """
    mean = float(known.y.mean())
    return lambda x: torch.full((count(x), 1), mean)


def gradient_boosting(
    known: Shapes, others: Sequence[Shapes] = (), seed: int = 0
) -> FromParameters:
    """Gradient boosting from shape parameters to drag; a parameter may be missing.

    Args:
        known: training cars with parameters.
        others: every other car that it will be asked about, for their parameters.
        seed: of the trees.

    Example:
        >>> import torch
        >>> x = torch.rand(60, 8, 2)
        >>> cars = Shapes(x, x[:, 0, 0], [str(i) for i in range(60)], x[:, 0])
        >>> bool((gradient_boosting(cars)(x).flatten() - cars.y).abs().mean() < 0.05)
        True
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    # For a few dozen cars: its own default puts 20 into each leaf.
    regressor = HistGradientBoostingRegressor(
        min_samples_leaf=4, max_leaf_nodes=8, learning_rate=0.05, max_iter=300, random_state=seed
    )
    return FromParameters(regressor, known, others)
