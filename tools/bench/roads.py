"""What adaptation of a road network costs: in forward passes, and in memory for a whole image.

    nox -s bench -- roads

The first table is process time on four tiles of 256 × 256 pixels, as multiples of a plain pass; the
second the peak of a process of its own that maps an image of 1500 × 1500 pixels.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from it3_core import IT3, Activations, ActMAD, AnswerStep, Source
from it3_vision.methods import BatchNormStats
from it3_vision.roads.adapter import RoadMap
from it3_vision.roads.network import DRUNet, DRUSettings, Pixels, build
from it3_vision.roads.shifting import CHEAP
from it3_vision.roads.tiling import answer


def network() -> DRUNet:
    """Small, with first weights: what it says does not matter here."""
    torch.manual_seed(0)
    return build(DRUSettings("small")).eval()


def methods(model: DRUNet, x: torch.Tensor) -> dict[str, Any]:
    """The lines of the table."""
    adapter = RoadMap()
    watched = [name for name, layer in model.named_modules() if isinstance(layer, Pixels)]
    known = Activations.collect(model, adapter, [x[:2]], watched)
    paper: dict[str, Any] = {"anchor_gradient": True, "trust_region": False}
    return {
        "source": Source(model, adapter),
        "second pass": AnswerStep(model, adapter, alpha=1.0),
        "batch statistics": BatchNormStats(model, adapter),
        "ActMAD": ActMAD(model, adapter, known),
        "IT³": IT3(model, adapter),
        "IT³, gradient through F": IT3(model, adapter, **paper),
        "IT³, cheap": IT3(model, adapter, parameters=CHEAP),
    }


def costs(rounds: int) -> None:
    """Prints process time in units of a plain pass, methods taken in turn."""
    model, x = network(), torch.randn(4, 4, 256, 256)
    x[:, 3] = 1
    x = x.contiguous(memory_format=torch.channels_last)
    compared = methods(model, x)
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    for turn in range(rounds + 1):
        for name, method in compared.items():
            start = time.process_time()
            method(x)
            if turn:  # the first is to warm up
                seconds[name].append(time.process_time() - start)
    base = statistics.median(seconds["source"])
    print(f"one pass over four tiles: {base:.2f} s\n")
    for name, values in seconds.items():
        print(f"{name:28} {statistics.median(values) / base:5.1f}")


def memory(name: str, side: int) -> None:
    """Maps one image and prints the peak of this process."""
    model = network()
    before = peak()
    image = torch.randn(4, side, side)
    image[3] = 1
    answer(methods(model, torch.ones(2, 4, 64, 64))[name], [image])
    print(f"{name:28} {peak():6.0f} MB, of which {before:.0f} before the image")


def peak() -> float:
    """The most memory that this process has had, in MB; Linux knows."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default=None, help="this method alone, in this process")
    parser.add_argument("--side", type=int, default=1500)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.memory is not None:
        memory(asked.memory, asked.side)
        return
    costs(asked.rounds)
    print(f"\npeak memory for one image of {asked.side} × {asked.side} pixels:")
    for name in ("source", "IT³", "IT³, cheap"):
        line = [sys.executable, __file__, "--memory", name, "--side", str(asked.side)]
        subprocess.run(line, check=True)


if __name__ == "__main__":
    main()
