"""Online IT³: the same gap on a stream, without starting anew, against a moving average."""

from __future__ import annotations

import math
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
from it3_core.marginal import Marginal
from it3_core.methods.base import (
    Adaptation,
    check_settings,
    idempotence_error,
    not_finite,
    prepared,
    within_reach,
)
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
        marginal: the labels' mix that the stream is known to hold: batches' answers, taken
            together, are kept near it. Harmful where the mix does not hold; give batches of several
            times as many instances as there are classes, and `trust_region=False`, since answers
            may have to go further than to y1.
        marginal_weight: of its gap beside the idempotence gap.
        reset_every: start anew from the network as it was trained after so many batches.
        reset_above: start anew where a batch's mean gap is so many times as large as it was since
            the last start, on average: the stream has turned to something else.

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
        marginal: Marginal | None = None,
        marginal_weight: float = 1.0,
        reset_every: int | None = None,
        reset_above: float | None = None,
    ) -> None:
        check_settings(steps, lr, power)
        if not 0 <= decay <= 1:
            raise IT3Error(f"decay must lie between 0 and 1, but is {decay}")
        if not 0 <= marginal_weight < math.inf:
            raise IT3Error(f"marginal_weight is a number from 0 on, not {marginal_weight}")
        if reset_every is not None and reset_every < 1:
            raise IT3Error(f"reset_every is a number of batches from 1 on, not {reset_every}")
        if reset_above is not None and not reset_above > 1:
            raise IT3Error(f"reset_above is a multiple beyond 1, not {reset_above}")
        self.adapter = adapter
        self.steps = steps
        self.lr = lr
        self.decay = decay
        self.optimizer = optimizer
        self.anchor_gradient = anchor_gradient
        self.power = power
        self.trust_region = trust_region
        self.marginal = marginal
        self.marginal_weight = marginal_weight
        self.reset_every = reset_every
        self.reset_above = reset_above
        self._fast = FastModel(model, parameters, norm)
        self._heard = False
        self.reset()

    def reset(self) -> None:
        """Starts anew from the network as it was trained."""
        self._descent: Descent | None = None
        self._ema: Weights = {}
        self._resumed: dict[str, Tensor] = {}
        self._seen = 0  # batches since the start
        self._usual = 0.0  # their mean gap, on average

    def __call__(self, x: Any) -> Adaptation:
        x, _ = prepared(x, self._fast)
        with self._fast.session() as run:
            neutral = self.adapter.neutral(x)
            if self._seen == self.reset_every:
                self.reset()
            answer = self._answer(run, x, neutral)
            if answer is None:
                self.reset()
                answer = self._answer(run, x, neutral)
            assert answer is not None  # there is nothing to compare the first batch with
            return answer

    def _answer(self, run: Session, x: Any, neutral: Tensor) -> Adaptation | None:
        """None, and nothing is changed, where the stream has turned to something else."""
        descent = self._descent or self._begin(run, x, neutral)
        self._check_unchanged(run, descent)
        kept = descent.state()
        try:
            return self._go_on(run, descent, kept, x, neutral)
        except BaseException:  # half a batch is no state to go on from
            descent.restore(kept)
            raise

    def _go_on(
        self, run: Session, descent: Descent, kept: Mapping[str, Tensor], x: Any, neutral: Tensor
    ) -> Adaptation | None:
        adapter, theta, ema = self.adapter, descent.weights, self._ema
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
                if self._turned(float(before.mean())):
                    return None
            loss = idempotence_loss(adapter, y1, y, self.power)
            if self.marginal is not None:
                loss = loss + self.marginal_weight * self.marginal.gap(y)
            if not math.isfinite(float(loss.detach())):
                return self._undone(descent, kept, y0, before)
            descent.step(loss)
            with torch.set_grad_enabled(left > 0):
                y = run(x, neutral, theta, shared=shared)
        y = y.detach()
        error = partial(idempotence_error, self._fast, adapter, x, weights=ema)
        if before is None:  # no step was asked for
            return Adaptation(y0.clone(), y0, 0, before=partial(error, y0))
        if not (bool(torch.isfinite(y).all()) and descent.finite()):
            return self._undone(descent, kept, y0, before)
        if self.trust_region:
            y, share = within_reach(adapter, y, y0, before)
            if share < 1:
                descent.go_back(kept, share)
        self._seen += 1
        self._usual += (float(before.mean()) - self._usual) / self._seen
        # New tensors: an earlier answer may still read its error off the old ones.
        self._ema = {
            name: torch.lerp(leaf.detach(), ema[name], self.decay) for name, leaf in theta.items()
        }
        return Adaptation(y, y0, self.steps, before=before, after=partial(error, y))

    def _turned(self, gap: float) -> bool:
        """Whether this batch's mean gap is far above what it was since the start."""
        return (
            self.reset_above is not None
            and self._seen > 0
            and gap > (self.reset_above * self._usual)
        )

    def _undone(
        self, descent: Descent, kept: Mapping[str, Tensor], y0: Tensor, before: Tensor
    ) -> Adaptation:
        descent.restore(kept)
        return Adaptation(y0.clone(), y0, 0, f"{not_finite(y0)} (it was undone)", before=before)

    def _check_unchanged(self, run: Session, descent: Descent) -> None:
        for name, leaf in descent.weights.items():
            now = run.source[name]
            if (now.dtype, now.device, now.shape) != (leaf.dtype, leaf.device, leaf.shape):
                raise IT3Error(
                    "the network's weights have another type, device or shape than when the stream "
                    "began: call reset() to begin anew"
                )

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
        stream = {
            "stream.seen": torch.tensor(self._seen),
            "stream.usual": torch.tensor(self._usual, dtype=torch.float64),
        }
        averages = {f"ema.{name}": value.clone() for name, value in self._ema.items()}
        return self._descent.state() | averages | stream

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken: the next answers are the same, bit for bit."""
        shapes = {f"ema.{k}": p.shape for k, p in self._fast.module.named_parameters()}
        for name, value in state.items():
            if name.startswith("ema.") and shapes.get(name) != value.shape:
                raise IT3Error(
                    f"this state is of another network ({name.removeprefix('ema.')} doesn't fit): "
                    f"make the method with the same network"
                )
        names = {name.removeprefix("ema.") for name in state if name.startswith("ema.")}
        chosen = self._fast.selected
        if state and chosen is not None and names != set(chosen):
            raise IT3Error("this state adapts other parameters: make the method as it was made")
        self.reset()
        self._resumed = {name: value.detach().clone() for name, value in state.items()}
        if "stream.seen" in state:
            self._seen = int(state["stream.seen"])
            self._usual = float(state["stream.usual"])

    def _begin(self, run: Session, x: Any, neutral: Tensor) -> Descent:
        """The first batch: which weights adapt may only be known from it."""
        descent = Descent(run.chosen(x, neutral), self.optimizer, self.lr)
        self._ema = {name: leaf.detach().clone() for name, leaf in descent.weights.items()}
        if self._resumed:
            like = next(iter(self._ema.values()))
            state = {
                name: value.to(like.device)
                for name, value in self._resumed.items()
                if not name.startswith("stream.")
            }
            if any(v.dtype != like.dtype for k, v in state.items() if k.startswith("ema.")):
                raise IT3Error(f"this state is not of {like.dtype}, as the network's weights are")
            if {k for k in state if k.startswith("ema.")} != {f"ema.{k}" for k in self._ema}:
                raise IT3Error("this state adapts other parameters: make the method as it was made")
            self._ema = {name: state.pop(f"ema.{name}") for name in self._ema}
            descent.restore(state)
            self._resumed = {}
        self._descent = descent
        return descent
