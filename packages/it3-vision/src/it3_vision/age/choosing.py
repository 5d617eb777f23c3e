"""Which adaptation, if any: chosen on held-out faces, corrupted, and on tails of the ages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from it3_core import Conditioned, Regression
from it3_core.candidates import Candidate
from it3_core.tuning import Tail, Tuning, tune
from it3_vision.data import ImageSet, Preparation
from it3_vision.trials import candidates, trials

__all__ = ["BATCHES", "choose"]

BATCHES: dict[int, int] = {4: 512, 16: 512}
"""The batch sizes that are tuned for, and the number of held-out faces to do it with."""

_FURTHER = [Candidate("AnswerStep", {"alpha": alpha}) for alpha in (-1.0, 0.75, 2.0)]


def choose(
    model: Conditioned,
    adapter: Regression,
    prepare: Preparation,
    held_out: ImageSet,
    tails: Sequence[Tail],
    seed: int = 0,
    *,
    severity: int = 3,
    sizes: Mapping[int, int] | None = None,
    tried: Sequence[Candidate] | None = None,
    progress: bool = True,
) -> dict[int, Tuning]:
    """What `tune` chooses for batches of a few and of more faces.

    A face's age is what shifts here, so the tails weigh as much as all corruptions together.

    Args:
        model: the trained network.
        adapter: its ages.
        prepare: makes tensors of images.
        held_out: faces that it was not trained on.
        tails: networks that were trained without the youngest and the oldest, and these.
        seed: of the draw and of the corruptions.
        severity: of the corruptions.
        sizes: batch sizes, and how many faces to use for each; `BATCHES` by default.
        tried: what to choose from; by default `candidates`, and further answer steps.
        progress: whether to show how far it is.
    """
    chosen: dict[int, Tuning] = {}
    for size, x, y, shifts in trials(held_out, prepare, sizes or BATCHES, seed, severity):
        chosen[size] = tune(
            model,
            adapter,
            x,
            y,
            shifts=shifts,
            tail=[_by_side(tail, size, len(y)) for tail in tails],
            candidates=tried or [*candidates(model, size), *_FURTHER],
            batch_size=size,
            progress=progress,
        )
    return chosen


def _by_side(tail: Tail, size: int, most: int) -> Tail:
    """Some of the tail in batches of one side: young and old faces seldom come evenly mixed.

    In mixed batches statistics would look harmless that, at test time, take the age away.
    """
    half = max(size, most // 2 - most // 2 % size)
    order = tail.y.argsort(stable=True)
    count = min(half, len(order) // 2)
    middle = len(order) // 2
    generator = torch.Generator().manual_seed(0)
    young, old = order[:middle], order[middle:]
    rows = torch.cat(
        [side[torch.randperm(len(side), generator=generator)[:count]] for side in (young, old)]
    )
    return Tail(tail.model, tail.x[rows], tail.y[rows])
