"""Cars made from a few numbers: the Ahmed body, and six kinds from a profile, a plan and a section.

Metres; x runs with the wind, from the nose at 0 to the tail, z runs up from the ground at 0, and
y = 0 is the plane of symmetry. Every body is one closed surface: wheels are united with it, and
flattened where they stand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import trimesh

from it3_aero.cars.meshes import Array
from it3_core import IT3Error

Parameters = dict[str, float]
Range = tuple[float, float]

_CARS = """
parameter      sedan        hatchback    estate       van          box          streamlined
length         4.3:4.9      3.7:4.3      4.4:4.9      4.6:5.4      4.6:5.4      4.4:5
width          1.74:1.9     1.74:1.9     1.74:1.9     1.85:2       1.85:2       1.66:1.84
height         1.38:1.5     1.42:1.56    1.42:1.55    1.8:2.2      1.7:2.2      1.15:1.34
ride           0.13:0.2     0.13:0.2     0.13:0.2     0.16:0.24    0.16:0.24    0.1:0.16
bonnet         0.22:0.27    0.2:0.25     0.22:0.27    0.1:0.18     0:0.02       0.11:0.16
bonnet_height  0.62:0.68    0.62:0.68    0.62:0.68    0.5:0.58     0.85:0.95    0.6:0.68
screen         27:36        28:38        27:36        40:58        75:88        26:31
rear           22:34        32:60        52:75        78:88        78:88        13.5:18
boot           0.1:0.16     0:0.05       0:0.03       0:0.01       0:0.01       0:0.03
tail_height    0.66:0.76    0.6:0.72     0.58:0.7     0.45:0.6     0.45:0.6     0.6:0.7
taper          0.05:0.2     0.04:0.16    0.03:0.14    0:0.08       0:0.03       0.2:0.45
tumblehome     0.1:0.2      0.1:0.2      0.1:0.2      0.04:0.12    0:0.04       0.15:0.3
section        4:8          4:8          4:8          6:12         10:16        2.6:4
smooth         0.008:0.025  0.008:0.025  0.008:0.025  0.008:0.025  0.001:0.004  0.03:0.05
nose           0.06:0.14    0.06:0.14    0.06:0.14    0.04:0.1     0.005:0.03   0.18:0.3
diffuser       0:8          0:8          0:8          0:3          0:3          4:9
wheel_radius   0.3:0.34     0.3:0.34     0.3:0.34     0.3:0.34     0.3:0.34     0.28:0.31
wheel_width    0.19:0.24    0.19:0.24    0.19:0.24    0.19:0.24    0.19:0.24    0.15:0.2
"""

_AHMED = """
parameter     ahmed
length        3.6:4.6
width         0.36:0.4
height        0.26:0.31
ride          0.035:0.06
nose          0.05:0.1
slant         0:40
slant_length  0.17:0.25
"""

_FRACTIONS = {"sedan": 0.19, "streamlined": 0.2, "hatchback": 0.17, "estate": 0.14}
_FRACTIONS |= {"van": 0.12, "ahmed": 0.11, "box": 0.07}


def _read(table: str) -> dict[str, dict[str, Range]]:
    (_, *families), *rows = (line.split() for line in table.strip().splitlines())
    found: dict[str, dict[str, Range]] = {family: {} for family in families}
    for name, *cells in rows:
        for family, cell in zip(families, cells, strict=True):
            low, high = map(float, cell.split(":"))
            found[family][name] = low, high
    return found


FAMILIES = _read(_AHMED) | _read(_CARS)
"""The least and the most of each parameter, by family; `bodies.car` says what they are."""


def draw(seed: int, sample: int) -> tuple[str, Parameters]:
    """Family and parameters of one sample, from the seed and its number alone.

    About one in five is streamlined, so that a low drag is rare.
    """
    random = np.random.default_rng([seed, sample])
    names, fractions = list(_FRACTIONS), np.array(list(_FRACTIONS.values()))
    family = str(names[random.choice(len(names), p=fractions / fractions.sum())])
    even = random.random(len(FAMILIES[family])).tolist()
    parameters = {
        name: round(low + (high - low) * part, 4)
        for part, (name, (low, high)) in zip(even, FAMILIES[family].items(), strict=True)
    }
    if family == "ahmed":  # drawn as fractions of the length
        for name in set(parameters) - {"length", "slant"}:
            parameters[name] = round(parameters[name] * parameters["length"], 4)
    return family, parameters


_AXLES = (0.175, 0.815)  # as fractions of the length
_CAP_RINGS = 4  # towards the middle of an end, so that its triangles are no splinters
_FLAT = 0.04  # of a wheel's radius is below the ground, and cut off


def make(family: str, **parameters: float) -> trimesh.Trimesh:
    """The body of a family; parameters that aren't given are in the middle of their range."""
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

    Metres, and degrees of the slanted rear; `nose` is the radius of the front's edges, and
    `slant_length` runs along the slanted face.
    """
    angle = math.radians(slant)
    run, drop = slant_length * math.cos(angle), slant_length * math.sin(angle)
    if not (0 < nose < min(width, height) / 2 and drop < 0.9 * height and run + nose < length):
        raise IT3Error("there is no such Ahmed body: the nose or the slant is too large for it")
    rounded = nose * (1 - np.cos(np.linspace(0, np.pi / 2, 12)))
    straight, slanted = np.linspace(nose, length - run, 22), np.linspace(length - run, length, 8)
    x = np.concatenate([rounded, straight[1:], slanted[1:]])
    inset = nose - np.sqrt(np.maximum(nose**2 - np.maximum(nose - x, 0.0) ** 2, 0.0))
    top = height - np.maximum(x - (length - run), 0.0) * math.tan(angle)
    halves = [
        _rectangle(width / 2 - side, ride + side, ride + high - side)
        for side, high in zip(inset, top, strict=True)
    ]
    return _loft(x, halves)


def car(
    *,
    length: float,  # overall, in metres
    width: float,  # overall, in metres
    height: float,  # from the ground to the roof, in metres
    ride: float,  # clearance of the floor, in metres
    bonnet: float,  # length of the bonnet, as a fraction of the length
    bonnet_height: float,  # where the windscreen begins, as a fraction of the height
    screen: float,  # angle of the windscreen to the horizontal, in degrees
    rear: float,  # angle of the rear window to the horizontal, in degrees
    boot: float,  # length of the boot, as a fraction of the length
    tail_height: float,  # where the rear window ends, as a fraction of the height
    taper: float,  # fraction of the width that is lost towards the tail
    tumblehome: float,  # fraction of the width that is lost towards the roof
    section: float,  # exponent of the section: 2 is round, 10 nearly a rectangle
    smooth: float,  # how far edges across the car are rounded, as a fraction of the length
    nose: float,  # length over which the front is rounded, as a fraction of the length
    diffuser: float,  # angle of the floor's rear end, in degrees
    wheel_radius: float,  # in metres
    wheel_width: float,  # in metres
) -> trimesh.Trimesh:
    """A car with wheels, from its side profile, its plan and its section."""
    x = np.linspace(0.0, length, 56)
    x = np.concatenate([length * nose * np.array([0.02, 0.08, 0.2, 0.4]), x])
    x = np.unique(np.round(x, 6))
    cowl, tail = bonnet_height * height, tail_height * height
    screen_base, boot_start = bonnet * length, (1 - boot) * length
    roof_start = screen_base + (height - cowl) / math.tan(math.radians(screen))
    roof_end = boot_start - (height - tail) / math.tan(math.radians(rear))
    if roof_end < roof_start:
        raise IT3Error(
            "there is no such car: no roof is left between the windscreen and the rear window"
        )
    # The upper outline from the side: bonnet, windscreen, roof, rear window, boot.
    line = [0.0, screen_base, roof_start, roof_end, boot_start, length + 1e-9]
    heights = [0.86 * cowl, cowl, height, height, tail, 0.97 * tail]
    ahead = np.clip(1 - x / (nose * length), 0.0, 1.0)  # 1 at the nose, 0 where the front ends
    front = (1 - ahead**2.5) ** 0.4
    floor = ride + np.maximum(x - 0.8 * length, 0.0) * math.tan(math.radians(diffuser))
    roof = _smoothed(line, heights, x, smooth * length)
    middle = floor + 0.42 * (roof - floor)
    closing = 0.55 + 0.45 * front  # of the profile towards the nose
    low, high = middle + (floor - middle) * closing, middle + (roof - middle) * closing
    high *= height / high.max()
    behind = np.clip((x / length - 0.55) / 0.45, 0.0, 1.0)
    half_width = width / 2 * (0.6 + 0.4 * front) * (1 - taper * behind**1.5)
    half_width *= width / 2 / half_width.max()
    if (high - low).min() < 0.05 * height:
        raise IT3Error("there is no such car: its floor and roof meet")
    belt = 0.6 * height
    halves = []
    for wide, bottom, over in zip(half_width, low, high, strict=True):
        half = _superellipse(wide, bottom, over, section)
        above = np.clip((half[:, 1] - belt) / (height - belt), 0.0, 1.0)
        halves.append(half * np.column_stack([1 - tumblehome * above, np.ones_like(above)]))
    body = _loft(x, halves)
    wheels = [
        _wheel(axle, side * np.interp(axle, x, half_width), wheel_radius, wheel_width)
        for axle in np.multiply(_AXLES, length).tolist()
        for side in (-1, 1)
    ]
    below = trimesh.creation.box(bounds=[[-99.0, -99.0, -9.0], [99.0, 99.0, 0.0]])
    whole = trimesh.boolean.union([body, *wheels], engine="manifold")
    flattened: trimesh.Trimesh = trimesh.boolean.difference([whole, below], engine="manifold")
    return flattened


def _smoothed(at: Sequence[float], values: Sequence[float], x: Array, width: float) -> Array:
    """A line averaged with a Gaussian about each x; straight ends stay straight."""
    offsets = np.linspace(-2.5, 2.5, 41)
    weights = np.exp(-(offsets**2) / 2)
    around = x[:, None] + width * offsets
    inside = np.clip(around, x[0], x[-1])
    return np.asarray((np.interp(inside, at, values) * weights).sum(axis=1) / weights.sum())


def _wheel(x: float, edge: float, radius: float, width: float) -> trimesh.Trimesh:
    """A wheel whose outer face is just inside the car's edge, on either side."""
    wheel: trimesh.Trimesh = trimesh.creation.cylinder(radius=radius, height=width, sections=36)
    wheel.vertices = np.asarray(wheel.vertices)[:, [0, 2, 1]] * [1.0, -1.0, 1.0]  # on its side
    wheel.apply_translation([x, 0.95 * edge - math.copysign(width / 2, edge), (1 - _FLAT) * radius])
    return wheel


def _superellipse(half_width: float, low: float, high: float, exponent: float) -> Array:
    """Half a section, 21 even points from the middle of its floor to that of its roof: y and z.

    An exponent of 2 is an ellipse; the larger, the more of a rectangle.
    """
    angle = np.linspace(-np.pi / 2, np.pi / 2, 801)
    y = half_width * np.abs(np.cos(angle)) ** (2 / exponent)
    z = np.sign(np.sin(angle)) * np.abs(np.sin(angle)) ** (2 / exponent)
    y[[0, -1]] = 0.0
    line = np.column_stack([y, (low + high) / 2 + (high - low) / 2 * z])
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=1))])
    where = np.linspace(0.0, along[-1], 21)
    return np.column_stack([np.interp(where, along, column) for column in line.T])


def _rectangle(half_width: float, low: float, high: float) -> Array:
    """Half of a rectangular section with its corners, 25 points from the floor's middle."""
    across, upward = np.linspace(0, half_width, 7), np.linspace(low, high, 13)
    floor = np.column_stack([across[:-1], np.full(6, low)])
    side = np.column_stack([np.full(12, half_width), upward[:-1]])
    return np.concatenate([floor, side, np.column_stack([across[::-1], np.full(7, high)])])


def _loft(x: Array, halves: Sequence[Array]) -> trimesh.Trimesh:
    """The closed, mirror-symmetric body through sections at rising `x`, its ends capped flat.

    `halves` are the halves with y ≥ 0, all of the same number of points, from the middle of the
    floor to the middle of the roof.
    """
    rings = [_ring(at, half) for at, half in zip(x, halves, strict=True)]
    inwards = np.linspace(1, 0, _CAP_RINGS + 1)[1:-1]
    middles = [rings[0].mean(axis=0), rings[-1].mean(axis=0)]
    front = [middles[0] + size * (rings[0] - middles[0]) for size in inwards[::-1]]
    rear = [middles[1] + size * (rings[-1] - middles[1]) for size in inwards]
    rings = [*front, *rings, *rear]
    around, many = len(rings[0]), len(rings)
    one = np.arange(around)
    two = (one + 1) % around
    faces = []
    for ring in range(many - 1):
        a, b = ring * around + one, ring * around + two
        faces += [np.column_stack([a, b, b + around]), np.column_stack([a, b + around, a + around])]
    last = (many - 1) * around
    faces += [np.column_stack([np.full(around, many * around), two, one])]
    faces += [np.column_stack([np.full(around, many * around + 1), last + one, last + two])]
    vertices = np.concatenate([*rings, np.array(middles)])
    body = trimesh.Trimesh(vertices, np.concatenate(faces), process=False)
    if body.volume < 0:
        body.invert()
    return body


def _ring(x: float, half: Array) -> Array:
    """A whole section in space; its first and last points lie in the plane of symmetry."""
    other = half[-2:0:-1] * [-1.0, 1.0]
    ring = np.concatenate([half, other])
    return np.column_stack([np.full(len(ring), x), ring])
