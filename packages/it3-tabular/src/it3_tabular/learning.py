"""Training: which rows are held out, and ZigZag in one pass over the network."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor, nn

from it3_core import Adapter
from it3_core.training import History, Loss, fit
from it3_tabular.choosing import FEWEST_ROWS

__all__ = ["batch_size_for", "hold_out", "seeded", "train", "zigzag"]

_SMALLEST_TABLE = 5 * FEWEST_ROWS

Rows = NDArray[np.int64]


def seeded(
    random_state: int | np.random.RandomState | None,
) -> tuple[np.random.Generator, int]:
    """A generator for the rows and a seed for the network, as scikit-learn's random states go.

    Example:
        >>> seeded(0)[1] == seeded(0)[1]
        True
    """
    generator = np.random.default_rng(check_random_state(random_state).randint(2**31))
    return generator, int(generator.integers(2**31))


def hold_out(
    groups: NDArray[Any], share: float, generator: np.random.Generator
) -> tuple[Rows, Rows]:
    """The rows to train on and those held out: `share` of each group, drawn at random.

    Where that would be fewer than 8 rows, 8 are held out; of a table of fewer than 40, none.

    Args:
        groups: one value a row, such as its class; each keeps at least one row to train on.
        share: of the rows.
        generator: draws them.

    Example:
        >>> import numpy as np
        >>> kept, held_out = hold_out(np.zeros(100), 0.1, np.random.default_rng(0))
        >>> len(kept), len(held_out)
        (90, 10)
    """
    total = len(groups)
    everything = np.arange(total)
    if total < _SMALLEST_TABLE:
        return everything, everything[:0]
    wanted = max(FEWEST_ROWS, round(share * total))
    order = generator.permutation(total)
    # A row's rank within its group, and from that its place if every group were as long: taking
    # rows by that place takes the same share of each.
    rank = np.empty(total)
    size = np.empty(total)
    for group in np.unique(groups):
        members = order[groups[order] == group]
        rank[members] = np.arange(len(members))
        size[members] = len(members)
    place = np.where(rank == size - 1, 2.0, (rank + 0.5) / size)  # the last of a group stays
    by_place = order[np.argsort(place[order], kind="stable")]
    held_out = by_place[:wanted]
    held_out = np.sort(held_out[place[held_out] < 1])
    return np.setdiff1d(everything, held_out), held_out


def zigzag(network: nn.Module, adapter: Adapter, x: Tensor, y: Tensor) -> Tensor:
    """`it3_core.zigzag_loss`, its two passes as one of twice the rows, for half the time.

    Example:
        >>> import torch
        >>> from it3_core import Regression, zigzag_loss
        >>> from it3_tabular.networks import build
        >>> x, y = torch.randn(2, 5, 4, dtype=torch.float64)[0], torch.randn(5).double()
        >>> network, adapter = build(2, [8], Regression()), Regression()
        >>> gap = zigzag(network, adapter, x, y) - zigzag_loss(network, adapter, x, y)
        >>> abs(gap.item()) < 1e-12
        True
    """
    neutral = adapter.neutral(x)
    answer = adapter.encode(y).to(neutral)
    output = network(torch.cat([x, x]), torch.cat([neutral, answer]))
    return 2 * adapter.loss(output, torch.cat([y, y])).mean()


def train(
    network: nn.Module,
    adapter: Adapter,
    data: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor] | None,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    patience: int,
    seed: int,
    progress: bool,
    loss: Loss = zigzag,
) -> History:
    """Trains in place; with held-out rows it stops early and keeps the best weights.

    Example:
        >>> import torch
        >>> from it3_core import Regression
        >>> from it3_tabular.networks import build
        >>> x = torch.randn(50, 4, dtype=torch.float64)
        >>> network, adapter = build(2, [8], Regression()), Regression()
        >>> train(network, adapter, (x, x.sum(1)), None, epochs=2, batch_size=32, lr=0.01,
        ...       patience=5, seed=0, progress=False).best_epoch
        2
    """
    return fit(
        network,
        adapter,
        data,
        validation=held_out,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        patience=patience if held_out is not None else None,
        optimizer=partial(torch.optim.Adam, fused=True),
        loss=loss,
        seed=seed,
        progress=progress,
    )


def batch_size_for(rows: int) -> int:
    """Rows in a training step where the user names no number: 64, and more for long tables.

    Example:
        >>> batch_size_for(500), batch_size_for(10_000), batch_size_for(1_000_000)
        (64, 312, 512)
    """
    return max(64, min(512, rows // 32))
