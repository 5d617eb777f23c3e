"""Pictures that `check` and `solve` leave: what was let in, and the pressure on it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import trimesh

from it3_aero.cars.foam import Flow
from it3_aero.cars.intake import Verdict
from it3_aero.cars.reading import shown
from it3_aero.cars.render import picture, pieces
from it3_aero.generation import write_whole

__all__ = ["write_picture", "write_pressure"]


def write_picture(verdict: Verdict, folder: str | os.PathLike[str]) -> Path:
    """A picture of a verdict's mesh, with new faces in orange; its path.

    Example:
        >>> import tempfile
        >>> from it3_aero.cars.bodies import make
        >>> from it3_aero.cars.intake import examine
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_picture(examine(make("van"), "my van.stl"), folder).name
        'my van.png'
    """
    place = Path(verdict.name)
    told = "accepted" if verdict.accepted else f"rejected: {verdict.problem}"
    changed = verdict.changed
    if changed is not None and changed.any():
        told += f"; {int(changed.sum())} new faces in orange"
    mesh = verdict.mesh if verdict.mesh is not None else trimesh.Trimesh()
    title = f"{shown(place.name)}: {told}"
    content = picture(np.asarray(mesh.vertices), np.asarray(mesh.faces), title, marked=changed)
    Path(folder).mkdir(parents=True, exist_ok=True)
    # ShapeNet's are all of the same name: a model's folder says which it is.
    name = place.parent.parent.name if place.name == "model_normalized.obj" else place.stem
    path = Path(folder, f"{name}.png")
    write_whole(path, content)
    return path


def write_pressure(mesh: trimesh.Trimesh, flow: Flow, folder: str | os.PathLike[str]) -> Path:
    """A picture of a car coloured by the pressure on it, red high and blue low; its path."""
    # In pieces no larger than the solver's: a large face has its own high and low pressure.
    vertices, faces, _ = pieces(np.asarray(mesh.vertices), np.asarray(mesh.faces))
    values = flow.pressure_on(vertices)
    title = f"Cd {flow.cd:.3f}; pressure coefficient from -1 (blue) to 1 (red)"
    content = picture(vertices, faces, title, values, limits=(-1.0, 1.0))
    path = Path(folder, "pressure.png")
    write_whole(path, content)
    return path
