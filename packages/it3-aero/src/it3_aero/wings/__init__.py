"""Wings: from NACA numbers or coordinate files to a lift-to-drag ratio with a trust gauge.

Geometry, solvers and data live here; `WingDataset` is an ordinary torch-geometric dataset.
"""

from it3_aero.wings.dataset import Split, WingDataset
from it3_aero.wings.files import read_airfoil
from it3_aero.wings.generate import generate
from it3_aero.wings.geometry import Airfoil, naca, naca4, naca5, outline, resample
from it3_aero.wings.graph import to_graph
from it3_aero.wings.solvers import NeuralFoil, PolarPoint, Solver, XFoil

__all__ = [
    "Airfoil",
    "NeuralFoil",
    "PolarPoint",
    "Solver",
    "Split",
    "WingDataset",
    "XFoil",
    "generate",
    "naca",
    "naca4",
    "naca5",
    "outline",
    "read_airfoil",
    "resample",
    "to_graph",
]
