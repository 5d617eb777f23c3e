"""What methods on images cost: CPU time and peak memory of a DLA, in units of the plain network.

Run by `nox -s bench -- vision`. One thread, CPU time, everything taken in turns in one run: the
machines are noisy, the ratios less so. Memory is the peak of all tensors with the weights, exact;
its unit is given twice: a forward pass without and with what a backward pass would need. The
latter is the paper's base, going by its own figures.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from it3_core import IT3, Activations, ActMAD, AnswerStep, Classification, OnlineIT3, Source
from it3_core.memory import peak_memory
from it3_core.norms import has_batch_norm
from it3_core.tables import markdown_table
from it3_vision.augmix import AugMix
from it3_vision.methods import ETA, MEMO, TTT, BatchNormStats, Tent
from it3_vision.networks import NetworkSettings, Normalisation, bare, build


def methods(model: Any, adapter: Classification, size: int) -> dict[str, Callable[[Tensor], Any]]:
    """Every method, with the settings of the tables."""
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)]
    known = Activations.collect(model, adapter, [torch.randn(64, 3, 32, 32)], layers)
    step = partial(IT3, model, adapter, lr=1e-4)
    found: dict[str, Callable[[Tensor], Any]] = {
        "source": Source(model, adapter),
        "second pass": AnswerStep(model, adapter),
        "IT³, cheap mode": step(parameters="above"),
        "IT³, cheap mode, SGD": step(parameters="above", optimizer="SGD"),
        "IT³, anchor detached": step(),
        "IT³, paper's mode": step(anchor_gradient=True),
        "online IT³, paper's mode": OnlineIT3(model, adapter, lr=1e-4, anchor_gradient=True),
        "ActMAD": ActMAD(model, adapter, known),
        "Tent": Tent(model, adapter),
        "ETA": ETA(model, adapter),
    }
    if has_batch_norm(model):
        found["BatchNormStats"] = BatchNormStats(model, adapter, prior=16)
        found["IT³, paper's mode, batch statistics"] = step(anchor_gradient=True, norm="batch")
    if size == 1:
        found["MEMO, 16 copies"] = MEMO(model, adapter, AugMix((0.5,) * 3, (0.25,) * 3), copies=16)
        found["TTT, 4 rotations"] = TTT(model, adapter)
    return found


def cpu_seconds(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median CPU time of each run, taken in turns for so many seconds, five times at least."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # warm up: the first optimiser of a process takes seconds
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(spent.values()))) < 5:
        for name, run in runs.items():
            start = time.process_time()
            run()
            spent[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in spent.items()}


def measure(norm: Normalisation, size: int, seconds: float) -> list[list[str]]:
    """One table: a line a method."""
    torch.manual_seed(0)
    adapter, x = Classification(10), torch.randn(size, 3, 32, 32)
    settings = NetworkSettings(norm=norm)
    plain = bare(settings, 10).eval()
    model = build(settings, adapter, rotation=True).eval()
    assert model.embed is not None
    nn.init.normal_(model.embed.weight, std=0.1)  # type: ignore[arg-type]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())

    def forward() -> Tensor:
        with torch.no_grad():
            return plain(x)  # type: ignore[no-any-return]

    compared = methods(model, adapter, size)
    runs: dict[str, Callable[[], Any]] = {"forward": forward}
    runs |= {name: partial(method, x) for name, method in compared.items()}
    times = cpu_seconds(runs, seconds)
    peaks = {name: weights + peak_memory(run) for name, run in runs.items()}
    graph = weights + peak_memory(partial(plain, x))
    lines = [["method", "forwards", "ms", "memory / forward", "memory / forward with graph"]]
    for name in compared:
        ratio, peak = times[name] / times["forward"], peaks[name]
        spent = f"{1e3 * times[name]:.1f}"
        shares = [f"{peak / peaks['forward']:.2f}", f"{peak / graph:.2f}"]
        lines.append([name, f"{ratio:.2f}", spent, *shares])
    return lines


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20, help="for each table [20]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for norm in ("batch", "group"):
        for size in (64, 1):
            kind: Normalisation = "batch" if norm == "batch" else "group"
            print(f"\nDLA small, {norm} norm, batches of {size}\n")
            print(markdown_table(measure(kind, size, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
