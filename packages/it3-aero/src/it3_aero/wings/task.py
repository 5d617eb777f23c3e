"""Wings: the lift-to-drag ratio of outlines; a problem, a test set and a reader."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from it3_aero.shapes.data import Levels, Shapes
from it3_aero.shapes.drawing import Tolerance
from it3_aero.shapes.graph_net import NetworkSettings
from it3_aero.shapes.shared import (
    Preset,
    ShapeTask,
    StoredSettings,
    data_folder,
    from_parameters,
    problem_of,
    reader_of,
    restored,
    test_set_of,
)
from it3_aero.wings.cli import DemoOptions, Evaluate, Predict, Train
from it3_aero.wings.files import read_airfoil
from it3_aero.wings.generating import generate
from it3_aero.wings.geometry import Airfoil
from it3_aero.wings.graph import OutlineTrunk, WingDataset, outlines, to_graph
from it3_aero.wings.solvers import NeuralFoil, Solver, choose
from it3_core.experiment import types
from it3_core.experiment.verbs import batch_sizes
from it3_core.io.output import inside

FLOW = ("reynolds", "alpha", "mach")  # of the data set; `--verify` solves at the same
SECOND_WEIGHT = 0.1  # with more, the first prediction is worse for it

PRESETS = {
    "small": Preset(NetworkSettings(), 40, 3e-3, SECOND_WEIGHT),
    "paper": Preset(NetworkSettings(channels=64, kernels=3, stride=1), 100, 1e-3, SECOND_WEIGHT),
}
"""`small` trains on two CPU cores in minutes; `paper` has the paper's width."""


def _noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    """Points off by half a thousandth of the chord, as on a section measured by hand."""
    return x + 5e-4 * torch.randn(x.shape, generator=generator)


def _rounded(x: Tensor, generator: torch.Generator) -> Tensor:
    """Coordinates written down with three decimals."""
    return x.round(decimals=3)


def _coarse(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every fourth node, and straight lines between."""
    here = torch.arange(x.shape[1])
    low = here - here % 4
    high = (low + 4).clamp_max(x.shape[1])
    fraction = ((here - low) / (high - low)).view(1, -1, 1)
    return torch.lerp(x[:, low], x[:, high % x.shape[1]], fraction)


def _paint(axes: Axes, shape: Airfoil | Tensor, colour: str, cp: Tensor | None) -> None:
    points = shape.points if isinstance(shape, Airfoil) else shape.numpy()
    axes.fill(*points.T, facecolor=f"{colour}22", edgecolor=colour)
    axes.set_aspect("equal")
    axes.margins(0.02, 0.25)
    if cp is not None:
        axes.set(xlim=(0, 1), ylim=(-0.14, 0.2))
        above, half = axes.inset_axes((0.0, 1.0, 1.0, 1.8)), len(cp) // 2
        above.plot(points[:half, 0], cp[:half], color=colour)
        above.plot(points[half:, 0], cp[half:], color=colour, linestyle=":")
        above.set(xlim=(0, 1), xticks=[])
        above.set_ylabel("Cp", fontsize=7)
        above.tick_params(labelsize=6)
        above.spines[["top", "right", "bottom"]].set_visible(False)
        above.invert_yaxis()


class Flow(TypedDict):
    """What the profiles were solved at."""

    reynolds: float
    alpha: float
    mach: float


class Stored(StoredSettings):
    """The settings that are read again."""

    flow: Flow


WINGS = ShapeTask(
    name="wings",
    noun="profile",
    title="Wings: lift-to-drag and how far to believe it",
    quantity=types.Quantity("L/D", "", 1),
    trunk=OutlineTrunk,
    inputs=outlines,
    # The L/D is still that of the true outline.
    shifts={"noisy outline": _noisy, "rounded outline": _rounded, "coarse outline": _coarse},
    tolerance=Tolerance(fraction=0.1, absolute=2.0),
    paint=_paint,
    stored=Stored,
)


def problem(data: Path, options: Train) -> types.Problem:
    """Training on the profiles up to a lift-to-drag ratio."""
    dataset = WingDataset(data)
    return problem_of(
        WINGS,
        dataset,
        data,
        PRESETS[options.preset],
        options,
        threshold=options.threshold,
        levels=options.levels,
        settings={"flow": {name: dataset.settings[name] for name in FLOW}},
    )


def test_set(experiment: types.Experiment, options: Evaluate) -> types.TestSet:
    """Profiles in distribution, and above the threshold, level by level."""
    data, sizes = data_folder(experiment, options.data), batch_sizes(options.batch_sizes)
    return _tested(experiment, data, sizes, options.most)


def _tested(
    experiment: types.Experiment, data: Path, sizes: Sequence[int], most: int
) -> types.TestSet:
    dataset = WingDataset(data, int(experiment.settings["nodes"]))
    baselines = partial(_baselines, experiment.settings)
    return test_set_of(WINGS, experiment, dataset, baselines, sizes, most)


def _baselines(settings: types.Json, levels: Levels) -> list[types.Line]:
    """What a practitioner would do instead."""
    flow, found = settings["flow"], []
    # It is no baseline for its own values, and is for Mach 0 only.
    if "NeuralFoil" not in settings["solver"] and not flow["mach"]:
        why = "It was trained on XFoil's values for far more shapes than the network saw."
        solver = partial(_solved, NeuralFoil(), flow)
        found.append(types.Line("NeuralFoil", lambda network, size: solver, once=True, note=why))
    return [*found, *from_parameters("Gaussian process", levels, _gaussian_process, most=500)]


def _solved(solver: Solver, flow: types.Json, x: Tensor) -> Tensor:
    """A solver as an evaluation's method."""
    # As it is: nodes lie on the outline already, and normalising would move the nose.
    shapes = [Airfoil("outline", pos.double().numpy()) for pos in x]
    points = [solver.solve(shape, *(flow[name] for name in FLOW)) for shape in shapes]
    return torch.tensor([point.lift_to_drag for point in points], dtype=x.dtype).unsqueeze(1)


def _gaussian_process(train: Shapes, seed: int) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    assert train.parameters is not None
    widths = RBF(np.full(train.parameters.shape[1], 2.0), (0.05, 100.0))
    kernel = ConstantKernel(10.0, (1e-2, 1e4)) * widths + WhiteKernel(1e-3, (1e-7, 1.0))
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))


def reader(experiment: types.Experiment, options: Predict) -> types.Reader:
    """Airfoils from coordinate files."""
    flow = experiment.settings["flow"]
    verify = partial(_verified, choose("auto"), flow) if options.verify else None
    return reader_of(WINGS, read_airfoil, _batch, verify)


def _batch(network: types.Network, airfoils: Sequence[Airfoil]) -> Tensor:
    return outlines([to_graph(one, int(network.settings["nodes"])) for one in airfoils])


def _verified(solver: Solver, flow: types.Json, airfoil: Airfoil) -> types.Truth:
    point = solver.solve(airfoil, *(flow[name] for name in FLOW))
    if point.converged:
        return types.Truth(solver.name, {"prediction": point.lift_to_drag})
    return types.Truth(solver.name, None, f"{solver.name} has no solution: {point.reason}")


def demo(out: Path, options: DemoOptions) -> types.Demo:
    """Profiles drawn and solved, and the small preset with fewer levels."""
    data, progress = inside(out, "data"), not options.quiet
    generate(data, n=options.n, seed=options.seed, solver=options.solver, progress=progress)
    train = Train(out=out / "experiment", seed=options.seed, epochs=options.epochs, levels=2)
    return types.Demo(
        problem(data, train),
        lambda experiment: _tested(experiment, data, (1, 16), 40),
        vanilla=True,
    )


restore: Any = partial(restored, WINGS)
TASK = types.Task("wings", problem, restore, test_set, reader, demo)
