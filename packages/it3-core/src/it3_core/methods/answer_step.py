"""The answer step: from the first answer towards the second, without a gradient."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from it3_core.engine.functional import FunctionalModel, prepared
from it3_core.engine.inner_optimizer import Norm
from it3_core.engine.sensitivity import warn_if_insensitive
from it3_core.errors import IT3Error
from it3_core.methods.base import Adaptation, idempotence_error, not_finite, shown
from it3_core.model.adapters import Adapter
from it3_core.model.losses import first_pass, second_pass


@dataclass(eq=False, repr=False)
class AnswerStep:
    """Answers y0 + α (y1 − y0) with y1 = F(x, encode(y0)): two forwards, no backward.

    α = 1 is the second pass alone, the control that the paper lacks; α = 0 is `Source`. It may
    be negative: under input noise y1 often moves the wrong way. For classes and maps the step is
    taken on logits.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        alpha: how far to go from y0 towards y1.
        norm: whose statistics batch norms use, see `Source`.

    Example:
        >>> import torch
        >>> from it3_core import AnswerStep, Regression, widen
        >>> adapter, net = Regression(), torch.nn.Linear(1, 1)
        >>> model = widen(net, adapter)
        >>> _ = model.model.weight.data.copy_(torch.tensor([[1.0, 0.5, 0.0]]))  # half the signal
        >>> _ = model.model.bias.data.zero_()
        >>> answer = AnswerStep(model, adapter, alpha=1.0)(torch.tensor([[2.0]]))
        >>> answer.initial.item(), answer.prediction.item()
        (2.0, 3.0)
    """

    model: nn.Module
    adapter: Adapter
    alpha: float = 1.0
    _: KW_ONLY
    norm: Norm = "source"

    __repr__ = shown

    def __post_init__(self) -> None:
        if not math.isfinite(self.alpha):
            raise IT3Error(f"alpha must be a finite number, not {self.alpha}")
        self._functional = FunctionalModel(self.model, norm=self.norm)
        self._functional.require_signal("AnswerStep")

    def __call__(self, x: Any) -> Adaptation:
        x, _ = prepared(x, self._functional)
        with self._functional.session() as run, torch.no_grad():
            y0 = first_pass(partial(run, record=True), self.adapter, x)
            y1 = second_pass(partial(run, shared=True), self.adapter, x, y0)
            warn_if_insensitive(run, self.adapter, x, y0, y1)
        before = self.adapter.distance(y1, y0)
        prediction = y0.clone() if self.alpha == 0 else torch.lerp(y0, y1, self.alpha)
        if not bool(torch.isfinite(prediction).all()):
            own = bool(torch.isfinite(y0).all())
            reason = "the second answer is not finite" if own else not_finite(y0)
            return Adaptation(y0.clone(), y0, 0, reason, before=before)
        error = partial(idempotence_error, self._functional, self.adapter, x, prediction)
        return Adaptation(prediction, y0, 0, before=before, after=error)

    def reset(self) -> None:
        """Nothing to forget."""
