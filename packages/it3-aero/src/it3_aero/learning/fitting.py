"""What a training is made of: shapes that are held out, one network, and those without a tail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from it3_aero.learning.network import build, zigzag
from it3_aero.learning.shapes import Shapes
from it3_aero.learning.task import Recipe, Task
from it3_core import Conditioned, IT3Error, Regression
from it3_core.training import History, fit
from it3_core.tuning import Tail, split_tail, tail_files

__all__ = ["fit_network", "hold_out", "tails_of"]

_HELD_OUT = 0.15  # share of the training shapes


def hold_out(shapes: Shapes, seed: int, least: int = 20) -> tuple[Shapes, Shapes]:
    """The shapes that early stopping, trust and tuning look at, and those to train on.

    Example:
        >>> shapes = Shapes(torch.rand(60, 10, 2), torch.rand(60), [str(i) for i in range(60)])
        >>> [len(part) for part in hold_out(shapes, seed=0)]
        [20, 40]
    """
    size = max(least, round(_HELD_OUT * len(shapes)))
    if len(shapes) - size < 16:
        raise IT3Error(
            f"{len(shapes)} training shapes are too few to hold some out of: generate 60 at least"
        )
    order = torch.randperm(len(shapes), generator=torch.Generator().manual_seed(seed + 1000))
    return shapes.take(order[:size].sort().values), shapes.take(order[size:].sort().values)


def fit_network(
    task: Task,
    adapter: Regression,
    recipe: Recipe,
    seed: int,
    rest: Shapes,
    held_out: Shapes,
    checkpoint: Path,
    epochs: int | None = None,
    loss: Callable[..., Tensor] | None = None,
    progress: bool = True,
) -> tuple[Conditioned, History]:
    """Trains one network, and nothing around it.

    Args:
        task: what kind of shapes.
        adapter: of the training labels.
        recipe: which network, how long and how fast.
        seed: of the first weights and the order of the rows.
        rest: what to train on.
        held_out: what tells the best epoch.
        checkpoint: where a killed training goes on from.
        epochs: in place of the recipe's.
        loss: in place of the recipe's: `zigzag`, the second pass weighing as much as it says.
        progress: whether to show a bar.

    Example:
        >>> import tempfile
        >>> from it3_aero.learning.task import NetworkSettings
        >>> from it3_aero.wings.task import WINGS
        >>> shapes = Shapes(torch.rand(8, 10, 2), torch.rand(8) * 60, list("abcdefgh"))
        >>> recipe = Recipe(NetworkSettings(layers=2, channels=4, hidden=4), epochs=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = fit_network(WINGS, Regression.fit(shapes.y), recipe, 0, shapes, shapes,
        ...                        Path(folder) / "training.safetensors", progress=False)
        >>> len(made[1].train)
        2
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = build(task.trunk, recipe.network, adapter)
    history = fit(
        model,
        adapter,
        (rest.x, rest.y),
        validation=(held_out.x, held_out.y),
        epochs=epochs or recipe.epochs,
        batch_size=recipe.batch_size or (32 if len(rest) < 800 else 64),
        lr=recipe.lr,
        schedule="cosine",
        clip=1.0,
        loss=loss or partial(zigzag, weight=recipe.second),
        checkpoint=checkpoint,
        seed=seed,
        progress=progress,
    )
    return model, history


def tails_of(
    task: Task,
    adapter: Regression,
    rest: Shapes,
    recipe: Recipe,
    seed: int,
    folder: Path,
    progress: bool,
) -> list[Tail]:
    """Networks trained half as long without a fifth of the labels, those next to what is beyond.

    They measure with the adapter that tuning measures with, and differ in their first weights.

    Example:
        >>> import tempfile
        >>> from it3_aero.learning.task import NetworkSettings
        >>> from it3_aero.wings.task import WINGS
        >>> shapes = Shapes(torch.rand(60, 9, 2), torch.arange(60.0), [str(i) for i in range(60)])
        >>> recipe = Recipe(NetworkSettings(layers=2, channels=4, hidden=4), epochs=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tails = tails_of(WINGS, Regression.fit(shapes.y), shapes, recipe, 0, Path(folder),
        ...                      progress=False)
        >>> len(tails), tails[0].y[:3]
        (3, tensor([48., 49., 50.]))
    """
    inside, tail = (rest.take(rows) for rows in split_tail(rest.y, 0.2, task.beyond))
    held_out, known = hold_out(inside, seed, least=4)
    epochs = max(1, recipe.epochs // 2)
    found = []
    for number, path in enumerate(tail_files(folder)):
        model, _ = fit_network(
            *(task, adapter, recipe, seed + 1000 * number, known, held_out, path, epochs),
            progress=progress,
        )
        found.append(Tail(model, tail.x, tail.y))
    return found
