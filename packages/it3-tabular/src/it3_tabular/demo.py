"""A demonstration on the data set that comes with the package."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from it3_tabular.estimators import IT3Regressor
from it3_tabular.preparing import Floats
from it3_tabular.uci import load_energy

__all__ = ["Line", "demonstrate"]


@dataclass(frozen=True)
class Line:
    """What happened to the test rows under one kind of damage.

    Attributes:
        damage: in words.
        source: mean absolute error without adapting.
        auto: mean absolute error of what `adapt="auto"` chose.
        flagged: share of rows that are flagged as unusual.

    Example:
        >>> Line("none", 0.4, 0.4, 0.05).damage
        'none'
    """

    damage: str
    source: float
    auto: float
    flagged: float


def demonstrate(seed: int = 0, verbose: bool = False) -> tuple[IT3Regressor, list[Line]]:
    """Trains on 80 % of Energy, damages the rest in several ways, and measures.

    Example:
        >>> model, lines = demonstrate()
        >>> lines[0].damage
        'none'
    """
    x, y = load_energy()
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(y))
    train, test = order[:614], order[614:]
    model = IT3Regressor(random_state=seed, verbose=verbose).fit(x[train], y[train])
    lost = generator.random(x[test].shape) < 0.2
    mean, scale = x[train].mean(0), x[train].std(0)
    noise = generator.normal(size=x[test].shape) * 0.3 * scale
    damaged: dict[str, Floats] = {
        "none": x[test],
        "20 % of the values missing (NaN)": np.where(lost, np.nan, x[test]),
        "20 % of the values read the mean": np.where(lost, mean, x[test]),
        "noise of 0.3 standard deviations": x[test] + noise,
        "other units: heights in feet": x[test] * np.where(np.arange(8) == 4, 3.28, 1.0),
    }
    return model, [_line(model, name, rows, y[test]) for name, rows in damaged.items()]


def _line(model: IT3Regressor, damage: str, x: Floats, y: Floats) -> Line:
    found = model.predict_detailed(x)
    return Line(
        damage,
        source=float(np.abs(found.before - y).mean()),
        auto=float(np.abs(found.after - y).mean()),
        flagged=float(found.flag.mean()),
    )
