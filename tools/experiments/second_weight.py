"""How much should the second pass weigh in training a graph network?

    python tools/experiments/second_weight.py wings DATA --weights 1 0.333 0.1
    python tools/experiments/second_weight.py cars

where it3-aero is installed; DATA is of `it3-aero wings generate`, and cars are those that come with
the package. Each network is trained as `train` does it, on known shapes alone, and judged on
those that it held out. docs/experiments.md tells what came of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from it3_aero.cars.dataset import SAMPLE, CarDataset
from it3_aero.cars.task import CARS
from it3_aero.learning.fitting import fit_network, hold_out
from it3_aero.learning.job import levels_of, threshold_of
from it3_aero.learning.model import Training
from it3_aero.learning.network import zigzag
from it3_aero.learning.task import Task
from it3_aero.wings import WingDataset
from it3_aero.wings.task import WINGS
from it3_core import AnswerStep, IT3Error, Regression, sensitivity, zigzag_loss
from it3_core.tables import markdown_table


def main() -> int:
    """Print a line for each weight and seed; what the user can mend ends with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["wings", "cars"])
    parser.add_argument("data", type=Path, nargs="?", help="Of generate; cars have their own.")
    parser.add_argument("--weights", type=float, nargs="+", default=[1.0, 1 / 3, 0.1])
    parser.add_argument("--seeds", type=int, default=1, help="Training seeds.")
    asked = parser.parse_args()
    task = WINGS if asked.task == "wings" else CARS
    if asked.data is None and task is WINGS:
        parser.error("wings need DATA, a folder that 'it3-aero wings generate' made")
    losses = {f"{weight:.2f}": partial(zigzag, weight=weight) for weight in asked.weights}
    losses["0 (vanilla)"] = partial(zigzag_loss, given=0.0)
    try:
        dataset = WingDataset(asked.data) if task is WINGS else CarDataset(asked.data or SAMPLE)
        lines = [
            [weight, str(seed), *(task.said(value, more=1) for value in found)]
            for seed in range(asked.seeds)
            for weight, found in _tried(task, dataset, losses, seed)
        ]
    except IT3Error as problem:
        print(f"second_weight: {problem}", file=sys.stderr)
        return 2
    print(markdown_table([["weight", "seed", "first answer", "second pass", "|dF/dy|"], *lines]))
    return 0


def _tried(task: Task, dataset: Any, losses: dict[str, Any], seed: int) -> Any:
    """For each loss the held-out errors of the first answer and of the second pass, and |dF/dy|."""
    shapes = levels_of(task, dataset, threshold_of(task, dataset)).train
    held_out, rest = hold_out(shapes, seed)
    adapter = Regression.fit(rest.y)
    for weight, loss in losses.items():
        with tempfile.TemporaryDirectory() as folder:
            model, _ = fit_network(
                *(task, adapter, Training().recipe(task), seed, rest, held_out),
                Path(folder) / "training.safetensors",
                loss=loss,
            )
        answer = AnswerStep(model, adapter)(held_out.x)
        errors = [
            float(adapter.error(output, held_out.y).mean())
            for output in (answer.initial, answer.prediction)
        ]
        heard = 0.0 if "vanilla" in weight else sensitivity(model, adapter, held_out.x)
        print(f"{task.name}, seed {seed}, weight {weight}: {errors}", file=sys.stderr, flush=True)
        yield weight, (*errors, heard)


if __name__ == "__main__":
    sys.exit(main())
