"""Which adaptation, if any: chosen on held-out training images under corruptions of their own.

The benchmark's four extra corruptions are there for this: none of them is among the fifteen that
a method is judged by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from it3_core import Classification, Conditioned
from it3_core.batching import batches
from it3_core.norms import Norm, has_batch_norm
from it3_core.tuning import Candidate, Tuning, tune
from it3_vision.corruptions import EXTRA, benchmark_for, corrupt_all
from it3_vision.data import ImageSet, Preparation

__all__ = ["BATCHES", "candidates", "choose", "wrong_share"]

BATCHES: dict[int, int] = {1: 128, 16: 256, 64: 512}
"""The batch sizes that are tuned for, and the number of held-out images to do it with."""

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
    """What `tune` chooses for batches of one, of some and of many images.

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
    for size, number in (sizes or BATCHES).items():
        images = held_out.sample(_whole_batches(min(number, len(held_out)), size), seed)
        pixels = images.batch(slice(None), prepare.size)
        x, y = prepare(pixels), torch.from_numpy(images.labels)
        kind = benchmark_for(prepare.size)
        corrupted = {
            name: prepare(corrupt_all(pixels, name, severity, benchmark=kind, seed=seed))
            for name in EXTRA
        }
        wrong = wrong_share(model, adapter, x, y)
        chosen[size] = tune(
            model,
            adapter,
            x,
            y,
            shifts={name: partial(_given, shifted) for name, shifted in corrupted.items()},
            candidates=candidates(model, size),
            batch_size=size,
            harm=HARM / max(wrong, HARM),  # tune counts in shares of the error
            progress=progress,
        )
    return chosen


def _given(shifted: Tensor, _: Tensor) -> Tensor:
    return shifted


def _whole_batches(number: int, size: int) -> int:
    """A last batch of a few images has other statistics, and of one image perhaps none at all."""
    return number - number % size if number > size else number


def candidates(model: Conditioned, batch_size: int) -> list[Candidate]:
    """What tuning tries, the cheapest first: statistics, answer steps, and IT³ on either.

    Example:
        >>> from it3_vision.networks import NetworkSettings, build
        >>> candidates(build(NetworkSettings(), Classification(10)), 64)[0]
        Source(norm='batch')
    """
    norms: list[Norm] = ["source"]
    if has_batch_norm(model):
        several: list[Norm] = ["batch", 0.6] if batch_size >= 16 else [0.05, 0.1, 0.2]
        norms += several
    found = [Candidate("Source", {"norm": norm}) for norm in norms[1:]]
    found += [Candidate("AnswerStep", {"alpha": alpha}) for alpha in (-0.5, 0.5, 1.0)]
    for norm in norms[:2]:
        above = {"parameters": "above", "norm": norm}
        found.append(Candidate("IT3", {**above, "lr": 1e-3}))
        found.append(Candidate("IT3", {**above, "lr": 0.05, "optimizer": "SGD", "power": 2.0}))
        for lr in (1e-4, 1e-3):  # the paper's own step
            paper = {"anchor_gradient": True, "trust_region": False}
            found.append(Candidate("IT3", {**paper, "norm": norm, "lr": lr}))
    return found


def wrong_share(model: Conditioned, adapter: Classification, x: Tensor, y: Tensor) -> float:
    """The share of wrong answers of the network as it is.

    Example:
        >>> from it3_vision.networks import NetworkSettings, build
        >>> adapter, x = Classification(3), torch.randn(4, 3, 16, 16)
        >>> model = build(NetworkSettings(preset="tiny"), adapter).eval()
        >>> right = model(x, adapter.neutral(x)).argmax(1)
        >>> wrong_share(model, adapter, x, right), wrong_share(model, adapter, x, (right + 1) % 3)
        (0.0, 1.0)
    """
    with torch.no_grad():
        wrong = [
            adapter.error(model(part, adapter.neutral(part)), label)
            for part, label in zip(batches(x, 256), torch.split(y, 256), strict=True)
        ]
    return float(torch.cat(wrong).mean())
