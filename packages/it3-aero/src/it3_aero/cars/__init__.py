"""Cars: from any triangulated body to a drag coefficient, and a network that knows its limits."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from it3_aero.cars.dataset import CarDataset
    from it3_aero.cars.graph import to_graph

__all__ = ["CarDataset", "to_graph"]

# torch-geometric takes seconds to import: it waits until one of these is asked for.
_LATER = {"CarDataset": "dataset", "to_graph": "graph"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
