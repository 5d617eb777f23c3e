"""Online IT³: the same gap on a stream, without starting anew, against a moving average."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.engine.functional import FunctionalModel, Parameters, Session
from it3_core.engine.inner_optimizer import InnerOptimizer, Norm, OptimizerFactory, Weights
from it3_core.engine.sensitivity import warn_if_insensitive
from it3_core.errors import IT3Error
from it3_core.io.tensors import under
from it3_core.methods.base import (
    Adaptation,
    check_settings,
    idempotence_error,
    not_finite,
    within_reach,
)
from it3_core.methods.stream import StreamMethod
from it3_core.model.adapters import Adapter
from it3_core.model.losses import idempotence_loss, second_pass


@dataclass(eq=False, repr=False)
class OnlineIT3(StreamMethod):
    """Minimises ‖f_EMA(x, f(x, neutral)) − f(x, neutral)‖ over f's weights, batch after batch.

    f goes on from where the last batch left it, and its exponential moving average takes the
    place of the frozen F. Both are this object's own: the module is never changed. A batch whose
    step comes out non-finite leaves no trace.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        decay: fraction of the moving average that a batch keeps, from 0 to 1; 1 is a frozen F.
        steps, lr, optimizer, parameters, anchor_gradient, power, norm: as for `IT3`.
        trust_region: answers move no further than to y1, and the weights go that fraction of their
            way.

    Example:
        >>> import torch
        >>> from it3_core import OnlineIT3, Regression, condition
        >>> _ = torch.manual_seed(0)
        >>> adapter = Regression()
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> model = condition(net, adapter, layer="0")
        >>> _ = torch.nn.init.normal_(model.embed.weight)  # stands in for training
        >>> method, stream = OnlineIT3(model, adapter, lr=1e-3), torch.randn(3, 4, 3)
        >>> for batch in stream:
        ...     answer = method(batch)
        >>> state = method.state_dict()  # go on from here after a restart
        >>> method.reset()               # or start anew
    """

    model: nn.Module
    adapter: Adapter
    _: KW_ONLY
    steps: int = 1
    lr: float = 2e-4
    decay: float = 0.99
    optimizer: OptimizerFactory = "Adam"
    parameters: Parameters = None
    anchor_gradient: bool = False
    power: float = 1.0
    norm: Norm = "source"
    trust_region: bool = True

    def __post_init__(self) -> None:
        check_settings(self.steps, self.lr, self.power)
        if not 0 <= self.decay <= 1:
            raise IT3Error(f"decay must lie between 0 and 1, but is {self.decay}")
        self._functional = FunctionalModel(self.model, self.parameters, self.norm)
        self._functional.require_signal("OnlineIT3")
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._ema: Weights = {}

    def _answer(self, run: Session, descent: InnerOptimizer, x: Any, neutral: Tensor) -> Adaptation:
        averages = self._ema or {name: w.detach().clone() for name, w in descent.weights.items()}
        self._ema = {name: averages[name].to(w.device) for name, w in descent.weights.items()}
        adapter, theta, ema = self.adapter, descent.weights, self._ema
        y = run(x, neutral, theta, record=True)
        y0 = y.detach()
        shared = run.only_above(theta)
        before: Tensor | None = None
        for left in reversed(range(self.steps)):
            average = partial(self._average, run, ema, shared)
            y1 = second_pass(average, adapter, x, y, gradient=self.anchor_gradient)  # (4)
            if before is None:
                before = adapter.distance(y1.detach(), y0)
                warn_if_insensitive(run, adapter, x, y0, y1.detach())
            loss = idempotence_loss(adapter, y1, y, self.power)  # (7)
            if not math.isfinite(float(loss.detach())):
                return _undone(y0, before)
            descent.step(loss)
            with torch.set_grad_enabled(left > 0):
                y = run(x, neutral, theta, shared=shared)
        y = y.detach()
        error = partial(idempotence_error, self._functional, adapter, x, weights=ema)
        if before is None:  # no step was asked for
            return Adaptation(y0.clone(), y0, 0, before=partial(error, y0))
        if not (bool(torch.isfinite(y).all()) and descent.finite()):
            return _undone(y0, before)
        if self.trust_region:
            y, fraction = within_reach(adapter, y, y0, before)
            if fraction < 1:
                descent.go_back(self._kept, fraction)
        # New tensors: an earlier answer may still read its error off the old ones.
        self._ema = {
            name: torch.lerp(leaf.detach(), ema[name], self.decay) for name, leaf in theta.items()
        }
        return Adaptation(y, y0, self.steps, before=before, after=partial(error, y))

    def _average(self, run: Session, ema: Weights, shared: bool, x: Any, signal: Tensor) -> Tensor:
        """f_EMA(x, signal)."""
        with torch.set_grad_enabled(self.anchor_gradient):
            return run(x, signal, ema, shared=shared)

    def state_dict(self) -> dict[str, Tensor]:
        averages = {f"ema.{name}": value.clone() for name, value in self._ema.items()}
        return super().state_dict() | averages if averages else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        own = {name: v for name, v in state.items() if not name.startswith("ema.")}
        averages = under("ema.", state)
        super().load_state_dict(own)
        self._ema = {name: value.detach().clone() for name, value in averages.items()}


def _undone(y0: Tensor, before: Tensor) -> Adaptation:
    return Adaptation(y0.clone(), y0, 0, f"{not_finite(y0)} (it was undone)", before=before)
