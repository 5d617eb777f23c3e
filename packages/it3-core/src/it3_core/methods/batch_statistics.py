"""Batch statistics: batch norms with the statistics of this batch, blended or alone."""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from it3_core.batching import count
from it3_core.engine.inner_optimizer import Norm, has_batch_norm
from it3_core.errors import IT3Error, IT3Warning
from it3_core.methods.base import Adaptation, shown
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter


class BatchStatistics:
    """Normalises by μ = (N μ_s + n μ_t) / (N + n), and σ² likewise; no gradient step.

    μ_s are the training data's statistics and μ_t those of this batch of n images. Without a
    prior N is 0: the batch's statistics alone (Nado et al. 2020). With `prior=16` the training
    data count as 16 images (Schneider et al. 2020), which is what a batch of one needs.

    A network without batch norm is answered for as it is, with a warning when this is made.

    Args:
        model: any network, called as `model(x)`; as `model(x, signal)` where it takes a signal.
        adapter: what kind of answer it gives.
        prior: N; the fraction of a batch of n is then n / (N + n).

    Example:
        >>> import torch
        >>> from it3_core import BatchStatistics, Classification
        >>> net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
        >>> BatchStatistics(net, Classification(3))(torch.randn(8, 4)).prediction.shape
        torch.Size([8, 3])
    """

    def __init__(self, model: nn.Module, adapter: Adapter, *, prior: int | None = None) -> None:
        if prior is not None and (not isinstance(prior, int) or prior < 0):
            raise IT3Error(f"prior is a number of images from 0 up, not {prior!r}")
        self.model = model
        self.adapter = adapter
        self.norm: Norm = "batch"
        self.prior = prior
        self._sources: dict[Norm, Source] = {}
        if not has_batch_norm(model):
            self.norm, self.prior = "source", None
            warnings.warn(
                "the network has no batch norm: BatchStatistics answers as Source does",
                IT3Warning,
                stacklevel=2,
            )

    __repr__ = shown

    def __call__(self, x: Tensor) -> Adaptation:
        norm = self.norm
        if self.prior is not None:
            norm = count(x) / (self.prior + max(1, count(x)))
        source = self._sources.get(norm)
        if source is None:
            source = Source(self.model, self.adapter, norm=norm)
            # Batches come in few sizes; a server's may not, and each has a copy of its own.
            self._sources = {**dict([*self._sources.items()][-3:]), norm: source}
        return source(x)

    def reset(self) -> None:
        """Nothing to forget."""
