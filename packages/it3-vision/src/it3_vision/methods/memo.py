"""MEMO: one image, many augmented copies, and the entropy of their mean answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from it3_core import Adaptation, Adapter, IT3Error
from it3_core.batching import take
from it3_core.descent import OptimizerFactory
from it3_core.fast import FastModel, Parameters
from it3_core.methods.base import check_settings, idempotence_error, not_finite, prepared
from it3_core.norms import Norm
from it3_vision.methods.base import batch_norm_choice, check_images, generator, joined

__all__ = ["MEMO", "Augment"]

Augment = Callable[[Tensor, int, torch.Generator], Tensor]
"""Called as `augment(image, copies, generator)`: `(C, H, W)` to `(copies, C, H, W)`."""


class MEMO:
    """Minimises H(p̄) of p̄ = (1/B) Σ_b p(y | x̃_b), the mean answer to B copies of one image.

    Zhang et al. 2022. Each image of a batch is an episode of its own: all weights take a step, and
    the image is answered as it came.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        augment: makes the copies: `AugMix` with the mean and deviation that images were
            normalised with, or anything called as `augment(image, copies, generator)`.
        copies: B, 32 for CIFAR and 64 for ImageNet in the paper.
        seed: of the copies; those of an image depend on it and on the image's place in the
            stream, so that a run can be repeated. `reset()` goes back to the first place.
        steps: gradient steps an image.
        lr, optimizer: SGD with 5e-3 is the paper's for CIFAR, 2.5e-4 for ImageNet's ResNet.
        parameters: which parameters adapt, see `IT3`.
        norm: whose statistics batch norms use, see `Source`; by default the training data count as
            16 images and the copies as one, as in the paper. The gradient flows through the copies'
            share, as it does everywhere here; the authors' code takes it for a constant.

    Example:
        >>> import torch
        >>> from it3_core import Classification, condition
        >>> from it3_vision.augmix import AugMix
        >>> adapter = Classification(10)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8),
        ...                           torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
        >>> augment = AugMix(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        >>> method = MEMO(condition(net, adapter, layer="0"), adapter, augment, copies=8)
        >>> method(torch.randn(2, 3, 8, 8)).steps
        1
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        augment: Augment,
        *,
        copies: int = 32,
        seed: int = 0,
        steps: int = 1,
        lr: float = 5e-3,
        optimizer: OptimizerFactory = "SGD",
        parameters: Parameters = None,
        norm: Norm = 1 / 17,
    ) -> None:
        check_settings(steps, lr)
        if copies < 1:
            raise IT3Error(f"copies must be at least 1, not {copies}")
        self.adapter = adapter
        self.augment = augment
        self.copies = copies
        self.seed = seed
        self.steps = steps
        self.lr = lr
        self.optimizer = optimizer
        self.norm = batch_norm_choice(model, norm)
        self._fast = FastModel(model, parameters, self.norm)
        self._index = 0

    def __call__(self, x: Tensor) -> Adaptation:
        check_images(x)
        x, size = prepared(x, self._fast)
        with torch.inference_mode(False):  # rows taken inside it could not be adapted to
            parts = [self._adapt(take(x, [row])) for row in range(size)]
        return joined(parts, self._fast, self.adapter, x, self.norm)

    def _adapt(self, image: Tensor) -> Adaptation:
        chance = generator(self.seed, self._index)
        self._index += 1
        steps = self.steps if self.lr else 0
        with self._fast.session() as run:
            neutral = self.adapter.neutral(image)
            descent = run.descent(image, neutral, self.optimizer, self.lr)
            theta = descent.weights
            with torch.no_grad():
                y0 = run(image, neutral, theta)
            for _ in range(steps):
                copies = self._copies(image, chance)
                signal = neutral.expand(self.copies, *neutral.shape[1:])
                descent.step(_marginal_entropy(run(copies, signal, theta)))
            with torch.no_grad():
                y = run(image, neutral, theta) if steps else y0.clone()
        error = partial(idempotence_error, self._fast, self.adapter, image)
        if not bool(torch.isfinite(y).all()):
            return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=partial(error, y0))
        return Adaptation(y, y0, steps, before=partial(error, y0), after=partial(error, y))

    def reset(self) -> None:
        """The next image gets the copies of the first; nothing else is ever kept."""
        self._index = 0

    def _copies(self, image: Tensor, chance: torch.Generator) -> Tensor:
        copies = self.augment(image[0], self.copies, chance)
        expected = (self.copies, *image.shape[1:])
        if copies.shape != expected or copies.dtype != image.dtype:
            raise IT3Error(
                f"augment must return {expected} of {image.dtype}, but returned "
                f"{tuple(copies.shape)} of {copies.dtype}"
            )
        return copies


def _marginal_entropy(logits: Tensor) -> Tensor:
    # In logarithms: a class that no copy believes in has p̄ = 0, and log 0 has no gradient.
    log_p = logits.log_softmax(1).logsumexp(0) - math.log(len(logits))
    return -(log_p.exp() * log_p).sum()
