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
THRESHOLD = 60.0

_FULL = NetworkSettings(channels=64, kernels=3, stride=1)
OURS = {
    "small": Protocol(40, 3e-3, SECOND_WEIGHT),
    "full": Protocol(100, 1e-3, SECOND_WEIGHT, network=_FULL),
}
"""By the network's size: `small` trains on two cores in minutes, `full` has the authors' width."""

PAPER = Protocol(20, 1e-3, 1.0, batch_size=128, schedule="step", clip=None, top=0.05)
"""Equal terms of the loss and the top 5 % are the paper's, as are 25 layers, ELU and skips. It says
nothing of the training: Adam at 1e-3, then 1e-4, ten epochs each, batches of 128 and the squared
error are the authors' code's, and so are the 64 channels of the size `full`."""


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


def _sample(axes: Axes, shapes: Shapes, row: int) -> None:
    """An outline with its pressure as arrows, and lift and drag as lines from the quarter chord."""
    points = shapes.x[row].double().numpy()
    axes.fill(*points.T, facecolor="#e8ecf1", edgecolor="#5f6b7a", linewidth=0.8)
    axes.set(xlim=(-0.1, 1.1), ylim=(-0.3, 0.5), aspect="equal")
    if shapes.cp is None or shapes.forces is None:
        return
    along = np.roll(points, -1, 0) - np.roll(points, 1, 0)
    outwards = np.stack([along[:, 1], -along[:, 0]], 1)  # outlines run against the clock
    outwards /= np.linalg.norm(outwards, axis=1, keepdims=True)
    cp = 0.15 * shapes.cp[row].double().numpy()[:, None]
    # Suction pulls outwards from the outline; pressure pushes, so that its arrows end there.
    tails = points + outwards * cp.clip(0)
    arrows: types.Json = {
        "angles": "xy",
        "scale_units": "xy",
        "scale": 1,
        "width": 0.004,
        "headwidth": 4,
    }
    axes.quiver(*tails[::3].T, *(-cp * outwards)[::3].T, color="black", **arrows)
    lift, drag = shapes.forces[row].tolist()
    for dx, dy in ((10 * drag, 0.0), (0.0, lift)):
        axes.plot([0.25, 0.25 + dx], [0.0, dy], color="#d62728", linewidth=1.8)


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
    sample=_sample,
    caption="Black arrows are the solver's pressure: outwards where it sucks, towards the outline "
    "where it pushes. Red lines are lift (a chord for a CL of 1) and drag (ten times as long).",
    stored=Stored,
)


def problem(data: Path, options: Train) -> types.Problem:
    """Training on the profiles up to a lift-to-drag ratio."""
    dataset = WingDataset(data)
    return problem_of(
        WINGS,
        dataset,
        data,
        protocol_of(options, OURS, PAPER),
        options,
        threshold=options.threshold,
        usual=THRESHOLD,
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
    """Profiles drawn and solved, and the small network with fewer levels."""
    data, progress = inside(out, "data"), not options.quiet
    whole = options.n + options.further
    generate(data, n=whole, seed=options.seed, solver=options.solver, progress=progress)
    train = Train(
        out=out / "experiment", seed=options.seed, epochs=options.epochs, levels=2,
        calibration=round(options.further / whole, 3),
    )  # fmt: skip
    return types.Demo(
        problem(data, train),
        lambda experiment: _tested(experiment, data, (1, 16), 40),
        vanilla=True,
    )


restore: Any = partial(restored, WINGS)
TASK = types.Task("wings", problem, restore, test_set, reader, demo)
