"""Uncertainty scores beside the idempotence error: how unusual is an input?

Each is a callable from a batch to one score per instance, larger for what is less like the training
data, and each is of the first answer: f(x, neutral), or f(x) of a network without a signal. Passes
over the network: entropy and Mahalanobis distance 1, the idempotence error 2, an ensemble as many
as networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.batching import Data, labelled
from it3_core.engine.functional import FunctionalModel, prepared
from it3_core.errors import IT3Error
from it3_core.model.adapters import Adapter
from it3_core.model.classes import Classification
from it3_core.model.losses import first_pass

Score = Callable[[Any], Tensor]
"""One number for each instance of a batch; larger is less like the training data."""


def _first_answer(network: FunctionalModel, adapter: Adapter, x: Any) -> Tensor:
    """f(x, neutral), of the network as it was trained."""
    x, _ = prepared(x, network)
    with network.session() as run, torch.no_grad():
        return first_pass(run, adapter, x)


class Entropy:
    """Of the probabilities in the first answer, in nats; of a map, the mean over its pixels."""

    def __init__(self, model: nn.Module, adapter: Adapter) -> None:
        if not hasattr(adapter, "log_probabilities"):
            raise IT3Error(f"{type(adapter).__name__} has no probabilities, so it has no entropy")
        self.adapter = adapter
        self._functional = FunctionalModel(model)

    def __call__(self, x: Any) -> Tensor:
        answer = _first_answer(self._functional, self.adapter, x)
        log_p: Tensor = self.adapter.log_probabilities(answer)
        surprise: Tensor = torch.special.entr(log_p.exp()).sum(1)
        return surprise.view(len(log_p), -1).mean(1)


class Mahalanobis:
    """The squared distance of a layer's output from the training data's, in their own spread.

    With labels of classes there is a mean for each class and one covariance for all, and the
    distance is to the nearest; else there is one mean. Maps and sequences are averaged over their
    places first.

    Args:
        model: the trained network, with a signal or without.
        adapter: what kind of answer it gives.
        layer: the layer's name, such as the last but one; `condition()` and `widen()` put `model.`
            before a network's own names.
        means: of the features, `(classes, channels)`.
        precision: the inverse of their covariance.
    """

    def __init__(
        self, model: nn.Module, adapter: Adapter, layer: str, means: Tensor, precision: Tensor
    ) -> None:
        self.adapter = adapter
        self.layer = layer
        self.means = means
        self.precision = precision
        self._functional = FunctionalModel(model, watch=[layer])

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        adapter: Adapter,
        data: Data,
        layer: str,
    ) -> Mahalanobis:
        """Learns from training data: a mean for each class of a `Classification`'s labels, or one.

        The covariance is shrunk towards the same spread in all directions by Ledoit and Wolf's
        fraction, which grows where there are few instances for many channels.
        """
        empty = torch.empty(0)
        found = cls(model, adapter, layer, empty, empty)
        seen, labels = [empty], []
        for x, y in labelled(data):
            seen.append(found.features(x))
            by_class = isinstance(adapter, Classification) and y is not None
            labels.append(y.cpu() if by_class else torch.zeros(len(seen[-1]), dtype=torch.long))
        if sum(map(len, seen)) < 2:
            raise IT3Error("a Mahalanobis distance needs at least two training instances")
        features = torch.cat(seen[1:])
        classes, rows = torch.unique(torch.cat(labels), return_inverse=True)
        means = torch.stack([features[rows == number].mean(0) for number in range(len(classes))])
        covariance = _shrunk(features - means[rows])
        return cls(model, adapter, layer, means, torch.linalg.pinv(covariance, hermitian=True))

    def features(self, x: Any) -> Tensor:
        """What the layer returns on the way to the first answer, `(batch, channels)`."""
        x, size = prepared(x, self._functional)
        with self._functional.session() as run, torch.no_grad():
            run(x, self.adapter.neutral(x))
            seen = run.seen[0].double().cpu()
        if len(seen) != size or seen.dim() < 2:
            raise IT3Error(
                f"layer {self.layer!r} returns shape {tuple(seen.shape)} for {size} instances: "
                f"name one that returns a row for each, after the pooling"
            )
        return seen if seen.dim() == 2 else seen.flatten(2).mean(2)

    def __call__(self, x: Any) -> Tensor:
        gaps = self.features(x)[:, None] - self.means
        return torch.einsum("nki,ij,nkj->nk", gaps, self.precision, gaps).amin(1).clamp_min(0)


class Ensemble:
    """How far networks that were trained alike, from other seeds, disagree.

    The score is the mean of the adapter's distance over all pairs of answers: for a number a
    difference in training standard deviations, for classes a divergence.

    Args:
        models: two or more networks that take the same inputs; five are usual.
        adapter: what kind of answer they give.
    """

    def __init__(self, models: Sequence[nn.Module], adapter: Adapter) -> None:
        if len(models) < 2:
            raise IT3Error(f"an ensemble disagrees from two networks up, not {len(models)}")
        self.adapter = adapter
        self._networks = [FunctionalModel(model) for model in models]

    def __call__(self, x: Any) -> Tensor:
        answers = [_first_answer(network, self.adapter, x) for network in self._networks]
        pairs = [self.adapter.distance(one, other) for one, other in combinations(answers, 2)]
        return torch.stack(pairs).mean(0)


def _shrunk(gaps: Tensor) -> Tensor:
    """The covariance of rows of mean zero, shrunk towards a multiple of the identity.

    Ledoit and Wolf's fraction: the covariance's own expected squared error, over its squared
    distance from that multiple.
    """
    covariance = gaps.T @ gaps / len(gaps)
    target = torch.eye(len(covariance), dtype=gaps.dtype) * covariance.trace() / len(covariance)
    error = gaps.square().sum(1).square().mean() - covariance.square().sum()
    apart = (covariance - target).square().sum()
    fraction = float((error / len(gaps) / apart).clamp(0, 1)) if apart > 0 else 1.0
    return (1 - fraction) * covariance + fraction * target
