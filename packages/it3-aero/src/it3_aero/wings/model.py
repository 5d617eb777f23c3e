"""Networks on wings: training, reading a RUN, and what happens to outlines on their way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from it3_aero.learning import model, runs
from it3_aero.wings.task import WINGS

__all__ = ["SHIFTS", "load_run", "train"]

train = partial(model.train, WINGS)
"""`it3_aero.learning.model.train` on outlines."""

load_run = partial(runs.load_run, WINGS)
"""`it3_aero.learning.runs.load_run` for a RUN of `it3-aero wings train`."""


def _noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    """Points off by half a thousandth of the chord, as on a section measured by hand."""
    return x + 5e-4 * torch.randn(x.shape, generator=generator)


def _rounded(x: Tensor, generator: torch.Generator) -> Tensor:
    """Coordinates written down with three decimals."""
    return x.round(decimals=3)


def _coarse(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every fourth node, and straight lines between."""
    here = torch.arange(x.shape[1])
    low = here - here % 4
    high = (low + 4).clamp_max(x.shape[1])
    share = ((here - low) / (high - low)).view(1, -1, 1)
    return torch.lerp(x[:, low], x[:, high % x.shape[1]], share)


SHIFTS: dict[str, Callable[..., Tensor]] = {
    "noisy outline": _noisy,
    "rounded outline": _rounded,
    "coarse outline": _coarse,
}
"""What happens to outlines on their way into a file; the L/D is still that of the true one."""
