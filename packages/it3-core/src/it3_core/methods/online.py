"""Online IT³: the same gap on a stream, without starting anew, against a moving average."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.adapters import Adapter
from it3_core.descent import Descent, OptimizerFactory, Weights
from it3_core.errors import IT3Error
from it3_core.fast import FastModel, Parameters, Session
from it3_core.losses import idempotence_loss
from it3_core.methods.base import Adaptation, prepared, within_reach
from it3_core.norms import Norm
from it3_core.sensitivity import warn_if_deaf

__all__ = ["OnlineIT3"]


class OnlineIT3:
    """Minimises ‖f_EMA(x, f(x, neutral)) − f(x, neutral)‖ over f's weights, batch after batch.

    f goes on from where the last batch left it, and its exponential moving average takes the
    place of the frozen F. Both are this object's own: the module is never changed. A batch whose
    step comes out non-finite leaves no trace.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        decay: share of the moving average that a batch keeps, from 0 to 1; 1 is a frozen F.
        steps, lr, optimizer, parameters, anchor_gradient, power, norm: as for `IT3`.
        trust_region: answers move no further than to y1, and the weights go that share of their
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

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        *,
        steps: int = 1,
        lr: float = 2e-4,
        decay: float = 0.99,
        optimizer: OptimizerFactory = "Adam",
        parameters: Parameters = None,
        anchor_gradient: bool = False,
        power: float = 1.0,
        norm: Norm = "source",
        trust_region: bool = True,
    ) -> None:
        if steps < 0 or lr < 0:
            raise IT3Error(f"steps and lr can't be negative, but are {steps} and {lr}")
        if not 0 <= decay <= 1:
            raise IT3Error(f"decay must lie between 0 and 1, but is {decay}")
        self.adapter = adapter
        self.steps = steps
        self.lr = lr
        self.decay = decay
        self.optimizer = optimizer
        self.anchor_gradient = anchor_gradient
        self.power = power
        self.trust_region = trust_region
        self._fast = FastModel(model, parameters, norm)
        self._heard = False
        self.reset()

    def reset(self) -> None:
        """Starts anew from the network as it was trained."""
        self._descent: Descent | None = None
        self._ema: Weights = {}
        self._resumed: dict[str, Tensor] = {}

    def __call__(self, x: Any) -> Adaptation:
        x, _ = prepared(x, self._fast)
        adapter = self.adapter
        with self._fast.session() as run:
            neutral = adapter.neutral(x)
            descent = self._descent or self._begin(run, x, neutral)
            theta, ema = descent.weights, self._ema
            kept = descent.state()
            y = run(x, neutral, theta, record=True)
            y0 = y.detach()
            shared = run.only_above(theta)
            before: Tensor | None = None
            for left in reversed(range(self.steps)):
                signal = adapter.encode(y if self.anchor_gradient else y.detach())
                with torch.set_grad_enabled(self.anchor_gradient):
                    y1 = run(x, signal, ema, shared=shared)
                if before is None:
                    before = adapter.distance(y1.detach(), y0)
                    if not self._heard:
                        warn_if_deaf(run, adapter, x, y0, y1.detach())
                        self._heard = True
                descent.step(idempotence_loss(adapter, y1, y, self.power))
                with torch.set_grad_enabled(left > 0):
                    y = run(x, neutral, theta, shared=shared)
            y = y.detach()
            if before is None:  # no step was asked for
                return Adaptation(y0, y0, 0, before=lambda: self._error(x, y0, ema))
            if not (bool(torch.isfinite(y).all()) and descent.finite()):
                descent.restore(kept)
                reason = "the step was not finite, and was undone: lower the learning rate"
                return Adaptation(y0, y0, 0, reason, before=before)
            if self.trust_region:
                y, share = within_reach(adapter, y, y0, before)
                if share < 1:
                    descent.go_back(kept, share)
            # New tensors: an earlier answer may still read its error off the old ones.
            self._ema = {
                name: torch.lerp(leaf.detach(), ema[name], self.decay)
                for name, leaf in theta.items()
            }
        after = partial(self._error, x, y, ema)
        return Adaptation(y, y0, self.steps, before=before, after=after)

    def state_dict(self) -> dict[str, Tensor]:
        """All that the stream has left behind, as named tensors that safetensors can store.

        Example:
            >>> import torch
            >>> from it3_core import OnlineIT3, Regression, widen
            >>> adapter = Regression()
            >>> OnlineIT3(widen(torch.nn.Linear(3, 1), adapter), adapter).state_dict()
            {}
        """
        if self._descent is None:
            return dict(self._resumed)
        return self._descent.state() | {f"ema.{k}": v.clone() for k, v in self._ema.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken: the next answers are the same, bit for bit."""
        shapes = {f"ema.{k}": p.shape for k, p in self._fast.module.named_parameters()}
        for name, value in state.items():
            if name.startswith("ema.") and shapes.get(name) != value.shape:
                raise IT3Error(
                    f"this state is of another network ({name.removeprefix('ema.')} doesn't fit): "
                    f"make the method with the same network"
                )
        self.reset()
        self._resumed = {name: value.detach().clone() for name, value in state.items()}

    def _begin(self, run: Session, x: Any, neutral: Tensor) -> Descent:
        """The first batch: which weights adapt may only be known from it."""
        descent = Descent(run.chosen(x, neutral), self.optimizer, self.lr)
        self._ema = {name: leaf.detach().clone() for name, leaf in descent.weights.items()}
        if self._resumed:
            device = next(iter(self._ema.values())).device
            state = {name: value.to(device) for name, value in self._resumed.items()}
            if {k for k in state if k.startswith("ema.")} != {f"ema.{k}" for k in self._ema}:
                raise IT3Error("this state adapts other parameters: make the method as it was made")
            self._ema = {name: state.pop(f"ema.{name}") for name in self._ema}
            descent.restore(state)
            self._resumed = {}
        self._descent = descent
        return descent

    def _error(self, x: Any, answer: Tensor, ema: Weights) -> Tensor:
        with self._fast.session() as run, torch.no_grad():
            return self.adapter.distance(run(x, self.adapter.encode(answer), ema), answer)
