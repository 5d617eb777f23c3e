"""What a step costs: it3-core beside torch-ttt 0.0.2, in multiples of a plain forward pass.

Run by `nox -s bench`. The unit is the plain network, before it was given a signal. One thread, CPU
time, and everything taken in turns in one run: the machines are noisy, the ratios less so. Both
libraries adapt the same network, with the signal at the same layer, for one step of Adam; torch-ttt
adapts all of the network's weights and has no frozen F.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import types
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from it3_core import (
    IT3,
    Adapter,
    AnswerStep,
    Classification,
    Regression,
    Source,
    condition,
    paper_it3,
)
from it3_core.experiment.tables import markdown_table


class Residual(nn.Module):
    """Two 3×3 convolutions with batch norm and a skip."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm1(self.conv1(x)).relu()
        output: Tensor = (self.norm2(self.conv2(hidden)) + self.skip(x)).relu()
        return output


def small_resnet() -> nn.Module:
    """A ResNet-like classifier for 32×32 images with about 0.3 million parameters."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    net.add_module("layer1", nn.Sequential(Residual(16, 16, 1), Residual(16, 16, 1)))
    net.add_module("layer2", nn.Sequential(Residual(16, 32, 2), Residual(32, 32, 1)))
    deep = Residual(32, 64, 2), Residual(64, 64, 1), Residual(64, 64, 1)
    return net.extend([*deep, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)])


def mlp() -> nn.Module:
    """The paper's tabular network on Boston Housing's 13 columns."""
    hidden = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise([13, 30, 20, 10])]
    return nn.Sequential(*chain.from_iterable(hidden), nn.Linear(10, 1))


def torch_ttt_engine(net: nn.Module, layer: str) -> Callable[[Tensor], Any] | None:
    """torch-ttt's IT³ on the same network, or None where it is not installed."""
    # It imports torchvision for image augmentations, without declaring it and without need here.
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules.setdefault(name, types.ModuleType(name))
    try:
        from torch_ttt.engine.it3_engine import IT3Engine
    except ImportError as problem:
        print(f"torch-ttt is not here ({problem}); its column is empty", file=sys.stderr)
        return None
    engine = IT3Engine(net, layer, optimization_parameters={"lr": 1e-4, "num_steps": 1})
    run: Callable[[Tensor], Any] = engine.eval()
    return run


def trained(net: nn.Module, adapter: Adapter, layer: str) -> nn.Module:
    """A conditioned network that listens to its signal; its values don't matter for the time."""
    model = condition(net, adapter, layer)
    assert model.embed is not None
    for parameter in model.embed.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model.eval()


def cpu_seconds(runs: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median CPU time of each run, in blocks of about 20 ms taken in turns for `seconds` in all.

    Machines are noisy, ratios of what was taken in turns less so. Five turns at least.
    """
    repeats = {}
    for name, run in runs.items():
        run()  # warm up: the first optimiser of a process takes seconds
        start = time.process_time()
        run()
        repeats[name] = max(1, int(0.02 / max(time.process_time() - start, 1e-5)))
    spent: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(spent.values()))) < 5:
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                run()
            spent[name].append((time.process_time() - start) / repeats[name])
    return {name: statistics.median(times) for name, times in spent.items()}


def compare(
    title: str, net: nn.Module, adapter: Adapter, layer: str, x: Tensor, seconds: float
) -> list[list[str]]:
    """One network at one batch size: every mode, and torch-ttt, in forwards."""
    model = trained(net.eval(), adapter, layer)
    method = partial(IT3, model, adapter, lr=1e-4)
    methods: dict[str, Callable[[Tensor], Any]] = {
        "forward": torch.no_grad()(net.forward),
        "Source": Source(model, adapter),
        "second pass": AnswerStep(model, adapter),
        "IT3 (paper)": paper_it3(model, adapter, steps=1, lr=1e-4),
        "IT3, anchor detached": method(),
        "IT3, cheap mode": method(parameters="above"),
        "IT3, cheap mode, SGD": method(parameters="above", optimizer="SGD"),
    }
    if (peer := torch_ttt_engine(net, layer)) is not None:
        methods["torch-ttt 0.0.2"] = peer
    times = cpu_seconds({name: partial(built, x) for name, built in methods.items()}, seconds)
    unit = times.pop("forward")
    return [
        [title, str(len(x)), name, f"{spent / unit:.2f}", f"{spent * 1e3:.2f}"]
        for name, spent in times.items()
    ]


def per_instance(size: int, seconds: float) -> list[list[str]]:
    """Rows per CPU-second where every row adapts on its own."""
    torch.manual_seed(0)
    adapter, x = Regression(), torch.randn(size, 13)
    model = trained(mlp().eval(), adapter, "2")
    runs: dict[str, Callable[[], Any]] = {
        "IT3(per_instance=True)": partial(IT3(model, adapter, lr=1e-4, per_instance=True), x),
        "IT3(per_instance=True), cheap mode": partial(
            IT3(model, adapter, lr=1e-4, per_instance=True, parameters="above"), x
        ),
        "IT3, a loop over 16 rows": partial(_loop, IT3(model, adapter, lr=1e-4), x[:16]),
    }
    if (peer := torch_ttt_engine(mlp().eval(), "2")) is not None:
        runs["torch-ttt 0.0.2, a loop over 16 rows"] = partial(_loop, peer, x[:16])
    times = cpu_seconds(runs, seconds)
    rates = {name: (16 if "16" in name else size) / spent for name, spent in times.items()}
    slowest = rates.get("torch-ttt 0.0.2, a loop over 16 rows")
    return [
        [name, f"{rate:,.0f}", f"{rate / slowest:.0f}×" if slowest else "–"]
        for name, rate in rates.items()
    ]


def _loop(method: Callable[[Tensor], Any], x: Tensor) -> None:
    for row in x:
        method(row[None])


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="time for each network and batch")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows, net = [], small_resnet()
    for size in (1, 64):
        x = torch.randn(size, 13)
        rows += compare("MLP", mlp(), Regression(), "2", x, arguments.seconds)
    for size in (1, 64):
        x = torch.randn(size, 3, 32, 32)
        rows += compare("CNN", net, Classification(10), "layer2", x, arguments.seconds)
    count = sum(parameter.numel() for parameter in net.parameters())
    print(f"\ntorch {torch.__version__}, one thread; the CNN has {count / 1e6:.2f} M parameters\n")
    print(markdown_table([["network", "batch", "method", "forwards", "CPU ms"], *rows]))
    print("\nEvery row of 256 adapts on its own (MLP 13-30-20-10-1, one step):\n")
    head = ["method", "rows per CPU-second", "against torch-ttt"]
    print(markdown_table([head, *per_instance(256, arguments.seconds)]))


if __name__ == "__main__":
    main()
