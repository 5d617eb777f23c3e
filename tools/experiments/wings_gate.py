"""Which gate keeps the paper's step from known wings: the idempotence error, or the answer?

    python tools/experiments/wings_gate.py DATA RUN --seeds 5

where it3-aero is installed; DATA and RUN are of `it3-aero wings generate`, `train` and
`evaluate --seeds 5`. Shapes come one at a time. The limit on the error is the one that RUN's trust
sets on held-out shapes; an answer is at the edge where one training shape in twenty has a larger
one (`Edge`). it3-aero's docs/wings.md tells what came of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from it3_aero.learning.job import levels_of, threshold_of
from it3_aero.learning.runs import load_run
from it3_aero.learning.shapes import WITHIN
from it3_aero.wings import WingDataset
from it3_aero.wings.task import WINGS
from it3_core import IT3, Edge, IT3Error, Source
from it3_core.batching import batches
from it3_core.contrast import contrast
from it3_core.tables import markdown_table

SOURCE, PAPER = "source", "IT³ paper"
GATES = ("idempotence error", "answer")


def errors_of(run: Any, levels: Any) -> tuple[dict[bool, dict[str, list[float]]], str]:
    """Errors within and beyond by method, and how often the gates open, in words."""
    step = IT3(run.model, run.adapter, anchor_gradient=True, trust_region=False)
    source = Source(run.model, run.adapter)
    known = torch.cat([source(x).prediction for x in batches(levels.train.x, 64)])
    edge = Edge.fit(known, 0.05, upper=True)
    names = (SOURCE, PAPER, *(f"{PAPER}, gated by {gate}" for gate in GATES))
    found: dict[bool, dict[str, list[float]]] = {
        within: {name: [] for name in names} for within in (True, False)
    }
    opened: dict[bool, list[tuple[bool, ...]]] = {True: [], False: []}
    for name, shapes in levels.test.items():
        within = name == WITHIN
        for x, y in zip(batches(shapes.x, 1), batches(shapes.y, 1), strict=True):
            answer = step(x)
            opens = (
                bool(run.trust.flag(answer.error_before).any()),
                bool(edge.picks(answer).any()),
            )
            before, after = (
                float(run.adapter.error(output, y))
                for output in (answer.initial, answer.prediction)
            )
            errors = (before, after, *(after if one else before for one in opens))
            for method, error in zip(names, errors, strict=True):
                found[within][method].append(error)
            opened[within].append(opens)
    told = [
        f"the {gate} for {_share(opened[True], number)} of the known shapes and "
        f"{_share(opened[False], number)} beyond"
        for number, gate in enumerate(GATES)
    ]
    return found, ", ".join(told)


def _share(opened: list[tuple[bool, ...]], number: int) -> str:
    return f"{sum(opens[number] for opens in opened) / len(opened):.0%}"


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
            found, opened = errors_of(run, levels)
            print(f"seed {seed}: gates open by {opened}", flush=True)
            for within, methods in found.items():
                records[within] += [
                    {"seed": seed, "batch_size": None, "method": name, "errors": errors}
                    for name, errors in methods.items()
                ]
    except IT3Error as problem:
        print(f"wings_gate: {problem}", file=sys.stderr)
        return 2
    lines = [["method", "known, against source", "beyond, against source"]]
    for method in [PAPER, *(f"{PAPER}, gated by {gate}" for gate in GATES)]:
        changes = [contrast(records[w], (method, None), (SOURCE, None)) for w in (True, False)]
        lines.append([method, *map(str, changes)])
    print(markdown_table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
