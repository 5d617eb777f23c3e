"""Trust: an idempotence error turned into "more unusual than p % of the validation data"."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.batching import Data, labelled
from it3_core.errors import IT3Error, IT3Warning
from it3_core.io.typed import as_kind
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter

_GRID = 1000  # quantiles that are kept: percentiles to a tenth


@dataclass(frozen=True)
class _Description:
    quantiles: list[float]
    false_alarms: float
    size: int


class Trust:
    """Which idempotence errors are in-distribution, learnt from validation data.

    Not from the rows that the network was fitted to: their errors are smaller than those of any
    new input.

    Args:
        quantiles: errors of validation data at evenly spaced probabilities from 0 to 1, ascending.
        false_alarms: fraction of in-distribution inputs that `flag` may flag.
        size: how many errors the quantiles are of; as many as there are quantiles by default.

    Example:
        >>> import torch
        >>> from it3_core import Trust
        >>> trust = Trust.from_errors(torch.linspace(0, 1, 101), false_alarms=0.05)
        >>> trust.percentile(torch.tensor([0.5, 2.0]))
        tensor([ 50., 100.])
        >>> trust.flag(torch.tensor([0.5, 2.0]))
        tensor([False,  True])
    """

    def __init__(
        self, quantiles: Iterable[float], false_alarms: float = 0.05, size: int | None = None
    ) -> None:
        if not 0 < false_alarms < 1:
            raise IT3Error(f"false_alarms is a fraction between 0 and 1, not {false_alarms}")
        self.quantiles = torch.tensor(list(quantiles), dtype=torch.float64)
        if len(self.quantiles) < 2 or not bool(torch.isfinite(self.quantiles).all()):
            raise IT3Error("trust needs at least two finite errors of validation data")
        if bool((self.quantiles.diff() < 0).any()):
            raise IT3Error("the quantiles of a trust must ascend")
        self.false_alarms = false_alarms
        self.size = len(self.quantiles) if size is None else size
        if self.size < 2:
            raise IT3Error(f"trust needs at least two errors, not {self.size}")

    @classmethod
    def from_errors(cls, errors: Tensor, false_alarms: float = 0.05) -> Trust:
        """Trust from idempotence errors of validation data."""
        found = errors.detach().double().flatten().cpu()
        if len(found) < 2 or not bool(torch.isfinite(found).all()):
            raise IT3Error("trust needs at least two finite errors of validation data")
        grid = found.quantile(torch.linspace(0, 1, min(_GRID + 1, len(found)), dtype=found.dtype))
        trust = cls(grid.tolist(), false_alarms, len(found))
        if len(found) + 1 < 1 / false_alarms:
            warnings.warn(
                f"{len(found)} errors are too few to promise {false_alarms:.0%} false alarms, so "
                f"flags start at the largest of them: fit trust on at least "
                f"{math.ceil(1 / false_alarms) - 1}",
                IT3Warning,
                stacklevel=2,
            )
        return trust

    @classmethod
    def fit(
        cls, model: nn.Module, adapter: Adapter, data: Data, false_alarms: float = 0.05
    ) -> Trust:
        """Trust from validation data, whose labels are not used."""
        source = Source(model, adapter)
        errors = [source(x).error_before for x, _ in labelled(data)]
        if not errors:
            raise IT3Error("trust needs at least one batch of training inputs")
        found = torch.cat(errors)
        if float(found.max()) < 1e-6:
            warnings.warn(
                "the network's answer hardly depends on its signal, so its idempotence error says "
                "nothing: train it with zigzag_loss first",
                IT3Warning,
                stacklevel=2,
            )
        return cls.from_errors(found, false_alarms)

    def percentile(self, errors: Tensor) -> Tensor:
        """Per error, the percentage of validation data with a smaller one; NaN for NaN."""
        asked = errors.detach().double().cpu().contiguous()
        grid = self.quantiles
        smaller = torch.searchsorted(grid, asked)
        upper = smaller.clamp(1, len(grid) - 1)
        below, above = grid[upper - 1], grid[upper]
        inside = ((asked - below) / (above - below).clamp_min(1e-300)).clamp(0, 1)
        percent = (upper - 1 + inside) / (len(grid) - 1) * 100
        percent = torch.where(smaller == 0, torch.zeros_like(percent), percent)
        return torch.where(asked.isnan(), asked, percent).to(errors)

    @property
    def threshold(self) -> float:
        """The error above which an input is flagged.

        Of n errors it is the ⌈(n + 1)(1 − false_alarms)⌉-th: the next in-distribution input lies
        above it with that probability at most, however few they were (as long as there is such a
        one).
        """
        rank = min(math.ceil((self.size + 1) * (1 - self.false_alarms)), self.size)
        place = (rank - 1) / (self.size - 1) * (len(self.quantiles) - 1)
        low = min(int(place), len(self.quantiles) - 2)
        return float(torch.lerp(self.quantiles[low], self.quantiles[low + 1], place - low))

    def flag(self, errors: Tensor) -> Tensor:
        """Per error, whether the input is flagged; a NaN always is."""
        return ~(errors.detach() <= self.threshold)

    def describe(self) -> dict[str, Any]:
        """This trust as JSON, from which `from_description` makes it again."""
        return {
            "quantiles": self.quantiles.tolist(),
            "false_alarms": self.false_alarms,
            "size": self.size,
        }

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Trust:
        """The trust that `describe()` described."""
        return cls(**vars(as_kind(description, _Description, "the description of a trust")))

    def __repr__(self) -> str:
        return f"Trust(threshold={self.threshold:.3g}, false_alarms={self.false_alarms})"
