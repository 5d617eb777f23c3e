"""Source: the network as it was trained, the row that every other is compared with."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from it3_core.engine.functional import FunctionalModel, prepared
from it3_core.engine.inner_optimizer import Norm
from it3_core.methods.base import Adaptation, idempotence_error, shown
from it3_core.model.adapters import Adapter
from it3_core.model.losses import first_pass


@dataclass(eq=False, repr=False)
class Source:
    """Answers y0 = f(x, neutral), with no adaptation.

    Args:
        model: any network, called as `model(x)`; as `model(x, signal)` where it takes a signal.
        adapter: what kind of answer it gives.
        norm: whose statistics batch norms use. `"source"` is the plain network; `"batch"`, or
            the batch's fraction from 0 to 1, is adaptation by batch statistics alone.

    Example:
        >>> import torch
        >>> from it3_core import Regression, Source, widen
        >>> adapter = Regression()
        >>> Source(widen(torch.nn.Linear(3, 1), adapter), adapter)(torch.zeros(2, 3)).steps
        0
    """

    model: nn.Module
    adapter: Adapter
    _: KW_ONLY
    norm: Norm = "source"

    __repr__ = shown

    def __post_init__(self) -> None:
        self._functional = FunctionalModel(self.model, norm=self.norm)

    def __call__(self, x: Any) -> Adaptation:
        x, _ = prepared(x, self._functional)
        with self._functional.session() as run, torch.no_grad():
            y0 = first_pass(run, self.adapter, x)
        error = partial(idempotence_error, self._functional, self.adapter, x, y0)
        return Adaptation(y0.clone(), y0, steps=0, before=error)

    def reset(self) -> None:
        """Nothing to forget."""
