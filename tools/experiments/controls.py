"""What needs no second pass, for experiments to compare with, and how `tune` is given it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from it3_core import Adaptation, Method, Regression, Source
from it3_core.candidates import Candidate

__all__ = ["Own", "Stretch", "stretches"]


class Stretch:
    """Away from the training mean by a factor, which knows nothing of idempotence."""

    def __init__(self, model: nn.Module, adapter: Regression, factor: float) -> None:
        self._source, self._mean, self._factor = Source(model, adapter), adapter.mean[0], factor

    def __call__(self, x: Any) -> Adaptation:
        found = self._source(x)
        answer = self._mean + self._factor * (found.initial - self._mean)
        return Adaptation(answer, found.initial, 0, before=lambda: found.error_before)

    def reset(self) -> None:
        """Nothing to forget."""


@dataclass(frozen=True, repr=False)
class Own(Candidate):
    """A candidate of an experiment's own, for `tune`."""

    make: Callable[..., Method] = Stretch

    def __post_init__(self) -> None:
        """Any name will do."""

    def build(self, model: nn.Module, adapter: Any) -> Method:
        return self.behind_gate(self.make(model, adapter, **self.settings), model, adapter)


def stretches(*factors: float) -> list[Candidate]:
    """Stretching by each of these."""
    return [Own("Stretch", {"factor": factor}) for factor in factors]
