"""How much training-like images need each weight: what EATA must not forget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import Adapter, IT3Error
from it3_core.batching import Data, labelled
from it3_core.engine.functional import FunctionalModel, prepared
from it3_core.engine.inner_optimizer import Norm, Weights
from it3_core.io.tensors import under
from it3_core.methods.base import batch_norm_choice


@dataclass(frozen=True)
class Fisher:
    """ω(θ_i), the diagonal Fisher information: how much training-like images need each weight.

    Example:
        >>> import torch
        >>> from it3_core import Classification, condition
        >>> from it3_vision.methods import Fisher
        >>> adapter = Classification(10)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8),
        ...                           torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
        >>> known = torch.randn(64, 3, 8, 8)
        >>> model = condition(net, adapter, layer="0")
        >>> fisher = Fisher.collect(model, adapter, known)
        >>> sorted(fisher.importance)
        ['model.1.bias', 'model.1.weight']
    """

    importance: dict[str, Tensor]

    @classmethod
    def collect(
        cls,
        model: nn.Module,
        adapter: Adapter,
        data: Data,
        norm: Norm = "batch",
    ) -> Fisher:
        """(1/Q) Σ_q (∂ L_CE(f(x_q), ŷ_q) / ∂θ)², ŷ being the network's own prediction.

        As in the authors' code (2,000 images in batches of 64) x_q is a batch, and L_CE its mean.
        """
        fast = FunctionalModel(model, "norms", batch_norm_choice(model, norm))
        total: Weights = {}
        batches = 0
        for batch, _ in labelled(data):
            x, _ = prepared(batch, fast)
            with fast.session() as run:
                neutral = adapter.neutral(x)
                chosen = run.chosen(x, neutral)
                theta = {name: w.clone().requires_grad_() for name, w in chosen.items()}
                y = run(x, neutral, theta)
                loss = nnf.cross_entropy(y, y.detach().argmax(1))
                gradients = torch.autograd.grad(
                    loss, list(theta.values()), allow_unused=True, materialize_grads=True
                )
                for name, gradient in zip(theta, gradients, strict=True):
                    total[name] = total.get(name, torch.zeros_like(gradient)) + gradient.square()
            batches += 1
        if not batches:
            raise IT3Error("the Fisher information needs at least one batch of images")
        with torch.inference_mode(False):  # what is made inside it can't take part in a loss
            return cls({name: value / batches for name, value in total.items()})

    def tensors(self) -> dict[str, Tensor]:
        """As tensors by name, for a checkpoint; `from_tensors` makes it again."""
        return {f"fisher.{name}": value for name, value in self.importance.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Fisher:
        """What `tensors` named, among whatever else is there."""
        importance = under("fisher.", tensors)
        if not importance:
            raise IT3Error("the Fisher information is missing: train again")
        return cls(importance)
