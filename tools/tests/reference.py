"""The paper's algorithm as a reader would write it down, for tests to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

DECAY = 0.99  # of the moving average; the paper does not say


def reference(
    model: nn.Module,
    neutral: Callable[[Any], Tensor],
    encode: Callable[[Tensor], Tensor],
    norm: Callable[[Tensor], Tensor],  # ‖·‖ of each row, of the difference of two outputs
    stream: Iterable[Any],
    *,
    steps: int,
    lr: float,
    online: bool = False,
    as_probabilities: Callable[[Tensor], Tensor] = lambda y: y,
) -> list[Tensor]:
    """The answers to each batch: of equations (3), (4), (6), and (7) online."""
    F = copy.deepcopy(model).requires_grad_(False)
    f, answers = None, []
    for x in stream:
        if f is None or not online:  # each batch from the trained weights
            f = copy.deepcopy(model).requires_grad_(True)
            optimizer = torch.optim.Adam(f.parameters(), lr)
        for _ in range(steps):
            y0 = f(x, neutral(x))
            y1 = F(x, encode(y0))
            optimizer.zero_grad()
            torch.autograd.backward(norm(as_probabilities(y1) - as_probabilities(y0)).mean())
            optimizer.step()
        answers.append(f(x, neutral(x)).detach())
        if online:  # F is f's moving average
            for average, now in zip(F.parameters(), f.parameters(), strict=True):
                average.lerp_(now.detach(), 1 - DECAY)
    return answers
