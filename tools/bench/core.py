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
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from it3_core import (
    IT3,
    Adapter,
    AnswerStep,
    Classification,
    Method,
    Regression,
    Source,
    condition,
)


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


class SmallResNet(nn.Module):
    """A ResNet-like classifier for 32×32 images with about 0.3 million parameters."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        self.layer1 = nn.Sequential(Residual(16, 16, 1), Residual(16, 16, 1))
        self.layer2 = nn.Sequential(Residual(16, 32, 2), Residual(32, 32, 1))
        self.layer3 = nn.Sequential(Residual(32, 64, 2), Residual(64, 64, 1), Residual(64, 64, 1))
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x).relu())))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def mlp() -> nn.Module:
    """The paper's tabular network on Boston Housing's 13 columns."""
    widths = [13, 30, 20, 10]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


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


def cpu_seconds(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median CPU time of each run, in blocks of about 20 ms taken in turns for `seconds` in all."""
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


def trained(net: nn.Module, adapter: Adapter, layer: str) -> nn.Module:
    """A conditioned network that listens to its signal; its values don't matter for the time."""
    model = condition(net, adapter, layer)
    assert model.embed is not None
    for parameter in model.embed.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model.eval()


def compare(title: str, net: nn.Module, adapter: Adapter, layer: str, x: Tensor, seconds: float,
            rows: list[list[str]]) -> None:  # fmt: skip
    """One network at one batch size: every mode, and torch-ttt, in forwards."""
    model = trained(net.eval(), adapter, layer)
    method = partial(IT3, model, adapter, lr=1e-4)
    runs: dict[str, Callable[[], Any]] = {}

    def forward() -> Tensor:
        with torch.no_grad():
            output: Tensor = net(x)
            return output

    runs["forward"] = forward
    methods: dict[str, Method] = {
        "Source": Source(model, adapter),
        "second pass": AnswerStep(model, adapter),
        "IT3, paper's mode": method(anchor_gradient=True),
        "IT3, anchor detached": method(),
        "IT3, cheap mode": method(parameters="above"),
        "IT3, cheap mode, SGD": method(parameters="above", optimizer="SGD"),
    }
    runs |= {name: partial(built, x) for name, built in methods.items()}
    peer = torch_ttt_engine(net, layer)
    if peer is not None:
        runs["torch-ttt 0.0.2"] = partial(peer, x)
    times = cpu_seconds(runs, seconds)
    unit = times.pop("forward")
    for name, spent in times.items():
        rows.append([title, str(len(x)), name, f"{spent / unit:.2f}", f"{spent * 1e3:.2f}"])


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
    peer = torch_ttt_engine(mlp().eval(), "2")
    if peer is not None:
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


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="time for each network and batch")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[list[str]] = []
    for size in (1, 64):
        compare("MLP", mlp(), Regression(), "2", torch.randn(size, 13), arguments.seconds, rows)
    net = SmallResNet()
    count = sum(parameter.numel() for parameter in net.parameters())
    for size in (1, 64):
        x = torch.randn(size, 3, 32, 32)
        compare("CNN", net, Classification(10), "layer2", x, arguments.seconds, rows)
    print(f"\ntorch {torch.__version__}, one thread; the CNN has {count / 1e6:.2f} M parameters\n")
    print(table(["network", "batch", "method", "forwards", "CPU ms"], rows))
    print("\nEvery row of 256 adapts on its own (MLP 13-30-20-10-1, one step):\n")
    print(table(["method", "rows per CPU-second", "against torch-ttt"],
                per_instance(256, arguments.seconds)))  # fmt: skip


if __name__ == "__main__":
    main()
