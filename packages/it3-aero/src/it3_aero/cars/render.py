"""Meshes as pictures: flat-shaded triangles, nearest last, with a colour per vertex if wanted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import trimesh
from matplotlib import colormaps
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from it3_aero.cars.meshes import Array, Mask
from it3_core.io.files import figure_bytes
from it3_core.io.typed import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from it3_aero.cars.foam import Flow
    from it3_aero.cars.intake import Verdict

# Azimuth and elevation: from the front, from behind, from the left, and at the nose.
_VIEWS = ((-135.0, 20.0), (45.0, 20.0), (-90.0, 0.0), (180.0, 0.0))
_PLAIN = (0.72, 0.75, 0.78)
_MARKED = (0.88, 0.35, 0.05)
_GROUND = "#b9bec4"
_MANY_FACES = 20_000


def paint(
    axes: Axes,
    vertices: Array,
    faces: Any,
    values: Array | None = None,
    marked: Mask | None = None,
    azimuth: float = -135.0,
    elevation: float = 20.0,
) -> None:
    """Paint a mesh into matplotlib axes, as seen from far away; z is up.

    `values` of vertices are colours, from blue at -1 to red at 1; `marked` faces are orange. An
    azimuth of -135 degrees is the front left of a car whose nose is at the smallest x, -90 its left
    side, 180 its front.
    """
    given = np.asarray(faces)
    vertices, faces, origin = _pieces(np.asarray(vertices, dtype=float), given)
    a, e = math.radians(azimuth), math.radians(elevation)
    towards = np.array([math.cos(e) * math.cos(a), math.cos(e) * math.sin(a), math.sin(e)])
    right = np.array([-math.sin(a), math.cos(a), 0.0])
    up = np.cross(towards, right)
    corners = vertices[faces]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-30)
    light = right * -0.35 + up * 0.65 + towards * 0.7
    shade = 0.45 + 0.55 * np.abs(normals @ (light / np.linalg.norm(light)))
    colours = np.tile(_PLAIN, (len(faces), 1))
    if values is not None:
        by_face = np.asarray(values, dtype=float)[given].mean(axis=1)[origin]
        colours = colormaps["RdBu_r"](Normalize(-1.0, 1.0, clip=True)(by_face))[:, :3]
        shade = 0.7 + 0.3 * shade
    if marked is not None:
        colours[marked[origin]] = _MARKED
    order = np.argsort(corners.mean(axis=1) @ towards)
    flat = np.stack([corners @ right, corners @ up], axis=-1)[order]
    painted = np.clip(colours * shade[:, None], 0, 1)[order]
    looks = {"facecolors": painted, "edgecolors": painted, "linewidths": 0.3}
    axes.add_collection(_shadow(vertices, right, up))
    axes.add_collection(PolyCollection(list(flat), **looks))
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.autoscale_view()


def _pieces(vertices: Array, faces: Any) -> tuple[Array, Any, Any]:
    """Large faces in pieces, so that the order by depth is right; and whose piece each is."""
    if len(faces) > _MANY_FACES:
        return vertices, faces, np.arange(len(faces))
    edge = float(np.ptp(vertices, axis=0).max()) / 20
    cut: Any = trimesh.remesh.subdivide_to_size
    vertices, faces, origin = cut(vertices, faces, edge, max_iter=20, return_index=True)
    return vertices, faces, origin


def _shadow(vertices: Array, right: Array, up: Array) -> PolyCollection:
    (x0, y0, _), (x1, y1, _) = vertices.min(axis=0), vertices.max(axis=0)
    margin = 0.06 * max(x1 - x0, y1 - y0)
    x0, y0, x1, y1 = x0 - margin, y0 - margin, x1 + margin, y1 + margin
    floor = np.array([[x0, y0, 0], [x1, y0, 0], [x1, y1, 0], [x0, y1, 0]])
    corners = np.stack([floor @ right, floor @ up], axis=-1)
    return PolyCollection([corners], facecolors=_GROUND, edgecolors=_GROUND, linewidths=0.8)


def _picture(vertices: Array, faces: Any, title: str, **looks: Any) -> bytes:
    """A PNG of a mesh from several sides; `looks` are of `paint`."""
    figure = Figure(figsize=(10.4, 6.4), layout="constrained")
    for number, (azimuth, elevation) in enumerate(_VIEWS, 1):
        axes = figure.add_subplot(2, 2, number)
        paint(axes, vertices, faces, azimuth=azimuth, elevation=elevation, **looks)
    figure.suptitle(title, fontsize=9, parse_math=False)
    return figure_bytes(figure, dpi=110, metadata={"Software": None})


def verdict_picture(verdict: Verdict) -> bytes:
    """A picture of a verdict's mesh, with new faces in orange."""
    text = "accepted" if verdict.accepted else f"rejected: {verdict.problem}"
    changed, mesh = verdict.changed, verdict.mesh
    if changed is not None and changed.any():
        text += f"; {int(changed.sum())} new faces in orange"
    assert mesh is not None
    title = f"{printable(Path(verdict.name).name)}: {text}"
    return _picture(np.asarray(mesh.vertices), mesh.faces, title, marked=changed)


def pressure_picture(mesh: trimesh.Trimesh, flow: Flow) -> bytes:
    """A picture of a car coloured by the pressure on it, red high and blue low."""
    # In pieces no larger than the solver's: a large face has its own high and low pressure.
    vertices, faces, _ = _pieces(np.asarray(mesh.vertices), np.asarray(mesh.faces))
    title = f"Cd {flow.cd:.3f}; pressure coefficient from -1 (blue) to 1 (red)"
    return _picture(vertices, faces, title, values=flow.pressure_on(vertices))
