"""A case as files: the domain about a body, filled into the templates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from it3_aero.cars.foam.presets import Preset
from it3_aero.cars.foam.templates import FIELDS, SYSTEM

__all__ = ["VISCOSITY", "Domain", "dictionaries"]

VISCOSITY = 1.5e-5
"""Of air, in m²/s."""

_INTENSITY, _RATIO = 0.005, 10.0  # turbulence of the wind: of its speed, and of the viscosity
_UPSTREAM, _DOWNSTREAM, _SIDE = 2.0, 5.0, 1.75  # in lengths of the body


@dataclass(frozen=True)
class Domain:
    """The space about a body, in cubes of a body's length over `base`.

    Attributes:
        low: the body's smallest x, y and z.
        high: the body's largest.
        half: whether y < 0 is left out, for a body that is symmetric.
        base: cells along the body's length, far away.

    Example:
        >>> Domain((0.0, -0.2, 0.05), (1.0, 0.2, 0.35), half=True, base=4).volume
        24.5
    """

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    half: bool
    base: int

    @property
    def length(self) -> float:
        """The body's length, by which all is measured."""
        return self.high[0] - self.low[0]

    @property
    def cells(self) -> tuple[int, int, int]:
        """Cells along x, y and z, far away."""
        across = math.ceil(_SIDE * self.base)
        along = math.ceil((_UPSTREAM + 1 + _DOWNSTREAM) * self.base)
        return along, across if self.half else 2 * across, across

    @property
    def corners(self) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
        """Where it begins and ends along x, y and z."""
        edge = self.length / self.base
        nx, ny, nz = self.cells
        x0 = self.low[0] - _UPSTREAM * self.length
        y0 = 0.0 if self.half else -ny // 2 * edge
        return (x0, x0 + nx * edge), (y0, y0 + ny * edge), (0.0, nz * edge)

    @property
    def volume(self) -> float:
        """With the body in it."""
        return math.prod(end - start for start, end in self.corners)


def dictionaries(
    domain: Domain, preset: Preset, area: float, speed: float, end: int, every: int, ranks: int
) -> dict[str, str]:
    """Every file of a case but the surface, by path.

    Args:
        domain: about the body.
        preset: how fine.
        area: frontal area of the whole body.
        speed: of the wind.
        end: iteration at which the solver stops.
        every: iterations between two restart points.
        ranks: of MPI.

    Example:
        >>> from it3_aero.cars.foam.presets import preset
        >>> domain = Domain((0.0, -0.2, 0.05), (1.0, 0.2, 0.35), half=True, base=4)
        >>> files = dictionaries(domain, preset("smoke"), 0.1, 40.0, 50, 50, 1)
        >>> "endTime 50;" in files["system/controlDict"]
        True
        >>> "Aref 0.05;" in files["system/controlDict"]  # of the half that is there
        True
    """
    energy = 1.5 * (_INTENSITY * speed) ** 2
    values: dict[str, object] = {
        **_space(domain),
        **_refinement(domain, preset),
        "end": end,
        "every": every,
        "ranks": ranks,
        "turbulence": preset.turbulence,
        "speed": f"{speed:.8g}",
        "length": f"{domain.length:.8g}",
        "area": f"{area / (2 if domain.half else 1):.8g}",
        "viscosity": f"{VISCOSITY:g}",
        "k": f"{energy:.8g}",
        "epsilon": f"{0.09 * energy**2 / (_RATIO * VISCOSITY):.8g}",  # 0.09 is k-epsilon's C_mu
    }
    files = {path: _file("dictionary", path, text, values) for path, text in SYSTEM.items()}
    for path, (kind, text) in FIELDS.items():
        files[path] = _file(kind, path, text, values)
    return files


def _space(domain: Domain) -> dict[str, object]:
    (x0, x1), (y0, y1), (_, z1) = domain.corners
    nx, ny, nz = domain.cells
    named = {"x0": x0, "x1": x1, "y0": y0, "y1": y1, "z1": z1}
    right = "symmetryPlane" if domain.half else "slip"
    return {
        **{name: f"{value:.10g}" for name, value in named.items()},
        "nx": nx,
        "ny": ny,
        "nz": nz,
        "right": "symmetryPlane" if domain.half else "patch",
        "right_field": right,
        "right_nut": "symmetryPlane" if domain.half else "calculated",
        # Well away from the body and from the faces of any cell.
        "inside": _point((x0 + 0.1237 * domain.length, y1 - 0.1171 * domain.length, 0.9113 * z1)),
    }


def _refinement(domain: Domain, preset: Preset) -> dict[str, object]:
    """Boxes about the body, its wake and its base, each within the one before."""
    length = domain.length
    (x0, y0, _), (x1, y1, z1) = domain.low, domain.high
    boxes = {  # ahead, behind, beside and above, in lengths of the body
        "around": (0.4, 1.5, 0.25, 0.25),
        "wake": (0.15, 0.8, 0.1, 0.1),
        "base": (-0.9, 0.3, 0.02, 0.02),
    }
    filled: dict[str, object] = {
        "low": preset.surface[0],
        "high": preset.surface[1],
        "edges": preset.edges,
        "layers": preset.layers,
        "add_layers": "true" if preset.layers else "false",
        "most_cells": preset.most_cells,
    }
    for (name, (ahead, behind, beside, above)), level in zip(
        boxes.items(), preset.boxes, strict=True
    ):
        wide = beside * length
        filled[f"{name}_min"] = _point((x0 - ahead * length, y0 - wide, -length))
        filled[f"{name}_max"] = _point((x1 + behind * length, y1 + wide, z1 + above * length))
        filled[f"level_{name}"] = level
    return filled


def _point(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:.8g}" for number in numbers)


def _file(kind: str, path: str, text: str, values: dict[str, object]) -> str:
    name = path.rpartition("/")[2]
    head = f"FoamFile {{ version 2.0; format ascii; class {kind}; object {name}; }}"
    return f"{head}\n{Template(text).substitute(values)}"
