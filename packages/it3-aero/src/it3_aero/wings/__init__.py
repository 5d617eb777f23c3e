"""Wings: from NACA numbers or coordinate files to a lift-to-drag ratio, and how far to trust it."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from it3_aero.shapes.data import Split
    from it3_aero.wings.files import read_airfoil
    from it3_aero.wings.generating import generate
    from it3_aero.wings.geometry import Airfoil, naca, naca4, naca5, outline, resample
    from it3_aero.wings.graph import WingDataset, to_graph
    from it3_aero.wings.solvers import NeuralFoil, PolarPoint, Solver, XFoil, choose

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

# The command's help must not wait for torch: modules are imported when a name is used, light ones
# first.
_MODULES = ("geometry", "files", "solvers", "generating", "graph")


def __getattr__(name: str) -> object:
    for module in _MODULES if name in __all__ else ():
        found = import_module(f"{__name__}.{module}")
        if hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
