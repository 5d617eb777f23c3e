"""Drift: the network's own answer, and how far the batch's statistics are from training's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.adapters import Adapter
from it3_core.errors import IT3Error
from it3_core.fast import FastModel
from it3_core.methods.base import Adaptation, idempotence_error, prepared
from it3_core.norms import batch_norm_names

__all__ = ["Drift", "Drifted"]


@dataclass(frozen=True, eq=False)
class Drifted(Adaptation):
    """An answer with what the batch norms saw.

    Attributes:
        means: for each batch norm (n, channels): the mean of each instance, less training's, in
            training's standard deviations.
    """

    means: Sequence[Tensor] = field(repr=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process: the means too."""
        return {**super().__getstate__(), "means": self.means}

    @property
    def drift(self) -> Tensor:
        """Of the batch: n times the mean square of its means.

        The means of n usual instances vary as 1/√n, so that this is as large for a usual batch as
        it is for one usual instance; a shift that all instances share makes it grow with n.
        """
        layers = [one.mean(0).square().mean() for one in self.means]
        return len(self.initial) * torch.stack(layers).mean().view(1)

    @property
    def each(self) -> Tensor:
        """The same for every instance alone."""
        return torch.stack([one.square().mean(1) for one in self.means]).mean(0)


class Drift:
    """Answers y0 = f(x, neutral), and keeps what batch norms saw on the way.

    It needs no second pass, and tells batches that drifted together much sooner than the
    idempotence error does; of single instances it knows little.

    Args:
        model: a conditioned network with batch norms, called as `model(x, signal)`.
        adapter: what kind of answer it gives.

    Example:
        >>> import torch
        >>> from it3_core import Drift, Regression, condition
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        >>> adapter = Regression()
        >>> drift = Drift(condition(net, adapter, layer="1"), adapter)
        >>> x = torch.randn(64, 3)
        >>> float(drift(x).drift) < 2 < float(drift(x + 1).drift)
        True
    """

    def __init__(self, model: nn.Module, adapter: Adapter) -> None:
        names = batch_norm_names(model)
        if not names:
            raise IT3Error("the network has no batch norm, by whose statistics a drift is told")
        self.adapter = adapter
        self._fast = FastModel(model, watch=names, keep=_standardised)

    def __call__(self, x: Any) -> Drifted:
        x, _ = prepared(x, self._fast)
        with self._fast.session() as run, torch.no_grad():
            y0 = run(x, self.adapter.neutral(x))
            means = run.ran
        if not means:
            raise IT3Error("no batch norm runs in the first pass: there is no drift to be told")
        error = partial(idempotence_error, self._fast, self.adapter, x, y0)
        return Drifted(y0.clone(), y0, steps=0, before=error, means=means)

    def reset(self) -> None:
        """Nothing to forget."""


def _standardised(layer: nn.Module, output: Tensor) -> Tensor:
    """Each instance's means: a batch norm's bias is what it puts the training data's mean at.

    Its scale is taken over all channels: what a channel that is scaled away sees counts for little.
    """
    means = output.flatten(2).mean(2) if output.dim() > 2 else output
    if not isinstance(layer, nn.modules.batchnorm._BatchNorm) or not layer.affine:
        return means
    scale = layer.weight.detach().square().mean().sqrt().clamp_min(1e-12)
    return (means - layer.bias) / scale
