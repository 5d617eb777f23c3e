"""What every training of an image network does alike: data in memory, rates, precision, device."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from it3_core import Adapter, History, IT3Error, IT3Warning, zigzag_loss
from it3_core.batching import batches
from it3_core.descent import OptimizerFactory
from it3_core.feeding import cut
from it3_core.training import fit
from it3_vision.data import BadImage, ImageSet, Preparation

__all__ = [
    "HELD_OUT",
    "IN_MEMORY",
    "Normalise",
    "Recipe",
    "blind_loss",
    "describe",
    "first_weights",
    "fit_network",
    "in_memory",
    "mean_error",
    "mixed_precision",
    "parts",
    "place_for",
    "precision",
    "preparation",
    "refresh_statistics",
    "sgd",
    "watched",
]

HELD_OUT = 0.1
"""Share of the training images that early stopping, trust and tuning look at; 5,000 at most."""

IN_MEMORY = 4e9
"""Training images are decoded once and kept if they take no more bytes than this."""

Normalise = Literal["data", "imagenet"]
"""Whose mean and deviation images are normalised by."""

_TOGETHER = 128  # images whose statistics are taken at once

M = TypeVar("M", bound=nn.Module)


class Recipe(Protocol):
    """How long and how fast to train; every task's `Training` says so."""

    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def bfloat16(self) -> bool | None: ...


def describe(training: Any) -> dict[str, Any]:
    """A task's `Training` as JSON; of weights the file's name is kept, not where it lay."""
    weights = None if training.weights is None else Path(training.weights).name
    return {**asdict(training), "network": training.network.describe(), "weights": weights}


def first_weights(make: Callable[[], M], seed: int) -> M:
    """A network whose first weights are drawn with this seed, in the fastest memory format.

    Example:
        >>> one, same = (first_weights(lambda: nn.Linear(2, 1), 7) for _ in range(2))
        >>> torch.equal(one.weight, same.weight)
        True
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = make()
        # A seventh faster; torch's own types don't know this argument.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def fit_network(
    model: nn.Module,
    adapter: Adapter,
    feed: Any,
    validation: tuple[Tensor, Tensor],
    recipe: Recipe,
    loss: Callable[..., Tensor],
    checkpoint: Path,
    *,
    device: torch.device | str,
    optimizer: OptimizerFactory | None = None,
    usual: Tensor | None = None,
    workers: int = 0,
    progress: bool = True,
) -> History:
    """Trains in one cycle of rates, and leaves the network as `load` would have it.

    Args:
        model: the network, trained in place; on the CPU afterwards.
        adapter: what kind of answer it gives.
        feed: a Dataset of row numbers with a `collate`, as `it3_vision.augmentation.Feed`.
        validation: held-out images and labels.
        recipe: how long and how fast.
        loss: as `fit` wants it.
        checkpoint: where a killed training goes on from.
        device: where to train.
        optimizer: SGD with momentum by default.
        usual: training images as they are, to take batch norms' statistics from anew before each
            look at the held-out ones; see `refresh_statistics`.
        workers: processes that prepare batches.
        progress: whether to show a bar.
    """
    judged: Any = validation
    if usual is not None:
        judged = partial(_held_out_loss, adapter, usual, *validation)
    history = fit(
        model,
        adapter,
        feed,
        collate=feed.collate,
        validation=judged,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        lr=recipe.lr,
        optimizer=optimizer or sgd,
        schedule="onecycle",
        clip=5.0,
        loss=partial(mixed_precision, loss=loss, wanted=precision(recipe.bfloat16, device)),
        workers=workers,
        checkpoint=checkpoint,
        seed=recipe.seed,
        progress=progress,
        device=device,
    )
    # As `load_run` has it, bit for bit; and torch 2.13's group norm crashes where channels are
    # last and only its own weights get a gradient, as in Fisher's information.
    model.cpu().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return history


def refresh_statistics(model: nn.Module, adapter: Adapter, x: Tensor) -> None:
    """Gives batch norms the statistics of these images, in place of training's moving averages.

    The second pass makes a network so sensitive to what it is told that averages which lag behind
    the weights by a few steps, or were taken in bfloat16, can spoil its answers.

    Args:
        model: the network `f(x, signal)`; it stays in the mode that it is in.
        adapter: makes the neutral signal, which all images are given.
        x: images as they come at test time; a thousand will do.

    Example:
        >>> from it3_core import Regression, condition
        >>> net = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 1))
        >>> adapter, x = Regression(), 5 + torch.randn(64, 3, 1, 1)
        >>> model = condition(net, adapter, layer="0").eval()
        >>> refresh_statistics(model, adapter, x)
        >>> torch.allclose(model.model[0].running_mean, x.mean((0, 2, 3)))
        True
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    before = [(layer.training, layer.momentum) for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.train()
        layer.momentum = None  # a plain mean over the batches
    try:
        with torch.no_grad():
            for part in cut(x, _TOGETHER):
                model(part, adapter.neutral(part))
    finally:
        for layer, (training, momentum) in zip(layers, before, strict=True):
            layer.train(training)
            layer.momentum = momentum


def _held_out_loss(
    adapter: Adapter, usual: Tensor, x: Tensor, y: Tensor, model: nn.Module
) -> float:
    """What `fit` would minimise, on statistics of the training images as they are."""
    device = next(model.parameters()).device
    model.eval()
    refresh_statistics(model, adapter, usual.to(device))
    with torch.no_grad():
        losses = []
        for part, label in zip(batches(x.to(device), 256), batches(y, 256), strict=True):
            losses.append(adapter.loss(model(part, adapter.neutral(part)), label.to(device)))
    return float(torch.cat(losses).mean())


def mean_error(model: nn.Module, adapter: Adapter, x: Tensor, y: Tensor) -> float:
    """The network's mean error as it is, in the adapter's unit: a share of answers, years ...

    Example:
        >>> from it3_core import Classification
        >>> from it3_vision.networks import NetworkSettings, build
        >>> adapter, x = Classification(3), torch.randn(4, 3, 16, 16)
        >>> model = build(NetworkSettings(preset="tiny"), adapter).eval()
        >>> right = model(x, adapter.neutral(x)).argmax(1)
        >>> mean_error(model, adapter, x, right), mean_error(model, adapter, x, (right + 1) % 3)
        (0.0, 1.0)
    """
    with torch.no_grad():
        errors = [
            adapter.error(model(part, adapter.neutral(part)), label)
            for part, label in zip(batches(x, 256), torch.split(y, 256), strict=True)
        ]
    return float(torch.cat(errors).mean())


def sgd(parameters: Any, lr: float) -> Optimizer:
    """SGD with Nesterov's momentum and weight decay."""
    return SGD(parameters, lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4)


def mixed_precision(
    model: nn.Module, adapter: Any, x: Tensor, y: Tensor, *, loss: Any, wanted: bool | None
) -> Tensor:
    """The loss, in bfloat16 where a GPU computes it: that needs no scaling of the loss."""
    enabled = x.is_cuda if wanted is None else wanted
    with torch.autocast(x.device.type, torch.bfloat16, enabled=enabled):
        return loss(model, adapter, x, y).float()  # type: ignore[no-any-return]


def precision(wanted: bool | None, device: torch.device | str) -> bool | None:
    """Whether to multiply in bfloat16, after a look whether this CPU has instructions for it.

    One that has none computes the same, up to rounding, in twenty times the time.

    Example:
        >>> precision(False, "cpu"), precision(None, "cpu")
        (False, None)
    """
    if not wanted or torch.device(device).type != "cpu":
        return wanted
    # From torch 2.11 on; before it nobody can tell.
    told = getattr(torch.cpu, "get_capabilities", lambda: {"bf16": True})()
    if any("bf16" in name and has for name, has in told.items()):
        return True
    warnings.warn(
        "this CPU has no bfloat16 instructions and would take far longer with it: training "
        "computes in float32, as without bfloat16",
        IT3Warning,
        stacklevel=3,
    )
    return False


blind_loss = partial(zigzag_loss, given=0.0)
"""Of the vanilla network: both passes are without a signal, which makes them one."""


def place_for(wanted: torch.device | str | None) -> torch.device | str:
    """Where to compute, after a look whether it is there.

    Example:
        >>> place_for("cpu")
        'cpu'
    """
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        reason = str(problem).strip().splitlines()[0].split(". ")[0]  # torch goes on at length
        raise IT3Error(f"can't compute on {str(wanted)!r}: {reason}; take cpu") from problem
    return wanted


def in_memory(images: ImageSet, size: int, progress: bool) -> tuple[ImageSet, list[BadImage]]:
    """The images that can be read, in memory where they fit, and those that can't."""
    if len(images) * size**2 * 3 <= IN_MEMORY:
        return images.load(size, workers=os.cpu_count() or 1, progress=progress)
    return images.sound(workers=os.cpu_count() or 1, progress=progress)


def preparation(images: ImageSet, size: int, normalise: Normalise, seed: int) -> Preparation:
    """How images become tensors, by a sample of all: folders come class by class."""
    if normalise == "imagenet":
        return Preparation(size, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    if normalise != "data":
        raise IT3Error(f'images are normalised by "data" or "imagenet", not {normalise!r}')
    some = images.sample(min(20_000, len(images)), seed)
    return Preparation.fit(some.batch(slice(None), size))


def parts(images: ImageSet, seed: int, least: int = 10) -> tuple[ImageSet, ImageSet]:
    """The held-out images, so many at least, and the rest."""
    size = min(max(round(HELD_OUT * len(images)), least), 5000)
    order = np.random.default_rng(seed + 1000).permutation(len(images))
    return images.take(np.sort(order[:size])), images.take(np.sort(order[size:]))


def watched(model: nn.Module) -> list[str]:
    """The layers whose activations ActMAD aligns: the normalisations, as its authors do."""
    kinds = (nn.BatchNorm2d, nn.GroupNorm)
    return [name for name, layer in model.named_modules() if isinstance(layer, kinds)]
