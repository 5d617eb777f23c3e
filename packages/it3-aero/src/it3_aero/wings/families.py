"""The families of profiles that can be drawn at random, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from it3_aero.wings.geometry import Airfoil, naca4, naca5
from it3_core import IT3Error

__all__ = ["FAMILIES", "Family", "Range", "checked_ranges", "draw"]

Range = tuple[float, float]


@dataclass(frozen=True)
class Family:
    """A kind of profile: what makes one from parameters, and where those are drawn from, evenly.

    Attributes:
        make: from parameters by name to the profile.
        ranges: of the parameters, by name.
    """

    make: Callable[..., Airfoil]
    ranges: dict[str, Range]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        return tuple(self.ranges)


# Camber decides the lift-to-drag ratio. At Re 1e6 and no angle of attack, up to 2.3 % puts 5 % of
# the profiles beyond 60, as in the paper, with a thin tail; up to 7 % puts half of them there. With
# up to 2.7 % it is about a tenth, enough for levels of some 70 profiles each out of 2,000.
FAMILIES = {
    "naca4": Family(
        naca4, {"camber": (0.0, 0.027), "position": (0.2, 0.7), "thickness": (0.06, 0.2)}
    ),
    "naca5": Family(
        naca5, {"lift": (0.0, 0.9), "position": (0.05, 0.25), "thickness": (0.06, 0.2)}
    ),
}


def draw(
    family: str, seed: int, sample: int, ranges: Mapping[str, Range] | None = None
) -> dict[str, float]:
    """Parameters of one sample, from its number alone.

    Example:
        >>> draw("naca4", seed=0, sample=5) == draw("naca4", seed=0, sample=5)
        True
        >>> draw("naca4", seed=0, sample=5, ranges={"camber": (0.02, 0.02)})["camber"]
        0.02
    """
    kind = FAMILIES[family]
    even = np.random.default_rng([seed, sample]).random(len(kind.ranges)).tolist()
    return {
        name: round(low + (high - low) * share, 6)
        for share, (name, (low, high)) in zip(
            even, (dict(kind.ranges) | dict(ranges or {})).items(), strict=True
        )
    }


def checked_ranges(family: str, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """A family's ranges with some of them replaced, if such profiles can be made.

    Example:
        >>> checked_ranges("naca4", {"camber": (0.0, 0.07)})["camber"]
        (0.0, 0.07)
        >>> checked_ranges("naca4", {"chamber": (0.0, 0.07)})
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: naca4 has no 'chamber'; it has camber, position, thickness
    """
    if family not in FAMILIES:
        raise IT3Error(f"there is no family {family!r}; there are {', '.join(FAMILIES)}")
    kind = FAMILIES[family]
    for name, (low, high) in ranges.items():
        if name not in kind.ranges:
            raise IT3Error(f"{family} has no {name!r}; it has {', '.join(kind.ranges)}")
        if not low <= high:
            raise IT3Error(f"the range of {name} runs backwards: {low:g} to {high:g}")
    merged = {name: ranges.get(name, pair) for name, pair in kind.ranges.items()}
    for corner in product(*merged.values()):
        kind.make(**dict(zip(merged, corner, strict=True)))
    return merged
