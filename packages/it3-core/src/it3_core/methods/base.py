"""What methods share: the result, the trust region, and what happens where it is not finite."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from it3_core.engine.functional import FunctionalModel
from it3_core.engine.inner_optimizer import Norm, Weights, has_batch_norm
from it3_core.errors import IT3Error
from it3_core.model.adapters import Adapter
from it3_core.scores.passes import Passes


class _NotCalibratedError(IT3Error, AttributeError):
    pass


@dataclass(frozen=True, eq=False)
class Adaptation:
    """A method's answer to a batch.

    Attributes:
        prediction: the network's output after adaptation.
        initial: its output before.
        steps: gradient steps that were taken; 0 where the answer fell back to `initial`.
        fallback: why the answer fell back to `initial`, or None.
        error_before: idempotence error per instance, before: how unusual is this input?
        error_after: the same after adaptation.
        adapted: for which rows the gate opened; without a gate, whose answer changed.
        passes: what the network was seen to do on the way to `initial`, where that was kept.

    The two errors are computed when they are first read, where the method had no need of them:
    read them before you write other numbers into the input's memory or train the network on.
    """

    prediction: Tensor
    initial: Tensor
    steps: int
    fallback: str | None = None
    before: Tensor | Callable[[], Tensor] = field(repr=False, kw_only=True)
    after: Tensor | Callable[[], Tensor] | None = field(repr=False, kw_only=True, default=None)
    opened: Tensor | None = field(repr=False, kw_only=True, default=None)
    passes: Passes | None = field(repr=False, kw_only=True, default=None)

    @cached_property
    def error_before(self) -> Tensor:
        return self.before() if callable(self.before) else self.before

    @cached_property
    def error_after(self) -> Tensor:
        if self.after is None:
            return self.error_before
        return self.after() if callable(self.after) else self.after

    @cached_property
    def adapted(self) -> Tensor:
        if self.opened is not None:
            return self.opened
        pairs = zip(self.prediction, self.initial, strict=True)  # rows may differ in shape
        return torch.tensor([not torch.equal(*pair) for pair in pairs])

    @property
    def lower(self) -> Tensor:
        raise _NotCalibratedError(
            "a method alone has no intervals, sets or probabilities: "
            "predictor = calibrate(method, (x_cal, y_cal)), then predictor(x, coverage=0.9)"
        )

    upper = prediction_set = probability = lower


@runtime_checkable
class Method(Protocol):
    """Something that answers a batch at test time."""

    def __call__(self, x: Any) -> Adaptation:
        """Answers a batch."""

    def reset(self) -> None:
        """Forgets everything that earlier batches have left behind."""


def shown(method: object) -> str:
    """The `__repr__` of every method: the kind of network, and all its settings."""
    names = inspect.signature(type(method)).parameters
    return _call(type(method).__name__, {name: getattr(method, name) for name in names})


def _call(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={_short(value)}' for key, value in settings.items())})"


def _short(value: Any) -> str:
    if isinstance(value, nn.Module):
        return type(value).__name__
    if isinstance(value, partial):
        return _call(_short(value.func), value.keywords)
    if isinstance(value, Mapping):
        return f"<{len(value)} tensors>"
    return str(getattr(value, "__name__", None) or repr(value))


def within_reach(
    adapter: Adapter, answer: Tensor, initial: Tensor, limit: Tensor
) -> tuple[Tensor, float]:
    """The trust region: each answer pulled back so that it moves no further than `limit`.

    Adam's first step has the same size whatever the gap, so that an answer can overshoot y1
    many times over; `limit` is the distance from y0 to y1. Returned are the answers, and the mean
    fraction of the way to them that was kept.
    """
    moved = adapter.distance(answer, initial)
    inside = moved <= limit
    if bool(inside.all()):
        return answer, 1.0
    way = answer - initial
    shape = (-1, *[1] * (way.dim() - 1))
    # Along a line a norm grows like its length, which makes the ratio exact. Other distances are
    # searched by halves, row by row: what a row gets does not depend on its neighbours.
    fraction = torch.where(inside, torch.ones_like(moved), limit / moved)
    reached = adapter.distance(initial + fraction.view(shape) * way, initial)
    exact = inside | ((reached - limit).abs() <= 1e-3 * limit)
    if not bool(exact.all()):
        low, high = torch.zeros_like(fraction), torch.ones_like(fraction)
        for _ in range(20):
            middle = (low + high) / 2
            fits = adapter.distance(initial + middle.view(shape) * way, initial) <= limit
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
        fraction = torch.where(exact, fraction, low)
    pulled = initial + fraction.view(shape) * way
    return torch.where(inside.view(shape), answer, pulled), float(fraction.mean())


def check_settings(steps: int, lr: float, power: float = 1.0) -> None:
    """Refuses settings that no gradient step can have."""
    if not isinstance(steps, int) or steps < 0:
        raise IT3Error(f"steps must be a whole number from 0 up, not {steps!r}")
    if not (math.isfinite(lr) and lr >= 0):
        raise IT3Error(f"a learning rate must be a finite number from 0 up, not {lr}")
    if not (math.isfinite(power) and power > 0):
        raise IT3Error(f"power must be a positive number, not {power}")


def idempotence_error(
    fast: FunctionalModel, adapter: Adapter, x: Any, answer: Tensor, weights: Weights | None = None
) -> Tensor:
    """‖F(x, answer) − answer‖ per instance, F being the network with its own or these weights."""
    fast.require_signal("the idempotence error")
    with fast.session() as run, torch.no_grad():
        return adapter.distance(run(x, adapter.encode(answer), weights), answer)


def answered(passes: Passes) -> Adaptation:
    """The network's own answer, from passes that were made."""
    y0 = passes.answer
    error = partial(idempotence_error, passes.network, passes.adapter, passes.x, y0)
    return Adaptation(y0.clone(), y0, 0, before=error, passes=passes)


def not_finite(y0: Tensor) -> str:
    """Why an answer fell back: the network's own fault, or the step's."""
    if bool(torch.isfinite(y0).all()):
        return "the step was not finite: lower the learning rate"
    return "the network's own answer is not finite"


def outcome(
    fast: FunctionalModel, adapter: Adapter, x: Any, y: Tensor, y0: Tensor, steps: int, sound: bool
) -> Adaptation:
    """The answer y after so many steps; y0 where it is not sound: it, or a step, is not finite."""
    error = partial(idempotence_error, fast, adapter, x)
    if not sound:
        return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=partial(error, y0))
    return Adaptation(y, y0, steps, before=partial(error, y0), after=partial(error, y))


def batch_norm_choice(model: nn.Module, norm: Norm) -> Norm:
    """`norm` where the network has a batch norm; without one there is nothing to choose."""
    return norm if has_batch_norm(model) else "source"
