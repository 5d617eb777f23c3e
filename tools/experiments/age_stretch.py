"""Does a step on ages know more than "away from the mean"? The control, beside the default.

    python tools/experiments/age_stretch.py UTKFACE RUN [RUN...] --faces 64

where it3-vision is installed; each RUN is of `it3-vision age train UTKFACE --vanilla`, with its
networks without a tail of the ages beside it (where these are missing they are trained, which takes
minutes). A stretch of the first answer is chosen as the default is: by `tune`, on the same held-out
faces and tails. Judged are the faces that were set apart and those of other ages.
docs/experiments.md tells what came of it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from controls import stretches
from torch import Tensor

from it3_core import AnswerStep, Conditioned, IT3Error, Method, Source
from it3_core.batching import batches
from it3_core.bootstrap import bootstrap_interval
from it3_core.candidates import Candidate
from it3_core.tables import markdown_table
from it3_vision.age.choosing import BATCHES, choose
from it3_vision.age.evaluate import Levels
from it3_vision.age.faces import read_faces
from it3_vision.age.fitting import Fitting, Training
from it3_vision.age.runs import HELD_OUT, Run, load_run
from it3_vision.data import ImageSet
from it3_vision.training import in_memory, parts

SIZE = 4
"""Faces at a time, of the default; a stretch looks at each alone."""

FACTORS = (0.8, 0.9, 1.1, 1.2, 1.3, 1.5, 2.0)
"""What is chosen from."""

AUTO, SOURCE, VANILLA = "auto", "source", "vanilla net"


def main() -> int:
    """Print a line for each RUN, and one of all; what the user can mend ends with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="UTKFace: a folder or a tar.")
    parser.add_argument("runs", type=Path, nargs="+", help="Folders that age train made.")
    parser.add_argument("--faces", type=int, default=64, help="Of each level, to judge by.")
    asked = parser.parse_args()
    try:
        faces = read_faces(asked.data).images
        found = []
        for path in asked.runs:
            run = load_run(path)
            stretch = chosen(run, faces)
            found.append(judged(run, faces, stretch, asked.faces))
            print(path, f"{stretch!r}; auto: {run.tuning(SIZE).chosen!r}", flush=True)
    except IT3Error as problem:
        print(f"age_stretch: {problem}", file=sys.stderr)
        return 2
    print(markdown_table(table(found)))
    return 0


def chosen(run: Run, faces: ImageSet) -> Candidate:
    """The stretch that `tune` takes, gated or not, or none."""
    training = Training.from_description(run.settings["training"])
    images, _ = in_memory(training.seen(faces), training.network.pixels, True)
    held_out, rest = parts(images, training.seed, HELD_OUT)
    how = {"device": torch.device("cpu"), "workers": 0}
    tails = Fitting(training, run.prepare, run.adapter, how).tails(rest, run.folder)
    tunings = choose(
        *(cast(Conditioned, run.model), run.adapter, run.prepare, held_out, tails, training.seed),
        sizes={SIZE: BATCHES[SIZE]},
        tried=stretches(*FACTORS),
    )
    return tunings[SIZE].chosen


def judged(run: Run, faces: ImageSet, stretch: Candidate, most: int) -> dict[str, list[Tensor]]:
    """Errors by method: on the known ages, and on those beyond, level after level."""
    if run.vanilla is None:
        raise IT3Error(f"{run.folder} has no vanilla net: train it with --vanilla")
    methods: dict[str, Method] = {
        SOURCE: Source(run.model, run.adapter),
        VANILLA: Source(run.vanilla, run.adapter),
        "source, stretched": stretch.build(run.model, run.adapter),
        "vanilla net, stretched as much": stretch.build(run.vanilla, run.adapter),
        "source, stretched, no gate": replace(stretch, gate=None).build(run.model, run.adapter),
        "second pass": AnswerStep(run.model, run.adapter),
        AUTO: run.method(SIZE),
    }
    levels = Levels.of(run, faces, most=most)
    found: dict[str, list[Tensor]] = {}
    for name, method in methods.items():
        errors = []
        for level in levels.parts:
            method.reset()
            x, y = levels.load(run, level)
            answers = torch.cat([method(part).prediction for part in batches(x, SIZE)])
            errors.append(run.adapter.error(answers, y).double())
        found[name] = [errors[0], torch.cat(errors[1:])]
    return found


def table(found: list[dict[str, list[Tensor]]]) -> list[list[str]]:
    """Mean errors over the RUNs, and by how much the default's differs, in per cent."""
    lines = [["method", "known", "beyond", "auto against it: known", "beyond"]]
    for name in found[0]:
        cells, against = [], []
        for part in (0, 1):
            theirs = [one[name][part] for one in found]
            mean = float(torch.stack(theirs).mean())
            cells.append(f"{mean:.2f}")
            changes = [100 * (one[AUTO][part] - one[name][part]) / mean for one in found]
            low, high = bootstrap_interval(changes) or (float("nan"), float("nan"))
            middle = float(torch.stack(changes).mean())
            against.append("" if name == AUTO else f"{middle:+.1f} ({low:+.1f} to {high:+.1f})")
        lines.append([name, *cells, *against])
    return lines


if __name__ == "__main__":
    sys.exit(main())
