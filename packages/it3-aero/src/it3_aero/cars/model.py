"""Networks on cars: training, reading a RUN, and what happens to meshes on their way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from it3_aero.cars.graph import moved
from it3_aero.cars.task import CARS
from it3_aero.learning import model, runs

__all__ = ["SHIFTS", "load_run", "train"]

train = partial(model.train, CARS)
"""`it3_aero.learning.model.train` on meshes."""

load_run = partial(runs.load_run, CARS)
"""`it3_aero.learning.runs.load_run` for a RUN of `it3-aero cars train`."""


def _noisy(cars: Any, generator: torch.Generator) -> Any:
    """Vertices off by a thousandth of a car's length, as a scanner leaves them."""
    lengths = _lengths(cars)[cars.batch]
    return moved(cars, cars.pos + 1e-3 * lengths * torch.randn(cars.pos.shape, generator=generator))


def _rounded(cars: Any, generator: torch.Generator) -> Any:
    """Vertices on a grid of half a hundredth of a car's length."""
    grid = 5e-3 * _lengths(cars)[cars.batch]
    return moved(cars, (cars.pos / grid).round() * grid)


def _smoothed(cars: Any, generator: torch.Generator) -> Any:
    """Every vertex a third of the way to the middle of its neighbours: edges lose their edge."""
    source, target = cars.edge_index
    degree = torch.bincount(target, minlength=len(cars.pos)).clamp_min(1).unsqueeze(1)
    middle = torch.zeros_like(cars.pos).index_add_(0, target, cars.pos[source]) / degree
    return moved(cars, torch.lerp(cars.pos, middle, 1 / 3))


def _lengths(cars: Any) -> torch.Tensor:
    """Of each car, `(cars, 1)`."""
    along = cars.pos[:, 0].split(cars.ptr.diff().tolist())
    return torch.stack([x.max() - x.min() for x in along]).unsqueeze(1)


SHIFTS: dict[str, Callable[..., Any]] = {
    "noisy mesh": _noisy,
    "rounded mesh": _rounded,
    "smoothed mesh": _smoothed,
}
"""What happens to meshes on their way into a file; the drag is still that of the true one."""
