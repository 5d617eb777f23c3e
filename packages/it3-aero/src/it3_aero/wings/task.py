"""What is special about wings: names, sizes, and which of this folder's parts do what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from it3_aero.learning.task import Ask, Later, NetworkSettings, Recipe, Task

if TYPE_CHECKING:
    from it3_aero.learning.runs import Run
    from it3_aero.learning.shapes import Levels
    from it3_aero.wings.geometry import Airfoil
    from it3_aero.wings.solvers import Solver
    from it3_core.evaluation import Predictor

__all__ = ["PRESETS", "SECOND", "WINGS", "asking"]

SECOND = 0.1
"""What the second pass weighs in training: with more, the first answer is worse for it."""

PRESETS = {
    "small": Recipe(NetworkSettings(), epochs=40, second=SECOND),
    "paper": Recipe(
        NetworkSettings(channels=64, kernels=3, stride=1), epochs=100, lr=1e-3, second=SECOND
    ),
}
"""`small` trains on two CPU cores in minutes; `paper` has the paper's width."""


def asking(solver: Solver, reynolds: float, alpha: float) -> Ask:
    """Asks this solver.

    Example:
        >>> from it3_aero.wings import NeuralFoil, naca
        >>> asking(NeuralFoil(), 1e6, 0.0)(naca("2412"))[::2]
        ('NeuralFoil', None)
    """

    def ask(airfoil: Airfoil) -> tuple[str, float | None, str | None]:
        point = solver.solve(airfoil, reynolds, alpha)
        if point.converged:
            return solver.name, point.lift_to_drag, None
        return solver.name, None, point.reason

    return ask


def _verify(about: Mapping[str, Any]) -> Ask:
    from it3_aero.wings.solvers import choose

    reynolds, alpha = about.get("reynolds", 1e6), about.get("alpha", 0.0)
    return asking(choose("auto"), float(reynolds), float(alpha))


def _dataset(folder: Path, nodes: int | None) -> Any:
    from it3_aero.wings.dataset import WingDataset

    return WingDataset(folder) if nodes is None else WingDataset(folder, nodes)


def _shifts() -> Mapping[str, Any]:
    from it3_aero.wings.model import SHIFTS

    return SHIFTS


def _yardsticks(run: Run, levels: Levels) -> dict[str, Predictor]:
    from it3_aero.wings.baselines import Solved, gaussian_process
    from it3_aero.wings.solvers import NeuralFoil

    about = run.settings["about"]
    found: dict[str, Predictor] = {}
    if "NeuralFoil" not in str(about.get("solver")):  # it is no yardstick for its own answers
        flow = float(about.get("reynolds", 1e6)), float(about.get("alpha", 0.0))
        found["NeuralFoil"] = Solved(NeuralFoil(), *flow)
    if levels.train.parameters is not None:
        tested = list(levels.test.values())
        found["Gaussian process"] = gaussian_process(levels.train, tested, run.seed)
    return found


def _about(dataset: Any) -> dict[str, Any]:
    return {key: dataset.settings[key] for key in ("solver", "reynolds", "alpha")}


WINGS = Task(
    name="wings",
    title="Wings: lift-to-drag with a trust gauge",
    thing="profile",
    quantity="L/D",
    digits=1,
    beyond="upper",
    threshold=60.0,
    levels=3,
    tolerance=0.1,
    slack=2.0,
    presets=PRESETS,
    batch_sizes=(1, 4, 16),
    solver="XFoil",
    references={
        "NeuralFoil": "NeuralFoil was trained on XFoil's answers for far more shapes than the "
        "network saw.",
        "Gaussian process": "A Gaussian process gets the few numbers that the shapes were made "
        "from, which a shape from a file does not have.",
    },
    trunk=Later("it3_aero.wings.network", "OutlineTrunk"),
    inputs=Later("it3_aero.wings.shapes", "outlines"),
    graph=Later("it3_aero.wings.graph", "to_graph"),
    dataset=_dataset,
    shifts=_shifts,
    yardsticks=_yardsticks,
    verify=_verify,
    gallery=Later("it3_aero.wings.drawing", "gallery"),
    sketch=Later("it3_aero.wings.drawing", "sketch"),
    about=_about,
)
"""All that the shared half must know of wings."""
