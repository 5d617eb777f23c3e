"""What is said of a mesh: measures before and after, what was changed, why it is turned away."""

from __future__ import annotations

from dataclasses import dataclass, field

import trimesh

from it3_aero.cars.loft import Mask
from it3_aero.cars.reading import shown
from it3_core import IT3Error

__all__ = ["Measures", "Options", "Verdict"]


@dataclass(frozen=True)
class Options:
    """What a user knows better than the intake finds out; see `it3_aero.cars.axes.place`.

    Attributes:
        up: axis of the file that is up.
        nose: axis of the file towards which the nose points.
        unit: metres per unit of the file.
        ground: height of the ground along `up`, in units of the file.
        largest_hole: diameter of the largest hole that is capped, as a share of the length.
    """

    up: str | None = None
    nose: str | None = None
    unit: float | None = None
    ground: float | None = None
    largest_hole: float = 0.25


@dataclass(frozen=True)
class Measures:
    """A mesh in numbers, in metres.

    Attributes:
        faces: triangles.
        open_edges: edges of one triangle only.
        size: length, width and height.
        volume: enclosed, with its sign; what little it means for a mesh that isn't closed.
        frontal_area: outline along x.
    """

    faces: int
    open_edges: int
    size: tuple[float, float, float]
    volume: float
    frontal_area: float

    def __str__(self) -> str:
        size = " × ".join(f"{side:.3g}" for side in self.size)
        return (
            f"{self.faces:,} faces, {self.open_edges} open edges, {size} m, volume "
            f"{self.volume:.4g} m³, frontal area {self.frontal_area:.4g} m²"
        )


@dataclass(eq=False)
class Verdict:
    """What is said of one mesh.

    Attributes:
        name: of the file.
        problem: why it is turned away; None if it is let in.
        notes: what was found and changed, in order.
        doubts: what may be wrong all the same.
        before: measures in the file, brought to metres.
        after: measures of what is let in.
        mesh: what is let in, or what there was when it was turned away; None without triangles.
        changed: faces of it that weren't in the file, as a truth value for each.

    Example:
        >>> from it3_aero.cars.bodies import make
        >>> from it3_aero.cars.intake import examine
        >>> verdict = examine(make("sedan"), "sedan")
        >>> verdict.accepted, round(verdict.after.frontal_area, 1)
        (True, 2.3)
    """

    name: str
    problem: str | None = None
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    before: Measures | None = None
    after: Measures | None = None
    mesh: trimesh.Trimesh | None = None
    changed: Mask | None = None

    @property
    def accepted(self) -> bool:
        """Whether it is let in."""
        return self.problem is None

    def admitted(self) -> trimesh.Trimesh:
        """The mesh, fit for the solver; `IT3Error` if it was turned away."""
        if self.mesh is None or not self.accepted:
            raise IT3Error(f"{shown(self.name)}: {self.problem}")
        return self.mesh

    def __str__(self) -> str:
        head = "accepted" if self.accepted else f"rejected: {self.problem}"
        lines = [f"{shown(self.name)}: {head}"]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  in doubt: {doubt}" for doubt in self.doubts]
        lines += [f"  before: {self.before}"] if self.before else []
        lines += [f"  after:  {self.after}"] if self.after else []
        return "\n".join(lines)
