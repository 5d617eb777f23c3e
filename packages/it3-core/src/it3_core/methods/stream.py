"""What methods share whose weights go on from batch to batch: their state, and plain steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor

from it3_core.engine.functional import FunctionalModel, Session, prepared
from it3_core.engine.inner_optimizer import InnerOptimizer, OptimizerFactory
from it3_core.errors import IT3Error
from it3_core.io.tensors import under
from it3_core.methods.base import Adaptation, outcome, shown
from it3_core.model.adapters import Adapter


class StreamMethod:
    """What methods share whose weights go on from batch to batch; they say how one is answered.

    Threads that share a stream take turns: each batch goes on from the last one.
    """

    adapter: Adapter
    optimizer: OptimizerFactory
    lr: float
    steps: int
    online: bool = True  # if not, every batch starts from the trained weights
    _functional: FunctionalModel
    _descent: InnerOptimizer | None
    _kept: dict[str, Tensor]  # before this batch
    _resumed: dict[str, Tensor]
    _lock: threading.RLock

    def __new__(cls, *_: Any, **__: Any) -> Self:  # a copy, and one from a pickle, come by here too
        stream = super().__new__(cls)
        stream._lock = threading.RLock()
        return stream

    def __getstate__(self) -> dict[str, Any]:
        """The optimiser's tensors are views of one another, which a copy would part: its state."""
        with self._lock:
            now = {"_descent": None, "_kept": {}, "_resumed": StreamMethod.state_dict(self)}
            return {k: v for k, v in (vars(self) | now).items() if k != "_lock"}

    __repr__ = shown

    def __call__(self, x: Any) -> Adaptation:
        x, _ = prepared(x, self._functional)
        turn = self._lock if self.online else nullcontext()
        with turn, self._functional.session() as run:
            neutral = self.adapter.neutral(x)
            if not self.online:
                once = run.descent(x, neutral, self.optimizer, self.lr)
                return self._answer(run, once, x, neutral)
            descent = self._descent or self._begin(run, x, neutral)
            for name, leaf in descent.weights.items():
                now = run.source[name]
                if (now.dtype, now.device, now.shape) != (leaf.dtype, leaf.device, leaf.shape):
                    raise IT3Error("its type or device has changed: call reset() to begin anew")
            self._kept = descent.state()
            try:
                answer = self._answer(run, descent, x, neutral)
                if answer.fallback is not None:
                    self._undo()
                return answer
            except BaseException:  # half a batch is no state to go on from
                self._undo()
                raise
            finally:
                self._kept = {}

    def _answer(self, run: Session, descent: InnerOptimizer, x: Any, neutral: Tensor) -> Adaptation:
        raise NotImplementedError

    def _stepped(
        self, run: Session, descent: InnerOptimizer, x: Any, neutral: Tensor,
        loss: Callable[[Tensor], Tensor | None],
    ) -> Adaptation:  # fmt: skip
        """The answer after steps on a loss of the answers; one of None ends them."""
        taken, steps = 0, self.steps if self.lr else 0
        with torch.set_grad_enabled(steps > 0):
            y = run(x, neutral, descent.weights)
        y0 = y.detach()
        for left in reversed(range(steps)):
            value = loss(y)
            if value is None:
                break
            descent.step(value)
            taken += 1
            if left or not self.online:
                with torch.set_grad_enabled(left > 0):
                    y = run(x, neutral, descent.weights)
        sound = descent.finite() and bool(torch.isfinite(y).all())
        return outcome(self._functional, self.adapter, x, y.detach().clone(), y0, taken, sound)

    def reset(self) -> None:
        """Starts anew from the network as it was trained."""
        with self._lock:
            self._descent, self._kept, self._resumed = None, {}, {}

    def _undo(self) -> None:
        """Takes this batch's steps back."""
        if self._descent is not None and self._kept:
            self._descent.restore(self._kept)

    def state_dict(self) -> dict[str, Tensor]:
        """All that the stream has left behind, as named tensors that safetensors can store."""
        with self._lock:
            if self._descent is None:
                return dict(self._resumed)
            return self._descent.state() | {"network": _sizes(self._functional)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken: the next answers are the same, bit for bit.

        On another machine, or with another number of threads, sums are rounded otherwise.
        """
        check_state(state, self._functional)
        with self._lock:
            self.reset()
            self._resumed = {name: value.detach().clone() for name, value in state.items()}

    def _begin(self, run: Session, x: Any, neutral: Tensor) -> InnerOptimizer:
        descent = InnerOptimizer(run.chosen(x, neutral), self.optimizer, self.lr)
        if self._resumed:
            for name, like in descent.weights.items():
                if self._resumed.get(f"weights.{name}", like).dtype != like.dtype:
                    raise IT3Error(f"this state is not of {like.dtype} in {name}, as now")
            descent.restore({k: v.to(like.device) for k, v in self._resumed.items()})
            self._resumed = {}
        self._descent = descent
        return descent


def _sizes(fast: FunctionalModel) -> Tensor:
    """The trained weights' absolute sums, by which a state knows its network again."""
    sums = [p.detach().abs().sum(dtype=torch.float64) for p in fast.module.parameters()]
    return torch.stack([total.cpu() for total in sums])


def check_state(state: Mapping[str, Tensor], fast: FunctionalModel) -> None:
    """Refuses a stream's state that is damaged, or of another network, by what is wrong with it."""
    shapes = {name: p.shape for name, p in fast.module.named_parameters()}
    weights = under("weights.", state)
    sizes = {1, sum(value.numel() for value in weights.values())}  # of the optimiser's tensors
    for name, value in state.items():
        kind, _, rest = name.partition(".")
        of = rest.rpartition("|")[2]
        fits = {
            "weights": value.shape == shapes.get(rest),
            "ema": rest in weights and value.shape == shapes.get(rest),
            "optimizer": value.numel() in sizes | {shapes.get(of, torch.Size()).numel()},
        }
        if not fits.get(kind, bool(weights)):
            raise IT3Error(f"{name} is of another network: make the method with the same one")
        if not bool(torch.isfinite(value).all()):
            raise IT3Error(f"{name} is not finite, so this state is damaged: take an earlier one")
    now = _sizes(fast)
    then = state.get("network", now).to(now)
    if then.shape != now.shape or not torch.allclose(then, now, rtol=1e-5):
        raise IT3Error("network: this state is of another network, of the same shape")


def entropy(logits: Tensor) -> Tensor:
    """H(ŷ) = −Σ p(ŷ_c) log p(ŷ_c), one number per instance."""
    if logits.dim() < 2 or logits.shape[1] < 2:
        raise IT3Error(f"logits must be of two classes or more, not of shape {tuple(logits.shape)}")
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)
