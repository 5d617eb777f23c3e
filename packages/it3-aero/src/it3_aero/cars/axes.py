"""Which way a car points: its length, its width, what is up, where its nose is, its unit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import trimesh
from scipy.spatial import cKDTree

from it3_aero.cars.cli import MeshOptions
from it3_aero.cars.meshes import Array
from it3_core import IT3Error

_SAMPLES = 20_000
_CAR = 4.5  # metres that a model of no size is made long
_UNITS = {1.0: "metre", 0.001: "millimetre", 0.01: "centimetre", 0.0254: "inch"}
_LENGTHS, _WIDTHS = (2.5, 20.0), (1.3, 3.2)  # metres that vehicles have


class Placement(NamedTuple):
    """How a mesh was brought to metres, nose at the smallest x, z up, the ground at 0."""

    up: str  # axis of the file that is up, such as "y"
    notes: list[str]  # what was found, in sentences
    doubts: list[str]  # what may be wrong
    matrix: Array  # from the file's coordinates to ours, `(4, 4)`


def place(mesh: trimesh.Trimesh, options: MeshOptions, normalised: bool) -> Placement:
    """Find how a car lies in its file, where the options don't say it."""
    up: str | None = options.up
    nose: str | None = options.nose
    unit = options.unit
    points = np.asarray(trimesh.sample.sample_surface(mesh, _SAMPLES, seed=0)[0])
    notes: list[str] = []
    doubts: list[str] = []
    along = _index(nose) if nose else _longest(mesh, None if up is None else _index(up))
    if up is None:
        up, sure = _up(points, along)
        notes.append(f"up is {up}")
        if not sure:
            doubts.append(f"whether {up} is up is a guess: give --up if it isn't")
    if _index(up) == along:
        raise IT3Error("up and the nose can't be along the same axis")
    if nose is None:
        nose, sure = _nose(points, along, up)
        notes.append(f"the nose points to {nose}")
        if not sure:
            doubts.append(f"that the nose points to {nose} is a guess: give --nose if it doesn't")
    length, width = (float(mesh.extents[axis]) for axis in (along, 3 - along - _index(up)))
    scale, note = (unit, "") if unit is not None else _unit(length, width, normalised)
    if not (np.isfinite(scale) and scale > 0):
        raise IT3Error(f"the unit must be a positive number of metres, but is {scale:g}")
    if note:
        notes.append(note)
    turn = _turn(up, nose)
    turned = np.asarray(mesh.vertices) @ turn.T * scale
    low, high = turned.min(axis=0), turned.max(axis=0)
    floor = low[2] if options.ground is None else options.ground * scale
    matrix = np.eye(4)
    matrix[:3, :3] = turn * scale
    matrix[:3, 3] = [-low[0], -(low[1] + high[1]) / 2, -floor]
    return Placement(up, notes, doubts, matrix)


def _index(axis: str) -> int:
    return "xyz".index(axis[-1])


def _direction(axis: str) -> Array:
    direction = np.zeros(3)
    direction[_index(axis)] = -1.0 if axis.startswith("-") else 1.0
    return direction


def _turn(up: str, nose: str) -> Array:
    """Rows: our x (away from the nose), y and z in the file's axes."""
    x, z = -_direction(nose), _direction(up)
    return np.array([x, np.cross(z, x), z])


def _longest(mesh: trimesh.Trimesh, without: int | None) -> int:
    extents = np.array(mesh.extents)
    if without is not None:
        extents[without] = 0.0
    return int(np.argmax(extents))


def _up(points: Array, along: int) -> tuple[str, bool]:
    """The axis in which a car is no mirror image of itself, away from its wheels."""
    others = [axis for axis in range(3) if axis != along]
    lopsided = [_lopsided(points, axis) for axis in others]
    upright = others[int(np.argmax(lopsided))]
    name = "xyz"[upright]
    wheels = [_wheels(points, along, upright, sign) for sign in (1.0, -1.0)]
    sure = max(lopsided) > 1.5 * min(lopsided)
    if wheels[0] != wheels[1]:
        return (name if wheels[0] else f"-{name}"), sure
    height = points[:, upright]
    middle = (height.min() + height.max()) / 2
    return (name if height.mean() <= middle else f"-{name}"), False


def _lopsided(points: Array, axis: int) -> float:
    """How far a cloud of points is from its mirror image, as a fraction of its size."""
    mirrored = points.copy()
    mirrored[:, axis] = points[:, axis].min() + points[:, axis].max() - points[:, axis]
    distance, _ = cKDTree(points).query(mirrored[::10])
    return float(distance.mean() / np.ptp(points, axis=0).max())


def _wheels(points: Array, along: int, upright: int, sign: float) -> bool:
    """Whether what is lowest stands in two places or more, with nothing between."""
    height = sign * points[:, upright]
    low = points[height < height.min() + 0.06 * np.ptp(height)]
    if len(low) < 20:
        return False
    x = (low[:, along] - points[:, along].min()) / np.ptp(points[:, along])
    filled = np.histogram(x, 25, (0.0, 1.0))[0] > 0
    where = np.flatnonzero(filled)
    gaps = np.diff(where).max() if len(where) > 1 else 0
    return bool(gaps >= 5 and where[-1] - where[0] >= 10)


def _nose(points: Array, along: int, up: str) -> tuple[str, bool]:
    """The end above which the car is lower: the bonnet's, not the tail's."""
    height = points @ _direction(up)
    height = (height - height.min()) / np.ptp(height)
    x = (points[:, along] - points[:, along].min()) / np.ptp(points[:, along])
    bins = np.clip((x * 40).astype(int), 0, 39)
    top = np.array([height[bins == number].max(initial=0.0) for number in range(40)])
    lead = float(top[-13:].mean() - top[:13].mean())  # how much higher the end at large x is
    sure = abs(lead) > 0.03
    if not sure:  # as with a pickup or a bus: the windscreen leans more than what is behind
        rises = np.flatnonzero(top > 0.95)
        lead = float(_run(top[: rises[0] + 1][::-1]) - _run(top[rises[-1] :]))
    name = "xyz"[along]
    return (f"-{name}" if lead >= 0 else name), sure


def _run(top: Array) -> int:
    """Over how many bins a roof comes down."""
    low = np.flatnonzero(top < 0.8)
    return int(low[0]) if len(low) else len(top)


def _unit(length: float, width: float, normalised: bool) -> tuple[float, str]:
    """Metres per unit, from a length and a width that would be a vehicle's."""
    if normalised or length < 1.0:
        return _CAR / length, f"it has no unit: made {_CAR} m long"
    for scale, name in _UNITS.items():
        fits = _LENGTHS[0] <= length * scale <= _LENGTHS[1]
        if fits and _WIDTHS[0] <= width * scale <= _WIDTHS[1]:
            return scale, "" if scale == 1.0 else f"its unit is the {name}"
    if length <= _LENGTHS[1]:
        return 1.0, "taken to be in metres"
    return _CAR / length, f"its unit can't be found out: made {_CAR} m long"
