"""Would a gate on the idempotence error keep the paper's step from known wings?

    python tools/experiments/wings_gate.py DATA RUN --seeds 5

where it3-aero is installed; DATA and RUN are of `it3-aero wings generate`, `train` and
`evaluate --seeds 5`. Shapes come one at a time; the limit is the one that RUN's trust sets on
held-out shapes. it3-aero's docs/wings.md tells what came of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from it3_aero.learning.job import levels_of, threshold_of
from it3_aero.learning.runs import load_run
from it3_aero.learning.shapes import WITHIN
from it3_aero.wings import WingDataset
from it3_aero.wings.task import WINGS
from it3_core import IT3, IT3Error
from it3_core.batching import batches
from it3_core.contrast import contrast
from it3_core.tables import markdown_table

SOURCE, PAPER, GATED = "source", "IT³ paper", "IT³ paper, gated"


def errors_of(run: Any, levels: dict[str, Any]) -> tuple[dict[bool, dict[str, list[float]]], float]:
    """Errors within and beyond by method, and the share beyond that the gate opens for."""
    step = IT3(run.model, run.adapter, anchor_gradient=True, trust_region=False)
    found: dict[bool, dict[str, list[float]]] = {
        within: {SOURCE: [], PAPER: [], GATED: []} for within in (True, False)
    }
    opened: list[bool] = []
    for name, shapes in levels.items():
        within = name == WITHIN
        for x, y in zip(batches(shapes.x, 1), batches(shapes.y, 1), strict=True):
            answer = step(x)
            opens = bool(run.trust.flag(answer.error_before).any())
            before, after = (
                float(run.adapter.error(output, y))
                for output in (answer.initial, answer.prediction)
            )
            for method, error in zip(
                found[within], (before, after, after if opens else before), strict=True
            ):
                found[within][method].append(error)
            if not within:
                opened.append(opens)
    return found, sum(opened) / len(opened)


def main() -> int:
    """Print the table; what the user can mend ends with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="The folder that wings generate made.")
    parser.add_argument("run", type=Path, help="The folder that wings train made.")
    parser.add_argument("--seeds", type=int, default=5, help="Of wings evaluate.")
    parser.add_argument("--most", type=int, default=25, help="Shapes a level.")
    asked = parser.parse_args()
    records: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    try:
        dataset = WingDataset(asked.data)
        levels = levels_of(WINGS, dataset, threshold_of(WINGS, dataset)).drawn(asked.most)
        for seed in range(asked.seeds):
            run = load_run(WINGS, asked.run if seed == 0 else asked.run / "seeds" / str(seed))
            found, opened = errors_of(run, dict(levels.test))
            print(f"seed {seed}: the gate opens for {opened:.0%} of the shapes beyond", flush=True)
            for within, methods in found.items():
                records[within] += [
                    {"seed": seed, "batch_size": None, "method": name, "errors": errors}
                    for name, errors in methods.items()
                ]
    except IT3Error as problem:
        print(f"wings_gate: {problem}", file=sys.stderr)
        return 2
    lines = [["method", "known, against source", "beyond, against source"]]
    for method in (PAPER, GATED):
        changes = [contrast(records[w], (method, None), (SOURCE, None)) for w in (True, False)]
        lines.append([method, *map(str, changes)])
    print(markdown_table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
