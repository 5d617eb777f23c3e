"""Meshes as pictures: flat-shaded triangles, nearest last, with a colour per vertex if wanted."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "VIEWS", "paint", "picture", "pieces"]

COLOURS = "RdBu_r"
"""Red is high, blue is low."""

VIEWS = ((-135.0, 20.0), (45.0, 20.0), (-90.0, 0.0), (180.0, 0.0))
"""Azimuth and elevation: from the front, from behind, from the left, and at the nose."""

_PLAIN = (0.72, 0.75, 0.78)
_MARKED = (0.88, 0.35, 0.05)
_GROUND = "#b9bec4"
_MANY_FACES = 20_000

Array = npt.NDArray[Any]


def paint(
    axes: Axes,
    vertices: Array,
    faces: Array,
    values: Array | None = None,
    limits: tuple[float, float] | None = None,
    marked: Array | None = None,
    azimuth: float = -135.0,
    elevation: float = 20.0,
    ground: bool = True,
) -> None:
    """Paint a mesh into matplotlib axes, as seen from far away.

    Args:
        axes: into which; their frame is taken away.
        vertices: `(n, 3)`, z up.
        faces: `(m, 3)`, indices of vertices.
        values: a number per vertex, shown as a colour: red is high, blue is low.
        limits: of the colours; the values' largest magnitude, both ways, if not given.
        marked: numbers of faces to be shown in orange, or a truth value for each.
        azimuth: from where it is seen, in degrees: -135 is the front left of a car whose nose is
            at the smallest x, -90 its left side, 180 its front.
        elevation: how far from above, in degrees.
        ground: draw the plane z = 0 beneath it.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from it3_aero.cars.bodies import make
        >>> axes, body = Figure().add_subplot(), make("sedan")
        >>> paint(axes, body.vertices, body.faces, values=body.vertices[:, 2])
        >>> len(axes.collections)
        2
    """
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import Normalize

    vertices, faces = np.asarray(vertices, dtype=float), np.asarray(faces)
    right, up, towards = _camera(azimuth, elevation)
    axes.set_axis_off()
    axes.set_aspect("equal")
    if not len(faces):
        return
    given = faces
    vertices, faces, origin = pieces(vertices, faces)
    corners = vertices[faces]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-30)
    light = right * -0.35 + up * 0.65 + towards * 0.7
    shade = 0.45 + 0.55 * np.abs(normals @ (light / np.linalg.norm(light)))
    colours = np.tile(_PLAIN, (len(faces), 1))
    if values is not None:
        by_face = np.asarray(values, dtype=float)[given].mean(axis=1)[origin]
        high = float(np.nanmax(np.abs(by_face))) or 1.0
        low, high = limits or (-high, high)
        colours = colormaps[COLOURS](Normalize(low, high, clip=True)(by_face))[:, :3]
        shade = 0.7 + 0.3 * shade
    if marked is not None:
        chosen = np.zeros(len(given), dtype=bool)
        chosen[marked] = True
        colours[chosen[origin]] = _MARKED
    if ground:
        axes.add_collection(_shadow(vertices, right, up))
    depth = corners.mean(axis=1) @ towards
    order = np.argsort(depth)
    flat = np.stack([corners @ right, corners @ up], axis=-1)[order]
    painted = np.clip(colours * shade[:, None], 0, 1)[order]
    looks = {"facecolors": painted, "edgecolors": painted, "linewidths": 0.3}
    axes.add_collection(PolyCollection(list(flat), **looks))
    axes.autoscale_view()


def picture(
    vertices: Array,
    faces: Array,
    title: str = "",
    values: Array | None = None,
    marked: Array | None = None,
    limits: tuple[float, float] | None = None,
    views: Sequence[tuple[float, float]] = VIEWS,
) -> bytes:
    """A PNG of a mesh from several sides.

    Args:
        vertices: `(n, 3)`, z up.
        faces: `(m, 3)`.
        title: above it.
        values: a number per vertex, as a colour.
        marked: faces to be shown in orange.
        limits: of the colours.
        views: azimuth and elevation of each, in degrees.

    Example:
        >>> from it3_aero.cars.bodies import ahmed
        >>> body = ahmed()
        >>> picture(body.vertices, body.faces, "Ahmed body")[:4]
        b'\\x89PNG'
    """
    from matplotlib.figure import Figure

    columns = min(len(views), 2)
    rows = math.ceil(len(views) / columns)
    figure = Figure(figsize=(5.2 * columns, 3.2 * rows), layout="constrained")
    for number, (azimuth, elevation) in enumerate(views, 1):
        axes = figure.add_subplot(rows, columns, number)
        paint(axes, vertices, faces, values, limits, marked, azimuth, elevation)
    if title:
        figure.suptitle(title, fontsize=9, parse_math=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={"Software": None})
    return content.getvalue()


def pieces(vertices: Array, faces: Array) -> tuple[Array, Array, Array]:
    """Large faces in pieces, so that the order by depth is right; and whose piece each is.

    Example:
        >>> from it3_aero.cars.bodies import ahmed
        >>> vertices, faces, origin = pieces(ahmed().vertices, ahmed().faces)
        >>> len(faces) == len(origin) > len(ahmed().faces)
        True
    """
    edge = float(np.ptp(vertices, axis=0).max()) / 20
    if len(faces) > _MANY_FACES:
        return vertices, faces, np.arange(len(faces))
    import trimesh

    cut: Any = trimesh.remesh.subdivide_to_size
    made = cut(vertices, faces, edge, max_iter=20, return_index=True)
    return np.asarray(made[0]), np.asarray(made[1]), np.asarray(made[2])


def _camera(azimuth: float, elevation: float) -> tuple[Array, Array, Array]:
    """Unit vectors to the right and up in the picture, and towards the eye."""
    a, e = math.radians(azimuth), math.radians(elevation)
    towards = np.array([math.cos(e) * math.cos(a), math.cos(e) * math.sin(a), math.sin(e)])
    right = np.array([-math.sin(a), math.cos(a), 0.0])
    return right, np.cross(towards, right), towards


def _shadow(vertices: Array, right: Array, up: Array) -> Any:
    from matplotlib.collections import PolyCollection

    (x0, y0, _), (x1, y1, _) = vertices.min(axis=0), vertices.max(axis=0)
    margin = 0.06 * max(x1 - x0, y1 - y0)
    x0, y0, x1, y1 = x0 - margin, y0 - margin, x1 + margin, y1 + margin
    floor = np.array([[x0, y0, 0], [x1, y0, 0], [x1, y1, 0], [x0, y1, 0]])
    corners = np.stack([floor @ right, floor @ up], axis=-1)
    return PolyCollection([corners], facecolors=_GROUND, edgecolors=_GROUND, linewidths=0.8)
