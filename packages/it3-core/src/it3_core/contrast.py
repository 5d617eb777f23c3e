"""Any two methods on the same networks and the same inputs: the difference, and its interval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from it3_core.bootstrap import bootstrap_interval
from it3_core.records import Record

__all__ = ["Contrast", "Series", "contrast", "slope"]

Series = tuple[str, int | None]
"""A method and its batch size."""


@dataclass(frozen=True)
class Contrast:
    """How much larger the first's error is than the second's.

    Attributes:
        value: the mean over seeds and instances; negative is better.
        low, high: the ends of the 95 % interval; None for a single value.
        relative: the value as a share of the second's error.
        seeds: how many.

    Example:
        >>> str(Contrast(-0.5, -0.7, -0.3, -0.1, 5))
        '-10.0 % (-14.0 to -6.0)'
    """

    value: float
    low: float | None
    high: float | None
    relative: float | None
    seeds: int

    @property
    def sign(self) -> int:
        """−1 or 1 where the interval excludes zero, else 0."""
        if self.low is None or self.high is None:
            return 0
        return -1 if self.high < 0 else 1 if self.low > 0 else 0

    @property
    def percent(self) -> Contrast:
        """The same in per cent of the second's error; where that is not known, as it is.

        Example:
            >>> Contrast(-0.5, -0.75, -0.25, -0.125, 5).percent.low
            -18.75
        """
        if self.relative is None or not self.value:
            return self
        scale = 100 * self.relative / self.value
        low, high = (None if end is None else scale * end for end in (self.low, self.high))
        return replace(self, value=scale * self.value, low=low, high=high)

    def __str__(self) -> str:
        told = self.percent
        shown = f"{told.value:+.1f}{'' if told is self else ' %'}"
        if told.low is None or told.high is None:
            return shown
        return f"{shown} ({told.low:+.1f} to {told.high:+.1f})"


def contrast(records: Iterable[Record], first: Series, second: Series) -> Contrast | None:
    """The first method's error less the second's, instance by instance, over all common seeds.

    Args:
        records: of one level.
        first, second: methods and batch sizes.

    Returns:
        None where there is nothing to compare.

    Example:
        >>> cell = {"seed": 0, "batch_size": None}
        >>> records = [cell | {"method": "IT³", "errors": [1.0, 2.0, 3.0]},
        ...            cell | {"method": "vanilla", "errors": [2.0, 3.0, 4.0]}]
        >>> contrast(records, ("IT³", None), ("vanilla", None)).value
        -1.0
    """
    records = list(records)
    mine, other = _errors(records, first), _errors(records, second)
    common = sorted(mine.keys() & other.keys())
    if not common:
        return None
    differences = [mine[seed] - other[seed] for seed in common]
    return _contrast(differences, [other[seed] for seed in common])


def slope(
    near: Iterable[Record], far: Iterable[Record], first: Series, second: Series
) -> Contrast | None:
    """How much faster the first's error grows from one level to another than the second's does.

    The levels may hold different instances, so that seeds alone say how sure it is.

    Example:
        >>> cell = {"seed": 0, "batch_size": None}
        >>> near = [cell | {"method": m, "errors": [1.0, 1.0]} for m in ("IT³", "source")]
        >>> far = [cell | {"method": "IT³", "errors": [2.0, 2.0]},
        ...        cell | {"method": "source", "errors": [4.0, 4.0]}]
        >>> slope(near, far, ("IT³", None), ("source", None)).value
        -2.0
    """
    near, far = list(near), list(far)
    parts = [_errors(records, series) for records in (near, far) for series in (first, second)]
    common = sorted(set.intersection(*(set(part) for part in parts)))
    if not common:
        return None
    grown: list[Tensor] = []
    scale: list[Tensor] = []
    for seed in common:
        near_first, near_second, far_first, far_second = (part[seed].mean() for part in parts)
        grown.append((far_first - near_first - (far_second - near_second)).view(1))
        scale.append((far_second - near_second).abs().view(1))
    return _contrast(grown, scale)


def _errors(records: Iterable[Record], series: Series) -> dict[int, Tensor]:
    method, size = series
    return {
        record["seed"]: torch.tensor(record["errors"], dtype=torch.double)
        for record in records
        if record["method"] == method and record["batch_size"] == size and record.get("errors")
    }


def _contrast(differences: list[Tensor], yardstick: list[Tensor]) -> Contrast:
    ends = bootstrap_interval(differences)
    value = sum(float(part.mean()) for part in differences) / len(differences)
    scale = sum(float(part.mean()) for part in yardstick) / len(yardstick)
    low, high = ends if ends is not None else (None, None)
    return Contrast(value, low, high, value / scale if scale else None, len(differences))
