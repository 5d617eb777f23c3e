"""IT³: a few gradient steps on the idempotence gap, for this batch alone."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.adapters import Adapter
from it3_core.batching import is_graph, take
from it3_core.descent import OptimizerFactory, Weights
from it3_core.errors import IT3Error, IT3Warning
from it3_core.fast import FastModel, Parameters, Session
from it3_core.methods.base import (
    Adaptation,
    check_settings,
    not_finite,
    prepared,
    within_reach,
)
from it3_core.norms import Norm
from it3_core.sensitivity import warn_if_deaf

__all__ = ["IT3"]

# Rows that adapt together in per-instance mode: enough to amortise Python, few enough that a
# row's own copy of the weights (and its gradient and Adam's two moments) fits in memory.
_MOST_ROWS = 4096
_MOST_NUMBERS = 2**25


class IT3:
    """Minimises ‖F(x, f(x, neutral)) − f(x, neutral)‖ over f's weights, then answers f(x, neutral).

    F is the network as it was trained; f starts from it anew for every batch. The module itself
    is never changed.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        steps: gradient steps, one to three in the paper.
        lr: learning rate.
        optimizer: a class of torch.optim by name, or a factory `(parameters, lr=…)`.
        parameters: which parameters adapt: all, name patterns, a predicate, the scales and shifts
            of the `"norms"`, or `"above"` the layer where `condition()` adds the signal. "Above"
            with `anchor_gradient=False` is the cheap mode: the rest of the network is run once.
        anchor_gradient: whether the gradient also flows through F's second input, as in the
            paper's loss.
        power: the gap's power in the loss, see `idempotence_loss`.
        norm: whose statistics batch norms use, see `Source`.
        per_instance: every row of a batch adapts on its own, as if it came alone.
        trust_region: an answer moves no further than to y1.

    Example:
        >>> import torch
        >>> from it3_core import IT3, Regression, condition
        >>> _ = torch.manual_seed(0)
        >>> adapter = Regression()
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> model = condition(net, adapter, layer="0")
        >>> _ = torch.nn.init.normal_(model.embed.weight)  # stands in for training
        >>> answer = IT3(model, adapter, lr=1e-3)(torch.randn(4, 3))
        >>> bool(answer.error_after.mean() < answer.error_before.mean())
        True
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        *,
        steps: int = 1,
        lr: float = 2e-4,
        optimizer: OptimizerFactory = "Adam",
        parameters: Parameters = None,
        anchor_gradient: bool = False,
        power: float = 1.0,
        norm: Norm = "source",
        per_instance: bool = False,
        trust_region: bool = True,
    ) -> None:
        check_settings(steps, lr, power)
        self.adapter = adapter
        self.steps = steps
        self.lr = lr
        self.optimizer = optimizer
        self.anchor_gradient = anchor_gradient
        self.power = power
        self.norm = norm
        self.per_instance = per_instance
        self.trust_region = trust_region
        self._fast = FastModel(model, parameters, norm)
        self._heard = False
        self._loops = False  # per instance, one by one: the network can't be mapped over rows

    def __call__(self, x: Any) -> Adaptation:
        x, size = prepared(x, self._fast)
        idle = self.lr == 0 or self.steps == 0
        if self.per_instance and size > 1 and not (idle and self.norm == "source"):
            with torch.inference_mode(False):  # rows taken inside it could not be adapted to
                return self._row_by_row(x, size)
        return self._adapt(x, None)

    def reset(self) -> None:
        """Nothing to forget: every batch starts from the network as it was trained."""

    def _adapt(self, x: Any, rows: int | None) -> Adaptation:
        """One episode; with `rows`, each of them on weights of its own."""
        adapter = self.adapter
        with self._fast.session() as run:
            neutral = adapter.neutral(x)
            if self.steps == 0 or self.lr == 0:
                with torch.no_grad():
                    y0 = self._f(run, x, neutral, {}, rows)
                return Adaptation(y0.clone(), y0, 0, before=lambda: self._error(x, y0, rows))
            descent = run.descent(x, neutral, self.optimizer, self.lr, rows)
            theta = descent.weights
            y = self._f(run, x, neutral, theta, rows, record=True)
            y0 = y.detach()
            shared = run.only_above(theta)
            gaps: list[Tensor] = []
            for left in reversed(range(self.steps)):
                signal = adapter.encode(y if self.anchor_gradient else y.detach())
                y1 = self._anchor(run, x, signal, rows)
                gap = adapter.distance(y1, y)
                gaps.append(gap.detach())
                if not self._heard:
                    warn_if_deaf(run, adapter, x, y0, y1.detach())
                    self._heard = True
                # idempotence_loss, of a batch or of each row alone.
                powered = gap if self.power == 1 else gap.pow(self.power)
                loss = powered.mean() if rows is None else powered.sum()
                if rows is None and not math.isfinite(float(loss.detach())):
                    return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=gaps[0])
                descent.step(loss)
                with torch.set_grad_enabled(left > 0):
                    y = self._f(run, x, neutral, theta, rows, shared=shared)
            before, share = gaps[0], 0.0
            if self.trust_region:
                y, share = within_reach(adapter, y, y0, before)
            after = partial(self._error, x, y, rows)
            if rows is None:
                # An answer within reach of a finite one is finite.
                if share < 1 and not bool(torch.isfinite(y).all()):
                    return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=before)
                return Adaptation(y, y0, self.steps, before=before, after=after)
            sound = torch.isfinite(torch.stack([*gaps, y.flatten(1).sum(1)])).all(0)
            lost = rows - int(sound.sum())
            if not lost:
                return Adaptation(y, y0, self.steps, before=before, after=after)
            y = torch.where(sound.view(-1, *[1] * (y.dim() - 1)), y, y0)
            reason = f"in {lost} of {rows} rows {not_finite(y0)}"
            steps = self.steps if lost < rows else 0
            return Adaptation(
                y, y0, steps, reason, before=before, after=partial(self._error, x, y, rows)
            )

    def _f(
        self, run: Session, x: Any, signal: Tensor, theta: Weights, rows: int | None, **how: bool
    ) -> Tensor:
        if rows is not None:
            return run.each(x, signal, theta)
        return run(x, signal, theta, **how)

    def _anchor(self, run: Session, x: Any, signal: Tensor, rows: int | None) -> Tensor:
        """F(x, signal), with no gradient towards F's weights, and none at all where unused."""
        with torch.set_grad_enabled(self.anchor_gradient):
            if rows is not None and self.norm != "source":  # statistics of each row alone
                return run.each(x, signal, {})
            return run(x, signal, shared=rows is None)

    def _error(self, x: Any, answer: Tensor, rows: int | None) -> Tensor:
        with self._fast.session() as run:
            y1 = self._anchor(run, x, self.adapter.encode(answer), rows)
            return self.adapter.distance(y1, answer)

    def _row_by_row(self, x: Any, size: int) -> Adaptation:
        if self._loops or is_graph(x):
            return self._one_by_one(x, size)
        numbers = sum(parameter.numel() for parameter in self._fast.module.parameters())
        most = max(1, min(_MOST_ROWS, _MOST_NUMBERS // max(1, numbers)))
        starts = range(0, size, most)
        try:
            return _joined([self._adapt(take(x, slice(s, s + most)), min(most, size - s))
                            for s in starts])  # fmt: skip
        except IT3Error:
            raise
        except (RuntimeError, ValueError, NotImplementedError) as problem:
            answer = self._one_by_one(x, size)  # raises again where the fault is not vmap's
            self._loops = True
            warnings.warn(
                f"this network can't be mapped over rows, so they adapt one by one, which is "
                f"slower ({str(problem).splitlines()[0]})",
                IT3Warning,
                stacklevel=4,
            )
            return answer

    def _one_by_one(self, x: Any, size: int) -> Adaptation:
        return _joined([self._adapt(take(x, [row]), None) for row in range(size)])


def _joined(parts: list[Adaptation]) -> Adaptation:
    if len(parts) == 1:
        return parts[0]
    reasons = [part.fallback for part in parts if part.fallback]
    return Adaptation(
        torch.cat([part.prediction for part in parts]),
        torch.cat([part.initial for part in parts]),
        max(part.steps for part in parts),
        _in_short(reasons, len(parts)),
        before=torch.cat([part.error_before for part in parts]),
        after=lambda: torch.cat([part.error_after for part in parts]),
    )


def _in_short(reasons: list[str], parts: int) -> str | None:
    if not reasons:
        return None
    if reasons[0].startswith("in "):  # of chunks, which mean nothing to a user
        return "; ".join(reasons)
    return f"in {len(reasons)} of {parts} rows {reasons[0]}"
