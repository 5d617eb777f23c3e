"""The methods that are compared on roads, beside those that all images have."""

from __future__ import annotations

from it3_core import IT3, AnswerStep
from it3_core.evaluation.evaluate import Predictor
from it3_core.experiment.lines import AUTO, PLAIN_ACTMAD, common_lines, norm_for
from it3_core.experiment.predict import method_for
from it3_core.experiment.types import Line, Network
from it3_vision.methods import TTT

CHEAP = ["cell.up.0.*", "cell.head.*"]
"""The last layers: with these alone, a backward pass ends where it began."""


def ttt(network: Network, size: int) -> Predictor | None:
    """TTT on each tile; None where no rotation head was trained."""
    if not hasattr(network.model, "rotation"):
        return None
    return TTT(network.model, network.adapter, steps=1, lr=1e-3)


def _cheap(network: Network, size: int) -> Predictor:
    norm = norm_for(network, size, 1)
    return IT3(network.model, network.adapter, parameters=CHEAP, lr=1e-3, norm=norm)


def _half(network: Network, size: int) -> Predictor:
    return AnswerStep(network.model, network.adapter, alpha=0.5)


def lines() -> list[Line]:
    """Those of all images, `auto` by the number of tiles, and what is for maps alone."""
    auto = AUTO._replace(make=lambda network, size: method_for(network, "auto"))
    # One image has pixels enough for statistics of its own.
    found = [auto if line is AUTO else line for line in common_lines(1)]
    return [
        *found,
        PLAIN_ACTMAD,
        Line("TTT", ttt, once=True, note="Four rotations of each tile, SGD at 1e-3."),
        Line("answer step", _half, once=True, note="Half of the way from y0 to F(x, y0)."),
        Line("IT³, cheap", _cheap, note="The last layers alone."),
    ]
