"""Numbers that every task reports on its idempotence errors: correlation and AUROC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from it3_core.errors import IT3Error

__all__ = ["Values", "auroc", "correlation", "numbers"]

Values = Tensor | Sequence[float]
"""One number for each instance, batch or level."""


def correlation(a: Values, b: Values, kind: Literal["pearson", "spearman"] = "pearson") -> float:
    """How closely two quantities go together, from −1 to 1; NaN where one of them is constant.

    Args:
        a: one number per instance (or batch, or level).
        b: as many.
        kind: `"pearson"` for a straight line, `"spearman"` for any rising curve: the same on
            ranks, where equal values share their mean rank.

    Example:
        >>> correlation([1, 2, 3], [1, 4, 9], kind="spearman")
        1.0
        >>> round(correlation([1, 2, 3], [1, 4, 9]), 4)
        0.9897
    """
    first, second = numbers(a, "a"), numbers(b, "b")
    if len(first) != len(second):
        raise IT3Error(f"a has {len(first)} values but b has {len(second)}: give pairs")
    if kind == "spearman":
        first, second = _ranks(first), _ranks(second)
    elif kind != "pearson":
        raise IT3Error(f'kind must be "pearson" or "spearman", not {kind!r}')
    # Asked before centring: what a mean leaves of equal values need not be exactly zero.
    if len(first) < 2 or bool((first == first[0]).all()) or bool((second == second[0]).all()):
        return float("nan")
    first, second = _centred(first), _centred(second)
    return max(-1.0, min(1.0, float(first @ second)))


def auroc(scores_out: Values, scores_in: Values) -> float:
    """The chance that an unusual instance scores higher than a usual one; a tie counts half.

    1 is a perfect alarm, 0.5 is chance.

    Args:
        scores_out: scores (such as idempotence errors) of instances out of distribution.
        scores_in: scores of instances in distribution.

    Example:
        >>> auroc([3.0, 2.0], [1.0, 2.0])
        0.875
    """
    out, usual = numbers(scores_out, "scores_out"), numbers(scores_in, "scores_in")
    if not len(out) or not len(usual):
        raise IT3Error("AUROC compares two sets of scores, and one of them is empty")
    ordered = usual.sort().values
    below = torch.searchsorted(ordered, out)
    not_above = torch.searchsorted(ordered, out, right=True)
    # Twice the number of pairs won: whole numbers, so that nothing is rounded before the end.
    return int((below + not_above).sum()) / (2 * len(out) * len(usual))


def numbers(values: Values, name: str) -> Tensor:
    """A flat tensor in double precision on the CPU; an error that names it where it isn't finite.

    Example:
        >>> numbers([1, 2], "scores")
        tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        flat = values.detach().cpu().double().flatten()
    else:  # said at once: a list would become single precision first
        flat = torch.tensor(values, dtype=torch.double).flatten()
    if not torch.isfinite(flat).all():
        raise IT3Error(f"{name!r} holds NaN or Inf: leave those instances out first")
    return flat


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 1 up; equal values share their mean rank."""
    ordered = values.sort().values
    below = torch.searchsorted(ordered, values)
    not_above = torch.searchsorted(ordered, values, right=True)
    return (below + not_above + 1).double() / 2


def _centred(values: Tensor) -> Tensor:
    """Mean 0 and length 1. Scaled first, so that very large values don't overflow."""
    gaps = values / values.abs().max()
    gaps = gaps - gaps.mean()
    return gaps / gaps.square().sum().sqrt()
