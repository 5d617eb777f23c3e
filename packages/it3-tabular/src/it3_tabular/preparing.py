"""From a table with gaps to what the network sees: standardised values, and a mask of the gaps.

A gap (NaN) is filled with what the row's other values make most likely: the mean of a Gaussian,
fitted to the training rows, given those values. Where features are correlated that is far better
than the column's mean, and where they are not it is the column's mean. Beside each value stands
an indicator, 1 where it was missing, so that the network can tell a guess from a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from it3_core import IT3Error
from it3_core.batching import batches

__all__ = ["Floats", "Imputation", "Preparation", "drop_values"]

Floats = NDArray[np.float64]
Imputation = Literal["gaussian", "mean"]

_SHRINKAGE = 0.01  # of the correlations towards none: no pair of columns is taken as one
_ROUNDS = 10  # of expectation and maximisation, where training rows have gaps themselves
_MOST_NUMBERS = 2**22  # in a block of systems to solve: 32 MB
_FARTHEST = 1e6  # standard deviations: beyond, a value says no more than that it is far out


@dataclass(frozen=True)
class Preparation:
    """What was learnt about the training rows' columns, to prepare any rows like them.

    Attributes:
        mean: of each column, without its gaps.
        scale: its standard deviation; 1 for a constant column.
        precision: inverse of the columns' correlation matrix, a little shrunk; the identity for
            imputation by the mean.

    Example:
        >>> import numpy as np
        >>> x = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]])
        >>> preparation = Preparation.fit(x)
        >>> preparation(np.array([[4.0, np.nan]])).round(decimals=2)  # values, and gaps
        tensor([[1.3400, 1.3300, 0.0000, 1.0000]], dtype=torch.float64)
    """

    mean: Tensor
    scale: Tensor
    precision: Tensor

    @classmethod
    def fit(
        cls, x: Floats, imputation: Imputation = "gaussian", names: Sequence[str] | None = None
    ) -> Preparation:
        """Learns from training rows; `names` of the columns are for messages."""
        if imputation not in get_args(Imputation):
            raise IT3Error(f'imputation must be "gaussian" or "mean", not {imputation!r}')
        missing = np.isnan(x)
        if missing.all(0).any():
            empty = int(np.argmax(missing.all(0)))
            column = f"column {empty}" if names is None else f"column {names[empty]!r}"
            raise IT3Error(f"{column} has no value in any row: leave it out")
        # Scaled by its largest value first, so that squares of extreme numbers don't overflow.
        largest = np.nanmax(np.abs(x), axis=0)
        largest[largest == 0] = 1.0
        share = x / largest
        mean, spread = np.nanmean(share, axis=0), np.nanstd(share, axis=0)
        constant = spread <= 1e-12
        scale = np.where(constant, 1.0, spread * largest)
        found = cls(
            torch.as_tensor(mean * largest, dtype=torch.float64),
            torch.as_tensor(np.where(scale > 0, scale, 1.0), dtype=torch.float64),
            torch.eye(x.shape[1], dtype=torch.float64),
        )
        if imputation == "mean":
            return found
        precision = _precision(found._standardised(x), torch.as_tensor(missing))
        return cls(found.mean, found.scale, precision)

    def __call__(self, x: Floats) -> Tensor:
        """Rows as the network takes them: the values, gaps filled, then the indicators."""
        missing = torch.as_tensor(np.isnan(x))
        values = self._standardised(x)
        gaps = missing.any(1).nonzero().flatten()
        if len(gaps):
            values[gaps] = _filled(values[gaps], missing[gaps], self.precision)
        return torch.cat([values, missing.to(values)], 1)

    def _standardised(self, x: Floats) -> Tensor:
        """Zero where a value is missing."""
        own = torch.from_numpy(np.array(x, dtype=np.float64))  # a copy: a frame's may be read-only
        values = (own - self.mean) / self.scale
        return values.nan_to_num(nan=0.0).clamp(-_FARTHEST, _FARTHEST)


def drop_values(x: Floats, share: float, generator: np.random.Generator) -> Floats:
    """A copy with `share` of the values missing, drawn at random.

    Example:
        >>> import numpy as np
        >>> np.isnan(drop_values(np.zeros((100, 10)), 0.2, np.random.default_rng(0))).mean()
        np.float64(0.193)
    """
    return np.where(generator.random(x.shape) < share, np.nan, x)


def _precision(values: Tensor, missing: Tensor) -> Tensor:
    """The inverse correlation matrix; over rows with gaps, by expectation and maximisation."""
    columns = values.shape[1]
    identity = torch.eye(columns, dtype=values.dtype)
    precision = identity
    for _ in range(_ROUNDS if bool(missing.any()) else 1):
        filled, spread = values, torch.zeros_like(identity)
        if bool(missing.any()):
            filled = _filled(values, missing, precision)
            spread = _uncertainty(missing, precision)
        covariance = (filled.T @ filled + spread) / len(filled)
        covariance = (1 - _SHRINKAGE) * covariance + _SHRINKAGE * identity
        precision = torch.linalg.inv(covariance)
    return precision


def _filled(values: Tensor, missing: Tensor, precision: Tensor) -> Tensor:
    """Gaps filled with their mean given the rest of the row: −P_mm⁻¹ P_mo x_o, P the precision."""
    parts = []
    for part, gaps in _blocks(values, missing):
        system = _systems(gaps, precision)
        right = torch.where(gaps, -(part @ precision), part)  # part is 0 in the gaps
        parts.append(torch.linalg.solve(system, right))
    return torch.cat(parts)


def _uncertainty(missing: Tensor, precision: Tensor) -> Tensor:
    """Sum over rows of the gaps' covariance given the rest: P_mm⁻¹."""
    total = torch.zeros_like(precision)
    rows = missing[missing.any(1)]
    for _, gaps in _blocks(rows, rows):
        both = gaps[:, :, None] & gaps[:, None, :]
        total += torch.where(both, torch.linalg.inv(_systems(gaps, precision)), 0.0).sum(0)
    return total


def _systems(gaps: Tensor, precision: Tensor) -> Tensor:
    """For each row the precision among its gaps, and the identity elsewhere."""
    both = gaps[:, :, None] & gaps[:, None, :]
    return torch.where(both, precision, torch.eye(len(precision), dtype=precision.dtype))


def _blocks(values: Tensor, missing: Tensor) -> list[tuple[Tensor, Tensor]]:
    size = max(1, _MOST_NUMBERS // values.shape[1] ** 2)
    return list(zip(batches(values, size), batches(missing, size), strict=True))
