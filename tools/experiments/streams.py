"""Streams of training images: what keeps an online one from drifting, and what to remember.

    python tools/experiments/streams.py RUN mnist --split train --images 256
    python tools/experiments/streams.py RUN tiny-imagenet-50/train.tar.gz --few 4

where it3-vision is installed; RUN is a classifier that `it3-vision classify train` made of these
images. One stream of held-out training images, in batches of 64: as they are, under the
benchmark's four extra corruptions one after the other (each repeated until a tenth of the right
answers is lost), and as they are again. With `--few`, statistics of few images at a time, of the
batch and of the stream: in that stream, and where every other batch is corrupted. No test image is
looked at. docs/experiments.md tells what came of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from it3_core import IT3Error, Marginal, Method, OnlineIT3, Source
from it3_core.bootstrap import bootstrap_interval
from it3_core.norms import has_batch_norm
from it3_core.progress import Progress
from it3_core.tables import markdown_table
from it3_vision.classify.runs import Run, load_run
from it3_vision.data import open_images
from it3_vision.training import mean_error, parts
from it3_vision.trials import trials

SIZE = 64
CLEAN = "clean"
AGAIN = "clean again"


def inputs(run: Run, data: str, images: int, split: str | None) -> tuple[dict[str, Tensor], Tensor]:
    """Held-out images by what was done to them, and their classes."""
    held_out, _ = parts(open_images(data, split=split), run.seed)
    wrong = partial(mean_error, run.model, run.adapter)
    (trial,) = trials(held_out, run.prepare, {SIZE: images}, 1, 5, wrong)
    shifted = {name: shift(trial.x) for name, shift in trial.shifts.items()}
    return {CLEAN: trial.x, **shifted}, trial.y


def methods(run: Run, labels: Tensor) -> dict[str, Callable[[], Method]]:
    """What is compared; on the batch's statistics, where there is batch norm."""
    norm = "batch" if has_batch_norm(run.model) else "source"
    mix = Marginal(run.adapter, labels)

    def online(**settings: object) -> Callable[[], Method]:
        told = {"norm": norm, "anchor_gradient": True, "trust_region": False, **settings}
        return lambda: OnlineIT3(run.model, run.adapter, **told)  # type: ignore[arg-type]

    made: dict[str, Callable[[], Method]] = {"source": lambda: Source(run.model, run.adapter)}
    if norm == "batch":
        made["batch statistics"] = lambda: Source(run.model, run.adapter, norm="batch")
    for lr in (1e-4, 1e-3):
        made[f"online IT³, {lr:g}"] = online(lr=lr)
        made[f"{lr:g}, no further than y1"] = online(lr=lr, trust_region=True)
        made[f"{lr:g}, anew every 4"] = online(lr=lr, reset_every=4)
        made[f"{lr:g}, anew where the gap is 1.5 times as large"] = online(lr=lr, reset_above=1.5)
        made[f"{lr:g}, mix held"] = online(lr=lr, marginal=mix)
        made[f"{lr:g}, mix held, anew every 4"] = online(lr=lr, marginal=mix, reset_every=4)
    return made


def wrong(
    method: Method, levels: Mapping[str, Tensor], labels: Tensor, size: int = SIZE
) -> dict[str, Tensor]:
    """Which answers are wrong, level by level, in one stream."""
    found = {}
    for level, x in {**levels, AGAIN: levels[CLEAN]}.items():
        pairs = zip(torch.split(x, size), torch.split(labels, size), strict=True)
        found[level] = torch.cat(
            [(method(part).prediction.argmax(1) != y).double() for part, y in pairs]
        )
    return found


def table(run: Run, levels: Mapping[str, Tensor], labels: Tensor) -> list[list[str]]:
    """Error in per cent, and the paired difference to the source; half of the classes beside."""
    half = labels < run.adapter.classes // 2
    some = {level: x[half] for level, x in levels.items()}
    lines = [["method", *levels, AGAIN, "corrupted", "corrupted, half of the classes"]]
    first: list[Tensor] = []
    made = methods(run, labels)
    bar = Progress(len(made), "stream")
    for done, (name, make) in enumerate(made.items()):
        bar.show(done, name)
        whole = wrong(make(), levels, labels)
        shares = [whole, wrong(make(), some, labels[half])]
        means = [torch.stack([one[k] for k in levels if k != CLEAN]).mean(0) for one in shares]
        first = first or means
        cells = [f"{100 * float(errors.mean()):.1f}" for errors in whole.values()]
        for mean, base in zip(means, first, strict=True):
            change = 100 * (mean - base)
            low, high = bootstrap_interval([change]) or (float("nan"), float("nan"))
            told = (
                "" if mean is base else f" {float(change.mean()):+.1f} ({low:+.1f} to {high:+.1f})"
            )
            cells.append(f"{100 * float(mean.mean()):.1f}{told}")
        lines.append([name, *cells])
    bar.close()
    return lines


def alternating(
    method: Method, levels: Mapping[str, Tensor], labels: Tensor, size: int
) -> tuple[float, float]:
    """Per cent of wrong answers to clean and to corrupted images, a batch of either in turn."""
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for name in levels:
        if name == CLEAN:
            continue
        method.reset()
        parts = (torch.split(part, size) for part in (levels[CLEAN], levels[name], labels))
        for clean, corrupted, y in zip(*parts, strict=True):
            for kept, x in zip(found, (clean, corrupted), strict=True):
                kept.append((method(x).prediction.argmax(1) != y).double())
    one, other = (100 * float(torch.cat(kept).mean()) for kept in found)
    return one, other


def statistics(
    run: Run, levels: Mapping[str, Tensor], labels: Tensor, size: int
) -> list[list[str]]:
    """Error in per cent: of a few images' own statistics, and of what the default takes."""
    made: dict[str, Method] = {
        "source": Source(run.model, run.adapter),
        "blended, of the batch": Source(run.model, run.adapter, norm=size / (size + 16)),
        f"auto: {run.tuning(size).chosen!r}": run.method(size),
    }
    lines = [["method", *levels, AGAIN, "in turn: clean", "in turn: corrupted"]]
    for name, method in made.items():
        whole = wrong(method, levels, labels, size)
        cells = [100 * float(errors.mean()) for errors in whole.values()]
        cells += alternating(method, levels, labels, size)
        lines.append([name, *(f"{cell:.1f}" for cell in cells)])
    return lines


def main() -> int:
    """Print the table; what the user can mend ends with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="The folder that classify train made.")
    parser.add_argument("data", help="The images that it was trained on.")
    parser.add_argument("--split", help="Of the images: train, where there are several.")
    parser.add_argument("--images", type=int, default=512, help="Held-out images to look at.")
    parser.add_argument("--few", type=int, help="Statistics of so many images at a time.")
    asked = parser.parse_args()
    try:
        run = load_run(asked.run)
        levels, labels = inputs(run, asked.data, asked.images, asked.split)
        if asked.few is None:
            print(markdown_table(table(run, levels, labels)))
        elif not has_batch_norm(run.model):
            raise IT3Error(f"{asked.run} has no batch norm, whose statistics this is about")
        else:
            print(markdown_table(statistics(run, levels, labels, asked.few)))
    except IT3Error as problem:
        print(f"streams: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
