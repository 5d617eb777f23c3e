"""Bootstrap intervals for a mean over training seeds and test instances.

Two kinds of chance are in such a mean: another seed, and other instances. Both are resampled: seeds
with replacement, and instances with replacement, the same ones for all seeds that have as many,
because seeds often share a test set (to resample each seed's on its own would then promise too
much). The two deviations are added. A few values say little about their own spread, which makes
a plain percentile interval too narrow: deviations are widened as Student's t asks for. On
simulated data, 95 % intervals then cover the truth in 94 to 100 % of all cases from 3 seeds up.
"""

from __future__ import annotations

import functools
import math
import statistics
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from it3_core.errors import IT3Error

__all__ = ["bootstrap_interval", "bootstrap_intervals"]

_MOST_NUMBERS = 2**18  # in a block of resamples: 2 MB of draws and as much of weights


def bootstrap_interval(
    seeds: Sequence[Tensor], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float] | None:
    """The interval of the mean over seeds of the mean over instances.

    Args:
        seeds: the instances' values, one tensor for each seed. A seed of which only the mean is
            known is a tensor of one value.
        confidence: how often such an interval should cover the truth.
        resamples: how often to draw.
        seed: of the draws.

    Returns:
        Lower and upper end; None for a single value, which says nothing about its spread.

    Example:
        >>> import torch
        >>> from it3_core.bootstrap import bootstrap_interval
        >>> low, high = bootstrap_interval([torch.arange(100.0)])
        >>> 42 < low < 45 and 54 < high < 57  # the mean is 49.5, its standard error 2.9
        True
    """
    ends = bootstrap_intervals([seeds], confidence=confidence, resamples=resamples, seed=seed)
    return ends[0]


def bootstrap_intervals(
    groups: Sequence[Sequence[Tensor]],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> list[tuple[float, float] | None]:
    """`bootstrap_interval` of many groups at once: groups of one size share their draws.

    Example:
        >>> import torch
        >>> from it3_core.bootstrap import bootstrap_intervals
        >>> bootstrap_intervals([[torch.zeros(9)], [torch.ones(1)]])
        [(0.0, 0.0), None]
    """
    if not 0 < confidence < 1:
        raise IT3Error(f"confidence must lie between 0 and 1, but is {confidence}")
    if resamples < 1:
        raise IT3Error(f"resamples must be at least 1, but is {resamples}")
    deviations = torch.zeros(resamples, len(groups), dtype=torch.double)
    for size in sorted({len(values) for group in groups for values in group}):
        _add_instances(deviations, groups, size, confidence, _generator(seed, "instances", size))
    for number in sorted({len(group) for group in groups}):
        _add_seeds(deviations, groups, number, confidence, _generator(seed, "seeds", number))
    tail = (1 - confidence) / 2
    ends: list[tuple[float, float] | None] = []
    for group, deviation in zip(groups, deviations.unbind(1), strict=True):
        if len(group) < 2 and sum(map(len, group)) < 2:
            ends.append(None)
            continue
        mean = sum(float(values.double().mean()) for values in group) / len(group)
        low, high = deviation.quantile(deviation.new_tensor([tail, 1 - tail])).tolist()
        ends.append((mean + low, mean + high))
    return ends


def _add_instances(
    deviations: Tensor,
    groups: Sequence[Sequence[Tensor]],
    size: int,
    confidence: float,
    generator: torch.Generator,
) -> None:
    """Adds how far the means move when the instances of all seeds of this size are redrawn."""
    if size < 2:
        return
    columns = [index for index, group in enumerate(groups) if size in map(len, group)]
    values = torch.stack([_mean_over_seeds(groups[index], size) for index in columns], 1)
    widening = _widening(size, confidence)
    block = max(1, _MOST_NUMBERS // size)
    for start in range(0, len(deviations), block):
        rows = min(block, len(deviations) - start)
        drawn = torch.randint(size, (rows, size), generator=generator)
        # How often each instance was drawn, so that a product gives the means of all groups.
        often = torch.zeros(rows, size, dtype=torch.double)
        often.scatter_add_(1, drawn, torch.ones((), dtype=torch.double).expand(rows, size))
        deviations[start : start + rows, columns] += often @ values * (widening / size)


def _mean_over_seeds(group: Sequence[Tensor], size: int) -> Tensor:
    """Deviations of the instances from their mean, summed over seeds of this size, over all."""
    alike = torch.stack([values.double() for values in group if len(values) == size])
    return (alike - alike.mean(1, keepdim=True)).sum(0) / len(group)


def _add_seeds(
    deviations: Tensor,
    groups: Sequence[Sequence[Tensor]],
    number: int,
    confidence: float,
    generator: torch.Generator,
) -> None:
    """Adds how far the means move when the seeds are redrawn."""
    if number < 2:
        return
    drawn = torch.randint(number, (len(deviations), number), generator=generator)
    widening = _widening(number, confidence)
    for index, group in enumerate(groups):
        if len(group) == number:
            means = torch.stack([values.double().mean() for values in group])
            deviations[:, index] += (means - means.mean())[drawn].mean(1) * widening


@functools.cache
def _widening(number: int, confidence: float) -> float:
    """What a percentile interval of a mean of so few values lacks: Student's t over the normal's z,
    and the bootstrap's own spread, which is that of the values around their own mean.
    """
    if number > 300:  # less than 1 %
        return 1.0
    normal = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    return _student(number - 1, confidence) / normal * math.sqrt(number / (number - 1))


def _student(freedom: int, confidence: float) -> float:
    """Student's t for this many degrees of freedom: its share within ±t is `confidence`.

    The closed form of Abramowitz and Stegun (26.7.3 and 4) in θ = atan(t / √freedom), inverted by
    bisection.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        odd = freedom % 2
        term = math.sin(angle) * (math.cos(angle) if odd else 1.0)
        total = 0.0
        for power in range(2 + odd, freedom + 1, 2):
            total += term
            term *= math.cos(angle) ** 2 * (power - 1) / power
        share = 2 / math.pi * (angle + total) if odd else total
        low, high = (angle, high) if share < confidence else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def _generator(seed: int, what: str, number: int) -> torch.Generator:
    """Draws that depend on nothing else, so that adding a group doesn't change the others."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {what} {number}".encode()))
