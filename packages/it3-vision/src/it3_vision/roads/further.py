"""Training further on images out of distribution, as the paper's road section has it.

"We then further train the network on these OOD subsets using the ZigZag method": that takes their
labels, so it is no test-time method, and says what adaptation could gain at most. Every image is
predicted by a network that was not trained on it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from it3_core import Source
from it3_core.batching import Ragged
from it3_core.engine.inner_optimizer import has_batch_norm
from it3_core.experiment.train import refresh_statistics
from it3_core.experiment.types import Line, Network
from it3_core.training.fit import Loss, fit
from it3_vision.data import Preprocessing
from it3_vision.roads.scenes import Crops, Scene, middle_crops

NAME = "trained further, with OOD labels"
_LR, _CROPS = 3e-4, 8  # a tenth of training's rate, crops a step

Settings = tuple[Preprocessing, int, Loss]
"""Of a network: how it takes images, the side of its crops, and the loss it was trained by."""


class Further:
    """Two networks, each trained further on every second image, by which the others are predicted.

    It trains when it is first called, and is given whole images: what no half holds, such as
    validation crops, the first network predicts.

    Args:
        network: to go on from.
        halves: the scenes of each half.
        given: a scene as the network's input.
        settings: of the network's own training.
        epochs: times through a half, each image cut into as many crops as fit.
        wrap: makes a method one for whole images.
    """

    def __init__(
        self,
        network: Network,
        halves: Sequence[Sequence[Scene]],
        given: Callable[[Scene], Tensor],
        settings: Settings,
        epochs: int,
        wrap: Callable[[Any], Any],
    ) -> None:
        self.network, self.halves, self.given = network, halves, given
        self.settings, self.epochs, self.wrap = settings, epochs, wrap
        self._methods: list[Any] = []
        self._seen: set[bytes] = set()  # by the first network

    def __call__(self, x: Ragged) -> Any:
        if not self._methods:
            self._methods = [self.wrap(self._trained(half)) for half in self.halves]
            self._seen = {_bytes(self.given(scene)) for scene in self.halves[0]}
        found = [self._methods[_bytes(one) in self._seen](Ragged([one])) for one in x]
        return Ragged([one.prediction.rows[0] for one in found])

    def _trained(self, scenes: Sequence[Scene]) -> Source:
        model: nn.Module = copy.deepcopy(self.network.model)
        adapter, (prepare, size, loss) = self.network.adapter, self.settings
        crops: Any = Crops(scenes, prepare, size)
        fit(
            model,
            adapter,
            crops,
            collate=crops.collate,
            validation=None,
            epochs=self.epochs,
            batch_size=_CROPS,
            lr=_LR,
            optimizer=partial(torch.optim.AdamW, weight_decay=1e-2),
            schedule="onecycle",
            clip=5.0,
            loss=loss,
            seed=self.network.seed,
            progress=False,
        )
        if has_batch_norm(model):
            refresh_statistics(model, adapter, middle_crops(scenes, prepare, size)[0])
        return Source(model.eval(), adapter)


def further_line(make: Callable[[Network], Further]) -> Line:
    """The line of the table."""
    note = (
        "No test-time method: trained on the labels of every second image, in the order of the "
        "source's MSE, it predicts the others, and a second network the other way round. Its cost "
        "is without the training."
    )
    return Line(NAME, lambda network, size: make(network), once=True, note=note)


def _bytes(x: Tensor) -> bytes:
    return x.cpu().numpy().tobytes()
