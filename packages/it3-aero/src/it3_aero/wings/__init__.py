"""Wings: from NACA numbers or coordinate files to a lift-to-drag ratio with a trust gauge.

Geometry, solvers and data live here; `WingDataset` is an ordinary torch-geometric dataset.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from it3_aero.wings.files import read_airfoil
from it3_aero.wings.generating import generate
from it3_aero.wings.geometry import Airfoil, naca, naca4, naca5, outline, resample
from it3_aero.wings.solvers import NeuralFoil, PolarPoint, Solver, XFoil, choose

if TYPE_CHECKING:
    from it3_aero.learning.split import Split
    from it3_aero.wings.dataset import WingDataset
    from it3_aero.wings.graph import to_graph

__all__ = [
    "Airfoil",
    "NeuralFoil",
    "PolarPoint",
    "Solver",
    "Split",
    "WingDataset",
    "XFoil",
    "choose",
    "generate",
    "naca",
    "naca4",
    "naca5",
    "outline",
    "read_airfoil",
    "resample",
    "to_graph",
]

# torch-geometric takes seconds to import: it waits until one of these is asked for.
_LATER = {"Split": "dataset", "WingDataset": "dataset", "to_graph": "graph"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
