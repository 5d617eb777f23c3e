"""IT³: a few gradient steps on the idempotence gap, for this batch alone."""

from __future__ import annotations

import math
import warnings
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from it3_core.batching import batches, count, is_graph
from it3_core.engine.functional import FunctionalModel, Parameters, Session, prepared
from it3_core.engine.inner_optimizer import Norm, OptimizerFactory, Weights
from it3_core.engine.sensitivity import warn_if_insensitive
from it3_core.errors import IT3Error, IT3Warning
from it3_core.methods.base import Adaptation, check_settings, not_finite, shown, within_reach
from it3_core.model.adapters import Adapter
from it3_core.model.losses import first_pass, idempotence_loss, second_pass

# Rows that adapt together in per-instance mode: enough to amortise Python, few enough that a
# row's own copy of the weights (and its gradient and Adam's two moments) fits in memory.
_MOST_ROWS = 4096
_MOST_NUMBERS = 2**25


@dataclass(eq=False, repr=False)
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
        anchor: `"frozen"` is the paper's F, the network as it was trained; `"none"` puts f itself
            in its place, the loss (5) that the paper warns of: for an ablation.
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

    model: nn.Module
    adapter: Adapter
    _: KW_ONLY
    steps: int = 1
    lr: float = 2e-4
    optimizer: OptimizerFactory = "Adam"
    parameters: Parameters = None
    anchor: Literal["frozen", "none"] = "frozen"
    anchor_gradient: bool = False
    power: float = 1.0
    norm: Norm = "source"
    per_instance: bool = False
    trust_region: bool = True

    __repr__ = shown

    def __post_init__(self) -> None:
        check_settings(self.steps, self.lr, self.power)
        if self.anchor not in ("frozen", "none"):
            raise IT3Error(f'anchor is "frozen" or "none", not {self.anchor!r}')
        self._functional = FunctionalModel(self.model, self.parameters, self.norm)
        self._functional.require_signal("IT3")
        self._loops = False  # per instance, one by one: the network can't be mapped over rows

    def __call__(self, x: Any) -> Adaptation:
        x, size = prepared(x, self._functional)
        idle = self.lr == 0 or self.steps == 0
        if self.per_instance and size > 1 and not (idle and self.norm == "source"):
            with torch.inference_mode(False):  # rows taken inside it could not be adapted to
                return self._row_by_row(x)
        return self._adapt(x, None)

    def reset(self) -> None:
        """Nothing to forget: every batch starts from the network as it was trained."""

    def _adapt(self, x: Any, rows: int | None) -> Adaptation:
        """One episode; with `rows`, each of them on weights of its own."""
        adapter = self.adapter
        with self._functional.session() as run:
            if self.steps == 0 or self.lr == 0:
                with torch.no_grad():
                    y0 = first_pass(partial(self._f, run, {}, rows), adapter, x)
                return Adaptation(y0.clone(), y0, 0, before=lambda: self._error(x, y0, rows))
            # θ starts as a copy of the trained weights, which are F's.
            descent = run.descent(x, adapter.neutral(x), self.optimizer, self.lr, rows)
            theta = descent.weights
            shared = run.only_above(theta)
            y = first_pass(partial(self._f, run, theta, rows, record=True), adapter, x)  # (3)
            y0, before = y.detach(), None
            for left in reversed(range(self.steps)):
                anchor = partial(self._anchor, run, theta, rows)
                y1 = second_pass(anchor, adapter, x, y, gradient=self.anchor_gradient)  # (4), (17)
                loss = idempotence_loss(adapter, y1, y, self.power, each=rows is not None)  # (6)
                if before is None:
                    before = adapter.distance(y1.detach(), y0)
                    warn_if_insensitive(run, adapter, x, y0, y1.detach())
                if rows is None and not math.isfinite(float(loss.detach())):
                    return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=before)
                descent.step(loss)
                with torch.set_grad_enabled(left > 0):
                    y = first_pass(partial(self._f, run, theta, rows, shared=shared), adapter, x)
            assert before is not None
            if self.trust_region:
                y, _ = within_reach(adapter, y, y0, before)
            return self._sound(x, y, y0, before, rows)

    def _f(self, run: Session, theta: Weights, rows: int | None, x: Any, signal: Tensor,
           **how: bool) -> Tensor:  # fmt: skip
        """f(x, signal) with the weights θ."""
        if rows is not None:
            return run.each(x, signal, theta)
        return run(x, signal, theta, **how)

    def _anchor(
        self, run: Session, theta: Weights, rows: int | None, x: Any, signal: Tensor
    ) -> Tensor:
        """F(x, signal), with no gradient towards F's weights; without an anchor, f(x, signal)."""
        if self.anchor == "none":
            return self._f(run, theta, rows, x, signal)
        with torch.set_grad_enabled(self.anchor_gradient):
            if rows is not None and self.norm != "source":  # statistics of each row alone
                return run.each(x, signal, {})
            return run(x, signal, shared=rows is None)

    def _sound(self, x: Any, y: Tensor, y0: Tensor, before: Tensor, rows: int | None) -> Adaptation:
        """The answer; rows whose numbers are not finite fall back to y0."""
        sound = torch.isfinite(before) & torch.isfinite(y.reshape(len(y), -1).sum(1))
        steps, reason, lost = self.steps, None, int((~sound).sum())
        if lost and rows is None:
            return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=before)
        if lost:
            y = torch.where(sound.view(-1, *[1] * (y.dim() - 1)), y, y0)
            reason = f"in {lost} of {rows} rows {not_finite(y0)}"
            steps = self.steps if lost < len(y) else 0
        return Adaptation(
            y, y0, steps, reason, before=before, after=partial(self._error, x, y, rows)
        )

    def _error(self, x: Any, answer: Tensor, rows: int | None) -> Tensor:
        """The idempotence error against the trained network, whatever the loss was."""
        with self._functional.session() as run, torch.no_grad():
            signal = self.adapter.encode(answer)
            if rows is not None and self.norm != "source":
                y1 = run.each(x, signal, {})
            else:
                y1 = run(x, signal, shared=rows is None)
            return self.adapter.distance(y1, answer)

    def _row_by_row(self, x: Any) -> Adaptation:
        if self._loops or is_graph(x):
            return self._one_by_one(x)
        numbers = sum(parameter.numel() for parameter in self._functional.module.parameters())
        most = max(1, min(_MOST_ROWS, _MOST_NUMBERS // max(1, numbers)))
        try:
            return _joined([self._adapt(part, count(part)) for part in batches(x, most)])
        except IT3Error:
            raise
        except (RuntimeError, ValueError, NotImplementedError) as problem:
            answer = self._one_by_one(x)  # raises again where the fault is not vmap's
            self._loops = True
            warnings.warn(
                f"this network can't be mapped over rows, so they adapt one by one, which is "
                f"slower ({str(problem).splitlines()[0]})",
                IT3Warning,
                stacklevel=4,
            )
            return answer

    def _one_by_one(self, x: Any) -> Adaptation:
        return _joined([self._adapt(row, None) for row in batches(x, 1)])


def _joined(parts: list[Adaptation]) -> Adaptation:
    if len(parts) == 1:
        return parts[0]
    reasons = [part.fallback for part in parts if part.fallback]
    reason = "; ".join(reasons) or None
    if reasons and not reasons[0].startswith("in "):  # each part was a row
        reason = f"in {len(reasons)} of {len(parts)} rows {reasons[0]}"
    return Adaptation(
        torch.cat([part.prediction for part in parts]),
        torch.cat([part.initial for part in parts]),
        max(part.steps for part in parts),
        reason,
        before=torch.cat([part.error_before for part in parts]),
        after=lambda: torch.cat([part.error_after for part in parts]),
    )
