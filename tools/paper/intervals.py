"""How far two methods differ, and how good a score is, each with a 95 % interval.

From five training seeds on, intervals are over seeds and instances; of fewer, the seeds are fixed
and the interval is over instances alone, with each seed's mean beside. Differences and slopes are
means, whose intervals `bootstrap_intervals` gives. AUROC and Pearson's r have percentile intervals:
each is computed anew from instances drawn with replacement, so that none leaves its scale. A mean
that has a scale of its own, such as an accuracy, has its interval on the logit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from it3_core.evaluation.records import Record
from it3_core.experiment.statistics import CONFIDENCE, bootstrap_intervals, correlation
from it3_core.experiment.tables import interval

Series = tuple[str, int | None]
"""A method and its batch size."""

Floats = NDArray[np.float64]

ENOUGH = 5
"""Training seeds from which on an interval is over seeds too."""

_RESAMPLES = 2000


@dataclass(frozen=True)
class Contrast:
    """How much larger the first's error is than the second's."""

    value: float  # the mean over seeds and instances; negative is better
    low: float | None  # the ends of the 95 % interval; None for a single value
    high: float | None
    scale: float | None  # the second's error; None where it is not known or zero
    seeds: tuple[float, ...]  # each seed's mean

    @property
    def sign(self) -> int:
        """−1 or 1 where the interval excludes zero, and few seeds all agree; else 0."""
        few = len(self.seeds) < ENOUGH
        if self.low is None or self.high is None or (few and min(self.seeds) * max(self.seeds) < 0):
            return 0
        return -1 if self.high < 0 else 1 if self.low > 0 else 0

    @property
    def percent(self) -> Contrast:
        """The same in per cent of the second's error; where that is not known, as it is."""
        if self.scale is None:
            return self
        factor = 100 / self.scale
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        seeds = tuple(factor * one for one in self.seeds)
        return replace(self, value=factor * self.value, low=low, high=high, scale=None, seeds=seeds)

    @property
    def by_seed(self) -> str:
        """Each seed's mean, where they are too few for an interval over seeds."""
        if not 1 < len(self.seeds) < ENOUGH:
            return ""
        return f"seeds {', '.join(f'{one:+z.1f}' for one in self.percent.seeds)}"

    def __str__(self) -> str:
        percent = self.percent
        shown = interval(percent.value, percent.low, percent.high, 1, "+z")
        if self.scale is None:
            return shown
        value, bracket, ends = shown.partition(" (")
        return f"{value} %{bracket}{ends}"


def contrast(records: Iterable[Record], first: Series, second: Series) -> Contrast | None:
    """The first method's error less the second's, instance by instance, over all common seeds.

    The records are of one level and one evaluation; None where there is nothing to compare.
    """
    records = list(records)
    mine, other = _errors(records, first), _errors(records, second)
    common = sorted(mine.keys() & other.keys())
    differences = [mine[seed] - other[seed] for seed in common]
    return over_seeds(differences, [float(other[seed].mean()) for seed in common])


def slope(
    near: Iterable[Record], far: Iterable[Record], first: Series, second: Series
) -> Contrast | None:
    """How much faster the first's error grows from one level to another than the second's does.

    The levels may hold different instances: a value for each instance of both is made, whose mean
    is the slope and whose spread is that of the two levels' means.
    """
    near, far = list(near), list(far)
    parts = [_errors(records, series) for records in (near, far) for series in (first, second)]
    grown, scale = [], []
    for seed in sorted(set.intersection(*(set(part) for part in parts))):
        near_first, near_second, far_first, far_second = (part[seed] for part in parts)
        sides = (far_first - far_second, near_second - near_first)
        mean, number = sum(float(one.mean()) for one in sides), sum(map(len, sides))
        spread = [(one - one.mean()) * number / len(one) for one in sides]
        grown.append(mean + torch.cat(spread))
        scale.append(float((far_second.mean() - near_second.mean()).abs()))
    return over_seeds(grown, scale)


def over_seeds(values: Sequence[Tensor], scales: Sequence[float] = ()) -> Contrast | None:
    """The mean over seeds, each with its instances' values, and its interval; None without any."""
    if not values:
        return None
    resamples = _RESAMPLES if len(values[0]) < 1000 else 500  # of many, fewer say as much
    ends = bootstrap_intervals([values], resamples, seeds_fixed=len(values) < ENOUGH)[0]
    low, high = ends or (None, None)
    means = tuple(float(part.mean()) for part in values)
    scale = sum(scales) / len(scales) if scales else 0.0
    return Contrast(sum(means) / len(means), low, high, scale or None, means)


def _errors(records: Iterable[Record], series: Series) -> dict[int, Tensor]:
    method, size = series
    return {
        record["seed"]: torch.tensor(record["errors"], dtype=torch.double)
        for record in records
        if record["method"] == method and record["batch_size"] == size and record.get("errors")
    }


@dataclass(frozen=True)
class Estimate:
    """A score's AUROC or correlation: never outside of its scale."""

    value: float  # the mean over seeds
    low: float
    high: float
    seeds: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})".replace("-", "−")


def auroc_interval(shifted: Sequence[Floats], inside: Sequence[Floats]) -> Estimate | None:
    """The chance that a shifted instance scores higher than one in distribution, seed by seed."""
    pairs = [(a, b) for a, b in zip(shifted, inside, strict=True) if len(a) and len(b)]
    if not pairs:
        return None
    # Who beats whom, so that drawing instances anew is a product of counts.
    wins = [(a[:, None] > b) + 0.5 * (a[:, None] == b) for a, b in pairs]
    rng = np.random.default_rng(0)
    counts: dict[int, Floats] = {}  # the same instances for all seeds that have as many
    for number in sorted({size for one in wins for size in one.shape}):
        counts[number] = _counts(rng, number)
    drawn = [((counts[len(one)] @ one) * counts[one.shape[1]]).sum(1) for one in wins]
    return _estimate(rng, drawn, [float(one.mean()) for one in wins])


def pearson_interval(seeds: Sequence[tuple[Sequence[str], Floats, Floats]]) -> Estimate | None:
    """Of batches' means, for each seed their levels and two columns; whole levels are drawn anew.

    Batches of one corruption at one severity are alike: drawing batches would be too sure.
    """
    values = [correlation(a, b) for _, a, b in seeds]
    if not values or any(map(math.isnan, values)):
        return None
    rng = np.random.default_rng(0)
    counts: dict[int, Floats] = {}
    drawn = []
    for levels, a, b in seeds:
        x, y = a - a.mean(), b - b.mean()
        frame = pd.DataFrame({"n": 1.0, "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y})
        sums = frame.groupby(list(levels), sort=False).sum().to_numpy()
        if len(sums) not in counts:  # the same levels for all seeds that have as many
            counts[len(sums)] = _counts(rng, len(sums))
        n, x, y, xx, yy, xy = (counts[len(sums)] @ sums).T
        with np.errstate(all="ignore"):  # one level drawn again and again may be one point
            drawn.append((n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y)))
    return _estimate(rng, drawn, values)


def in_percent(value: float, low: float, high: float) -> tuple[float, float]:
    """An interval brought between 0 and 100: as wide on the logit as it is around the value."""
    part = value / 100
    if not 0 < part < 1:  # all right, or all wrong: no width is known
        return max(low, 0.0), min(high, 100.0)
    middle, width = math.log(part / (1 - part)), 100 * part * (1 - part)

    def moved(end: float) -> float:
        return 100 / (1 + math.exp(min(700.0, -middle - (end - value) / width)))

    return moved(low), moved(high)


def _counts(rng: np.random.Generator, number: int) -> Floats:
    """How often each of so many was drawn, as fractions: a line for each time."""
    return rng.multinomial(number, np.full(number, 1 / number), _RESAMPLES) / number


def _estimate(
    rng: np.random.Generator, drawn: Sequence[Floats], values: Sequence[float]
) -> Estimate:
    """From each seed's resampled values; enough seeds are drawn anew too."""
    found, number = np.stack(drawn, 1), len(drawn)
    weights = _counts(rng, number) if number >= ENOUGH else np.full((1, number), 1 / number)
    means = (found * weights).sum(1).round(12)  # sums of fractions may be a hair above 1
    tails = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    low, high = np.quantile(means[np.isfinite(means)], tails)
    return Estimate(float(np.mean(values)), float(low), float(high), tuple(values))
