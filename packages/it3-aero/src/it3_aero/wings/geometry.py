"""Airfoils: what one is, NACA's two families of them, and points spread along an outline.

Every airfoil here spans x from 0 to 1. Its points run in Selig's order, from the trailing edge over
the upper side to the leading edge and back along the lower side, and the trailing edge's middle
lies at y = 0. `outline` brings any points to that form and refuses what isn't an airfoil. Nothing
is turned: the angle of attack counts from the x axis of the coordinates as they were given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from it3_core import IT3Error

Points = npt.NDArray[np.float64]
Range = tuple[float, float]

_FEWEST, _MOST = 10, 5000  # points that an outline may have
_THINNEST, _THICKEST = 0.003, 0.9  # thickness over the chord of what may be called an airfoil
_SAME = 1e-7  # points nearer than that, in chords, are one
_POINTS = 201  # of an airfoil made here; an odd number has one at the very nose


@dataclass(frozen=True, eq=False)
class Airfoil:
    """A wing section: its outline and what it is called.

    Make one with `naca4`, `naca5`, `naca`, `outline` or `read_airfoil`, which see to the form that
    the module describes.
    """

    name: str  # for people; nothing is derived from it
    points: Points  # `(n, 2)`
    parameters: Mapping[str, float] = field(default_factory=dict)  # what it was made from, if so

    def __post_init__(self) -> None:
        points = np.array(self.points, dtype=np.float64)
        points.flags.writeable = False
        object.__setattr__(self, "points", points)

    @property
    def thickness(self) -> float:
        """The largest gap between the upper and the lower side, in chords."""
        nose = int(np.argmin(self.points[:, 0]))
        upper, lower = self.points[nose::-1], self.points[nose:]
        at = np.linspace(0.01, 0.99, 99)
        sides = (np.interp(at, np.maximum.accumulate(s[:, 0]), s[:, 1]) for s in (upper, lower))
        return float(np.max(np.subtract(*sides)))


def naca4(camber: float, position: float, thickness: float, n: int = _POINTS) -> Airfoil:
    """NACA's 4-digit section, for any numbers and not only whole digits.

    The mean line's height, where along the chord that is, and the thickness are fractions of it.

    Example:
        >>> naca4(0.0213, 0.402, 0.1187).name
        'NACA 4-digit 2.13/40.2/11.87'
    """
    between("camber", camber, 0.0, 0.15)
    between("position", position, 0.05, 0.95)
    between("thickness", thickness, 0.01, 0.5)
    x = _chordwise(n)
    front, back = camber / position**2, camber / (1 - position) ** 2
    fore = x < position
    line = np.where(
        fore, front * x * (2 * position - x), back * (1 - 2 * position + x * (2 * position - x))
    )
    slope = np.where(fore, front, back) * 2 * (position - x)
    name = f"NACA 4-digit {100 * camber:.4g}/{100 * position:.4g}/{100 * thickness:.4g}"
    digits = (100 * camber, 10 * position, 100 * thickness)
    if all(math.isclose(digit, round(digit), abs_tol=1e-9) for digit in digits) and camber < 0.095:
        m, p, t = map(round, digits)
        name = f"NACA {m}{p if m else 0}{t:02d}"
    parameters = {"camber": camber, "position": position, "thickness": thickness}
    return outline(name, _around(x, line, slope, thickness), parameters)


def naca5(
    lift: float, position: float, thickness: float, reflex: bool = False, n: int = _POINTS
) -> Airfoil:
    """NACA's 5-digit section: the mean line's largest camber lies far forward, at `position`.

    `lift` is the design lift coefficient; a reflexed mean line turns up at the rear.
    """
    between("lift", lift, 0.0, 1.0)
    between("position", position, 0.1 if reflex else 0.05, 0.25)
    between("thickness", thickness, 0.01, 0.5)
    x = _chordwise(n)
    line, slope = (_reflexed if reflex else _forward)(x, position)
    name = f"NACA 5-digit {lift:.4g}/{100 * position:.4g}/{100 * thickness:.4g}"
    digits = (lift / 0.15, 20 * position, 100 * thickness)
    if all(math.isclose(digit, round(digit), abs_tol=1e-9) for digit in digits):
        first, second, t = map(round, digits)
        name = f"NACA {first}{second}{int(reflex)}{t:02d}"
    parameters = {"lift": lift, "position": position, "thickness": thickness}
    if reflex:
        name = name.replace("digit", "digit reflexed")
        parameters["reflex"] = 1.0
    points = _around(x, lift / 0.3 * line, lift / 0.3 * slope, thickness)
    return outline(name, points, parameters)


class Family(NamedTuple):
    """A kind of profile: what makes one from parameters, and where those are drawn from, evenly."""

    make: Callable[..., Airfoil]
    ranges: dict[str, Range]


# Camber decides the lift-to-drag ratio. At Re 1e6 and no angle of attack, up to 2.3 % puts 5 % of
# the profiles above 60, as in the paper, with a thin tail; up to 7 % puts half of them there. With
# up to 2.7 % it is about a tenth, enough for levels of some 70 profiles each out of 2,000.
FAMILIES = {
    "naca4": Family(
        naca4, {"camber": (0.0, 0.027), "position": (0.2, 0.7), "thickness": (0.06, 0.2)}
    ),
    "naca5": Family(
        naca5, {"lift": (0.0, 0.9), "position": (0.05, 0.25), "thickness": (0.06, 0.2)}
    ),
}


if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[tuple(FAMILIES)]  # the command line's choices, and a folder's


def draw(ranges: Mapping[str, Range], seed: int, sample: int) -> dict[str, float]:
    """Parameters of one sample, from its number alone."""
    even = np.random.default_rng([seed, sample]).random(len(ranges)).tolist()
    return {
        name: round(low + (high - low) * part, 6)
        for part, (name, (low, high)) in zip(even, ranges.items(), strict=True)
    }


def checked_ranges(family: str, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """A family's ranges with some of them replaced, if such profiles can be made."""
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


def naca(digits: str, n: int = _POINTS) -> Airfoil:
    """The section with a 4- or 5-digit number.

    Example:
        >>> naca("0012").points[0]
        array([1.     , 0.00126])
        >>> naca("23012").parameters
        {'lift': 0.3, 'position': 0.15, 'thickness': 0.12}
    """
    if not (digits.isascii() and digits.isdigit() and len(digits) in (4, 5)):
        raise IT3Error(f"a NACA number has four or five digits, unlike {digits!r}")
    numbers = [int(digit) for digit in digits]
    thickness = int(digits[-2:]) / 100
    if len(digits) == 4:
        camber, position = numbers[0] / 100, numbers[1] / 10
        return naca4(camber, position if camber else 0.4, thickness, n)
    if numbers[2] > 1:
        raise IT3Error(f"the third digit of a 5-digit number is 0 or 1, unlike in NACA {digits}")
    lift, position = round(0.15 * numbers[0], 10), numbers[1] / 20
    return naca5(lift, position, thickness, bool(numbers[2]), n)


def outline(name: str, points: Points, parameters: Mapping[str, float] | None = None) -> Airfoil:
    """An airfoil from points around it, at any scale, in either direction, from any start.

    Raises `IT3Error`, whose sentence begins with the reason, for what can't be one.

    Example:
        >>> clockwise = naca("4415").points[::-1] * 25.4
        >>> bool(np.allclose(outline("mine", clockwise).points, naca("4415").points))
        True
    """
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise IT3Error(f"an outline is an array (n, 2), and this one has shape {array.shape}")
    if not np.isfinite(array).all():
        raise IT3Error("a coordinate is NaN or infinite")
    _enough(array)
    chord = float(np.ptp(array[:, 0]))
    if not 1e-9 < chord < 1e9:
        raise IT3Error(f"this is not an airfoil: along x it measures {chord:.3g}")
    array = (array - array.min(axis=0)) / chord
    array = array[np.append(True, np.hypot(*np.diff(array, axis=0).T) > _SAME)]
    _enough(array)
    array = _opened(array)
    x, y = array.T
    if np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y) < 0:  # twice the area
        array = array[::-1]
    array = array - [0.0, (array[0, 1] + array[-1, 1]) / 2]
    airfoil = Airfoil(name, array, dict(parameters or {}))
    _check_shape(airfoil)
    return airfoil


def resample(airfoil: Airfoil, x: Points) -> Points:
    """Points on the outline over given places along the chord, `(2 × len(x), 2)`.

    They grow from 0 to 1. A smooth curve is laid through the points (Akima's, which doesn't swing
    at kinks).
    """
    from scipy.interpolate import Akima1DInterpolator  # here: `--help` loads this module

    points = airfoil.points
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    curve = Akima1DInterpolator(along, points, method="makima")
    nose = along[np.argmin(points[:, 0])]
    # Dense about the nose, where x hardly changes along the curve.
    dense = np.linspace(0.0, 1.0, 50 * len(points)) ** 2
    sides = []
    for end in (along[0], along[-1]):
        places = nose + (end - nose) * dense
        growing = np.maximum.accumulate(curve(places)[:, 0])
        sides.append(curve(np.interp(x, growing, places)))
    return np.concatenate([sides[0][::-1], sides[1]])


def between(what: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside of a range."""
    if not low <= value <= high:
        raise IT3Error(f"{what} must lie between {low:g} and {high:g}, but is {value:g}")


def _chordwise(n: int) -> Points:
    if not _FEWEST <= n <= _MOST:
        raise IT3Error(f"n must lie between {_FEWEST} and {_MOST} points, but is {n}")
    return 0.5 + 0.5 * np.cos(np.linspace(0.0, 2 * np.pi, n))


def _around(x: Points, line: Points, slope: Points, thickness: float) -> Points:
    """The outline about a mean line. The polynomial leaves a blunt trailing edge, as NACA's do."""
    root = 0.2969 * np.sqrt(x) - x * (0.1260 + x * (0.3516 - x * (0.2843 - 0.1015 * x)))
    half = 5 * thickness * root
    half[len(x) // 2 :] *= -1
    turn = np.arctan(slope)
    points: Points = np.stack([x - half * np.sin(turn), line + half * np.cos(turn)], axis=1)
    return points


def _forward(x: Points, position: float) -> tuple[Points, Points]:
    """The plain 5-digit mean line for a lift coefficient of 0.3, and its slope."""
    from scipy.optimize import brentq

    r = float(brentq(lambda r: r * (1 - math.sqrt(r / 3)) - position, 1e-6, 0.7))
    q = (3 * r - 7 * r**2 + 8 * r**3 - 4 * r**4) / math.sqrt(r * (1 - r))
    k = 6 * 0.3 / (q - 1.5 * (1 - 2 * r) * (math.pi / 2 - math.asin(1 - 2 * r)))
    fore = x < r
    line = np.where(fore, x**3 - 3 * r * x**2 + r**2 * (3 - r) * x, r**3 * (1 - x))
    slope = np.where(fore, 3 * x**2 - 6 * r * x + r**2 * (3 - r), -(r**3))
    return k / 6 * line, k / 6 * slope


# position: r, k1 and k2/k1 of the reflexed mean lines 221 to 251 (NACA report 537).
_REFLEXED = {
    0.10: (0.1300, 51.990, 0.000764),
    0.15: (0.2170, 15.793, 0.00677),
    0.20: (0.3180, 6.520, 0.0303),
    0.25: (0.4410, 3.191, 0.1355),
}


def _reflexed(x: Points, position: float) -> tuple[Points, Points]:
    """The reflexed mean line for a lift coefficient of 0.3, and its slope."""
    places, rows = list(_REFLEXED), np.log(list(_REFLEXED.values()))
    r, k, ratio = (math.exp(np.interp(position, places, column)) for column in rows.T)
    fore = x < r
    common = -ratio * (1 - r) ** 3 * x - r**3 * x + r**3
    line = np.where(fore, (x - r) ** 3, ratio * (x - r) ** 3) + common
    slope = np.where(fore, 3 * (x - r) ** 2, 3 * ratio * (x - r) ** 2)
    return k / 6 * line, k / 6 * (slope - ratio * (1 - r) ** 3 - r**3)


def _enough(points: Points) -> None:
    if len(points) < _FEWEST:
        raise IT3Error(f"{len(points)} points are too few for an airfoil: {_FEWEST} at least")
    if len(points) > _MOST:
        raise IT3Error(f"{len(points)} points are too many: {_MOST} at most")


def _opened(points: Points) -> Points:
    """The same ring, from the trailing edge to the trailing edge."""
    ring = points[:-1] if np.hypot(*(points[0] - points[-1])) < _SAME else points
    ring = np.roll(ring, -int(np.argmax(ring[:, 0])), axis=0)
    # A blunt edge has a second corner, steeply above or below; the ring opens between the two.
    after, before = np.abs(ring[1] - ring[0]), np.abs(ring[-1] - ring[0])
    if before[1] > 1.5 * before[0]:
        return ring
    if after[1] > 1.5 * after[0]:
        return np.roll(ring, -1, axis=0)
    return np.concatenate([ring, ring[:1]])  # sharp: the tip is both the beginning and the end


def _check_shape(airfoil: Airfoil) -> None:
    points = airfoil.points
    crossing = None if _one_above_the_other(points) else _crossing(points)
    if crossing is not None:
        x, y = crossing
        raise IT3Error(f"the outline crosses itself near x/c = {x:.3f}, y/c = {y:.3f}")
    nose = int(np.argmin(points[:, 0]))
    if nose < 2 or nose > len(points) - 3:
        raise IT3Error("this is not an airfoil: it has only one side")
    thickness = airfoil.thickness
    if not _THINNEST <= thickness <= _THICKEST:
        raise IT3Error(
            f"this is not an airfoil: it is {100 * thickness:.3g} % as thick as it is long, and "
            f"{100 * _THINNEST:g} to {100 * _THICKEST:g} % are accepted"
        )
    back = np.diff(points[:, 0])
    if back[:nose].clip(0).sum() + (-back[nose:]).clip(0).sum() > 0.2:
        raise IT3Error("this is not an airfoil: its sides run back and forth along the chord")


def _one_above_the_other(points: Points) -> bool:
    """Whether the sides are curves over x that don't touch, and so can't cross: quick to see."""
    nose = int(np.argmin(points[:, 0]))
    upper, lower = points[nose::-1], points[nose:]
    if any(len(side) < 2 or (np.diff(side[:, 0]) <= 0).any() for side in (upper, lower)):
        return False
    at = points[(points[:, 0] > 0) & (points[:, 0] < min(upper[-1, 0], lower[-1, 0])), 0]
    gaps = np.interp(at, *upper.T) - np.interp(at, *lower.T)
    return bool((gaps > 0).all())


def _crossing(points: Points) -> Points | None:
    """A place where two edges of the closed ring meet that don't follow each other, if any."""
    ring = points[:-1] if np.hypot(*(points[0] - points[-1])) < _SAME else points
    n = len(ring)
    begin, step = ring, np.roll(ring, -1, axis=0) - ring
    length = np.hypot(*step.T)
    numbers = np.arange(n)
    for rows in np.array_split(numbers, max(1, n * n // 500_000)):
        gap = begin[None, :, :] - begin[rows, None, :]
        across = step[rows, None, 0] * step[None, :, 1] - step[rows, None, 1] * step[None, :, 0]
        # Edges along one line, of which some outlines have many, meet nowhere in particular.
        across[np.abs(across) < 1e-9 * length[rows, None] * length[None, :]] = np.nan
        t = (gap[..., 0] * step[None, :, 1] - gap[..., 1] * step[None, :, 0]) / across
        u = (gap[..., 0] * step[rows, None, 1] - gap[..., 1] * step[rows, None, 0]) / across
        apart = (numbers[None, :] - rows[:, None]) % n
        hit = (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1) & (apart > 1) & (apart < n - 1)
        if hit.any():
            i, j = np.argwhere(hit)[0]
            place: Points = begin[rows[i]] + t[i, j] * step[rows[i]]
            return place
    return None
