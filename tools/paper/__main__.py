"""The command behind `nox -s paper`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from it3_core import IT3Error
from it3_core.commands import exit_code
from it3_core.files import make_folder
from paper.alone import alone
from paper.outcomes import Outcome, Place, Preset
from paper.page import write
from paper.tasks import TASKS, NotHereError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def paper(
    tasks: Annotated[list[str] | None, typer.Argument(metavar="[TASK...]", help="; ".join(
        f"{name}: {(task.__doc__ or '').splitlines()[0]}" for name, task in TASKS.items()))] = None,
    preset: Annotated[str, typer.Option(help="quick (10 minutes), small or full.")] = "quick",
    out: Annotated[Path, typer.Option(help="Where results gather; killed, it goes on there.")] = (
        Path("results")
    ),
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
    named = os.environ.get("IT3_DATA")
    data = Path(named).resolve() if named else None
    if data is not None and not data.is_dir():
        raise IT3Error(f"IT3_DATA names {data}, which is no folder: mend it or unset it")
    folder = make_folder(out / preset)
    missing: dict[str, str] = {}
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        place = Place(cast(Preset, preset), data, make_folder(folder / name), not quiet)
        began = time.monotonic()
        try:
            outcome = alone(name, place)
        except NotHereError as problem:
            missing[name] = str(problem)
            continue
        minutes = round((time.monotonic() - began) / 60, 1)
        told = {**outcome.about, "commit": _commit(), "minutes of its last run": minutes}
        replace(outcome, about=told).write(place.folder)
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
