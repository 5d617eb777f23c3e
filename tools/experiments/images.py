"""Which batches to adapt, and what a step adds to batch statistics: tried on training images.

    python tools/experiments/images.py RUN cifar10/train.tar.gz --images 2048

where it3-vision is installed; RUN is a classifier with batch norm that `it3-vision classify train`
made of these images. Held-out training images are looked at, as they are and under the benchmark's
four extra corruptions; no test image is. docs/experiments.md tells what came of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from it3_core import IT3, Drift, Gate, IT3Error, Method, OnlineIT3, Source
from it3_core.bootstrap import bootstrap_interval
from it3_core.judging import IDEMPOTENCE
from it3_core.norms import has_batch_norm
from it3_core.rivals import Entropy, Score
from it3_core.tables import markdown_table
from it3_vision.classify.runs import Run, load_run
from it3_vision.corruptions import EXTRA, benchmark_for, corrupt_all
from it3_vision.data import open_images
from it3_vision.methods import Tent
from it3_vision.training import parts

CLEAN = "clean"
SIZES = (1, 4, 16, 64)


def inputs(run: Run, data: str, images: int) -> tuple[dict[str, Tensor], Tensor]:
    """Held-out images by what was done to them, and their classes."""
    held_out, _ = parts(open_images(data), run.seed)
    some, _ = held_out.sample(min(images, len(held_out)), 1).load(run.prepare.size)
    pixels, kind = some.batch(slice(None), run.prepare.size), benchmark_for(run.prepare.size)
    levels = {CLEAN: run.tensor(pixels)}
    for name in EXTRA:
        levels[name] = run.tensor(corrupt_all(pixels, name, 5, benchmark=kind, seed=1))
    return levels, torch.from_numpy(some.labels)


def opened(run: Run, levels: Mapping[str, Tensor]) -> list[list[str]]:
    """For how many batches a gate opens, by what it looks at and their size.

    Half of the clean images is what the gate takes for usual; the others are asked about.
    """
    source, entropy = Source(run.model, run.adapter), Entropy(run.model, run.adapter)
    drift = Drift(run.model, run.adapter)
    of_each: dict[str, Score] = {
        IDEMPOTENCE: lambda x: source(x).error_before,
        "entropy": entropy,
        "drift": lambda x: drift(x).each,
    }
    of_batch: dict[str, Score] = {**of_each, "drift": lambda x: drift(x).drift}
    half = len(levels[CLEAN]) // 2
    lines = [["a gate on the", "batch", *levels]]
    for name, score in of_batch.items():
        usual = torch.split(levels[CLEAN][:half], 64)
        gate = Gate.fit(torch.cat([of_each[name](part) for part in usual]))
        for size in SIZES:
            cells = []
            for x in levels.values():
                batches = [part for part in torch.split(x[half:], size) if len(part) == size]
                cells.append(
                    f"{sum(gate.opens(score(part)) for part in batches) / len(batches):.0%}"
                )
            lines.append([name, str(size), *cells])
    return lines


def steps(run: Run) -> dict[str, Callable[[], Method]]:
    """What is tried on top of the batch's statistics; the first is these alone."""
    model, adapter = run.model, run.adapter
    made: dict[str, Callable[[], Method]] = {
        "batch statistics": lambda: Source(model, adapter, norm="batch"),
        "Tent": lambda: Tent(model, adapter, norm="batch"),
    }
    for lr in (1e-4, 1e-3, 2e-3):
        made[f"online IT³, norms alone, {lr:g}"] = lambda lr=lr: OnlineIT3(  # type: ignore[misc]
            model, adapter, parameters="norms", norm="batch", lr=lr
        )
    made["online IT³, norms alone, 0.001, gradient through F"] = lambda: OnlineIT3(
        model, adapter, parameters="norms", norm="batch", lr=1e-3, anchor_gradient=True
    )
    made["IT³, norms alone, 0.001"] = lambda: IT3(
        model, adapter, parameters="norms", norm="batch", lr=1e-3
    )
    return made


def compared(run: Run, levels: Mapping[str, Tensor], labels: Tensor) -> list[list[str]]:
    """Error in per cent, batches of 64, and the paired difference to statistics alone."""
    lines = [["method", *levels, "against batch statistics, corrupted"]]
    first: Tensor | None = None
    for name, make in steps(run).items():
        wrong = {level: _wrong(make(), x, labels) for level, x in levels.items()}
        shifted = torch.stack([wrong[level] for level in wrong if level != CLEAN]).mean(0)
        told = ""
        if first is None:
            first = shifted
        else:
            change = 100 * (shifted - first)
            low, high = bootstrap_interval([change]) or (float("nan"), float("nan"))
            told = f"{float(change.mean()):+.2f} ({low:+.2f} to {high:+.2f})"
        lines.append([name, *(f"{100 * float(w.mean()):.1f}" for w in wrong.values()), told])
    return lines


def _wrong(method: Method, x: Tensor, labels: Tensor) -> Tensor:
    pairs = zip(torch.split(x, 64), torch.split(labels, 64), strict=True)
    return torch.cat([(method(part).prediction.argmax(1) != y).double() for part, y in pairs])


def main() -> int:
    """Print both tables; what the user can mend ends with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="The folder that classify train made.")
    parser.add_argument("data", help="The images that it was trained on.")
    parser.add_argument("--images", type=int, default=2048, help="Held-out images to look at.")
    asked = parser.parse_args()
    try:
        run = load_run(asked.run)
        if not has_batch_norm(run.model):
            raise IT3Error(f"{asked.run} has no batch norm, whose statistics this is about")
        levels, labels = inputs(run, asked.data, asked.images)
        print(markdown_table(opened(run, levels)), flush=True)
        print(f"\n{markdown_table(compared(run, levels, labels))}")
    except IT3Error as problem:
        print(f"images: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
