"""What adapting a wing network costs, as a multiple of a plain answer to the same batch.

    python tools/bench/wings_cost.py [--preset small] [--repeat 15]

Methods take turns, so that a busy machine slows all of them alike; the figure is the median over
the turns of the ratio of CPU times. Weights are random: the cost does not depend on them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from it3_aero.wings import naca4, to_graph
from it3_aero.wings.network import build
from it3_aero.wings.shapes import outlines
from it3_aero.wings.task import PRESETS
from it3_core import IT3, Activations, ActMAD, AnswerStep, OnlineIT3, Regression, Source
from it3_core.tables import markdown_table


def shapes(number: int) -> Tensor:
    """So many outlines, no two alike."""
    made = [
        to_graph(naca4(0.01 + 0.04 * i / number, 0.4, 0.08 + 0.1 * i / number))
        for i in range(number)
    ]
    return outlines(made)


def costs(
    methods: Mapping[str, Callable[[Tensor], object]], x: Tensor, repeat: int
) -> dict[str, float]:
    """Median ratio of CPU time to the first method's, turn by turn."""
    for method in methods.values():
        for _ in range(2):
            method(x)
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeat):
        seconds = {}
        for name, method in methods.items():
            start = time.process_time()
            for _ in range(max(1, 16 // len(x))):
                method(x)
            seconds[name] = time.process_time() - start
        plain = seconds[next(iter(methods))]
        for name, spent in seconds.items():
            ratios[name].append(spent / plain)
    return {name: statistics.median(values) for name, values in ratios.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=list(PRESETS), default="small")
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    adapter = Regression(30.0, 15.0)
    model = build(PRESETS[options.preset].network, adapter)
    assert model.embed is not None
    torch.nn.init.normal_(model.embed.weight, std=0.1)  # type: ignore[arg-type]
    watched = ["model.trunk", "model.head.1", "model.head.3"]
    watched += [f"model.trunk.taps.{i}" for i in range(5)]
    known = Activations.collect(model, adapter, [shapes(32)], watched)
    methods: dict[str, Callable[[Tensor], object]] = {
        "source": Source(model, adapter),
        "second pass": AnswerStep(model, adapter),
        "ActMAD": ActMAD(model, adapter, known),
        "IT³ paper": IT3(model, adapter, anchor_gradient=True, trust_region=False),
        "IT³ cheap": IT3(model, adapter, parameters="above"),
        "online IT³": OnlineIT3(model, adapter, anchor_gradient=True),
    }
    columns = {f"batch {size}": costs(methods, shapes(size), options.repeat) for size in (1, 4, 16)}
    alone: dict[str, Callable[[Tensor], object]] = {
        "source": Source(model, adapter),
        "IT³ paper": IT3(model, adapter, anchor_gradient=True, per_instance=True),
        "IT³ cheap": IT3(model, adapter, parameters="above", per_instance=True),
    }
    columns["32 shapes, each alone"] = costs(alone, shapes(32), options.repeat)
    lines = [["method", *columns]]
    for name in methods:
        found = [column.get(name) for column in columns.values()]
        lines.append([name, *("" if cost is None else f"{cost:.1f}" for cost in found)])
    print(markdown_table(lines))


if __name__ == "__main__":
    main()
