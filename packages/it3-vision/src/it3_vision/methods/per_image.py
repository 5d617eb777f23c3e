"""MEMO and TTT: each image of a batch is adapted to alone, from the network as it was trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import Adaptation, Adapter, IT3Error
from it3_core.batching import take
from it3_core.engine.functional import FunctionalModel, Parameters, prepared
from it3_core.engine.inner_optimizer import Norm, OptimizerFactory
from it3_core.methods import base
from it3_vision.methods.rotation import RotationHead, rotate, rotation_logits

Augment = Callable[[Tensor, int, torch.Generator], Tensor]
"""Called as `augment(image, copies, generator)`: `(C, H, W)` to `(copies, C, H, W)`."""

Loss = Callable[[Callable[..., Tensor]], Tensor]
"""Called with `run(x, signal)`, the network with the weights of the step."""


class PerImage:
    """What both do: a few steps lower an image's own loss, then the image is predicted."""

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        steps: int,
        lr: float,
        optimizer: OptimizerFactory,
        parameters: Parameters,
        norm: Norm,
    ) -> None:
        base.check_settings(steps, lr)
        self.model, self.adapter, self.parameters = model, adapter, parameters
        self.steps, self.lr, self.optimizer = steps, lr, optimizer
        self.norm = base.batch_norm_choice(model, norm)
        self._functional = FunctionalModel(model, parameters, self.norm)

    __repr__ = base.shown

    def _loss(self, image: Tensor, neutral: Tensor) -> Loss:
        raise NotImplementedError

    def __call__(self, x: Tensor) -> Adaptation:
        if not isinstance(x, Tensor) or x.dim() != 4:
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise IT3Error(f"images must be (batch, channels, height, width), not {found}")
        x, size = prepared(x, self._functional)
        with torch.inference_mode(False):  # rows taken inside it could not be adapted to
            parts = [self._adapt(take(x, [row])) for row in range(size)]
        return _joined(parts)

    def _adapt(self, image: Tensor) -> Adaptation:
        steps = self.steps if self.lr else 0
        with self._functional.session() as run:
            neutral = self.adapter.neutral(image)
            descent = run.descent(image, neutral, self.optimizer, self.lr)
            theta = descent.weights
            with torch.no_grad():
                y0 = run(image, neutral, theta)
            loss = self._loss(image, neutral)
            for _ in range(steps):
                descent.step(loss(lambda x, signal: run(x, signal, theta)))
            with torch.no_grad():
                y = run(image, neutral, theta) if steps else y0.clone()
        error = partial(base.idempotence_error, self._functional, self.adapter, image)
        if not bool(torch.isfinite(y).all()):
            return Adaptation(y0.clone(), y0, 0, base.not_finite(y0), before=partial(error, y0))
        return Adaptation(y, y0, steps, before=partial(error, y0), after=partial(error, y))

    def reset(self) -> None:
        """Nothing to forget: each image starts from the network as it was trained."""


def _joined(parts: Sequence[Adaptation]) -> Adaptation:
    """The predictions of images one by one, as the prediction of their batch."""
    if len(parts) == 1:
        return parts[0]
    reasons = [part.fallback for part in parts if part.fallback]
    return Adaptation(
        torch.cat([part.prediction for part in parts]),
        torch.cat([part.initial for part in parts]),
        max(part.steps for part in parts),
        f"in {len(reasons)} of {len(parts)} images {reasons[0]}" if reasons else None,
        before=lambda: torch.cat([part.error_before for part in parts]),
        after=lambda: torch.cat([part.error_after for part in parts]),
    )


class MEMO(PerImage):
    """Minimises H(p̄) of p̄ = (1/B) Σ_b p(y | x̃_b), the mean prediction of B copies of one image.

    Zhang et al. 2022. Each image of a batch is an episode of its own: all weights take a step, and
    the image is predicted as it came.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        augment: makes the copies: `AugMix` with the mean and deviation that images were
            normalised with, or anything called as `augment(image, copies, generator)`.
        copies: B, 32 for CIFAR and 64 for ImageNet in the paper.
        seed: of the copies; those of an image depend on it and on the image's number in the
            stream, so that a run can be repeated. `reset()` goes back to the first image.
        steps: gradient steps an image.
        lr, optimizer: SGD with 5e-3 is the paper's for CIFAR, 2.5e-4 for ImageNet's ResNet.
        parameters: which parameters adapt, see `IT3`.
        norm: whose statistics batch norms use, see `Source`; by default the training data count as
            16 images and the copies as one, as in the paper. The gradient flows through the copies'
            part, as it does everywhere here; the authors' code takes it for a constant.

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
        if copies < 1:
            raise IT3Error(f"copies must be at least 1, not {copies}")
        self.augment, self.copies, self.seed = augment, copies, seed
        self._index = 0
        super().__init__(model, adapter, steps, lr, optimizer, parameters, norm)

    def _loss(self, image: Tensor, neutral: Tensor) -> Loss:
        # A prime far above any stream's length keeps the seeds of two methods' images apart.
        seed = (self.seed * 1_000_000_007 + self._index) % 2**63
        generator = torch.Generator().manual_seed(seed)
        self._index += 1
        signal = neutral.expand(self.copies, *neutral.shape[1:])
        expected = (self.copies, *image.shape[1:])

        def marginal_entropy(run: Callable[..., Tensor]) -> Tensor:
            copies = self.augment(image[0], self.copies, generator)
            if copies.shape != expected or copies.dtype != image.dtype:
                raise IT3Error(
                    f"augment must return {expected} of {image.dtype}, but returned "
                    f"{tuple(copies.shape)} of {copies.dtype}"
                )
            # In logarithms: a class that no copy believes in has p̄ = 0, and log 0 has no gradient.
            log_p = run(copies, signal).log_softmax(1).logsumexp(0) - math.log(self.copies)
            return -(log_p.exp() * log_p).sum()

        return marginal_entropy

    def reset(self) -> None:
        """The next image gets the copies of the first; nothing else is ever kept."""
        self._index = 0


class TTT(PerImage):
    """Minimises l_s(x; θ_s, θ_e), the rotation head's loss, over the shared weights θ_e.

    Sun et al. 2020. Each image of a batch is an episode of its own: it is rotated by all four
    quarter turns, the weights up to the head's layer take a few steps, and the image is predicted
    as it came; the head itself, and the layers after its layer, never move.

    Args:
        model: a network made by `with_rotation_head` and trained with `joint_loss`.
        adapter: what kind of answer it gives.
        steps: gradient steps an image; the paper has 10.
        lr, optimizer, norm: as for `IT3`; the paper has SGD with 1e-3.

    Example:
        >>> import torch
        >>> from it3_core import Classification, condition
        >>> from it3_vision.methods import with_rotation_head
        >>> adapter, x = Classification(10), torch.randn(2, 3, 8, 8)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(),
        ...                           torch.nn.Linear(8 * 36, 10))
        >>> model = with_rotation_head(condition(net, adapter, "0"), adapter, "model.0", x)
        >>> TTT(model, adapter, steps=2)(x).steps
        2
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        *,
        steps: int = 1,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = "SGD",
        norm: Norm = "source",
    ) -> None:
        shared: Parameters = lambda name, _: not name.startswith("rotation.")  # noqa: E731
        super().__init__(model, adapter, steps, lr, optimizer, shared, norm)
        if not isinstance(getattr(self._functional.module, "rotation", None), RotationHead):
            raise IT3Error("the network has no rotation head: make it with with_rotation_head()")

    def _loss(self, image: Tensor, neutral: Tensor) -> Loss:
        turns = torch.arange(4, device=image.device)
        rotated = rotate(image.expand(4, *image.shape[1:]), turns)
        signal = neutral.expand(4, *neutral.shape[1:])
        return lambda run: nnf.cross_entropy(rotation_logits(run, rotated, signal), turns)
