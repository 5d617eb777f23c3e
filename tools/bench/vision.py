"""What methods on images cost: CPU time and peak memory of a DLA, in units of the plain network.

Run by `nox -s bench -- vision`. One thread, CPU time, everything taken in turns in one run: the
machines are noisy, the ratios less so. Memory is the peak of all tensors with the weights, exact;
its unit is given twice: a forward pass without and with what a backward pass would need. The
latter is the paper's base, going by its own figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from timing import cpu_seconds
from torch import Tensor, nn

from it3_core import (
    ETA,
    IT3,
    Activations,
    ActMAD,
    AnswerStep,
    BatchStatistics,
    Classification,
    Source,
    Tent,
    paper_it3,
    paper_online_it3,
)
from it3_core.engine.inner_optimizer import has_batch_norm
from it3_core.evaluation.evaluate import peak_memory
from it3_core.experiment.tables import markdown_table
from it3_vision.augmix import AugMix
from it3_vision.methods import MEMO, TTT
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
        "IT³ (paper)": paper_it3(model, adapter, steps=1, lr=1e-4),
        "online IT³ (paper)": paper_online_it3(model, adapter, steps=1, lr=1e-4),
        "ActMAD": ActMAD(model, adapter, known),
        "Tent": Tent(model, adapter),
        "ETA": ETA(model, adapter),
    }
    if has_batch_norm(model):
        found["batch statistics, blended"] = BatchStatistics(model, adapter, prior=16)
        paper = paper_it3(model, adapter, steps=1, lr=1e-4, norm="batch")
        found["IT³ (paper), batch statistics"] = paper
    if size == 1:
        found["MEMO, 16 copies"] = MEMO(model, adapter, AugMix((0.5,) * 3, (0.25,) * 3), copies=16)
        found["TTT, 4 rotations"] = TTT(model, adapter)
    return found


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

    compared = methods(model, adapter, size)
    runs: dict[str, Callable[[], Any]] = {"forward": partial(torch.no_grad()(plain.forward), x)}
    runs |= {name: partial(method, x) for name, method in compared.items()}
    times = cpu_seconds(runs, seconds)
    peaks = {name: weights + peak_memory(run) for name, run in runs.items()}
    graph = weights + peak_memory(partial(plain, x))
    lines = [["method", "forwards", "ms", "memory / forward", "memory / forward with graph"]]
    for name in compared:
        ratio, memory = times[name] / times["forward"], peaks[name] / peaks["forward"]
        cells = [f"{ratio:.2f}", f"{1e3 * times[name]:.1f}", f"{memory:.2f}"]
        lines.append([name, *cells, f"{peaks[name] / graph:.2f}"])
    return lines


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="for each table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    norms: tuple[Normalisation, ...] = ("batch", "group")
    for norm, size in product(norms, (64, 1)):
        print(f"\nDLA small, {norm} norm, batches of {size}\n")
        print(markdown_table(measure(norm, size, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
