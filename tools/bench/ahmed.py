"""The Ahmed body at four slants beside the experiment: Cd, cells, CPU seconds, memory.

    python tools/bench/ahmed.py FOLDER [PRESET]

A run that was killed goes on where it was; finished cases are read from FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

from it3_aero.cars.bodies import ahmed
from it3_aero.cars.foam import solve

EXPERIMENT = {0.0: 0.250, 12.5: 0.230, 25.0: 0.285, 35.0: 0.260}
"""Ahmed, Ramm and Faltin (1984)."""


def main() -> None:
    """Print a row for each slant."""
    folder = Path(sys.argv[1])
    preset = sys.argv[2] if len(sys.argv) > 2 else "coarse"
    print("| slant | experiment | Cd | difference | cells | iterations | CPU s | peak MB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for slant, measured in EXPERIMENT.items():
        flow = solve(ahmed(slant=slant), folder / f"{preset}-{slant:g}", preset)
        if flow.problem is not None:
            print(f"| {slant:g}° | {measured:.3f} | {flow.problem} | | | | | |", flush=True)
            continue
        print(
            f"| {slant:g}° | {measured:.3f} | {flow.cd:.3f} ± {flow.cd_std:.3f} | "
            f"{flow.cd - measured:+.3f} | {flow.cells:,} | {flow.iterations} | "
            f"{flow.cpu_seconds:.0f} | {flow.peak_mb:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
