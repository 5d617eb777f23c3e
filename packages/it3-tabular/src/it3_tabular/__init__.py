"""IT³ for tables: scikit-learn estimators that take gaps, say how unusual a row is, and adapt.

`IT3Regressor` and `IT3Classifier` are what most people need; `load` reads a saved one. The README
has a worked example, and what was measured.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from it3_tabular.estimators import Full, IT3Classifier, IT3Regressor
    from it3_tabular.storage import load
    from it3_tabular.uci import UCI, load_energy, load_uci

__version__ = "0.1.0"

__all__ = [
    "UCI",
    "Full",
    "IT3Classifier",
    "IT3Regressor",
    "__version__",
    "load",
    "load_energy",
    "load_uci",
]


def __getattr__(name: str) -> Any:
    """A public name, from its module: not before it is asked for, since `--help` needs no torch."""
    for module in ("estimators", "storage", "uci") if name in __all__ else ():
        if hasattr(found := import_module(f"{__name__}.{module}"), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
