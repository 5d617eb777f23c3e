"""What uncertainty scores are made of: a network's passes over a batch, made once for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from it3_core.engine.functional import FunctionalModel, prepared
from it3_core.engine.sensitivity import gains
from it3_core.errors import IT3Error
from it3_core.model.adapters import Adapter
from it3_core.model.losses import first_pass, second_pass

Score = Callable[[Any], Tensor]
"""One number for each instance of a batch; larger is less like the training data."""


@dataclass(frozen=True, eq=False)
class Passes:
    """What is seen when the network answers a batch as it was trained.

    Attributes:
        x: the batch.
        answer: y0 = f(x, neutral), or f(x) of a network without a signal: `Source`'s prediction.
        features: what the watched layer returned, `(batch, channels)`; maps and sequences averaged
            over their places.
        second: y1 = F(x, encode(y0)); computed when it is first read.
        sensitivity: how much y1 moves with y0, per instance; the same, with a backward pass.
        means: what each batch norm saw, for `StatisticsShift`.
    """

    x: Any
    answer: Tensor
    features: Tensor | None
    adapter: Adapter = field(repr=False)
    network: FunctionalModel = field(repr=False)
    means: Sequence[Tensor] = field(repr=False, default=())

    @cached_property
    def second(self) -> Tensor:
        with self.network.session() as run, torch.no_grad():
            return second_pass(run, self.adapter, self.x, self.answer)

    @cached_property
    def sensitivity(self) -> Tensor:
        with self.network.session() as run:
            y1, found = gains(run, self.adapter, self.x, self.answer)
        vars(self).setdefault("second", y1)
        return found


class UncertaintyScore:
    """A score of passes that a prediction makes anyway; larger is less like the training data.

    `score(x)` makes the passes; `score.of(passes)` takes those that `observe` made, of which
    several scores of one network and layer may be.

    Args:
        model: the trained network, with a signal or without.
        adapter: what kind of answer it gives.
        layer: the layer whose output the score needs, if it needs one.

    Example:
        >>> import torch
        >>> from it3_core import Classification
        >>> from it3_core.scores.answers import Energy, LargestProbability
        >>> net, adapter = torch.nn.Linear(3, 2), Classification(2)
        >>> doubt, energy = LargestProbability(net, adapter), Energy(net, adapter)
        >>> passes = doubt.observe(torch.randn(5, 3))  # the only pass: an answer, and two scores
        >>> passes.answer.shape, doubt.of(passes).shape, energy.of(passes).shape
        (torch.Size([5, 2]), torch.Size([5]), torch.Size([5]))
    """

    needs: ClassVar[str | None] = None  # a signal, or something of the adapter's

    @property
    def shares(self) -> bool:
        """Whether the passes of any score of this network will do."""
        return self.layer is None

    def __init__(self, model: nn.Module, adapter: Adapter, layer: str | None = None) -> None:
        self.adapter = adapter
        self.layer = layer
        self._functional = FunctionalModel(model, watch=[] if layer is None else [layer])
        if self.needs == "signal":
            self._functional.require_signal(type(self).__name__)
        elif self.needs and not hasattr(adapter, self.needs):
            raise IT3Error(
                f"{type(self).__name__} needs {self.needs.replace('_', ' ')}, and "
                f"{type(adapter).__name__} has none: take another score"
            )

    def observe(self, x: Any) -> Passes:
        """Answers a batch as `Source` does, and keeps what the score needs."""
        x, _ = prepared(x, self._functional)
        with self._functional.session() as run, torch.no_grad():
            answer = first_pass(run, self.adapter, x)
            seen = None if self.layer is None else run.seen[0].double().cpu()
        if seen is not None and (len(seen) != len(answer) or seen.dim() < 2):
            raise IT3Error(
                f"layer {self.layer!r} returns shape {tuple(seen.shape)} for {len(answer)} "
                f"instances: name one that returns a row for each, after the pooling"
            )
        if seen is not None and seen.dim() > 2:
            seen = seen.flatten(2).mean(2)
        return Passes(x, answer, seen, self.adapter, self._functional)

    def of(self, passes: Passes) -> Tensor:
        """The score of each instance."""
        raise NotImplementedError

    def of_batch(self, passes: Passes) -> Tensor:
        """The score of the batch as a whole."""
        return self.of(passes).mean()

    def __call__(self, x: Any) -> Tensor:
        return self.of(self.observe(x))
