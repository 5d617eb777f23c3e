"""How far what batch norms see is from what they were trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from it3_core.engine.functional import FunctionalModel, prepared
from it3_core.engine.inner_optimizer import batch_norm_names
from it3_core.errors import IT3Error
from it3_core.model.adapters import Adapter
from it3_core.model.losses import first_pass
from it3_core.scores.passes import Passes, UncertaintyScore


class StatisticsShift(UncertaintyScore):
    """The shift of batch norms' statistics, on the network as it was trained.

    Of an instance: the mean square of its channel means, less those of the training data, in the
    training data's standard deviations. Of a batch of n: n times the same of its means, which is as
    large for training-like batches of any size; a shift that all instances share makes it grow with
    n. So it finds batches with a common shift much sooner than other scores do; of single instances
    it says little.

    Args:
        model: any network with batch norms, with a signal or without.
        adapter: what kind of answer it gives.

    Example:
        >>> import torch
        >>> from it3_core import StatisticsShift, Regression, condition
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        >>> adapter = Regression()
        >>> score = StatisticsShift(condition(net, adapter, layer="1"), adapter)
        >>> x = torch.randn(64, 3)
        >>> usual, shifted = (score.of_batch(score.observe(one)) for one in (x, x + 1))
        >>> float(usual) < 2 < float(shifted)
        True
    """

    def __init__(self, model: nn.Module, adapter: Adapter) -> None:
        names = batch_norm_names(model)
        if not names:
            raise IT3Error("the network has no batch norm, whose statistics could shift")
        self.adapter, self.layer = adapter, None
        self._functional = FunctionalModel(model, watch=names, keep=_standardised)

    @property
    def shares(self) -> bool:
        return False

    def observe(self, x: Any) -> Passes:
        x, _ = prepared(x, self._functional)
        with self._functional.session() as run, torch.no_grad():
            answer = first_pass(run, self.adapter, x)
            means = run.ran
        if not means:
            raise IT3Error("no batch norm runs in the first pass: there is no shift to see")
        return Passes(x, answer, None, self.adapter, self._functional, means)

    def of(self, passes: Passes) -> Tensor:
        return torch.stack([one.square().mean(1) for one in passes.means]).mean(0)

    def of_batch(self, passes: Passes) -> Tensor:
        layers = [one.mean(0).square().mean() for one in passes.means]
        return len(passes.answer) * torch.stack(layers).mean()


def _standardised(layer: nn.Module, output: Tensor) -> Tensor:
    """Each instance's means: a batch norm's bias is what it puts the training data's mean at.

    Its scale is taken over all channels: what a channel that is scaled away sees counts for little.
    """
    means = output.flatten(2).mean(2) if output.dim() > 2 else output
    if not isinstance(layer, nn.modules.batchnorm._BatchNorm) or not layer.affine:
        return means
    scale = layer.weight.detach().square().mean().sqrt().clamp_min(1e-12)
    return (means - layer.bias) / scale
