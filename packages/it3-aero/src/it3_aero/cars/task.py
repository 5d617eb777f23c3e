"""What is special about cars: names, sizes, and which of this folder's parts do what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from it3_aero.learning.task import Ask, Later, NetworkSettings, Recipe, Task

if TYPE_CHECKING:
    from trimesh import Trimesh

    from it3_aero.learning.runs import Run
    from it3_aero.learning.shapes import Levels
    from it3_core.evaluation import Predictor

__all__ = ["CARS", "PRESETS", "Car"]

_SMALL = NetworkSettings(layers=35, channels=16, kernels=2, stride=1)
_PAPER = NetworkSettings(layers=35, channels=64, kernels=3, stride=1)

PRESETS = {
    "small": Recipe(_SMALL, epochs=60, batch_size=4),
    "paper": Recipe(_PAPER, epochs=100, lr=1e-3, batch_size=4),
}
"""`small` trains on two CPU cores in minutes; `paper` has the paper's width, rate and epochs."""


@dataclass(frozen=True)
class Car:
    """A closed mesh, in metres, with the wind along x and the ground at z = 0; and its name.

    Example:
        >>> from it3_aero.cars.bodies import ahmed
        >>> Car("Ahmed body", ahmed(slant=25)).name
        'Ahmed body'
    """

    name: str
    mesh: Trimesh


def _verify(about: Mapping[str, Any]) -> Ask:
    import tempfile

    from it3_aero.cars.foam.case import solve

    def ask(car: Car) -> tuple[str, float | None, str | None]:
        with tempfile.TemporaryDirectory(prefix="it3-cars-") as folder:
            flow = solve(car.mesh, Path(folder, "case"), str(about.get("preset", "coarse")))
        return flow.solver, None if flow.problem else flow.cd, flow.problem

    return ask


def _graph(car: Car, nodes: int) -> Any:
    from it3_aero.cars.graph import to_graph
    from it3_aero.cars.shape import decimated

    fewer = decimated(car.mesh, nodes)
    return to_graph(fewer.vertices, fewer.faces, car.name)


def _dataset(place: Path, nodes: int | None) -> Any:
    from it3_aero.cars.dataset import CarDataset

    return CarDataset(place)  # meshes have the nodes that they were generated with


def _shifts() -> Mapping[str, Any]:
    from it3_aero.cars.model import SHIFTS

    return SHIFTS


def _yardsticks(run: Run, levels: Levels) -> dict[str, Predictor]:
    from it3_aero.cars.baselines import gradient_boosting, train_mean

    found: dict[str, Predictor] = {"train mean": train_mean(levels.train)}
    if levels.train.parameters is not None:
        tested = list(levels.test.values())
        found["gradient boosting"] = gradient_boosting(levels.train, tested, run.seed)
    return found


def _about(dataset: Any) -> dict[str, Any]:
    return {"solver": dataset.solver, "preset": dataset.preset}


CARS = Task(
    name="cars",
    title="Cars: drag with a trust gauge",
    thing="car",
    quantity="Cd",
    digits=3,
    beyond="lower",
    threshold=None,
    levels=2,
    tolerance=0.05,
    slack=0.01,
    presets=PRESETS,
    batch_sizes=(1, 2, 4),
    solver="OpenFOAM",
    references={
        "train mean": "The train mean is the same answer for every car: what is no better has "
        "learnt nothing.",
        "gradient boosting": "Gradient boosting gets the few numbers that the cars were made from, "
        "which a mesh from a file does not have.",
    },
    trunk=Later("it3_aero.cars.network", "MeshTrunk"),
    inputs=Later("it3_aero.cars.graph", "inputs"),
    graph=_graph,
    dataset=_dataset,
    shifts=_shifts,
    yardsticks=_yardsticks,
    verify=_verify,
    gallery=Later("it3_aero.cars.drawing", "gallery"),
    sketch=Later("it3_aero.cars.drawing", "sketch"),
    about=_about,
)
"""All that the shared half must know of cars."""
