"""What adapting a wing network costs: CPU time as a multiple of a plain prediction.

    python tools/bench/wings.py [SECONDS]

Of the same batch, on random weights of the size small; 10 seconds for each column by default.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from timing import cpu_seconds
from torch import Tensor

from it3_aero.shapes.graph_net import build
from it3_aero.wings import naca4, to_graph
from it3_aero.wings.graph import OutlineTrunk, outlines
from it3_aero.wings.task import OURS
from it3_core import IT3, Activations, ActMAD, AnswerStep, OnlineIT3, Regression, Source, paper_it3
from it3_core.experiment.tables import fixed, markdown_table


def shapes(number: int) -> Tensor:
    """So many outlines, no two alike."""
    steps = [i / number for i in range(number)]
    return outlines([to_graph(naca4(0.01 + 0.04 * i, 0.4, 0.08 + 0.1 * i)) for i in steps])


def main(seconds: float = 10) -> None:
    """Print a line a method, a column a batch size."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    adapter = Regression(30.0, 15.0)
    model = build(OutlineTrunk, OURS["small"].network, adapter)
    assert model.embed is not None
    torch.nn.init.normal_(model.embed.weight, std=0.1)  # type: ignore[arg-type]
    watched = ["model.trunk", "model.head.1", "model.head.3"]
    watched += [f"model.trunk.taps.{i}" for i in range(5)]
    known = Activations.collect(model, adapter, [shapes(32)], watched)
    step = partial(IT3, model, adapter)
    methods: dict[str, Any] = {
        "source": Source(model, adapter),
        "second pass": AnswerStep(model, adapter),
        "ActMAD": ActMAD(model, adapter, known),
        "IT³ (paper)": paper_it3(model, adapter, steps=1, lr=2e-4),
        "IT³ cheap": step(parameters="above"),
        "online IT³": OnlineIT3(model, adapter, anchor_gradient=True),
    }
    alone: dict[str, Any] = {
        "source": methods["source"],
        "IT³, gradient through F": step(anchor_gradient=True, per_instance=True),
        "IT³ cheap": step(parameters="above", per_instance=True),
    }
    columns = {}
    for title, compared, size in (*((f"batch {n}", methods, n) for n in (1, 4, 16)),
                                  ("32 shapes, each alone", alone, 32)):  # fmt: skip
        x = shapes(size)
        times = cpu_seconds({name: partial(run, x) for name, run in compared.items()}, seconds)
        columns[title] = {name: spent / times["source"] for name, spent in times.items()}
    lines = [[name, *(fixed(found.get(name)) for found in columns.values())] for name in methods]
    print(markdown_table([["method", *columns], *lines]))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
