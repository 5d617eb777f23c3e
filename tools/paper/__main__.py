"""The command behind `nox -s paper`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from it3_core import IT3Error
from it3_core.commands import exit_code
from it3_core.files import make_folder
from paper.alone import cores, side_by_side
from paper.outcomes import Outcome, Place, Preset
from paper.page import write
from paper.tasks import TASKS, NotHereError

LONGEST = ("cars", "roads", "cifar", "wings", "imagenet", "age", "tabular")
"""What to begin with, so that all cores are busy to the end: what takes longest."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def paper(
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK...]", help="; ".join(
        f"{name}: {(task.__doc__ or '').splitlines()[0]}" for name, task in TASKS.items()))] = None,
    preset: Annotated[str, typer.Option(help="quick (10 minutes), small or full.")] = "quick",
    out: Annotated[Path, typer.Option(help="Where results gather; killed, it goes on there.")] = (
        Path("results")
    ),
    jobs: Annotated[int | None, typer.Option(
        help="Tasks side by side, which share the cores; by default one for each core.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:  # fmt: skip
    """Run the paper's experiments and write what became of each claim.

    The page holds every experiment that was run in this folder, now or earlier.

    Data are taken from the folder that the environment variable IT3_DATA names; what is not there
    is made by our solvers, comes with the packages, or is named as not measured.
    """
    if preset not in ("quick", "small", "full"):
        raise IT3Error(f"a preset is quick, small or full, not {preset!r}")
    wanted = tasks or list(TASKS)
    if unknown := [name for name in wanted if name not in TASKS]:
        raise IT3Error(f"there is no task {unknown[0]!r}: take {', '.join(TASKS)}")
    if jobs is not None and jobs < 1:
        raise IT3Error(f"--jobs is 1 at least, not {jobs}")
    named = os.environ.get("IT3_DATA")
    data = Path(named).resolve() if named else None
    if data is not None and not data.is_dir():
        raise IT3Error(f"IT3_DATA names {data}, which is no folder: mend it or unset it")
    folder = make_folder(out / preset)
    places = {
        name: Place(cast(Preset, preset), data, make_folder(folder / name), not quiet)
        for name in sorted(wanted, key=LONGEST.index)
    }
    missing: dict[str, str] = {}
    for name, (found, minutes) in side_by_side(places, min(jobs or cores(), len(places))):
        if isinstance(found, NotHereError):
            missing[name] = str(found)
            continue
        told = {"commit": _commit(), "minutes of its last run": round(minutes, 1)}
        replace(found, about={**found.about, **told}).write(places[name].folder)
    kept = {name: Outcome.read(folder / name) for name in TASKS if name not in missing}
    outcomes = [outcome for outcome in kept.values() if outcome is not None]
    about = {
        "command": f"nox -s paper -- --preset {preset}, or task by task",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}",
    }
    page, results = write(folder, outcomes, missing, about)
    print(f"{results}\n{page}")


def _commit() -> str:
    """Of this checkout, and whether it was changed since."""
    git = ["git", "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(
            git, capture_output=True, text=True, check=True, timeout=20, cwd=Path(__file__).parent
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def main() -> int:
    """Run the command line; what the user can mend ends with 2."""
    return exit_code(app, "paper")


if __name__ == "__main__":
    sys.exit(main())
