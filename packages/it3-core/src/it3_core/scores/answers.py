"""Scores of the answers alone, which nothing has to be fitted for."""

from __future__ import annotations

import torch
from torch import Tensor

from it3_core.scores.passes import Passes, UncertaintyScore


class LargestProbability(UncertaintyScore):
    """1 − the largest probability in the first answer; of a map, the mean over its pixels.

    Example:
        >>> import torch
        >>> from it3_core import Classification
        >>> score = LargestProbability(torch.nn.Identity(), Classification(2))
        >>> score(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        tensor([0.5000, 0.1192], dtype=torch.float64)
    """

    needs = "log_probabilities"

    def of(self, passes: Passes) -> Tensor:
        # In double precision: in single, all that is surer than 1 − 6e-8 would be equal.
        log_p: Tensor = self.adapter.log_probabilities(passes.answer.double())  # type: ignore[attr-defined]
        return -torch.expm1(log_p.amax(1)).reshape(len(log_p), -1).mean(1)


class Energy(UncertaintyScore):
    """−log Σ exp(logit) of the first answer; of a map, the mean over its pixels.

    Unlike probabilities it tells an input that no class claims from one that several do.

    Example:
        >>> import torch
        >>> from it3_core import Classification
        >>> Energy(torch.nn.Identity(), Classification(2))(torch.tensor([[0.0, 0.0], [9.0, 9.0]]))
        tensor([-0.6931, -9.6931])
    """

    needs = "logits"

    def of(self, passes: Passes) -> Tensor:
        energy: Tensor = -self.adapter.logits(passes.answer).logsumexp(1)  # type: ignore[attr-defined]
        return energy.reshape(len(energy), -1).mean(1)


class AnswerDistance(UncertaintyScore):
    """The first answer's distance from the mean training label, in training standard deviations.

    A network that is given what lies outside its training range answers near an end of it. Both
    statistics are the adapter's, so it must have been fitted to the training labels.

    Example:
        >>> import torch
        >>> from it3_core import Regression
        >>> adapter = Regression(mean=10.0, std=2.0)
        >>> AnswerDistance(torch.nn.Identity(), adapter)(torch.tensor([[10.0], [16.0]]))
        tensor([0., 3.])
    """

    needs = "mean"

    def of(self, passes: Passes) -> Tensor:
        answer = passes.answer
        mean = answer.new_tensor(self.adapter.mean).expand(len(answer), -1)  # type: ignore[attr-defined]
        return self.adapter.distance(answer, mean)


class Idempotence(UncertaintyScore):
    """The idempotence error: the adapter's distance from y0 to y1 = F(x, encode(y0)).

    Example:
        >>> import torch
        >>> from it3_core import Regression, Source, widen
        >>> adapter, x = Regression(), torch.randn(4, 3)
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> _ = torch.nn.init.normal_(model.model.weight)  # stands in for training
        >>> torch.equal(Idempotence(model, adapter)(x), Source(model, adapter)(x).error_before)
        True
    """

    needs = "signal"

    def of(self, passes: Passes) -> Tensor:
        return self.adapter.distance(passes.second, passes.answer)


class Sensitivity(UncertaintyScore):
    """−|dy1/dy0|: how little the second answer heeds the first one.

    Often a trained network heeds it less on unusual inputs, but not every network does: compare
    this with other scores on data of yours first.

    Example:
        >>> import torch
        >>> from it3_core import Regression, widen
        >>> model = widen(torch.nn.Linear(3, 1), Regression())
        >>> _ = torch.nn.init.constant_(model.model.weight, 0.5)  # stands in for training
        >>> Sensitivity(model, Regression())(torch.randn(2, 3))
        tensor([-0.5000, -0.5000])
    """

    needs = "signal"

    def of(self, passes: Passes) -> Tensor:
        return -passes.sensitivity
