"""What adaptation of a road network costs: in forward passes, and in memory for a whole image.

    nox -s bench -- roads [SECONDS]

The first table is process time on four tiles of 256 × 256 pixels, as multiples of a plain pass; the
second the peak of a process of its own that maps an image of 1500 × 1500 pixels.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from timing import cpu_seconds, peak_mb

from it3_core import IT3, Activations, ActMAD, AnswerStep, Source
from it3_core.batching import Ragged
from it3_core.experiment.tables import markdown_table
from it3_core.methods.batch_statistics import BatchStatistics
from it3_vision.roads.adapter import RoadMap
from it3_vision.roads.lines import CHEAP
from it3_vision.roads.network import DRUNet, DRUSettings, Pixels, build
from it3_vision.roads.tiling import Tiled

SIDE = 1500  # of the image that is mapped


def network() -> DRUNet:
    torch.manual_seed(0)
    return build(DRUSettings("small")).eval()


def methods(model: DRUNet, x: torch.Tensor) -> dict[str, Any]:
    adapter = RoadMap()
    watched = [name for name, layer in model.named_modules() if isinstance(layer, Pixels)]
    activations = Activations.collect(model, adapter, [x[:2]], watched)
    return {
        "source": Source(model, adapter),
        "second pass": AnswerStep(model, adapter, alpha=1.0),
        "batch statistics": BatchStatistics(model, adapter),
        "ActMAD": ActMAD(model, adapter, activations),
        "IT³": IT3(model, adapter),
        "IT³, gradient through F": IT3(model, adapter, anchor_gradient=True, trust_region=False),
        "IT³, cheap": IT3(model, adapter, parameters=CHEAP),
    }


def costs(seconds: float) -> None:
    """Prints CPU time in units of a plain pass."""
    model, x = network(), torch.randn(4, 4, 256, 256)
    x[:, 3] = 1
    x = x.contiguous(memory_format=torch.channels_last)
    times = cpu_seconds({name: partial(run, x) for name, run in methods(model, x).items()}, seconds)
    print(f"one pass over four tiles: {times['source']:.2f} s\n")
    lines = [[name, f"{spent / times['source']:.1f}"] for name, spent in times.items()]
    print(markdown_table([["method", "passes"], *lines]))


def memory(name: str) -> str:
    """Maps one image and gives the peak of this process."""
    torch.set_num_threads(1)
    model = network()
    before = peak_mb()
    image = torch.randn(4, SIDE, SIDE)
    image[3] = 1
    Tiled(methods(model, torch.ones(2, 4, 64, 64))[name])(Ragged([image]))
    return f"{name:28} {peak_mb():6.0f} MB, of which {before:.0f} before the image"


def main(seconds: float = 60) -> None:
    torch.set_num_threads(1)
    costs(seconds)
    print(f"\npeak memory for one image of {SIDE} × {SIDE} pixels:")
    for name in ("source", "IT³", "IT³, cheap"):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            print(process.submit(memory, name).result())


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
