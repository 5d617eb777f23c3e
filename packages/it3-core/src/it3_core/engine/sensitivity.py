"""How much a network heeds its signal."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.batching import check_input, map_tensors
from it3_core.engine.functional import FunctionalModel, Session
from it3_core.errors import IT3Warning
from it3_core.model.adapters import Adapter


def sensitivity(model: nn.Module, adapter: Adapter, x: Any) -> float:
    """How much `F(x, encode(y))` moves with `y`, at `y = f(x, neutral)`: |dF/dy|, no unit.

    Near 0 the network ignores its signal, near 1 it copies it; either way the idempotence error
    says little about the input. In between it weighs the given answer against the input.

    Example:
        >>> import torch
        >>> from it3_core import Regression, sensitivity, widen
        >>> adapter, x = Regression(), torch.randn(8, 3)
        >>> sensitivity(widen(torch.nn.Linear(3, 1), adapter), adapter, x)  # not trained yet
        0.0
    """
    fast = FunctionalModel(model)
    fast.require_signal("the sensitivity to a signal")
    check_input(x, fast.dtype)
    with fast.session() as run:
        x = map_tensors(x, lambda t: t.clone() if t.is_inference() else t)
        with torch.no_grad():
            y0 = run(x, adapter.neutral(x))
        return _gain(run, adapter, x, y0)


def gains(run: Session, adapter: Adapter, x: Any, y0: Tensor) -> tuple[Tensor, Tensor]:
    """y1, and for each row ‖Jᵀw‖ / ‖w‖ with a fixed w of ones and minus ones: no randomness.

    One backward pass for all rows: in evaluation mode none depends on another.
    """
    y = y0.detach().clone().requires_grad_()
    with torch.enable_grad():
        y1 = run(x, adapter.encode(y))
        w = torch.ones_like(y1).flatten()
        w[1::2] = -1
        gradient = None
        if y1.requires_grad:
            (gradient,) = torch.autograd.grad((y1.flatten() * w).sum(), y, allow_unused=True)
    moved = torch.zeros_like(y0) if gradient is None else gradient
    return y1.detach(), moved.reshape(len(y0), -1).norm(dim=1) / math.sqrt(len(w) / len(y0))


def _gain(run: Session, adapter: Adapter, x: Any, y0: Tensor) -> float:
    """The same of the whole batch."""
    return float(gains(run, adapter, x, y0)[1].square().mean().sqrt())


def warn_if_insensitive(run: Session, adapter: Adapter, x: Any, y0: Tensor, y1: Tensor) -> None:
    """Warns, once, where neither the derivative nor the step to y0 moves the answer."""
    if run.model.checked_sensitivity:
        return
    run.model.checked_sensitivity = True
    moved = (y1 - y0).abs().max()
    if not torch.isfinite(moved) or moved > 1e-5 * y0.abs().max().clamp_min(1e-5):
        return
    gain = _gain(run, adapter, x, y0)
    if gain < 1e-4:
        warnings.warn(
            f"the network's answer does not depend on its signal (measured |dF/dy| = {gain:.1g}), "
            f"so there is no idempotence gap to adapt with: train it with zigzag_loss first, or "
            f"check that its forward uses the signal",
            IT3Warning,
            stacklevel=4,
        )
