"""Streams that last: why online IT³ drifted, whether it holds on usual data, what it still gains.

    python tools/bench/streams.py cause
    python tools/bench/streams.py hold [BATCHES [NETWORK...]]
    python tools/bench/streams.py ordered wings|cars EXPERIMENT [DATA]

Each writes its part of packages/it3-core/docs/streams.json, and with it the tables and pictures
there. `hold` needs IT3_DATA (uci, mnist); `ordered` an experiment of `it3-aero wings train`.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from it3_core import Adapter, Classification, OnlineIT3, Regression, Source, condition, fit
from it3_core.evaluation.evaluate import evaluate
from it3_core.experiment.figures import plain_axes
from it3_core.experiment.folder import load
from it3_core.experiment.lines import online_it3
from it3_core.experiment.statistics import summarise
from it3_core.experiment.tables import interval, markdown_table, pooled
from it3_core.io.files import write_figure, write_text

DOCS = Path(__file__).parents[2] / "packages" / "it3-core" / "docs"
PAPER: dict[str, Any] = {"pull": 0.0, "gate": None}  # its plain moving average, which was ours
Trained = tuple[nn.Module, Adapter, Callable[[int, torch.Generator], tuple[Tensor, Tensor]]]


def trained(x: Tensor, y: Tensor, classes: int, width: int, epochs: int, seed: int) -> Trained:
    """A network of two hidden layers on half of the rows; streams are drawn from the others."""
    torch.manual_seed(seed)
    order = torch.randperm(len(x))[:6000]
    known, new = order.chunk(2)
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
    x = torch.rand(6000, 2)
    rows = torch.cat([x[:450], x[-450:]])
    return trained(rows, 20 + 3 * rows[:, 0] ** 2 + torch.sin(4 * rows[:, 1]), 0, 32, 30, seed)


def table(name: str, classes: int, seed: int) -> Trained:
    """A UCI table; with classes, its target is cut into so many of equal size."""
    folder = Path(os.environ["IT3_DATA"], "uci", name)
    rows, *columns = (np.loadtxt(folder / f"{part}.txt")
                      for part in ("data", "index_features", "index_target"))  # fmt: skip
    x, y = (torch.tensor(rows[:, c.astype(int)], dtype=torch.float32) for c in columns)
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    if classes:
        y = torch.bucketize(y, y.quantile(torch.linspace(0, 1, classes + 1)[1:-1]))
    return trained(x, y, classes, 50, 60 if len(x) < 3000 else 30, seed)


def digits(seed: int) -> Trained:
    """MNIST's test images, at 14 × 14 pixels."""
    images, labels = (gzip.decompress(Path(os.environ["IT3_DATA"], "mnist", name).read_bytes())
                      for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"))  # fmt: skip
    pixels = torch.frombuffer(bytearray(images[16:]), dtype=torch.uint8).view(-1, 1, 28, 28)
    x = nn.functional.avg_pool2d(pixels / 255, 2).flatten(1)
    return trained(x, torch.tensor(list(labels[8:])), 10, 50, 10, seed)


CHOSEN_ON = {"README's": partial(readme, 0), "concrete": partial(table, "concrete", 0, 0),
             "kin8nm": partial(table, "kin8nm", 0, 0),
             "kin8nm, 4 classes": partial(table, "kin8nm", 4, 0)}  # fmt: skip
JUDGED_ON = {"energy": partial(table, "energy", 0, 10),
             "power-plant": partial(table, "power-plant", 0, 11),
             "MNIST, 10 classes": partial(digits, 12),
             "protein, 3 classes": partial(table, "protein-tertiary-structure", 3, 13)}  # fmt: skip


def errors(
    network: Trained, batches: int, **settings: Any
) -> Iterator[tuple[OnlineIT3, float, float]]:
    """A stream of usual batches of 16: the method, its error and the trained network's."""
    model, adapter, draw = network
    method, source = OnlineIT3(model, adapter, **settings), Source(model, adapter)
    generator = torch.Generator().manual_seed(1)
    for _ in range(batches):
        x, y = draw(16, generator)
        found = [float(adapter.error(one(x).prediction, y).mean()) for one in (method, source)]
        yield method, *found


def hold(batches: int = 100_000, *names: str) -> dict[str, Any]:
    """Mean errors by thousands of batches; the plain average is followed for a tenth as long."""
    found = {}
    for name, make in {**CHOSEN_ON, **JUDGED_ON}.items():
        if names and name not in names:
            continue
        network = make()
        for label, settings in (("before", PAPER), ("now", {})):
            most = batches // 10 if settings else batches
            both = torch.tensor([pair for _, *pair in errors(network, most, **settings)])
            means = both.view(-1, min(1000, most), 2).mean(1).tolist()
            found[f"{name}|{label}"] = means
            print(name, label, most, means[-1], flush=True)
    return found


class RandomSigns(torch.optim.Adam):
    """Adam whose gradients have a sign at random, the same for all weights: steps without aim."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        sign = 1 - 2 * torch.randint(2, ()).item()
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad.mul_(sign)
        super().step(closure)


CAUSES: dict[str, dict[str, Any]] = {
    "the paper's average": PAPER,
    "SGD": {**PAPER, "optimizer": "SGD"},
    "Adam, signs at random": {**PAPER, "optimizer": RandomSigns},
    "frozen F": {**PAPER, "decay": 1.0},
    "pull alone": {"gate": None},
    "gate alone": {"pull": 0.0},
    "now: gate and pull": {},
}


def cause(batches: int = 3000) -> dict[str, Any]:
    """The README's network, in distribution: error, distance, and the gap as two anchors see it."""
    network, found = readme(0), {}
    model, adapter, draw = network
    x, _ = draw(256, torch.Generator().manual_seed(2))
    start = {f"weights.{name}": value.detach() for name, value in model.named_parameters()}
    for name, settings in CAUSES.items():
        lines: list[list[float]] = []
        recent: list[float] = []
        for number, (method, error, _) in enumerate(errors(network, batches, **settings), 1):
            recent = [*recent, error][-25:]
            if number % 25 == 0:
                state = method.state_dict()
                far = torch.cat([(state[key] - value).flatten() for key, value in start.items()])
                with torch.no_grad():
                    y = torch.func.functional_call(
                        model, {k[8:]: state[k] for k in start}, (x, adapter.neutral(x)))  # fmt: skip
                    average = {k[8:]: state[f"ema.{k[8:]}"] for k in start}
                    gaps = [float((f - y).abs().mean()) for f in (
                        torch.func.functional_call(model, average, (x, adapter.encode(y))),
                        model(x, adapter.encode(y)))]  # fmt: skip
                lines.append([number, sum(recent) / len(recent), float(far.norm()), *gaps])
        found[name] = lines
        print(name, lines[-1], flush=True)
    return found


def ordered(task: str, folder: str, data: str | None = None) -> dict[str, Any]:
    """The paper's stream of growing shift, in batches of 4, and its records."""
    from it3_aero.cars.task import TASK as CARS
    from it3_aero.shapes.options import Evaluate
    from it3_aero.wings.task import TASK as WINGS

    chosen = {"wings": WINGS, "cars": CARS}[task]
    experiment = load(folder, task, chosen.restore)
    test = chosen.test_set(experiment, Evaluate(data=None if data is None else Path(data)))
    levels: Any = {name: (level.x, level.y) for name, level in test.levels.items()}
    for one in experiment.networks:
        model, adapter = one.model, one.adapter
        methods = {
            "source": Source(model, adapter),
            "before": OnlineIT3(model, adapter, **PAPER),
            "now": OnlineIT3(model, adapter),
            "now, gate of validation": online_it3(one),
        }
        evaluate(methods, levels, adapter.error, batch_sizes=[4], seed=one.seed, once=["source"],
                 in_distribution=test.in_distribution, streams=[*methods][1:], progress=False,
                 path=DOCS / f"streams-{task}.jsonl")  # fmt: skip
    return {}
