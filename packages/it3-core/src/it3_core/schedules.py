"""The learning rate's course through a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, ReduceLROnPlateau

from it3_core.errors import IT3Error

__all__ = ["Course", "Schedule"]

Schedule = str | Callable[[Optimizer], LRScheduler]
"""`"constant"`, `"cosine"`, `"onecycle"` (stepped every step), or a factory of a torch scheduler,
which is stepped once an epoch."""


@dataclass(frozen=True)
class Course:
    """A schedule at work: torch's scheduler, told of every step and of every epoch.

    Attributes:
        scheduler: what moves the optimiser's learning rate.
        every_step: whether it moves with every step, and not once an epoch.
        epochs: how many there are at most.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        >>> course = Course.of("cosine", sgd, epochs=2, steps=5)
        >>> sgd.step()
        >>> course.after_step()
        >>> course.after_epoch(1, loss=0.3)
        >>> round(sgd.param_groups[0]["lr"], 6)
        0.5
    """

    scheduler: LRScheduler
    every_step: bool
    epochs: int

    @classmethod
    def of(cls, schedule: Schedule, optimizer: Optimizer, epochs: int, steps: int) -> Course:
        """The course that was asked for, with so many steps in an epoch."""
        if callable(schedule):
            return cls(schedule(optimizer), False, epochs)
        if schedule == "constant":
            return cls(LambdaLR(optimizer, lambda epoch: 1.0), False, epochs)
        if schedule == "cosine":
            return cls(CosineAnnealingLR(optimizer, epochs), False, epochs)
        if schedule == "onecycle":
            rate = partial(_one_cycle, total=epochs * steps)
            return cls(LambdaLR(optimizer, rate), True, epochs)
        raise IT3Error(
            f'schedule must be "constant", "cosine", "onecycle" or a factory optimizer → '
            f"scheduler, not {schedule!r}"
        )

    def after_step(self) -> None:
        """The optimiser has made a step."""
        if self.every_step:
            self.scheduler.step()

    def after_epoch(self, done: int, loss: float) -> None:
        """So many epochs are done; `loss` is what they are judged by."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        elif not self.every_step and done < self.epochs:  # some refuse one step too many
            self.scheduler.step()


def _one_cycle(step: int, total: int) -> float:
    """The share of the largest rate in a step: up in the first fifth, then down to nothing."""
    rise = max(1.0, total / 5)
    return min((step + 1) / rise, max(0.0, (total - step) / max(1.0, total - rise)))
