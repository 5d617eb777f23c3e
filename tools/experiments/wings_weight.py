"""How much should the second pass weigh in training a wing network?

    python tools/experiments/wings_weight.py DATA --weights 1 0.333 0.1

where it3-aero is installed; DATA is of `it3-aero wings generate`. Each network is trained as
`it3-aero wings train` does it, on known wings alone, and judged on those that it held out.
docs/experiments.md tells what came of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from it3_aero.learning.job import levels_of, threshold_of
from it3_aero.learning.model import Training, _fit, _held_out
from it3_aero.learning.network import zigzag
from it3_aero.wings import WingDataset
from it3_aero.wings.task import WINGS
from it3_core import AnswerStep, IT3Error, Regression, sensitivity, zigzag_loss
from it3_core.tables import markdown_table


def main() -> int:
    """Print a line for each weight and seed; what the user can mend ends with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="The folder that wings generate made.")
    parser.add_argument("--weights", type=float, nargs="+", default=[1.0, 1 / 3, 0.1])
    parser.add_argument("--seeds", type=int, default=1, help="Training seeds.")
    asked = parser.parse_args()
    losses = {f"{weight:.2f}": partial(zigzag, weight=weight) for weight in asked.weights}
    losses["0 (vanilla)"] = partial(zigzag_loss, given=0.0)
    lines = [["weight", "seed", "first answer", "second pass", "|dF/dy|"]]
    try:
        dataset = WingDataset(asked.data)
        shapes = levels_of(WINGS, dataset, threshold_of(WINGS, dataset)).train
        for seed in range(asked.seeds):
            held_out, rest = _held_out(shapes, seed)
            adapter = Regression.fit(rest.y)
            for weight, loss in losses.items():
                with tempfile.TemporaryDirectory() as folder:
                    model, _ = _fit(
                        *(WINGS, adapter, Training().recipe(WINGS), seed, rest, held_out),
                        Path(folder) / "training.safetensors",
                        loss=loss,
                    )
                answer = AnswerStep(model, adapter)(held_out.x)
                errors = [
                    float(adapter.error(output, held_out.y).mean())
                    for output in (answer.initial, answer.prediction)
                ]
                heard = 0.0 if "vanilla" in weight else sensitivity(model, adapter, held_out.x)
                lines.append([weight, str(seed), *(f"{v:.2f}" for v in (*errors, heard))])
    except IT3Error as problem:
        print(f"wings_weight: {problem}", file=sys.stderr)
        return 2
    print(markdown_table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
