"""Uncertainty scores beside the idempotence error: how unusual is an input?

Each is a callable from a batch to one score per instance, larger for what is less like the training
data. Passes over the network: 1 (see `passes`), an ensemble as many as networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.batching import Data, labelled
from it3_core.errors import IT3Error
from it3_core.model.adapters import Adapter
from it3_core.model.classes import Classification
from it3_core.scores.passes import Passes, Score, UncertaintyScore

__all__ = ["Ensemble", "Entropy", "Mahalanobis", "NearestNeighbours", "Score"]


class Entropy(UncertaintyScore):
    """Of the probabilities in the first answer, in nats; of a map, the mean over its pixels."""

    needs = "log_probabilities"

    def of(self, passes: Passes) -> Tensor:
        log_p: Tensor = self.adapter.log_probabilities(passes.answer)  # type: ignore[attr-defined]
        surprise: Tensor = torch.special.entr(log_p.exp()).sum(1)
        return surprise.view(len(log_p), -1).mean(1)


class Mahalanobis(UncertaintyScore):
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
        super().__init__(model, adapter, layer)
        self.means = means
        self.precision = precision

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
        return _features(self.observe(x))

    def of(self, passes: Passes) -> Tensor:
        gaps = _features(passes)[:, None] - self.means
        return torch.einsum("nki,ij,nkj->nk", gaps, self.precision, gaps).amin(1).clamp_min(0)


class NearestNeighbours(UncertaintyScore):
    """The distance of a layer's output from the k-th nearest of the training data's.

    Each channel counts in the training data's own standard deviations. It asks less of the features
    than Mahalanobis does, whose one spread is for all.

    Args:
        model: the trained network, with a signal or without.
        adapter: what kind of answer it gives.
        layer: the layer's name, as for `Mahalanobis`.
        bank: features of training rows, `(rows, channels)`.
        k: which of the nearest.

    Example:
        >>> import torch
        >>> from it3_core import Regression
        >>> net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(3, 1))
        >>> score = NearestNeighbours.fit(net, Regression(), torch.randn(200, 3), layer="0")
        >>> bool(score(torch.zeros(1, 3)) < score(torch.full((1, 3), 9.0)))
        True
    """

    def __init__(
        self, model: nn.Module, adapter: Adapter, layer: str, bank: Tensor, k: int = 10
    ) -> None:
        if not 1 <= k <= len(bank):
            raise IT3Error(f"the {k}-th nearest of {len(bank)} training rows: k is from 1 to these")
        super().__init__(model, adapter, layer)
        self.k = k
        self.bank = bank.double().cpu()
        std = self.bank.std(0, correction=0)
        self._std = torch.where(std > 1e-12 * self.bank.abs().amax(0), std, 1.0)

    @classmethod
    def fit(
        cls, model: nn.Module, adapter: Adapter, data: Data, layer: str, *, k: int = 10,
        at_most: int = 10_000,
    ) -> NearestNeighbours:  # fmt: skip
        """Learns from training data: of more than `at_most` rows it keeps so many, drawn evenly.

        10,000 rows of 512 channels take 41 MB. The draw is the same for the same data.
        """
        reader = UncertaintyScore(model, adapter, layer)
        generator = torch.Generator().manual_seed(0)
        bank, order = torch.empty(0), torch.empty(0)
        for x, _ in labelled(data):
            seen = _features(reader.observe(x))
            drawn = torch.rand(len(seen), generator=generator)
            bank = torch.cat([bank, seen]) if len(bank) else seen
            order = torch.cat([order, drawn])
            if len(bank) > 2 * at_most:  # now and then, so that memory stays bounded
                bank, order = _least(bank, order, at_most)
        return cls(model, adapter, layer, _least(bank, order, at_most)[0], k)

    def of(self, passes: Passes) -> Tensor:
        gaps = torch.cdist(_features(passes) / self._std, self.bank / self._std)
        return gaps.kthvalue(self.k, dim=1).values


class Ensemble(UncertaintyScore):
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
        super().__init__(models[0], adapter)
        self._others = [UncertaintyScore(model, adapter) for model in models[1:]]

    def of(self, passes: Passes) -> Tensor:
        answers = [passes.answer, *(other.observe(passes.x).answer for other in self._others)]
        pairs = [self.adapter.distance(one, other) for one, other in combinations(answers, 2)]
        return torch.stack(pairs).mean(0)


def _features(passes: Passes) -> Tensor:
    if passes.features is None:
        raise IT3Error("these passes watched no layer: take those of this score's observe(x)")
    return passes.features


def _least(bank: Tensor, order: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` rows that come first in a random order."""
    kept = order.argsort()[:count]
    return bank[kept], order[kept]


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
