"""The command behind `nox -s paper`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from it3_core import IT3Error
from it3_core.experiment.verbs import Positive, Quiet, application, run
from it3_core.io.files import make_folder
from paper.alone import cores, side_by_side
from paper.outcomes import Outcome, Place, Preset
from paper.page import write
from paper.tasks import TASKS, NotHereError

LONGEST = ("cars", "roads", "cifar", "wings", "imagenet", "age", "tabular")
"""What to begin with, so that all cores are busy to the end: what takes longest."""

app = application("paper", "The paper's experiments, and what became of each claim.")


@app.default
def paper(
    *tasks: str,
    preset: Preset = "quick",
    out: Path = Path("results"),
    jobs: Positive | None = None,
    quiet: Quiet = False,
) -> None:
    """Run the paper's experiments and write what became of each claim.

    The page holds every experiment that was run in this folder, now or earlier.

    Data are taken from the folder that the environment variable IT3_DATA names; what is not there
    is made by our solvers, comes with the packages, or is named as not measured.

    Example: nox -s paper -- tabular wings --preset small

    Args:
        tasks: All of them by default.
        preset: How much to measure; quick takes 10 minutes.
        out: Where results gather; killed, it goes on there.
        jobs: Tasks side by side, which share the cores; by default one for each core.
    """
    wanted = tasks or tuple(TASKS)
    if unknown := [name for name in wanted if name not in TASKS]:
        raise IT3Error(f"there is no task {unknown[0]!r}: take {', '.join(TASKS)}")
    named = os.environ.get("IT3_DATA")
    data = Path(named).resolve() if named else None
    if data is not None and not data.is_dir():
        raise IT3Error(f"IT3_DATA names {data}, which is no folder: mend it or unset it")
    folder = make_folder(out / preset)
    places = {
        name: Place(preset, data, make_folder(folder / name), not quiet)
        for name in sorted(wanted, key=LONGEST.index)
    }
    missing: dict[str, str] = {}
    for name, (found, minutes) in side_by_side(places, min(jobs or cores(), len(places))):
        if isinstance(found, NotHereError):
            missing[name] = str(found)
            continue
        about = {**found.about, "commit": _commit(), "minutes of its last run": round(minutes, 1)}
        replace(found, about=about).write(places[name].folder)
    kept = {name: Outcome.read(folder / name) for name in TASKS if name not in missing}
    outcomes = [outcome for outcome in kept.values() if outcome is not None]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    about = {"command": f"nox -s paper -- --preset {preset}, or by task", "machine": machine}
    page, results = write(folder, outcomes, missing, about)
    print(f"{results}\n{page}")


def _commit() -> str:
    """Of this checkout, and whether it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.check_output(git, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def main(arguments: list[str]) -> int:
    """Run the command line; what the user can mend ends with 2."""
    return run(app, "paper", arguments or ["--preset", "quick"])  # all of it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
