"""Which batches of a stream are unusual: by idempotence errors, or by batch norms' statistics."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from it3_core.errors import IT3Error

Observed = Literal["error", "statistics"]
"""What a gate looks at: idempotence errors, or the shift of batch norms' statistics."""


@dataclass(frozen=True)
class StreamGate:
    """Which batches of a stream are unlike the training data: by idempotence error, or by shift.

    The mean of many errors varies less than one error, so that a batch of 64 is told from a
    training-like one much sooner than an image alone. The limit follows the batch:
    `mean + z · std / √n`. A statistics shift is one number for the whole batch. It is an estimate,
    as a stream needs it whose batches are of any size; `Gated` gives a guarantee.

    Args:
        mean: of the errors (or of the shifts, each instance alone) on validation data.
        std: their standard deviation.
        false_alarms: fraction of training-like batches that may pass as unlike.
        of: what it looks at: `"error"`, or `"statistics"` of a `StatisticsShift`.

    Example:
        >>> import torch
        >>> from it3_core import StreamGate
        >>> gate = StreamGate(mean=0.2, std=0.1)
        >>> gate.opens(torch.full((1,), 0.3)), gate.opens(torch.full((16,), 0.3))
        (False, True)
    """

    mean: float
    std: float
    false_alarms: float = 0.1
    of: Observed = "error"

    def __post_init__(self) -> None:
        if self.of not in get_args(Observed):
            raise IT3Error(f"a gate looks at {' or '.join(get_args(Observed))}, not {self.of!r}")
        if not 0 < self.false_alarms < 1:
            raise IT3Error(f"false_alarms is a fraction between 0 and 1, not {self.false_alarms}")
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std >= 0):
            raise IT3Error("the mean and standard deviation of a gate must be finite")

    @classmethod
    def fit(cls, errors: Tensor, false_alarms: float = 0.1, of: Observed = "error") -> StreamGate:
        """The gate of these errors (`Adaptation.error_before`) or shifts of validation data.

        One odd image's shift can be hundreds of times as large as the others': the largest in a
        hundred count as the next.
        """
        values = errors.detach().double().flatten()
        if len(values) < 2:
            raise IT3Error("a gate needs at least two errors of validation data")
        if of == "statistics":
            values = values.clamp(max=float(values.quantile(0.99, interpolation="lower")))
        return cls(round(float(values.mean()), 9), round(float(values.std()), 9), false_alarms, of)

    def opens(self, errors: Tensor) -> bool:
        """Whether a batch with these errors, or this shift, is adapted; not finite ones are not."""
        z = statistics.NormalDist().inv_cdf(1 - self.false_alarms)
        limit = self.mean + z * self.std / math.sqrt(max(1, errors.numel()))
        return limit < float(errors.mean()) < math.inf
