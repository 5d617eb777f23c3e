"""Streams that last: why online IT³ drifted, whether it holds on usual data, what it still gains.

    nox -s bench -- streams cause
    nox -s bench -- streams hold [BATCHES [NETWORK...]]
    nox -s bench -- streams ordered wings|cars|age|roads EXPERIMENT DATA

Each prints a table and draws a picture, of which docs/streams.md of it3-core is made. `hold` needs
IT3_DATA with uci and mnist; `ordered` what `it3-aero wings generate` and `train` made, and so on.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from it3_core import (
    Adaptation,
    Adapter,
    Classification,
    OnlineIT3,
    Regression,
    Source,
    condition,
    fit,
)
from it3_core.evaluation.evaluate import evaluate
from it3_core.experiment.folder import load
from it3_core.experiment.statistics import summarise
from it3_core.experiment.tables import markdown, markdown_table, pooled
from it3_core.io.files import write_figure
from it3_vision.roads.tiling import Tiled

DOCS = Path(__file__).parents[2] / "packages" / "it3-core" / "docs"
PAPER: dict[str, Any] = {"pull": 0.0, "gate": None}  # its moving average, and what ours was
Curves = dict[str, list[Any]]
Trained = tuple[nn.Module, Adapter, Callable[[int, torch.Generator], tuple[Tensor, Tensor]]]


def trained(x: Tensor, y: Tensor, classes: int, width: int, epochs: int, seed: int) -> Trained:
    """A network of two hidden layers on half of the rows; streams are drawn from the others."""
    torch.manual_seed(seed)
    known, new = torch.randperm(len(x))[:6000].chunk(2)
    adapter = Classification(classes) if classes else Regression.fit(y[known])
    net = nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                        nn.Linear(width, classes or 1))  # fmt: skip
    if isinstance(adapter, Regression):
        net.append(adapter.rescale())
    model = condition(net, adapter, layer="2")
    fit(model, adapter, (x[known], y[known]), epochs=epochs, lr=3e-3, seed=seed, progress=False)

    def draw(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        some = new[torch.randint(len(new), (rows,), generator=generator)]
        return x[some], y[some]

    return model, adapter, draw


def readme(seed: int) -> Trained:
    """The network of it3-core's README."""
    torch.manual_seed(seed)
    x = torch.rand(900, 2)
    return trained(x, 20 + 3 * x[:, 0] ** 2 + torch.sin(4 * x[:, 1]), 0, 32, 30, seed)


def table(name: str, classes: int, seed: int) -> Trained:
    """A UCI table; with classes, its target is cut into so many of equal size."""
    folder = Path(os.environ["IT3_DATA"], "uci", name)
    names = ("data", "index_features", "index_target")
    rows, *columns = (np.loadtxt(folder / f"{part}.txt") for part in names)
    x, y = (torch.tensor(rows[:, c.astype(int)], dtype=torch.float32) for c in columns)
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    if classes:
        y = torch.bucketize(y, y.quantile(torch.linspace(0, 1, classes + 1)[1:-1]))
    return trained(x, y, classes, 50, 60 if len(x) < 3000 else 30, seed)


def digits(seed: int) -> Trained:
    """MNIST's test images, at 14 × 14 pixels."""
    names = (f"t10k-{part}-ubyte.gz" for part in ("images-idx3", "labels-idx1"))
    folder = Path(os.environ["IT3_DATA"], "mnist")
    images, labels = (bytearray(gzip.decompress((folder / name).read_bytes())) for name in names)
    pixels = torch.frombuffer(images[16:], dtype=torch.uint8).view(-1, 1, 28, 28) / 255
    x = nn.functional.avg_pool2d(pixels, 2).flatten(1)
    return trained(x, torch.tensor(list(labels[8:])), 10, 50, 10, seed)


NETWORKS = {  # those that the default was chosen on, and those that it is judged on
    "README's": partial(readme, 0),
    "concrete": partial(table, "concrete", 0, 0),
    "kin8nm": partial(table, "kin8nm", 0, 0),
    "kin8nm, 4 classes": partial(table, "kin8nm", 4, 0),
    "energy (judged)": partial(table, "energy", 0, 10),
    "power-plant (judged)": partial(table, "power-plant", 0, 11),
    "MNIST, 10 classes (judged)": partial(digits, 12),
    "protein, 3 classes (judged)": partial(table, "protein-tertiary-structure", 3, 13),
}


TASKS: dict[str, tuple[str, dict[str, Any]]] = {  # their package, and options of its evaluation
    "wings": ("it3_aero", {}),
    "cars": ("it3_aero", {}),
    "age": ("it3_vision", {"most": 100}),  # faces of a level
    "roads": ("it3_vision", {"resolution": 1.0, "window": 192, "tile": 112}),
}


class RandomSigns(torch.optim.Adam):
    """Adam on gradients of a random sign, the same for all weights: its steps without their aim."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        sign = 1 - 2 * torch.randint(2, ()).item()
        for weight in self.param_groups[0]["params"]:
            weight.grad.mul_(sign)
        super().step(closure)


CAUSES: dict[str, dict[str, Any]] = {
    "moving average (paper)": PAPER,
    "moving average, SGD": {**PAPER, "optimizer": "SGD"},
    "moving average, random signs": {**PAPER, "optimizer": RandomSigns},
    "frozen F": {**PAPER, "decay": 1.0},
    "pull alone": {"gate": None},
    "gate alone": {"pull": 0.0},
    "gate and pull (now)": {},
}


def stream(
    network: Trained, method: OnlineIT3, batches: int
) -> Iterator[tuple[Tensor, Tensor, Adaptation]]:
    """Usual batches of 16, and the method's answers."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(batches):
        x, y = network[2](16, generator)
        yield x, y, method(x)


def cause() -> None:
    """The README's network: error, the gap that the loss sees, the gap to F, the way from F."""
    network = model, adapter, _ = readme(0)
    start = {f"weights.{name}": value.detach() for name, value in model.named_parameters()}
    found: Curves = {}
    for name, settings in CAUSES.items():
        method, rows = OnlineIT3(model, adapter, **settings), []
        for x, y, answer in stream(network, method, 3000):
            with torch.no_grad():
                gap = adapter.distance(model(x, adapter.encode(answer.initial)), answer.initial)
            state = method.state_dict()
            far = sum(float((state[key] - value).square().sum()) for key, value in start.items())
            means = (adapter.error(answer.prediction, y), answer.error_before, gap)
            rows.append([*(float(one.mean()) for one in means), far**0.5])
        found[name] = torch.tensor(rows).view(-1, 50, 4).mean(1).tolist()
    ends = [[name, *(f"{value:.3g}" for value in rows[-1])] for name, rows in found.items()]
    titles = ["mean error", "gap that the loss sees", "gap to F", "distance from F's weights"]
    print(markdown_table([["stream", *titles], *ends]))
    draw("cause", {title: {name: [row[i] for row in rows] for name, rows in found.items()}
                   for i, title in enumerate(titles)}, 50)  # fmt: skip


def hold(batches: str = "100000", *names: str) -> None:
    """Mean errors by thousands of batches; the moving average alone is followed for a tenth."""
    rows, lines = [["network", "batches", "source", "before", "now", "now / source"]], {}
    for name in names or NETWORKS:
        found = [errors(NETWORKS[name](), most, settings) for most, settings in (
            (int(batches) // 10, PAPER), (int(batches), {}))]  # fmt: skip
        (early, _), (now, source) = (one[-1] for one in found)
        numbers = [f"{value:.4g}" for value in (source, early, now)]
        rows.append([name, batches, *numbers, f"{now / source:.3f}"])
        for which, means in zip(("before", "now"), found, strict=True):
            lines[f"{name}: {which}"] = [mine / source for mine, source in means]
        print(markdown_table(rows), flush=True)
    draw("hold", {"error / that of the trained network": lines}, 1000)


def errors(network: Trained, batches: int, settings: dict[str, Any]) -> list[list[float]]:
    """The stream's mean error and the trained network's, for every thousand batches."""
    model, adapter, _ = network
    source, rows = Source(model, adapter), []
    for x, y, answer in stream(network, OnlineIT3(model, adapter, **settings), batches):
        both = (answer.prediction, source(x).prediction)
        rows.append([float(adapter.error(one, y).mean()) for one in both])
    means: list[list[float]] = torch.tensor(rows).view(-1, min(1000, batches), 2).mean(1).tolist()
    return means


def ordered(task: str, folder: str, data: str) -> None:
    """The stream of growing shift, once through all levels, the usual one first."""
    package, options = TASKS[task]
    module = import_module(f"{package}.{task}.task")
    experiment = load(folder, task, module.TASK.restore)
    test = module.TASK.test_set(experiment, module.Evaluate(data=Path(data), **options))
    records = []
    for one in experiment.networks:
        model, adapter = one.model, one.adapter
        methods: dict[str, Any] = {"source": Source(model, adapter),
                   "now": OnlineIT3(model, adapter),
                   "before": OnlineIT3(model, adapter, **PAPER)}  # fmt: skip
        if "tile" in options:
            methods = {name: Tiled(method, options["tile"]) for name, method in methods.items()}
        levels = {name: (level(one) if callable(level) else level)[:2]
                  for name, level in test.levels.items()}  # fmt: skip
        records += evaluate(methods, levels, test.measure, batch_sizes=[1, 4, 16], seed=one.seed,
                            in_distribution=test.in_distribution, streams=["before", "now"],
                            once=["source"], progress=False)  # fmt: skip
        print(f"seed {one.seed} done", file=sys.stderr)
    inside = [record for record in records if record["in_distribution"]]
    rows = summarise([*inside, *pooled(records)])
    print(f"{len(experiment.networks)} seeds\n\n{markdown(rows)}")
    lines: dict[str, list[float]] = {}
    for method, size in (("source", None), ("before", 4), ("now", 4), ("now", 1)):
        means = [torch.tensor([r["errors"] for r in records if r["level"] == level
                               and (r["method"], r["batch_size"]) == (method, size)]).mean(0)
                 for level in test.levels]  # fmt: skip
        named = f"{method}, batches of {size}" if size else method
        lines[named] = torch.cat(means).unfold(0, 9, 1).mean(1).tolist()
    draw(task, {f"mean error over seeds and 9 {test.noun}s": lines}, 1)


def draw(name: str, panels: dict[str, Curves], unit: int) -> None:
    """A picture with a panel for each quantity and a line for each stream."""
    figure = Figure(figsize=(4 * len(panels) + 2, 3.4), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0],
                                    panels.items(), strict=True):  # fmt: skip
        for label, values in lines.items():
            axes.plot(range(unit, unit * len(values) + 1, unit), values, label=label, linewidth=1)
        axes.set(title=title, xlabel="place in the stream" if unit == 1 else "batch")
        if unit > 1:
            axes.set(xscale="log", yscale="log")
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    write_figure(DOCS / f"streams-{name}.png", figure, dpi=130)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts: dict[str, Callable[..., None]] = {"cause": cause, "hold": hold, "ordered": ordered}
    parts[sys.argv[1]](*sys.argv[2:])
