"""What all methods share: the result they return, and the two guards around a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from it3_core.adapters import Adapter
from it3_core.batching import check_input, map_tensors
from it3_core.fast import FastModel

__all__ = ["Adaptation", "Method", "prepared", "within_reach"]


@dataclass(frozen=True)
class Adaptation:
    """A method's answer to a batch.

    Attributes:
        prediction: the network's output after adaptation.
        initial: its output before.
        steps: gradient steps that were taken; 0 where the answer fell back to `initial`.
        fallback: why the answer fell back to `initial`, or None.
        error_before: idempotence error per instance, before: how unusual is this input?
        error_after: the same after adaptation.

    The two errors are computed when they are first read, where the method had no need of them.

    Example:
        >>> import torch
        >>> from it3_core import Regression, Source, widen
        >>> adapter = Regression()
        >>> answer = Source(widen(torch.nn.Linear(3, 1), adapter), adapter)(torch.zeros(2, 3))
        >>> answer.error_before
        tensor([0., 0.])
    """

    prediction: Tensor
    initial: Tensor
    steps: int
    fallback: str | None = None
    before: Tensor | Callable[[], Tensor] = field(repr=False, kw_only=True)
    after: Tensor | Callable[[], Tensor] | None = field(repr=False, kw_only=True, default=None)

    @cached_property
    def error_before(self) -> Tensor:
        return self.before() if callable(self.before) else self.before

    @cached_property
    def error_after(self) -> Tensor:
        if self.after is None:
            return self.error_before
        return self.after() if callable(self.after) else self.after


@runtime_checkable
class Method(Protocol):
    """Something that answers a batch at test time.

    Example:
        >>> import torch
        >>> from it3_core import Method, Regression, Source, widen
        >>> adapter = Regression()
        >>> isinstance(Source(widen(torch.nn.Linear(3, 1), adapter), adapter), Method)
        True
    """

    def __call__(self, x: Any) -> Adaptation:
        """Answers a batch."""

    def reset(self) -> None:
        """Forgets everything that earlier batches have left behind."""


def prepared(x: Any, fast: FastModel) -> tuple[Any, int]:
    """The checked input, ready for autograd even inside `inference_mode`, and its batch size."""
    size = check_input(x, fast.dtype)
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            x = map_tensors(x, lambda part: part.clone() if part.is_inference() else part)
    return x, size


def within_reach(
    adapter: Adapter, answer: Tensor, initial: Tensor, limit: Tensor
) -> tuple[Tensor, float]:
    """The trust region: each answer pulled back so that it moves no further than `limit`.

    Adam's first step has the same size whatever the gap, so that an answer can overshoot y1
    many times over; `limit` is the distance from y0 to y1.

    Returns:
        The answers, and the mean share of the way to them that was kept.
    """
    moved = adapter.distance(answer, initial)
    inside = moved <= limit
    if bool(inside.all()):
        return answer, 1.0
    way = answer - initial
    shape = (-1, *[1] * (way.dim() - 1))
    ratio = torch.where(inside, torch.ones_like(moved), limit / moved)
    kept = inside.to(ratio.dtype)
    # Along a line a norm grows like its length, which makes the ratio itself exact; squares and
    # divergences grow faster, and then its root goes further and still fits. The other exponents
    # are for what grows slower; what fits none of them stays where it was.
    for exponent in (1.0, 0.5, 2.0, 4.0):
        share = ratio if exponent == 1 else ratio**exponent
        reached = adapter.distance(initial + share.view(shape) * way, initial)
        kept = torch.where((reached <= limit * (1 + 1e-4)) & (share > kept), share, kept)
        if exponent == 1 and bool((inside | (reached >= 0.999 * limit)).all()):
            break
    pulled = initial + kept.view(shape) * way
    return torch.where(inside.view(shape), answer, pulled), float(kept.mean())
