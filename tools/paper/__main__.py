"""The command behind `nox -s paper`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from it3_core import IT3Error
from it3_core.experiment.verbs import NotNegative, Positive, Quiet, application, run
from it3_core.io.files import make_folder
from paper import records
from paper.items import listed, make, named
from paper.page import write_page
from paper.places import FOLDERS, NotHereError, Place, Preset, Size
from paper.running import GALLERIES, run_seeds
from paper.tasks import TASKS

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "paper" / "records"
PAGE = ROOT / "docs" / "paper.md"

_DATA = "; ".join(f"{' or '.join(names)} ({what})" for names, what in FOLDERS.values())

app = application(
    "paper",
    "The paper's experiments, figures and tables, and what became of each claim.\n\n"
    f"Folders that are looked for below IT3_DATA, the paper's own first: {_DATA}.",
)


@app.default
def paper(
    *tasks: str,
    size: Size = "quick",
    preset: Preset | None = None,
    seeds: Positive | None = None,
    seed: NotNegative | None = None,
    figure: str | None = None,
    table: str | None = None,
    list_items: Annotated[bool, Parameter(name="--list")] = False,
    page: bool = False,
    keep: bool = False,
    out: Path = Path("results"),
    quiet: Quiet = False,
) -> None:
    """Run the paper's experiments and write its figures, its tables and what became of each claim.

    What was measured earlier in the same folder is not measured again. Data are taken from the
    folder that the environment variable IT3_DATA names; what is not there is made by our solvers,
    comes with the packages, or is named as not measured.

    Example: nox -s paper -- tabular wings --size small

    Args:
        tasks: tabular, cifar, imagenet, age, roads, wings, cars; all of them by default.
        size: How much to measure: quick takes minutes, small up to two hours a seed and task.
        preset: The paper's own protocol (networks, losses, data), which takes a GPU.
        seeds: Training seeds of each task; the size's number by default.
        seed: This training seed alone, so that several machines can share a task.
        figure: Make one figure: its name, see --list.
        table: Make one table.
        list_items: Name the paper's figures and tables.
        page: Write docs/paper.md and its pictures again from docs/paper/records; trains nothing.
        keep: Copy the records to docs/paper/records, to be committed.
        out: Where results gather; a killed run goes on there.
    """
    if list_items:
        print("\n".join(listed()))
        return
    if page:
        found = write_page(KEPT, PAGE, make_folder(out) / "paper.html")
        print("\n".join(map(str, found)))
        return
    items = named(figure, "figure") if figure else []
    items += named(table, "table") if table else []
    if unknown := [name for name in tasks if name not in TASKS]:
        raise IT3Error(f"there is no task {unknown[0]!r}: take {', '.join(TASKS)}")
    folder = make_folder(out / (f"{size}-paper" if preset else size))
    kept = make_folder(folder / "records")
    wanted = tasks or (() if items else tuple(TASKS))
    if items:  # what an item needs is measured where there is none of it yet
        known = records.read(kept)
        needed = {item.task for item in items if item.task and item.task not in known}
        wanted = (*wanted, *sorted(needed - set(wanted)))
    place = Place(size, _data(), folder, kept, preset, seeds, seed, not quiet, _made())
    missing = _measured(wanted, place)
    if keep:
        _keep(kept, [*tasks, *(item.task for item in items if item.task)] or list(TASKS))
    if items:
        for item in items:
            print(make(item, records.read(kept), kept, folder, missing))
        return
    found = write_page(kept, folder / "paper.md", folder / "paper.html", missing)
    print("\n".join(map(str, found)))


def _measured(wanted: Sequence[str], place: Place) -> dict[str, str]:
    """Runs the tasks; those that could not be measured, and why."""
    missing: dict[str, str] = {}
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            run_seeds(name, TASKS[name], replace(place, folder=make_folder(place.folder / name)))
        except NotHereError as problem:
            missing[name] = str(problem)
        except ModuleNotFoundError as problem:
            package = str(problem.name).partition(".")[0].replace("_", "-")
            missing[name] = f"it needs {package}, which is not installed here"
        print(f"{name}: {missing.get(name, 'done')}", file=sys.stderr, flush=True)
    return missing


def _data() -> Path | None:
    given = os.environ.get("IT3_DATA")
    data = Path(given).resolve() if given else None
    if data is not None and not data.is_dir():
        raise IT3Error(f"IT3_DATA names {data}, which is no folder: mend it or unset it")
    return data


def _keep(kept: Path, tasks: Sequence[str]) -> None:
    """Copies the records of these tasks, and their pictures of inputs, into the repository."""
    for path in sorted(kept.iterdir()):
        if {path.name.partition("-")[0], GALLERIES.get(path.stem, ("",))[0]} & set(tasks):
            print(shutil.copy2(path, make_folder(KEPT) / path.name))


def _made() -> dict[str, str]:
    """What makes the records: they are kept with it."""
    # Where a machine gathers its results is nobody else's.
    words = [
        word for before, word in pairwise(["", *sys.argv[1:]]) if "--out" not in (before, word)
    ]
    command = " ".join(["nox -s paper --", *(w for w in words if not w.startswith("--out="))])
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return {"commit": _commit(), "command": command.strip(), "machine": machine}


def _commit() -> str:
    """Of this checkout, and whether it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    there = shutil.which("git") is not None
    found = subprocess.run(git, capture_output=True, text=True, check=False) if there else None
    return (found and found.stdout.strip()) or "unknown"


def main(arguments: list[str]) -> int:
    """Run the command line; what the user can mend ends with 2."""
    return run(app, "paper", arguments or ["--size", "quick"])  # all of it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
