"""Rivals of the idempotence error: other numbers that say how unusual an input is.

Each is a callable from a batch to one score per instance, larger for what is less usual, and each
is of the first answer f(x, neutral). `it3_core.judging` measures them beside the idempotence
error, on the same network and the same inputs. What they cost, in passes over the network: entropy
and Mahalanobis distance 1, the idempotence error 2, an ensemble of five 5 (and five trainings),
dropout as many as it draws.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core.adapters import Adapter, Regression
from it3_core.conditioning import find_layer
from it3_core.errors import IT3Error
from it3_core.fast import FastModel
from it3_core.methods.base import prepared
from it3_core.methods.source import Source

__all__ = ["Dropout", "Ensemble", "Entropy", "Mahalanobis", "Score"]

Score = Callable[[Any], Tensor]
"""One number for each instance of a batch; larger is less usual."""

_LAST = (nn.Linear, nn.modules.conv._ConvNd)


class Entropy:
    """Of the probabilities in the first answer, in nats; of a map, the mean over its pixels.

    Example:
        >>> import torch
        >>> from it3_core import Classification, widen
        >>> adapter, net = Classification(2), torch.nn.Linear(3, 2)
        >>> _ = torch.nn.init.zeros_(net.weight), torch.nn.init.zeros_(net.bias)
        >>> Entropy(widen(net, adapter), adapter)(torch.randn(1, 3))  # knows nothing: log 2
        tensor([0.6931])
    """

    def __init__(self, model: nn.Module, adapter: Adapter) -> None:
        if isinstance(adapter, Regression):
            raise IT3Error("a regression answers with no probabilities, so it has no entropy")
        self.adapter = adapter
        self._source = Source(model, adapter)

    def __call__(self, x: Any) -> Tensor:
        p = self.adapter.encode(self._source(x).prediction)[:, :-1]  # without the indicator
        if p.shape[1] == 1:
            p = torch.cat([p, 1 - p], 1)
        surprise: Tensor = torch.special.entr(p).sum(1)
        return surprise.view(len(p), -1).mean(1)


class Mahalanobis:
    """The squared distance of a layer's output from the training data's, in their own spread.

    With labels of classes there is a mean for each class and one covariance for all, and the
    distance is to the nearest; else there is one mean. Maps and sequences are averaged over their
    places first.

    Args:
        model: the conditioned and trained network.
        adapter: what kind of answer it gives.
        layer: the layer's name, such as the last but one; `condition()` and `widen()` put `model.`
            before a network's own names.
        means: of the features, `(classes, channels)`.
        precision: the inverse of their covariance.

    Example:
        >>> import torch
        >>> from it3_core import Regression, widen
        >>> adapter, x = Regression(), torch.randn(200, 3)
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        >>> model = widen(net, adapter)
        >>> score = Mahalanobis.fit(model, adapter, x.split(50), layer="model.0")
        >>> bool(score(x + 9).min() > score(x).max())
        True
    """

    def __init__(
        self, model: nn.Module, adapter: Adapter, layer: str, means: Tensor, precision: Tensor
    ) -> None:
        self.adapter = adapter
        self.layer = layer
        self.means = means
        self.precision = precision
        self._fast = FastModel(model, watch=[layer])

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        adapter: Adapter,
        inputs: Iterable[Any],
        layer: str,
        *,
        labels: Tensor | None = None,
        shrinkage: float | None = None,
    ) -> Mahalanobis:
        """Learns from batches of training inputs.

        Args:
            model, adapter, layer: see the class.
            inputs: the batches.
            labels: a class for each of their instances; None for one mean.
            shrinkage: the share of the covariance that is replaced by the same spread in all
                directions, from 0 to 1; by default Ledoit and Wolf's, which grows where there are
                few instances for many channels.
        """
        empty = torch.empty(0)
        found = cls(model, adapter, layer, empty, empty)
        features = torch.cat([found.features(batch) for batch in inputs])
        if len(features) < 2:
            raise IT3Error("a Mahalanobis distance needs at least two training instances")
        if labels is None:
            labels = torch.zeros(len(features), dtype=torch.long)
        if len(labels) != len(features):
            raise IT3Error(f"there are {len(features)} inputs but {len(labels)} labels")
        numbers = {label: row for row, label in enumerate(sorted(set(labels.tolist())))}
        rows = torch.tensor([numbers[label] for label in labels.tolist()])
        means = torch.stack([features[rows == number].mean(0) for number in numbers.values()])
        covariance = _shrunk(features - means[rows], shrinkage)
        return cls(model, adapter, layer, means, torch.linalg.pinv(covariance, hermitian=True))

    def features(self, x: Any) -> Tensor:
        """What the layer returns on the way to the first answer, `(batch, channels)`."""
        x, size = prepared(x, self._fast)
        with self._fast.session() as run, torch.no_grad():
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

    Example:
        >>> import torch
        >>> from it3_core import Regression, widen
        >>> adapter = Regression()
        >>> nets = [widen(torch.nn.Linear(1, 1), adapter) for _ in range(2)]
        >>> for net, weight in zip(nets, (1.0, 3.0)):
        ...     _ = net.model.weight.data.copy_(torch.tensor([[weight, 0.0, 0.0]]))
        ...     _ = net.model.bias.data.zero_()
        >>> Ensemble(nets, adapter)(torch.tensor([[0.0], [5.0]]))
        tensor([ 0., 10.])
    """

    def __init__(self, models: Sequence[nn.Module], adapter: Adapter) -> None:
        if len(models) < 2:
            raise IT3Error(f"an ensemble disagrees from two networks up, not {len(models)}")
        self.adapter = adapter
        self._sources = [Source(model, adapter) for model in models]

    def __call__(self, x: Any) -> Tensor:
        return _disagreement(self.adapter, [source(x).prediction for source in self._sources])


class Dropout:
    """Monte-Carlo dropout: how far answers disagree when parts of the network are left out.

    The network's own dropout layers are switched on. Where it has none, the inputs of its last
    layer (linear or convolution) are dropped instead, which it was not trained for; `how` says
    which of both it is. The network itself is left alone: this holds a copy as it is now.

    Args:
        model: the conditioned and trained network.
        adapter: what kind of answer it gives.
        rate: what share to drop, where the network has no dropout of its own.
        passes: how many answers to compare; see `Ensemble` for how.
        seed: of the draws, which are the same in every call.

    Example:
        >>> import torch
        >>> from it3_core import Regression, widen
        >>> adapter = Regression()
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        >>> Dropout(widen(net, adapter), adapter).how
        "a tenth of the inputs of layer 'model.2' dropped, which training did not"
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        *,
        rate: float = 0.1,
        passes: int = 10,
        seed: int = 0,
    ) -> None:
        if not 0 < rate < 1:
            raise IT3Error(f"rate is a share between 0 and 1, not {rate}")
        if passes < 2:
            raise IT3Error(f"answers are compared from two passes up, not {passes}")
        self.adapter = adapter
        self.passes = passes
        self.seed = seed
        self._model = copy.deepcopy(model).eval()
        own = [m for m in self._model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
        if any(layer.p > 0 for layer in own):
            for layer in own:
                layer.train()
            self.how = f"the network's own {len(own)} dropout layers"
            return
        last = [name for name, m in self._model.named_modules() if isinstance(m, _LAST)
                and not name.startswith("embed")]  # fmt: skip
        if not last:
            raise IT3Error("the network has neither dropout nor a linear layer or convolution")
        find_layer(self._model, last[-1]).register_forward_pre_hook(_Dropping(rate))
        share = "a tenth" if rate == 0.1 else f"{rate:.0%}"
        self.how = f"{share} of the inputs of layer {last[-1]!r} dropped, which training did not"

    def __call__(self, x: Any) -> Tensor:
        neutral = self.adapter.neutral(x)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(self.seed)
            answers = [self._model(x, neutral) for _ in range(self.passes)]
        return _disagreement(self.adapter, answers)


def _disagreement(adapter: Adapter, answers: Sequence[Tensor]) -> Tensor:
    """The mean distance over all pairs of answers."""
    pairs = [adapter.distance(first, second) for first, second in combinations(answers, 2)]
    return torch.stack(pairs).mean(0)


def _shrunk(gaps: Tensor, shrinkage: float | None) -> Tensor:
    """The covariance of rows of mean zero, shrunk towards a multiple of the identity.

    Ledoit and Wolf's share: the covariance's own expected squared error, over its squared
    distance from that multiple.
    """
    covariance = gaps.T @ gaps / len(gaps)
    round_ = torch.eye(len(covariance), dtype=gaps.dtype) * covariance.trace() / len(covariance)
    if shrinkage is None:
        size = covariance.square().sum()
        error = (gaps.square().sum(1).square().sum() / len(gaps) - size) / len(gaps)
        apart = (covariance - round_).square().sum()
        shrinkage = float((error / apart).clamp(0, 1)) if apart > 0 else 1.0
    if not 0 <= shrinkage <= 1:
        raise IT3Error(f"shrinkage is a share from 0 to 1, not {shrinkage}")
    return (1 - shrinkage) * covariance + shrinkage * round_


class _Dropping:
    """A forward pre-hook that drops a share of what its layer is given."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (nnf.dropout(inputs[0], self._rate), *inputs[1:])
