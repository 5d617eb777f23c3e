"""Cars: the drag coefficient of meshes; a problem, a test set and a reader."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes

from it3_aero.cars.cli import DemoOptions, Evaluate, Predict, Train
from it3_aero.cars.dataset import SAMPLE, Car, CarDataset, MeshTrunk, car_graph, inputs, moved
from it3_aero.cars.foam import solve
from it3_aero.cars.intake import check
from it3_aero.cars.render import paint
from it3_aero.shapes.data import Levels, Shapes
from it3_aero.shapes.drawing import Tolerance
from it3_aero.shapes.graph_net import NetworkSettings
from it3_aero.shapes.shared import (
    Protocol,
    ShapeTask,
    StoredSettings,
    data_folder,
    from_parameters,
    problem_of,
    protocol_of,
    reader_of,
    restored,
    test_set_of,
)
from it3_core.batching import count
from it3_core.experiment import types
from it3_core.experiment.verbs import batch_sizes

LEVELS = 2
_DEMO_PASSES = 4_600  # cars times epochs, so that the demo stays short

_SMALL = NetworkSettings(layers=35, channels=16, kernels=2, stride=1)
_FULL = NetworkSettings(layers=35, channels=64, kernels=3, stride=1)
OURS = {
    "small": Protocol(60, 3e-3, 1.0, batch_size=4, network=_SMALL),
    "full": Protocol(100, 1e-3, 1.0, batch_size=4, network=_FULL),
}
"""By the network's size: `small` trains on two CPU cores in minutes, `full` is as wide as the
authors' network for wings."""

PAPER = Protocol(100, 1e-3, 1.0, batch_size=4, schedule="constant", clip=None, top=0.05)
"""All of it the paper's but the size of training batches, which it does not give: ours."""


def _noisy(cars: Any, generator: torch.Generator) -> Any:
    """Vertices off by a thousandth of a car's length, as a scanner leaves them."""
    lengths = _lengths(cars)[cars.batch]
    return moved(cars, cars.pos + 1e-3 * lengths * torch.randn(cars.pos.shape, generator=generator))


def _rounded(cars: Any, generator: torch.Generator) -> Any:
    """Vertices on a grid of half a hundredth of a car's length."""
    grid = 5e-3 * _lengths(cars)[cars.batch]
    return moved(cars, (cars.pos / grid).round() * grid)


def _smoothed(cars: Any, generator: torch.Generator) -> Any:
    """Every vertex a third of the way to the middle of its neighbours: edges lose their edge."""
    source, target = cars.edge_index
    degree = torch.bincount(target, minlength=len(cars.pos)).clamp_min(1).unsqueeze(1)
    middle = torch.zeros_like(cars.pos).index_add_(0, target, cars.pos[source]) / degree
    return moved(cars, torch.lerp(cars.pos, middle, 1 / 3))


def _lengths(cars: Any) -> torch.Tensor:
    """Of each car, `(cars, 1)`."""
    along = cars.pos[:, 0].split(cars.ptr.diff().tolist())
    return torch.stack([x.max() - x.min() for x in along]).unsqueeze(1)


def _paint(axes: Axes, shape: Any, colour: str, cp: torch.Tensor | None) -> None:
    """A car from the front, in grey or coloured by its pressure; only outlines have a colour."""
    if isinstance(shape, Car):
        paint(axes, shape.mesh.vertices, shape.mesh.faces)
    else:
        values = None if cp is None else cp.numpy()
        paint(axes, shape.pos.numpy(), shape.face.t().numpy(), values)


def _sample(axes: Axes, shapes: Shapes, row: int) -> None:
    """A car by its pressure, or in grey where the data have none."""
    _paint(axes, shapes.x[row], "", None if shapes.cp is None else shapes.cp[row])


class Stored(StoredSettings):
    """The settings that are read again."""

    solver_preset: str


CARS = ShapeTask(
    name="cars",
    noun="car",
    title="Cars: drag and how far to believe it",
    quantity=types.Quantity("Cd", "", 3),
    trunk=MeshTrunk,
    inputs=inputs,
    # The drag is still that of the true mesh.
    shifts={"noisy mesh": _noisy, "rounded mesh": _rounded, "smoothed mesh": _smoothed},
    tolerance=Tolerance(fraction=0.05, absolute=0.01),
    paint=_paint,
    sample=_sample,
    caption="The solver's pressure on the surface: red is high, blue is low (Cp from -1 to 1).",
    falling=True,
    stored=Stored,
)


def problem(data: Path, options: Train) -> types.Problem:
    """Training on the cars down to a drag coefficient."""
    return _problem(CarDataset(data), data, options)


def _problem(dataset: CarDataset, data: Path, options: Train) -> types.Problem:
    return problem_of(
        CARS,
        dataset,
        data,
        protocol_of(options, OURS, PAPER),
        options,
        threshold=options.threshold,
        usual=dataset.threshold(),
        levels=LEVELS,
        settings={"solver_preset": dataset.preset},
    )


def test_set(experiment: types.Experiment, options: Evaluate) -> types.TestSet:
    """Cars in distribution, and more streamlined ones, level by level."""
    dataset = CarDataset(data_folder(experiment, options.data))
    sizes = batch_sizes(options.batch_sizes)
    return test_set_of(CARS, experiment, dataset, _baselines, sizes, options.most)


def _baselines(levels: Levels) -> list[types.Line]:
    """What a practitioner would try first."""
    mean = float(levels.train.y.mean())
    line = types.Line(
        "train mean",
        lambda network, size: lambda x: torch.full((count(x), 1), mean),
        once=True,
        note="The same value for every car: what is no better has learnt nothing.",
    )
    return [line, *from_parameters("gradient boosting", levels, _boosting)]


def _boosting(train: Shapes, seed: int) -> Any:
    """Gradient boosting, which admits missing parameters."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    # For a few dozen cars: its own default puts 20 into each leaf.
    return HistGradientBoostingRegressor(
        min_samples_leaf=4, max_leaf_nodes=8, learning_rate=0.05, max_iter=300, random_state=seed
    )


def reader(experiment: types.Experiment, options: Predict) -> types.Reader:
    """Cars from mesh files, mended as by `check`."""

    def read(path: Path) -> Car:
        return Car(path.stem, check(path, options.mesh).admitted())

    fineness = str(experiment.settings["solver_preset"])
    verify = partial(_solved, fineness) if options.verify else None
    return reader_of(CARS, read, _batch, verify)


def _batch(network: types.Network, cars: Sequence[Car]) -> Any:
    return inputs([car_graph(one, int(network.settings["nodes"])) for one in cars])


def _solved(fineness: str, car: Car) -> types.Truth:
    with tempfile.TemporaryDirectory(prefix="it3-cars-") as folder:
        flow = solve(car.mesh, Path(folder, "case"), fineness)
    if flow.problem:
        return types.Truth(flow.solver, None, f"{flow.solver} has no solution: {flow.problem}")
    return types.Truth(flow.solver, {"prediction": flow.cd})


def demo(out: Path, options: DemoOptions) -> types.Demo:
    """The cars that come with this package, or others, and the small network."""
    data = options.data or SAMPLE
    dataset = CarDataset(data)
    fewer = max(1, min(OURS["small"].epochs, _DEMO_PASSES // len(dataset)))
    train = Train(out=out / "experiment", seed=options.seed, epochs=options.epochs or fewer)
    return types.Demo(
        _problem(dataset, data, train),
        lambda experiment: test_set_of(CARS, experiment, dataset, _baselines, (1, 2, 4), 40),
        vanilla=True,
    )


restore: Any = partial(restored, CARS)
TASK = types.Task("cars", problem, restore, test_set, reader, demo)
