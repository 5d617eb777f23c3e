"""IT³ for tables: scikit-learn estimators that take gaps, say how unusual a row is, and adapt.

`IT3Regressor` and `IT3Classifier` are what most people need; `load` reads a saved one. The README
has a worked example, and what was measured.
"""

from it3_tabular.estimators import Detailed, IT3Classifier, IT3Regressor, Trusted
from it3_tabular.storage import load
from it3_tabular.uci import UCI, load_boston, load_energy, load_uci

__version__ = "0.1.0"

__all__ = [
    "UCI",
    "Detailed",
    "IT3Classifier",
    "IT3Regressor",
    "Trusted",
    "__version__",
    "load",
    "load_boston",
    "load_energy",
    "load_uci",
]
