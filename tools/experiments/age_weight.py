"""How much should the second pass weigh in training a network that says ages?

    python tools/experiments/age_weight.py UTKFACE --weights 1 0.3 0.1 --seeds 3

where it3-vision is installed. Each network is trained without the youngest and the oldest tenth of
the training faces, and judged on these (beyond) and on faces between that it held out (known).
docs/experiments.md tells what came of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from it3_core import AnswerStep, IT3Error, Regression, split_tail, zigzag_loss
from it3_core.batching import batches
from it3_core.tables import markdown_table
from it3_vision.age.faces import read_faces
from it3_vision.age.fitting import TAIL, Fitting, Training
from it3_vision.age.network import FaceSettings
from it3_vision.data import ImageSet
from it3_vision.training import blind_loss, in_memory, parts, preparation

STEPS = (0.0, 1.0, 2.0, 4.0)
"""Answer steps: nothing, one second pass, and further the same way."""


def main() -> int:
    """Print a line for each weight and seed; what the user can mend ends with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="UTKFace: a folder or a tar.")
    parser.add_argument("--weights", type=float, nargs="+", default=[1.0, 0.3, 0.1])
    parser.add_argument("--seeds", type=int, default=1, help="Training seeds.")
    parser.add_argument("--epochs", type=int, default=10)
    asked = parser.parse_args()
    losses: dict[str, Any] = {"0 (vanilla)": blind_loss}
    for weight in asked.weights:
        losses[f"{weight:.2f}"] = partial(zigzag_loss, weight=weight, together=True)
    header = ["weight", "seed"]
    header += [f"{part}, {step:.0f}" for part in ("known", "beyond") for step in STEPS]
    try:
        training = Training(FaceSettings("tiny"), epochs=asked.epochs)
        faces = read_faces(asked.data).images
        images, _ = in_memory(training.seen(faces), training.network.pixels, True)
        lines = [
            line
            for seed in range(asked.seeds)
            for line in _tried(images, replace(training, seed=seed), losses)
        ]
    except IT3Error as problem:
        print(f"age_weight: {problem}", file=sys.stderr)
        return 2
    print(markdown_table([header, *lines]))
    return 0


def _tried(images: ImageSet, training: Training, losses: dict[str, Any]) -> Iterator[list[str]]:
    """For each loss the errors of every step, on known faces and on those beyond."""
    _, rest = parts(images, training.seed)
    prepare = preparation(rest, training.network.pixels, training.normalise, training.seed)
    adapter = Regression.fit(torch.from_numpy(rest.labels))
    inside, beyond = split_tail(torch.from_numpy(rest.labels), TAIL, "both")
    held_out, known = parts(rest.take(inside.numpy()), training.seed)
    fitting = Fitting(training, prepare, adapter, {"device": torch.device("cpu"), "workers": 0})
    for name, loss in losses.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "training.safetensors"
            model, _ = fitting.network(known, held_out, loss, path)
        model.eval()
        line = [name, str(training.seed)]
        for part in (held_out, rest.take(beyond.numpy())):
            x, y = fitting.tensors(part)
            for step in STEPS:
                method = AnswerStep(model, adapter, alpha=step)
                answers = torch.cat([method(some).prediction for some in batches(x, 64)])
                heard = loss is not blind_loss or step == 0
                line.append(f"{float(adapter.error(answers, y).mean()):.2f}" if heard else "")
        print(*line, file=sys.stderr, flush=True)
        yield line


if __name__ == "__main__":
    sys.exit(main())
