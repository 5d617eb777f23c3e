"""How networks that say ages are trained: from their first weights to their last."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from it3_core import Conditioned, History, IT3Error, Regression, split_tail, zigzag_loss
from it3_core.losses import SecondSignal, check_weight
from it3_core.tuning import Tail, tail_files
from it3_vision.age.faces import Interval, set_apart
from it3_vision.age.network import FaceSettings, build
from it3_vision.augmentation import Feed, face_augmentation
from it3_vision.data import ImageSet, Preparation
from it3_vision.training import Normalise, describe, first_weights, fit_network, parts

__all__ = ["Fitting", "Training"]

USUAL = 1000
"""Training faces that batch norms' statistics are taken from, after each epoch."""

TAIL = 0.2
"""Share of the training faces that some networks do not see: half young, half old."""


@dataclass(frozen=True)
class Training:
    """How to train.

    Attributes:
        network: which network, and where its signal enters.
        low, high: the ages to train on, both ends included.
        tested: the share of the faces that is set apart for testing, by their names.
        epochs: how often to go through the faces.
        batch_size: faces in a step.
        lr: the largest rate of SGD with momentum, in one cycle.
        second: what the second pass is given, see `zigzag_loss`.
        weight: of the second pass in the loss. 1 is the paper's; a tenth makes one that corrects
            more, on held-out faces (docs/experiments.md).
        seed: of the first weights, the held-out faces, their order and their variation.
        weights: a safetensors file to start from, with torchvision's names.
        new_head: whether these weights' last layer answers something else, as ImageNet's does.
        normalise: by the training faces' own mean and deviation, or by ImageNet's.
        bfloat16: whether to multiply in bfloat16: None does it on a GPU.

    Example:
        >>> Training(epochs=3).interval.name
        '20–60'
    """

    network: FaceSettings = field(default_factory=FaceSettings)
    low: int = 20
    high: int = 60
    tested: float = 0.2
    epochs: int = 45
    batch_size: int = 64
    lr: float = 0.05
    second: SecondSignal = "label"
    weight: float = 0.1
    seed: int = 0
    weights: str | os.PathLike[str] | None = None
    new_head: bool = False
    normalise: Normalise = "data"
    bfloat16: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.tested < 1:
            raise IT3Error(f"the share of test faces is from 0 to below 1, not {self.tested}")
        check_weight(self.weight)

    @property
    def interval(self) -> Interval:
        """The ages that are trained on."""
        return Interval(self.low, self.high)

    @property
    def loss(self) -> Callable[..., Tensor]:
        """ZigZag's, with what the second pass is given and weighs."""
        return partial(zigzag_loss, second=self.second, weight=self.weight, together=True)

    def seen(self, faces: ImageSet) -> ImageSet:
        """The faces that may be trained on: inside the interval, and not set apart."""
        apart = set_apart(faces.names, self.tested)
        return faces.take(self.interval.inside(faces.labels) & ~apart)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return describe(self)

    @classmethod
    def from_description(cls, told: Mapping[str, Any]) -> Training:
        """What `describe` told of, as a RUN's settings hold it.

        Example:
            >>> training = Training(epochs=3)
            >>> Training.from_description(training.describe()) == training
            True
        """
        return cls(**{**told, "network": FaceSettings.from_description(told["network"])})


@dataclass(frozen=True)
class Fitting:
    """Trains networks alike, on whichever faces and by whichever loss.

    Attributes:
        training: network, epochs and the like.
        prepare: makes tensors of faces.
        adapter: the ages.
        how: further arguments of `fit_network`: where, and whether to show it.
    """

    training: Training
    prepare: Preparation
    adapter: Regression
    how: dict[str, Any]

    def network(
        self, rest: ImageSet, held_out: ImageSet, loss: Callable[..., Tensor], checkpoint: Path
    ) -> tuple[Conditioned, History]:
        """A network trained on `rest`; a killed training goes on from `checkpoint`."""
        told = self.training
        make = partial(
            build, told.network, self.adapter, weights=told.weights, new_head=told.new_head
        )
        model = first_weights(make, told.seed)
        feed = Feed(rest, self.prepare, face_augmentation(self.prepare.size))
        usual, _ = self.tensors(rest.sample(min(USUAL, len(rest)), told.seed))
        validation = self.tensors(held_out)
        history = fit_network(
            *(model, self.adapter, feed, validation, told, loss, checkpoint),
            usual=usual,
            **self.how,
        )
        return model, history

    def tails(self, rest: ImageSet, folder: Path) -> list[Tail]:
        """Networks trained half as long without the youngest and the oldest faces, and these.

        They differ in their first weights, and in the order and the variation of their faces.
        """
        inside, beyond = split_tail(torch.from_numpy(rest.labels), TAIL, "both")
        held_out, known = parts(rest.take(inside.numpy()), self.training.seed)
        x, y = self.tensors(rest.take(beyond.numpy()))
        found = []
        for number, path in enumerate(tail_files(folder)):
            short = replace(
                self.training,
                epochs=max(1, self.training.epochs // 2),
                seed=self.training.seed + 1000 * number,
            )
            model, _ = replace(self, training=short).network(known, held_out, short.loss, path)
            found.append(Tail(model, x, y))
        return found

    def tensors(self, faces: ImageSet) -> tuple[Tensor, Tensor]:
        """Faces as they are, ready for a network, and their ages."""
        return Feed(faces, self.prepare).collate(list(range(len(faces))))
