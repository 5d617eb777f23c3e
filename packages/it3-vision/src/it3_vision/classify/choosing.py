"""Which adaptation, if any: chosen on held-out training images under corruptions of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from it3_core import Classification, Conditioned
from it3_core.tuning import Tuning, tune
from it3_vision.data import ImageSet, Preparation
from it3_vision.training import mean_error
from it3_vision.trials import candidates, trials

__all__ = ["BATCHES", "choose"]

BATCHES: dict[int, int] = {1: 512, 4: 1024, 16: 1024, 64: 1024}
"""The batch sizes that are tuned for, and the number of held-out images to do it with.

Of 512 images there are but eight batches of 64, and one odd one among them decides. Single images
are the slowest, so there are fewer.
"""

HARM = 0.01
"""How much of the accuracy on clean images a choice may cost: one point."""


def choose(
    model: Conditioned,
    adapter: Classification,
    prepare: Preparation,
    held_out: ImageSet,
    seed: int = 0,
    *,
    severity: int = 5,
    sizes: Mapping[int, int] | None = None,
    progress: bool = True,
) -> dict[int, Tuning]:
    """What `tune` chooses for batches of one, of a few, of some and of many images.

    Args:
        model: the trained network.
        adapter: its classes.
        prepare: makes tensors of images.
        held_out: images that it was not trained on.
        seed: of the draw and of the corruptions.
        severity: of the corruptions.
        sizes: batch sizes, and how many images to use for each; `BATCHES` by default.
        progress: whether to show how far it is.
    """
    chosen: dict[int, Tuning] = {}
    wrong = partial(mean_error, model, adapter)
    for size, x, y, shifts in trials(held_out, prepare, sizes or BATCHES, seed, severity, wrong):
        chosen[size] = tune(
            model,
            adapter,
            x,
            y,
            shifts=shifts,
            candidates=candidates(model, size),
            batch_size=size,
            harm=HARM / max(wrong(x, y), HARM),  # tune counts in shares of the error
            progress=progress,
        )
    return chosen
