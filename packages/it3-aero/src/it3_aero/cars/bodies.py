"""Cars made from a few numbers: the Ahmed body, and six kinds from a profile, a plan and a section.

Metres; x runs with the wind, from the nose at 0 to the tail, z runs up from the ground at 0, and
y = 0 is the plane of symmetry. Every body is one closed surface: wheels are united with it, and
flattened where they stand.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import trimesh

from it3_aero.cars.families import FAMILIES, Parameters, draw
from it3_aero.cars.loft import Array, loft, rectangle, superellipse
from it3_core import IT3Error

__all__ = ["FAMILIES", "Parameters", "ahmed", "car", "draw", "make"]

_AXLES = (0.175, 0.815)  # as shares of the length
_FLAT = 0.04  # of a wheel's radius is below the ground, and cut off


def make(family: str, **parameters: float) -> trimesh.Trimesh:
    """The body of a family; parameters that aren't given are in the middle of their range.

    Example:
        >>> body = make("hatchback", height=1.5, rear=45)
        >>> body.is_volume, round(float(body.extents[2]), 2)
        (True, 1.5)
        >>> make("hatchback", hight=1.5)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: a hatchback has no 'hight'; it has length, width, height, ...
    """
    if family not in FAMILIES:
        raise IT3Error(f"there is no family {family!r}; there are {', '.join(FAMILIES)}")
    known = FAMILIES[family]
    for name, value in parameters.items():
        if name not in known:
            raise IT3Error(f"a {family} has no {name!r}; it has {', '.join(known)}")
        if not math.isfinite(value) or value < 0:
            raise IT3Error(f"{name} must be a number that is not negative, but is {value}")
    if family == "ahmed":
        return ahmed(**parameters)
    return car(**({name: sum(pair) / 2 for name, pair in known.items()} | parameters))


def ahmed(
    slant: float = 25.0,
    length: float = 1.044,
    width: float = 0.389,
    height: float = 0.288,
    ride: float = 0.05,
    nose: float = 0.1,
    slant_length: float = 0.222,
) -> trimesh.Trimesh:
    """The Ahmed body, as measured by Ahmed, Ramm and Faltin (1984), without its stilts.

    Args:
        slant: angle of the slanted rear, in degrees.
        length: overall.
        width: overall.
        height: of the body itself.
        ride: clearance to the ground.
        nose: radius of the front's edges.
        slant_length: of the slanted face, along it.

    Example:
        >>> body = ahmed(slant=25)
        >>> body.is_volume, [round(float(side), 3) for side in body.extents]
        (True, [1.044, 0.389, 0.288])
    """
    angle = math.radians(slant)
    run, drop = slant_length * math.cos(angle), slant_length * math.sin(angle)
    if not (0 < nose < min(width, height) / 2 and drop < 0.9 * height and run + nose < length):
        raise IT3Error("there is no such Ahmed body: the nose or the slant is too large for it")
    round_ = nose * (1 - np.cos(np.linspace(0, np.pi / 2, 12)))
    x = np.concatenate(
        [
            round_,
            np.linspace(nose, length - run, 22)[1:],
            np.linspace(length - run, length, 8)[1:],
        ]
    )
    inset = nose - np.sqrt(np.maximum(nose**2 - np.maximum(nose - x, 0.0) ** 2, 0.0))
    top = height - np.maximum(x - (length - run), 0.0) * math.tan(angle)
    halves = [
        rectangle(width / 2 - side, ride + side, ride + high - side, points=25)
        for side, high in zip(inset, top, strict=True)
    ]
    return loft(x, halves)


def car(
    *,
    length: float,
    width: float,
    height: float,
    ride: float,
    bonnet: float,
    bonnet_height: float,
    screen: float,
    rear: float,
    boot: float,
    tail_height: float,
    taper: float,
    tumblehome: float,
    section: float,
    smooth: float,
    nose: float,
    diffuser: float,
    wheel_radius: float,
    wheel_width: float,
) -> trimesh.Trimesh:
    """A car with wheels, from its side profile, its plan and its section.

    Args:
        length: overall, in metres.
        width: overall, in metres.
        height: from the ground to the roof, in metres.
        ride: clearance of the floor, in metres.
        bonnet: length of the bonnet, as a share of the length.
        bonnet_height: where the windscreen begins, as a share of the height.
        screen: angle of the windscreen to the horizontal, in degrees.
        rear: angle of the rear window to the horizontal, in degrees.
        boot: length of the boot, as a share of the length.
        tail_height: where the rear window ends, as a share of the height.
        taper: share of the width that is lost towards the tail.
        tumblehome: share of the width that is lost towards the roof.
        section: exponent of the section: 2 is round, 10 nearly a rectangle.
        smooth: how far edges across the car are rounded, as a share of the length.
        nose: length over which the front is rounded, as a share of the length.
        diffuser: angle of the floor's rear end, in degrees.
        wheel_radius: in metres.
        wheel_width: in metres.

    Example:
        >>> from it3_aero.cars.bodies import make
        >>> bool(make("van").volume > make("sedan").volume)
        True
    """
    x = np.linspace(0.0, length, 56)
    x = np.concatenate([length * nose * np.array([0.02, 0.08, 0.2, 0.4]), x])
    x = np.unique(np.round(x, 6))
    top = partial(_profile, length, height, bonnet, bonnet_height, screen, rear, boot, tail_height)
    ahead = np.clip(1 - x / (nose * length), 0.0, 1.0)  # 1 at the nose, 0 where the front ends
    front = (1 - ahead**2.5) ** 0.4
    floor = ride + np.maximum(x - 0.8 * length, 0.0) * math.tan(math.radians(diffuser))
    roof = _smoothed(top, x, smooth * length)
    middle = floor + 0.42 * (roof - floor)
    closing = 0.55 + 0.45 * front  # of the profile towards the nose
    low, high = middle + (floor - middle) * closing, middle + (roof - middle) * closing
    high *= height / high.max()
    tail = np.clip((x / length - 0.55) / 0.45, 0.0, 1.0)
    half_width = width / 2 * (0.6 + 0.4 * front) * (1 - taper * tail**1.5)
    half_width *= width / 2 / half_width.max()
    if (high - low).min() < 0.05 * height:
        raise IT3Error("there is no such car: its floor and roof meet")
    belt = 0.6 * height
    halves = []
    for wide, bottom, over in zip(half_width, low, high, strict=True):
        half = superellipse(wide, bottom, over, section, points=21)
        above = np.clip((half[:, 1] - belt) / (height - belt), 0.0, 1.0)
        halves.append(half * np.column_stack([1 - tumblehome * above, np.ones_like(above)]))
    body = loft(x, halves)
    wheels = [
        _wheel(axle, side * np.interp(axle, x, half_width), wheel_radius, wheel_width)
        for axle in np.multiply(_AXLES, length).tolist()
        for side in (-1, 1)
    ]
    return _flattened(trimesh.boolean.union([body, *wheels], engine="manifold"))


def _profile(
    length: float,
    height: float,
    bonnet: float,
    bonnet_height: float,
    screen: float,
    rear: float,
    boot: float,
    tail_height: float,
    x: Array,
) -> Array:
    """The upper outline from the side: bonnet, windscreen, roof, rear window, boot."""
    cowl, tail = bonnet_height * height, tail_height * height
    screen_base, boot_start = bonnet * length, (1 - boot) * length
    roof_start = screen_base + (height - cowl) / math.tan(math.radians(screen))
    roof_end = boot_start - (height - tail) / math.tan(math.radians(rear))
    if roof_end < roof_start:
        raise IT3Error(
            "there is no such car: no roof is left between the windscreen and the rear window"
        )
    at = [0.0, screen_base, roof_start, roof_end, boot_start, length + 1e-9]
    return np.interp(x, at, [0.86 * cowl, cowl, height, height, tail, 0.97 * tail])


def _smoothed(line: partial[Array], x: Array, width: float) -> Array:
    """A line averaged with a Gaussian about each x; straight ends stay straight."""
    offsets = np.linspace(-2.5, 2.5, 41)
    weights = np.exp(-(offsets**2) / 2)
    around = x[:, None] + width * offsets
    inside = np.clip(around, x[0], x[-1])
    values = line(inside.ravel()).reshape(inside.shape)
    return np.asarray((values * weights).sum(axis=1) / weights.sum())


def _wheel(x: float, edge: float, radius: float, width: float) -> trimesh.Trimesh:
    """A wheel whose outer face is just inside the car's edge, on either side."""
    wheel: trimesh.Trimesh = trimesh.creation.cylinder(radius=radius, height=width, sections=36)
    wheel.vertices = np.asarray(wheel.vertices)[:, [0, 2, 1]] * [1.0, -1.0, 1.0]  # on its side
    wheel.apply_translation([x, 0.95 * edge - math.copysign(width / 2, edge), (1 - _FLAT) * radius])
    return wheel


def _flattened(body: trimesh.Trimesh) -> trimesh.Trimesh:
    """Without what is below the ground."""
    below = trimesh.creation.box(bounds=[[-99.0, -99.0, -9.0], [99.0, 99.0, 0.0]])
    above: trimesh.Trimesh = trimesh.boolean.difference([body, below], engine="manifold")
    return above
