"""The network: a multi-layer perceptron whose second input is the signal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from it3_core import Classification, Conditioned, IT3Error, Regression, condition, widen

__all__ = ["Signal", "build"]

Signal = Literal["widen", "inject"]


def build(
    columns: int,
    widths: Sequence[int],
    adapter: Regression | Classification,
    *,
    signal: Signal = "widen",
    seed: int = 0,
) -> Conditioned:
    """A perceptron with ReLUs, from prepared rows to answers in the user's units.

    It is in double precision: these networks are so small that it costs little, and the answer
    to a row is then the same, to every digit that is shown, alone and among others.

    The weights of the indicators are zero at first. A column that has no gap in the training
    rows leaves them at zero, so that a gap in new rows is what its imputed value says and no more:
    a random reaction to something never seen is worse than none.

    Args:
        columns: of the table; a prepared row has as many values and as many indicators.
        widths: of the hidden layers; none makes it linear.
        adapter: what kind of answer it gives.
        signal: where the signal enters: `"widen"` puts it beside the inputs, as the paper does;
            `"inject"` adds an embedding of it to what the first layer returns, so that this layer
            is computed once for both passes.
        seed: of the weights; the global generator is left alone.

    Example:
        >>> from it3_core import Regression
        >>> build(13, [30, 20, 10], Regression()).model[0]
        Linear(in_features=28, out_features=30, bias=True)
    """
    outputs = len(adapter.mean) if isinstance(adapter, Regression) else adapter.classes
    sizes = [2 * columns, *widths, outputs]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after, dtype=torch.float64), nn.ReLU()]
    layers.pop()
    if isinstance(adapter, Regression):
        layers.append(adapter.rescale().double())
    network = nn.Sequential(*layers)
    if signal == "widen":
        made = widen(network, adapter)
    elif signal == "inject":
        made = condition(network, adapter, layer="0")
    else:
        raise IT3Error(f'signal must be "widen" or "inject", not {signal!r}')
    _draw(made, seed)
    with torch.no_grad():
        first = next(layer for layer in made.modules() if isinstance(layer, nn.Linear))
        first.weight[:, columns : 2 * columns] = 0.0
    return made


def _draw(network: nn.Module, seed: int) -> None:
    """torch's own initial weights, from a generator of their own; the signal's too."""
    generator = torch.Generator().manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            bound = 1 / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            if layer.bias is not None:
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
