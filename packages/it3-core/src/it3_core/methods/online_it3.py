"""Online IT³: the same gap on a stream, without starting anew, against a moving average."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

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
from it3_core.methods.stream_gate import StreamGate
from it3_core.model.adapters import Adapter
from it3_core.model.losses import idempotence_loss, second_pass

_FIRST = 64  # inputs of a stream that count as usual, whatever they are
_FALSE_ALARMS = 0.01  # of a stream's own gate
_RECENT = 16  # inputs whose errors are looked at together, whatever batches they came in


@dataclass(eq=False, repr=False)
class OnlineIT3(StreamMethod):
    """Minimises ‖f_EMA(x, f(x, neutral)) − f(x, neutral)‖ over f's weights, batch after batch.

    f goes on from where the last batch left it, and its exponential moving average takes the
    place of the frozen F. Both are this object's own: the module is never changed. A batch whose
    step comes out non-finite leaves no trace.

    Alone that drifts without end: where f goes, its average follows, and nothing leads back. So
    a batch in which the gate finds nothing unusual is answered by the network as it was trained,
    and every batch leads the weights back a little: a stream may run for days on usual data. See
    docs/streams.md.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        decay: fraction of the moving average that a batch keeps, from 0 to 1; 1 is a frozen F.
        pull: fraction of the way to the trained weights that f and its average go back after
            every batch; 0 is the paper's.
        gate: which batches are adapted to, by the trained network's idempotence error on them
            and on those before, 16 inputs together: those that are unusual for this `"stream"`,
            whose first 64 inputs count as usual, or for a `StreamGate` of validation errors,
            which a stream needs that is shifted from its start. None is the paper's: all.
        steps, lr, optimizer, parameters, anchor_gradient, power, norm: as for `IT3`.
        trust_region: answers move no further than to y1, and the weights go that fraction of their
            way.

    Example:
        >>> import torch
        >>> from it3_core import OnlineIT3, Regression, Source, StreamGate, condition
        >>> _ = torch.manual_seed(0)
        >>> adapter = Regression()
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> model = condition(net, adapter, layer="0")
        >>> _ = torch.nn.init.normal_(model.embed.weight)  # stands in for training
        >>> gate = StreamGate.fit(Source(model, adapter)(torch.randn(64, 3)).error_before, 0.01)
        >>> method = OnlineIT3(model, adapter, gate=gate)
        >>> [method(shift + torch.randn(16, 3)).steps for shift in (0, 3)]
        [0, 1]
        >>> state = method.state_dict()  # go on from here after a restart
        >>> method.reset()               # or start anew
    """

    model: nn.Module
    adapter: Adapter
    _: KW_ONLY
    steps: int = 1
    lr: float = 2e-4
    decay: float = 0.99
    pull: float = 0.01
    gate: StreamGate | Literal["stream"] | None = "stream"
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
        if not 0 <= self.pull <= 1:
            raise IT3Error(f"pull must lie between 0 and 1, but is {self.pull}")
        if not (self.gate in ("stream", None) or getattr(self.gate, "of", "") == "error"):
            raise IT3Error('gate is "stream", a StreamGate of idempotence errors, or None')
        self._functional = FunctionalModel(self.model, self.parameters, self.norm)
        self._functional.require_signal("OnlineIT3")
        self.reset()

    def reset(self) -> None:
        with self._lock:
            super().reset()
            self._ema: Weights = {}
            # The gate's: how many usual errors there were, their mean, their squared deviations;
            # then the last errors, usual or not.
            self._usual = torch.zeros(3, dtype=torch.float64)

    def _answer(self, run: Session, descent: InnerOptimizer, x: Any, neutral: Tensor) -> Adaptation:
        averages = self._ema or {name: w.detach().clone() for name, w in descent.weights.items()}
        self._ema = {name: averages[name].to(w.device) for name, w in descent.weights.items()}
        adapter, theta, ema = self.adapter, descent.weights, self._ema
        if self.gate is not None and (usual := self._usual_answer(run, x, neutral)) is not None:
            self._move_average(run, descent)
            return usual
        # Behind a gate the trained network has run, and with it what lies below the signal.
        shared = self.gate is not None and run.only_above(theta)
        y = run(x, neutral, theta, record=self.gate is None, shared=shared)
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
        self._move_average(run, descent)
        return Adaptation(y, y0, self.steps, before=before, after=partial(error, y))

    def _move_average(self, run: Session, descent: InnerOptimizer) -> None:
        """After a batch: the average follows f, and both go back a little."""
        # New tensors: an earlier answer may still read its error off the old ones.
        self._ema = {
            name: torch.lerp(leaf.detach(), self._ema[name], self.decay)
            for name, leaf in descent.weights.items()
        }
        if self.pull:
            source = {name: run.source[name] for name in self._ema}
            descent.go_back({f"weights.{k}": w for k, w in source.items()}, 1 - self.pull)
            self._ema = {k: torch.lerp(w, source[k], self.pull) for k, w in self._ema.items()}

    def _usual_answer(self, run: Session, x: Any, neutral: Tensor) -> Adaptation | None:
        """The trained network's answer, where the gate finds nothing unusual in its error."""
        with torch.no_grad():
            y0 = run(x, neutral, record=True)
            y1 = run(x, self.adapter.encode(y0), shared=True)
            errors = self.adapter.distance(y1, y0)
        warn_if_insensitive(run, self.adapter, x, y0, y1)
        answer = Adaptation(y0.clone(), y0, 0, before=errors)
        errors = errors.to(self._usual)
        batch, new = len(errors), float(errors.mean())
        if not math.isfinite(new):
            return None  # the step's to tell
        (n, mean, squares), recent = self._usual[:3].tolist(), self._usual[3:]
        recent = torch.cat([recent, errors])[-max(batch, _RECENT) :]
        opens, gate = False, self.gate
        if gate == "stream" and n >= _FIRST:  # the mean of n errors is known to std / √n, too
            std = math.sqrt(squares / (n - 1) * (1 + len(recent) / n))
            gate = StreamGate(mean, std, _FALSE_ALARMS)
        if isinstance(gate, StreamGate):
            opens = gate.opens(recent)
        if not opens:
            off, total = new - mean, n + batch
            squares += float((errors - new).square().sum()) + off**2 * n * batch / total
            n, mean = total, mean + off * batch / total
        self._usual = torch.cat([recent.new_tensor([n, mean, squares]), recent[-_RECENT:]])
        return None if opens else answer

    def _average(self, run: Session, ema: Weights, shared: bool, x: Any, signal: Tensor) -> Tensor:
        """f_EMA(x, signal)."""
        with torch.set_grad_enabled(self.anchor_gradient):
            return run(x, signal, ema, shared=shared)

    def state_dict(self) -> dict[str, Tensor]:
        with self._lock:
            averages = {f"ema.{name}": value.clone() for name, value in self._ema.items()}
            return super().state_dict() | averages | {"usual": self._usual} if averages else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        averages, none = under("ema.", state), torch.zeros(0 if state else 3)
        usual, same = state.get("usual", none), averages.keys() == under("weights.", state).keys()
        if not same or usual.dim() != 1 or len(usual) < 3 or bool((usual < 0).any()):
            raise IT3Error("this state is not of OnlineIT3: take what its state_dict() returned")
        with self._lock:
            super().load_state_dict(state)
            rest = {k: v for k, v in self._resumed.items() if k != "usual" and k[:4] != "ema."}
            self._resumed = rest
            self._ema = {name: value.detach().clone() for name, value in averages.items()}
            self._usual = usual.detach().to(self._usual)


def _undone(y0: Tensor, before: Tensor | Callable[[], Tensor]) -> Adaptation:
    return Adaptation(y0.clone(), y0, 0, f"{not_finite(y0)} (it was undone)", before=before)
