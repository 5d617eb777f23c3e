"""What `adapt="auto"` does: tries ways to adapt on held-out rows, and chooses one, or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from it3_core import Adapter, Conditioned
from it3_core.candidates import Candidate
from it3_core.tuning import Tuning, tune

__all__ = ["FEWEST_ROWS", "candidates", "choose", "gradient_step", "shifts"]

FEWEST_ROWS = 8  # held out: with fewer, a choice would be chance
_DRAWS = 2  # of each shift: what one draw favours, the other need not


def choose(
    network: Conditioned, adapter: Adapter, x: Tensor, y: Tensor, tries: list[Candidate], seed: int
) -> Tuning:
    """The best of the candidates on held-out rows under shifts, or none of them.

    Args:
        network: the trained network.
        adapter: what kind of answer it gives.
        x: prepared rows that it was not trained on.
        y: their labels.
        tries: what to choose from.
        seed: of the shifts.

    Example:
        >>> import torch
        >>> from it3_core import Regression
        >>> from it3_tabular.networks import build
        >>> adapter, x = Regression(), torch.randn(20, 6, dtype=torch.float64)
        >>> network = build(3, [8], adapter)
        >>> y = network(x, adapter.neutral(x)).detach()  # as good as can be: nothing can help
        >>> choose(network, adapter, x, y, candidates(1, 0.01), seed=0).chosen
        Source()
    """
    if len(y) < FEWEST_ROWS:
        reason = f"No adaptation: {len(y)} held-out rows are too few to choose by."
        return Tuning(Candidate("Source"), reason, ())
    return tune(
        network,
        adapter,
        x,
        y,
        shifts=shifts(seed),
        candidates=tries,
        batch_size=1024,
        false_alarms=None,  # a gate looks at a batch, and rows are answered one by one
        progress=False,
    )


def candidates(steps: int, lr: float) -> list[Candidate]:
    """What is tried: steps of the answer of either sign, and of each row's own weights.

    All of them answer a row the same way, whichever rows come with it.

    Args:
        steps: of the user's own setting, which is tried with the others.
        lr: likewise.

    Example:
        >>> candidates(1, 0.01)[-1]
        IT3(steps=1, lr=0.01, optimizer='SGD', power=2.0, per_instance=True)
    """
    found = [Candidate("AnswerStep", {"alpha": a}) for a in (-0.5, -0.25, 0.25, 0.5, 1.0)]
    found.append(Candidate("IT3", {"steps": 1, "lr": 1e-4, "per_instance": True}))  # the paper's
    settings = dict.fromkeys([(1, 0.05), (3, 0.05), (steps, lr)])
    return found + [Candidate("IT3", {**gradient_step(*s), "per_instance": True}) for s in settings]


def gradient_step(steps: int, lr: float) -> dict[str, Any]:
    """The settings of IT³ for tables: plain gradient descent on the squared gap.

    So a row moves in proportion to its gap, and one that the network knows hardly at all. Adam's
    first step, the paper's, has the same size whatever the gap.

    Example:
        >>> gradient_step(1, 0.01)
        {'steps': 1, 'lr': 0.01, 'optimizer': 'SGD', 'power': 2.0}
    """
    return {"steps": steps, "lr": lr, "optimizer": "SGD", "power": 2.0}


def shifts(seed: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Feature dropout, noise and offset, each drawn twice, on prepared rows.

    A dropped value reads as its column's mean, and nothing says so: a gap that is known to be one
    is imputed, and the network was trained with such gaps.

    Example:
        >>> import torch
        >>> list(shifts(seed=0))
        ['dropout 1', 'noise 1', 'offset 1', 'dropout 2', 'noise 2', 'offset 2']
        >>> shifts(seed=0)["offset 1"](torch.zeros(2, 4)) != 0  # values, and their indicators
        tensor([[ True,  True, False, False],
                [ True,  True, False, False]])
    """
    made: dict[str, Callable[[Tensor], Tensor]] = {}
    for draw in range(_DRAWS):
        for kind, change in (("dropout", _dropped), ("noise", _noisy), ("offset", _offset)):
            made[f"{kind} {draw + 1}"] = partial(_shifted, change, seed + draw)
    return made


def _shifted(change: Callable[[Tensor, torch.Generator], Tensor], seed: int, x: Tensor) -> Tensor:
    """The values changed, the indicators as they were."""
    values, indicators = x.chunk(2, 1)
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([change(values, generator), indicators], 1)


def _dropped(values: Tensor, generator: torch.Generator) -> Tensor:
    kept = torch.rand(values.shape, generator=generator) >= 0.15
    return values * kept


def _noisy(values: Tensor, generator: torch.Generator) -> Tensor:
    return values + 0.3 * torch.randn(values.shape, generator=generator, dtype=values.dtype)


def _offset(values: Tensor, generator: torch.Generator) -> Tensor:
    column = torch.randn(values.shape[1], generator=generator, dtype=values.dtype)
    return values + 0.5 * column
