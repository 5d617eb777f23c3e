"""Cars: from any triangulated body to a drag coefficient, and a network that knows its limits."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from it3_aero.cars.dataset import CarDataset, to_graph

__all__ = ["CarDataset", "to_graph"]


def __getattr__(name: str) -> object:  # torch-geometric takes seconds to import
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.dataset"), name)
