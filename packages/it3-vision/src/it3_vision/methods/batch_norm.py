"""BatchNormStats: the batch's own statistics in every batch norm, and nothing else."""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from it3_core import Adaptation, Adapter, IT3Error, IT3Warning, Source
from it3_core.batching import count
from it3_core.norms import Norm, batch_share, has_batch_norm

__all__ = ["BatchNormStats"]


class BatchNormStats:
    """Normalises by μ = (N μ_s + n μ_t) / (N + n), and σ² likewise; no gradient step.

    μ_s are the training data's statistics and μ_t those of this batch of n images. Without a
    prior N is 0: the batch's statistics alone (Nado et al. 2020). With `prior=16` the training
    data count as 16 images (Schneider et al. 2020), which is what a batch of one needs.

    A network without batch norm is answered for as it is, with a warning when this is made.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        share: the share of the batch's statistics, whatever its size: `"batch"` for all, or from
            0 to 1.
        prior: N; the share of a batch of n is then n / (N + n), and `share` stays "batch".

    Example:
        >>> import torch
        >>> from it3_core import Classification, condition
        >>> adapter = Classification(10)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8),
        ...                           torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
        >>> model = condition(net, adapter, layer="0")
        >>> BatchNormStats(model, adapter, prior=16)(torch.randn(1, 3, 8, 8)).prediction.shape
        torch.Size([1, 10])
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        *,
        share: Norm = "batch",
        prior: int | None = None,
    ) -> None:
        batch_share(share)  # refuses what is none
        if prior is not None and (not isinstance(prior, int) or prior < 0):
            raise IT3Error(f"prior is a number of images from 0 up, not {prior!r}")
        if prior is not None and share != "batch":
            raise IT3Error("give a share or a prior, not both: a prior makes the share")
        self.model = model
        self.adapter = adapter
        self.share = share
        self.prior = prior
        self._sources: dict[Norm, Source] = {}
        if not has_batch_norm(model):
            self.share, self.prior = "source", None
            warnings.warn(
                "the network has no batch norm: BatchNormStats answers as Source does",
                IT3Warning,
                stacklevel=2,
            )

    def __call__(self, x: Tensor) -> Adaptation:
        norm = self.share
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
