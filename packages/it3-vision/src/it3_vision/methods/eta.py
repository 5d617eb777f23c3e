"""ETA and EATA: entropy lowered on the answers that are sure and new, without forgetting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import Adaptation, Adapter, IT3Error
from it3_core.descent import Descent, OptimizerFactory, Weights
from it3_core.fast import FastModel, Parameters, Session
from it3_core.methods.base import check_settings, idempotence_error, not_finite, prepared
from it3_core.norms import Norm
from it3_vision.methods.base import Answer, Stream, batch_norm_choice, check_answer, entropy
from it3_vision.methods.fisher import Fisher

__all__ = ["ETA"]

_MOMENTUM = partial(torch.optim.SGD, momentum=0.9)


class ETA:
    """Minimises S(x) H(ŷ) + β Σ_i ω(θ_i) (θ_i − θ_i^o)² over the normalisation layers' θ.

    Niu et al. 2022; θ are their scales and shifts, θ^o the trained ones. S(x) = exp(E_0 − H(ŷ))
    where the answer is sure (H < E_0) and new (its cosine with the moving average of the chosen
    ones' probabilities is below d), else 0; the mean is over the chosen images. A batch with none
    takes no step. Without `fisher` the second term is left out, which is ETA; with it, it is EATA.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        fisher: ω, from `Fisher.collect`, or None.
        fisher_weight: β; 2000 is the paper's for ImageNet.
        sure: E_0 as a share of ln C, the entropy of a network that knows nothing.
        new: d, 0.4 for ten classes and 0.05 for a thousand in the paper: a fresh class has a cosine
            of about 1/√C.
        decay: share of the moving average that a batch keeps.
        online, answer, parameters, norm: as for `Tent`.
        steps: gradient steps a batch.
        lr, optimizer: by default the paper's for CIFAR, SGD with momentum 0.9 and 5e-3; for
            ImageNet it has 2.5e-4.

    Example:
        >>> import torch
        >>> from it3_core import Classification, condition
        >>> adapter = Classification(10)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8),
        ...                           torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
        >>> model = condition(net, adapter, layer="0")
        >>> ETA(model, adapter, sure=0.01)(torch.randn(4, 3, 8, 8)).steps  # none is so sure
        0
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        fisher: Fisher | None = None,
        *,
        fisher_weight: float = 2000.0,
        sure: float = 0.4,
        new: float = 0.4,
        decay: float = 0.9,
        online: bool = True,
        answer: Answer | None = None,
        steps: int = 1,
        lr: float = 5e-3,
        optimizer: OptimizerFactory = _MOMENTUM,
        parameters: Parameters = "norms",
        norm: Norm = "batch",
    ) -> None:
        check_settings(steps, lr)
        if not 0 <= decay <= 1:
            raise IT3Error(f"decay must lie between 0 and 1, but is {decay}")
        if not (sure > 0 and new > 0 and fisher_weight >= 0):
            raise IT3Error(
                f"sure and new must be positive and fisher_weight from 0 up, not {sure}, {new} "
                f"and {fisher_weight}"
            )
        self.adapter = adapter
        self.fisher = fisher
        self.fisher_weight = fisher_weight
        self.sure = sure
        self.new = new
        self.decay = decay
        self.online = online
        self.answer = check_answer(answer, online)
        self.steps = steps
        self.lr = lr
        self._fast = FastModel(model, parameters, batch_norm_choice(model, norm))
        if fisher and set(fisher.importance) != set(self._fast.selected or fisher.importance):
            raise IT3Error("this Fisher is of other parameters: collect it for those that adapt")
        self._stream = Stream(self._fast, optimizer, lr, online)
        self._average: Tensor | None = None

    def __call__(self, x: Tensor) -> Adaptation:
        x, _ = prepared(x, self._fast)
        with self._fast.session() as run:
            neutral = self.adapter.neutral(x)
            with self._stream.batch(run, x, neutral) as descent:
                return self._go_on(run, descent, x, neutral)

    def _go_on(self, run: Session, descent: Descent, x: Tensor, neutral: Tensor) -> Adaptation:
        theta, average, steps = descent.weights, self._average, 0
        with torch.set_grad_enabled(self.steps > 0):
            y = run(x, neutral, theta)
        y0 = y.detach()
        if y.dim() != 2:
            raise IT3Error(
                f"ETA needs one answer an image, logits (batch, classes), not {y.dim()}-D"
            )
        for left in reversed(range(self.steps if self.lr else 0)):
            chosen = self._choose(y.detach(), average)
            if not bool(chosen.any()):
                break
            average = self._averaged(average, y.detach()[chosen])
            descent.step(self._loss(y[chosen]) + self._forgetting(theta, run.source))
            steps += 1
            if left or self.answer == "after":
                with torch.set_grad_enabled(left > 0):
                    y = run(x, neutral, theta)
        y = y.detach().clone()
        error = partial(idempotence_error, self._fast, self.adapter, x)
        if not (bool(torch.isfinite(y).all()) and descent.finite()):
            self._stream.undo()
            return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=partial(error, y0))
        if self.online:
            self._average = average
        return Adaptation(y, y0, steps, before=partial(error, y0), after=partial(error, y))

    def reset(self) -> None:
        """Starts anew from the network as it was trained."""
        self._stream.reset()
        self._average = None

    def state_dict(self) -> dict[str, Tensor]:
        """All that the stream has left behind, as named tensors that safetensors can store."""
        seen = {} if self._average is None else {"average": self._average.clone()}
        return self._stream.state_dict() | seen

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken: the next answers are the same, bit for bit."""
        rest = dict(state)
        average = rest.pop("average", None)
        self._stream.load_state_dict(rest)
        self._average = None if average is None else average.detach().clone()

    def _margin(self, y: Tensor) -> float:
        return self.sure * math.log(y.shape[1])

    def _choose(self, y: Tensor, average: Tensor | None) -> Tensor:
        """Which answers are sure, and unlike those that were chosen before."""
        chosen = entropy(y) < self._margin(y)
        if average is None:
            return chosen
        likeness = nnf.cosine_similarity(average.to(y)[None], y.softmax(1), dim=1)
        return chosen & (likeness.abs() < self.new)

    def _averaged(self, average: Tensor | None, chosen: Tensor) -> Tensor:
        now = chosen.softmax(1).mean(0)
        return now if average is None else self.decay * average.to(now) + (1 - self.decay) * now

    def _loss(self, chosen: Tensor) -> Tensor:
        uncertain = entropy(chosen)
        return (uncertain * (self._margin(chosen) - uncertain.detach()).exp()).mean()

    def _forgetting(self, theta: Weights, source: Weights) -> Tensor | float:
        if self.fisher is None:
            return 0.0
        terms = [
            (importance.to(theta[name]) * (theta[name] - source[name]).square()).sum()
            for name, importance in self.fisher.importance.items()
        ]
        return self.fisher_weight * torch.stack(terms).sum()
