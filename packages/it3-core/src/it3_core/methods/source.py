"""Source: the network as it was trained. The yardstick of every table."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from it3_core.adapters import Adapter
from it3_core.fast import FastModel
from it3_core.methods.base import Adaptation, idempotence_error, prepared
from it3_core.norms import Norm

__all__ = ["Source"]


class Source:
    """Answers y0 = f(x, neutral), with no adaptation.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        norm: whose statistics batch norms use. `"source"` is the plain network; `"batch"`, or
            the batch's share from 0 to 1, is adaptation by batch statistics alone.

    Example:
        >>> import torch
        >>> from it3_core import Regression, Source, widen
        >>> adapter = Regression()
        >>> Source(widen(torch.nn.Linear(3, 1), adapter), adapter)(torch.zeros(2, 3)).steps
        0
    """

    def __init__(self, model: nn.Module, adapter: Adapter, *, norm: Norm = "source") -> None:
        self.adapter = adapter
        self._fast = FastModel(model, norm=norm)

    def __call__(self, x: Any) -> Adaptation:
        x, _ = prepared(x, self._fast)
        with self._fast.session() as run, torch.no_grad():
            y0 = run(x, self.adapter.neutral(x))
        error = partial(idempotence_error, self._fast, self.adapter, x, y0)
        return Adaptation(y0.clone(), y0, steps=0, before=error)

    def reset(self) -> None:
        """Nothing to forget."""
