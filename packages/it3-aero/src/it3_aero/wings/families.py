"""The families of profiles that can be drawn at random, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from it3_aero.wings.geometry import Airfoil, naca4, naca5

__all__ = ["FAMILIES", "Family", "Range", "draw"]

Range = tuple[float, float]


@dataclass(frozen=True)
class Family:
    """A kind of profile: what makes one from parameters, and where those are drawn from.

    Attributes:
        make: from parameters by name to the profile.
        ranges: of the parameters, by name.
        power: exponents by name: 1 draws evenly, 2 draws twice as often near the range's low end
            as at its middle, and so on.
    """

    make: Callable[..., Airfoil]
    ranges: dict[str, Range]
    power: dict[str, float]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        return tuple(self.ranges)


FAMILIES = {
    "naca4": Family(
        naca4,
        {"camber": (0.0, 0.06), "position": (0.2, 0.7), "thickness": (0.06, 0.2)},
        {"camber": 2.0},
    ),
    "naca5": Family(
        naca5,
        {"lift": (0.0, 0.9), "position": (0.05, 0.25), "thickness": (0.06, 0.2)},
        {"lift": 2.0},
    ),
}


def draw(family: str, seed: int, sample: int) -> dict[str, float]:
    """Parameters of one sample, from its number alone.

    Example:
        >>> draw("naca4", seed=0, sample=5) == draw("naca4", seed=0, sample=5)
        True
        >>> sorted(draw("naca4", seed=0, sample=5))
        ['camber', 'position', 'thickness']
    """
    kind = FAMILIES[family]
    even = np.random.default_rng([seed, sample]).random(len(kind.ranges)).tolist()
    return {
        name: round(low + (high - low) * share ** kind.power.get(name, 1.0), 6)
        for share, (name, (low, high)) in zip(even, kind.ranges.items(), strict=True)
    }
