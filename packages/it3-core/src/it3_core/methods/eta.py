"""ETA and EATA: the entropy of those answers alone that are sure and new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core.engine.functional import FunctionalModel, Session
from it3_core.engine.inner_optimizer import InnerOptimizer, Norm, OptimizerFactory, Weights
from it3_core.errors import IT3Error
from it3_core.methods.base import Adaptation, batch_norm_choice, check_settings
from it3_core.methods.stream import StreamMethod, entropy
from it3_core.model.adapters import Adapter

_MOMENTUM = partial(torch.optim.SGD, momentum=0.9)


@dataclass(eq=False, repr=False)
class ETA(StreamMethod):
    """Minimises S(x) H(ŷ) + β Σ_i ω(θ_i) (θ_i − θ_i^o)² over the normalisation layers' θ.

    Niu et al. 2022; θ are their scales and shifts, θ^o the trained ones. S(x) = exp(E_0 − H(ŷ))
    where the answer is sure (H < E_0) and new (its cosine with the moving average of the chosen
    ones' probabilities is below d), else 0; the mean is over the chosen images. A batch with none
    takes no step. Without `fisher` the second term is left out, which is ETA; with it, it is EATA.

    Args:
        model: any network, called as `model(x)`; as `model(x, signal)` where it takes a signal.
        adapter: what kind of answer it gives.
        fisher: ω by the parameters' names, as `it3_vision.methods.Fisher` collects it, or None.
        fisher_weight: β; 2000 is the paper's for ImageNet.
        sure: E_0 as a fraction of ln C, the entropy of a network that knows nothing.
        new: d, 0.4 for ten classes and 0.05 for a thousand in the paper: a fresh class has a cosine
            of about 1/√C.
        decay: fraction of the moving average that a batch keeps.
        online, norm: as for `Tent`, and so is which pass answers.
        steps: gradient steps a batch.
        lr, optimizer: by default the paper's for CIFAR, SGD with momentum 0.9 and 5e-3; for
            ImageNet it has 2.5e-4.

    Example:
        >>> import torch
        >>> from it3_core import ETA, Classification
        >>> net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
        >>> ETA(net, Classification(3))(torch.randn(8, 4)).prediction.shape
        torch.Size([8, 3])
    """

    model: nn.Module
    adapter: Adapter
    fisher: Mapping[str, Tensor] | None = None
    _: KW_ONLY
    fisher_weight: float = 2000.0
    sure: float = 0.4
    new: float = 0.4
    decay: float = 0.9
    online: bool = True
    steps: int = 1
    lr: float = 5e-3
    optimizer: OptimizerFactory = _MOMENTUM
    norm: Norm = "batch"

    def __post_init__(self) -> None:
        check_settings(self.steps, self.lr)
        if not 0 <= self.decay <= 1:
            raise IT3Error(f"decay must lie between 0 and 1, but is {self.decay}")
        if not (self.sure > 0 and self.new > 0 and self.fisher_weight >= 0):
            raise IT3Error("sure and new must be positive, and fisher_weight from 0 up")
        self._functional = FunctionalModel(
            self.model, "norms", batch_norm_choice(self.model, self.norm)
        )
        if self.fisher and set(self.fisher) != set(self._functional.selected or self.fisher):
            raise IT3Error("this Fisher is of another network: collect it for this one")
        self._average: Tensor | None = None
        self.reset()

    def _answer(
        self, run: Session, descent: InnerOptimizer, x: Tensor, neutral: Tensor
    ) -> Adaptation:
        average = self._average

        def loss(y: Tensor) -> Tensor | None:
            nonlocal average
            if y.dim() != 2:
                raise IT3Error(f"ETA needs logits (batch, classes), not {y.dim()}-D")
            chosen = self._choose(y.detach(), average)
            if not bool(chosen.any()):
                return None
            average = self._averaged(average, y.detach()[chosen])
            uncertain = entropy(y[chosen])
            sure = (uncertain * (self._margin(y[chosen]) - uncertain.detach()).exp()).mean()
            return sure + self._forgetting(descent.weights, run.source)

        answer = self._stepped(run, descent, x, neutral, loss)
        if answer.fallback is None and self.online:
            self._average = average
        return answer

    def reset(self) -> None:
        super().reset()
        self._average = None

    def state_dict(self) -> dict[str, Tensor]:
        seen = {} if self._average is None else {"average": self._average.clone()}
        return super().state_dict() | seen

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        rest = dict(state)
        average = rest.pop("average", None)
        super().load_state_dict(rest)
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

    def _forgetting(self, theta: Weights, source: Weights) -> Tensor | float:
        if self.fisher is None:
            return 0.0
        terms = [
            (importance.to(theta[name]) * (theta[name] - source[name]).square()).sum()
            for name, importance in self.fisher.items()
        ]
        return self.fisher_weight * torch.stack(terms).sum()
