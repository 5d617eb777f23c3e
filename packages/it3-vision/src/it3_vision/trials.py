"""Held-out training images under corruptions of their own, for tuning to choose by.

The benchmark's four extra corruptions are there for this: none of them is among the fifteen that
a method is judged by. Where one hardly harms a network, as blur does to one that reads digits, no
method could show what it is worth: such a corruption is applied again and again until it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from it3_core import Conditioned
from it3_core.candidates import STREAMING, Candidate
from it3_core.norms import Norm, has_batch_norm
from it3_vision.corruptions import EXTRA, benchmark_for, corrupt_all
from it3_vision.data import ImageSet, Preparation

__all__ = ["Trial", "candidates", "trials"]

_LOST = 0.1  # share of the right answers that a corruption must cost to be worth trying under
_REPEATS = 6  # times that it is applied at most
_PRIORS = (16, 8, 4)  # images that the training data count as, where few images' statistics blend
_MEMORIES = (64, 256)  # images of a stream that count
_MANY = 64  # images that know enough of themselves
_SOME = 16  # images from which on gradient steps are tried; see `candidates`


class Trial(NamedTuple):
    """What `tune` needs for a batch size."""

    size: int
    x: Tensor
    y: Tensor
    shifts: Mapping[str, Callable[[Tensor], Tensor]]


def trials(
    held_out: ImageSet,
    prepare: Preparation,
    sizes: Mapping[int, int],
    seed: int = 0,
    severity: int = 5,
    wrong: Callable[[Tensor, Tensor], float] | None = None,
) -> Iterator[Trial]:
    """For each batch size some held-out images, as they are and corrupted.

    Args:
        held_out: images that the network was not trained on.
        prepare: makes tensors of images.
        sizes: batch sizes, and how many images to use for each.
        seed: of the draw and of the corruptions.
        severity: of the corruptions.
        wrong: the network's share of wrong answers to images with these labels; with it, each
            corruption is repeated until a tenth of the right answers is lost.

    Example:
        >>> import numpy as np
        >>> images = ImageSet.from_array(np.zeros((9, 32, 32, 3), np.uint8), [0, 1, 2] * 3)
        >>> (trial,) = trials(images, Preparation(32, (0.5,) * 3, (0.25,) * 3), {4: 9})
        >>> len(trial.x), list(trial.shifts)
        (8, ['speckle_noise', 'gaussian_blur', 'spatter', 'saturate'])
    """
    for size, number in sizes.items():
        images = held_out.sample(_whole_batches(min(number, len(held_out)), size), seed)
        pixels = images.batch(slice(None), prepare.size)
        x, y = prepare(pixels), torch.from_numpy(images.labels)
        enough = 0.0 if wrong is None else 1 - (1 - _LOST) * (1 - wrong(x, y))
        kind = benchmark_for(prepare.size)
        shifts = {}
        for name in EXTRA:
            corrupted = pixels
            for repeat in range(1 if wrong is None else _REPEATS):
                corrupted = corrupt_all(
                    corrupted, name, severity, benchmark=kind, seed=seed + repeat
                )
                shifted = prepare(corrupted)
                if wrong is not None and wrong(shifted, y) >= enough:
                    break
            shifts[name] = partial(_given, shifted)
        yield Trial(size, x, y, shifts)


def _given(shifted: Tensor, _: Tensor) -> Tensor:
    return shifted


def _whole_batches(number: int, size: int) -> int:
    """A last batch of a few images has other statistics, and of one image perhaps none at all."""
    return number - number % size if number > size else number


def candidates(model: Conditioned, batch_size: int) -> list[Candidate]:
    """What tuning tries, the cheapest first: statistics, answer steps, and IT³ on either.

    Of fewer than 64 images also the statistics of the stream that they come in. For fewer than 16
    gradient steps are not tried: they cost five to seven passes each, and the time is better spent
    on more held-out images, without which a choice is made by chance.

    Example:
        >>> from it3_core import Classification
        >>> from it3_vision.networks import NetworkSettings, build
        >>> candidates(build(NetworkSettings(), Classification(10)), 64)[0]
        Source(norm='batch')
    """
    norms: list[Norm] = ["source"]
    if has_batch_norm(model):
        few = [round(batch_size / (batch_size + prior), 3) for prior in _PRIORS]
        norms += ["batch", 0.6] if batch_size >= 16 else few
    found = [Candidate("Source", {"norm": norm}) for norm in norms[1:]]
    if has_batch_norm(model) and batch_size < _MANY:
        found += [Candidate(STREAMING, {"memory": memory}) for memory in _MEMORIES]
    found += [Candidate("AnswerStep", {"alpha": alpha}) for alpha in (-0.5, 0.5, 1.0)]
    for norm in norms[:2] if batch_size >= _SOME else []:
        above = {"parameters": "above", "norm": norm}
        found.append(Candidate("IT3", {**above, "lr": 1e-3}))
        found.append(Candidate("IT3", {**above, "lr": 0.05, "optimizer": "SGD", "power": 2.0}))
        for lr in (1e-4, 1e-3):  # the paper's own step
            paper = {"anchor_gradient": True, "trust_region": False}
            found.append(Candidate("IT3", {**paper, "norm": norm, "lr": lr}))
    return found
