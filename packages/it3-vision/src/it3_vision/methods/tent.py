"""Tent: the entropy of the answers, lowered by the scales and shifts of the norm layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from it3_core import Adaptation, Adapter
from it3_core.descent import Descent, OptimizerFactory
from it3_core.fast import FastModel, Parameters, Session
from it3_core.methods.base import check_settings, idempotence_error, not_finite, prepared
from it3_core.norms import Norm
from it3_vision.methods.base import Answer, Stream, batch_norm_choice, check_answer, entropy

__all__ = ["Tent"]


class Tent:
    """Minimises H(ŷ) = −Σ_c p(ŷ_c) log p(ŷ_c) over γ and β of the normalisation layers.

    Wang et al. 2021. Batch norms use the batch's statistics; γ and β of group and layer norms
    adapt too. Online, weights and optimiser go on from batch to batch; a batch whose step comes
    out non-finite leaves no trace.

    The authors' code answers with the pass that the last step was computed from, so that a step
    helps only the batches after it: `answer="before"`. `"after"` costs one more pass.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        online: whether a batch goes on from the last one; if not, each starts from the trained
            network.
        answer: the network's output before or after the last step. By default the authors'
            choice online and "after" in episodes, where "before" would undo the only step.
        steps: gradient steps a batch.
        lr, optimizer: Adam with 1e-3 is the paper's for CIFAR; for ImageNet it is
            `partial(torch.optim.SGD, momentum=0.9)` with 2.5e-4.
        parameters: which parameters adapt, see `IT3`.
        norm: whose statistics batch norms use, see `Source`; a network without batch norm has no
            choice.

    Example:
        >>> import torch
        >>> from it3_core import Classification, condition
        >>> adapter = Classification(10)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8),
        ...                           torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
        >>> method = Tent(condition(net, adapter, layer="0"), adapter)
        >>> for batch in torch.randn(3, 4, 3, 8, 8):
        ...     answer = method(batch)
        >>> state = method.state_dict()  # go on from here after a restart
        >>> method.reset()               # or start anew
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        *,
        online: bool = True,
        answer: Answer | None = None,
        steps: int = 1,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = "Adam",
        parameters: Parameters = "norms",
        norm: Norm = "batch",
    ) -> None:
        check_settings(steps, lr)
        self.adapter = adapter
        self.online = online
        self.answer = check_answer(answer, online)
        self.steps = steps
        self.lr = lr
        self._fast = FastModel(model, parameters, batch_norm_choice(model, norm))
        self._stream = Stream(self._fast, optimizer, lr, online)

    def __call__(self, x: Tensor) -> Adaptation:
        x, _ = prepared(x, self._fast)
        with self._fast.session() as run:
            neutral = self.adapter.neutral(x)
            with self._stream.batch(run, x, neutral) as descent:
                return self._go_on(run, descent, x, neutral)

    def _go_on(self, run: Session, descent: Descent, x: Tensor, neutral: Tensor) -> Adaptation:
        theta, steps = descent.weights, self.steps if self.lr else 0
        with torch.set_grad_enabled(steps > 0):
            y = run(x, neutral, theta)
        y0 = y.detach()
        for left in reversed(range(steps)):
            descent.step(entropy(y).mean())
            if left or self.answer == "after":
                with torch.set_grad_enabled(left > 0):
                    y = run(x, neutral, theta)
        y = y.detach().clone()
        error = partial(idempotence_error, self._fast, self.adapter, x)
        if not (bool(torch.isfinite(y).all()) and descent.finite()):
            self._stream.undo()
            return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=partial(error, y0))
        return Adaptation(y, y0, steps, before=partial(error, y0), after=partial(error, y))

    def reset(self) -> None:
        """Starts anew from the network as it was trained."""
        self._stream.reset()

    def state_dict(self) -> dict[str, Tensor]:
        """All that the stream has left behind, as named tensors that safetensors can store."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken: the next answers are the same, bit for bit."""
        self._stream.load_state_dict(state)
