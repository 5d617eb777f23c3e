"""XFoil in it3-aero: agreement, real airfoils, convergence, and throughput beside its peers.

    python tools/bench/wings.py [--n 2000] [--airfoils 100] [--rounds 5]

Needs XFoil. Throughput is wall time on all cores, with everything interleaved in rounds, because
machines are noisy and ratios are less so: `generate`; a bare loop over the binary that reads
nothing back, alone and one loop a core at once; and AeroSandbox's own wrapper, which is given the
shim that it lacks.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from it3_aero.executors import cores, pool
from it3_aero.generation import Store, fan_out, read_samples
from it3_aero.wings import Airfoil, NeuralFoil, XFoil, generate, read_airfoil
from it3_aero.wings.families import FAMILIES, draw
from it3_aero.wings.generating import Work
from it3_aero.wings.solvers.shim import build_shim
from it3_core import IT3Error

COMMANDS = """\
PLOP\nG F\n\nLOAD a.dat\nPPAR\nN 160\n\n\nPANE\nOPER\nVISC 1e6\nMACH 0\nVPAR\nN 9\n\nITER 100
PACC\np.txt\n\nALFA 0\nPACC\nCPWR cp.txt\n\nQUIT\n"""


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--n", type=int, default=2000, help="profiles to generate")
    parser.add_argument("--airfoils", type=int, default=100, help="real ones to read and solve")
    parser.add_argument("--rounds", type=int, default=5, help="of the throughput")
    options = parser.parse_args()
    print(f"XFoil {XFoil().version()}, {cores()} cores, load {os.getloadavg()[0]:.1f}")
    throughput(options.rounds)
    real_airfoils(options.airfoils)
    convergence(options.n)


def convergence(n: int) -> None:
    """The default data set: how many profiles have an answer, and after which panelling."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        card = generate(folder, n, solver="xfoil")
        seconds = time.perf_counter() - began
        records = [record for record in read_samples(folder) if "problem" not in record]
    counts, ratios = card["counts"], card["lift_to_drag"]
    heading(f"{n} profiles of the default family, seed 0")
    row("answered", counts["answered"], f"{100 * counts['answered'] / n:.2f} %")
    row("at the first panelling", sum(record["panels"] == 160 for record in records))
    row("failed", counts["failed"], str(card["problems"] or ""))
    row(
        "beyond L/D 60", f"{100 * ratios['share_beyond_60']:.1f} %", f"most {ratios['highest']:.0f}"
    )
    row("profiles a second", f"{n / seconds:.1f}")
    network = NeuralFoil()
    gaps = [
        abs(network.solve(naca_of(record), 1e6, 0.0).lift_to_drag - record["cl"] / record["cd"])
        for record in records[:200]
    ]
    row("|L/D of NeuralFoil − XFoil|, mean of 200", f"{statistics.fmean(gaps):.2f}")


def naca_of(record: dict[str, Any]) -> Airfoil:
    """The profile of a record."""
    return FAMILIES["naca4"].make(**record["parameters"])


def real_airfoils(number: int) -> None:
    """Airfoils of the aerosandbox collection: read, and solved at Re 1e6 and 2 degrees."""
    import aerosandbox

    folder = Path(aerosandbox.__file__).parent / "geometry" / "airfoil" / "airfoil_database"
    files = sorted(folder.glob("*.dat"))
    chosen = random.Random(0).sample(files, min(number, len(files)))
    solver = XFoil()

    def outcome(file: Path) -> str:
        try:
            point = solver.solve(read_airfoil(file), 1e6, 2.0)
        except IT3Error as problem:
            return str(problem)
        return "solved" if point.converged else f"{file.name}: {point.reason}"

    read = sum(not problem_of(file) for file in files)
    with ThreadPoolExecutor(cores()) as executor:
        outcomes = list(executor.map(outcome, chosen))
    heading(f"airfoils of the aerosandbox collection ({len(files)} files)")
    row("read, of all", read, f"{100 * read / len(files):.1f} %")
    row(f"read and solved, of {len(chosen)}", outcomes.count("solved"))
    for reason in sorted(set(outcomes) - {"solved"}):
        print(f"    {reason}")


def problem_of(file: Path) -> str:
    """Why a file is no airfoil; empty if it is one."""
    try:
        read_airfoil(file)
    except IT3Error as problem:
        return str(problem)
    return ""


def throughput(rounds: int, each: int = 40) -> None:
    """Profiles a second, by `generate` and by its peers, on the same profiles."""
    profiles = [FAMILIES["naca4"].make(**draw("naca4", 0, number)) for number in range(each)]
    with tempfile.TemporaryDirectory() as place:
        folders = prepared(profiles, Path(place))
        ways: dict[str, Callable[[], float]] = {
            "generate, all cores": lambda: timed(lambda: ours(each), each),
            "bare loop, one core": lambda: timed(lambda: bare(folders), each),
            "bare loops, one a core": lambda: timed(lambda: bare_at_once(folders), each),
            "AeroSandbox's wrapper, one core": lambda: timed(lambda: aerosandbox(profiles), each),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                rate = way()
                if number:  # the first round warms up
                    rates[name].append(rate)
    heading(f"throughput, median of {rounds} interleaved rounds of {each} profiles")
    for name, found in rates.items():
        row(name, f"{statistics.median(found):.1f} /s")
    mine, alone, at_once, peer = rates.values()
    shares = [a / (cores() * b) for a, b in zip(mine, alone, strict=True)]
    beside = [a / b for a, b in zip(mine, at_once, strict=True)]
    faster = [a / b for a, b in zip(mine, peer, strict=True)]
    if any(failures.values()):
        print(f"  AeroSandbox's wrapper failed, of all {(rounds + 1) * each}: {dict(failures)}")
    row("generate / (cores × bare loop)", f"{statistics.median(shares):.2f}", spread(shares))
    row("generate / bare loops at once", f"{statistics.median(beside):.2f}", spread(beside))
    row("generate / AeroSandbox's wrapper", f"{statistics.median(faster):.2f}", spread(faster))


def ours(each: int) -> None:
    """What `generate` does for each sample; the card and the histogram come once in a run."""
    ranges = tuple(FAMILIES["naca4"].ranges.items())
    work = Work("naca4", ranges, 0, 1e6, 0.0, 0.0, XFoil())
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(folder, work.settings()) as store,
        pool() as (executor, under_way),
    ):
        fan_out(store, work, range(each), executor, under_way)


def prepared(profiles: Sequence[Airfoil], place: Path) -> list[Path]:
    """A folder for each profile, with its coordinates in it."""
    folders = []
    for number, profile in enumerate(profiles):
        folder = place / str(number)
        folder.mkdir()
        lines = "".join(f"{x:.8f} {y:.8f}\n" for x, y in profile.points.tolist())
        (folder / "a.dat").write_text("airfoil\n" + lines)
        folders.append(folder)
    return folders


def bare(folders: Sequence[Path]) -> None:
    """The binary, once a folder, and nothing else."""
    environment = os.environ | {"LD_PRELOAD": str(build_shim())}
    for folder in folders:
        for left in ("p.txt", "cp.txt"):  # XFoil would ask what to do with them
            (folder / left).unlink(missing_ok=True)
        with (folder / "log.txt").open("wb") as log:
            subprocess.run(
                ["xfoil"],
                input=COMMANDS.encode(),
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
                check=False,
                start_new_session=True,  # as ours: Linux shares a busy machine out by session
            )


def bare_at_once(folders: Sequence[Path]) -> None:
    """One bare loop a core, at the same time."""
    with ThreadPoolExecutor(cores()) as executor:
        list(executor.map(bare, [folders[start :: cores()] for start in range(cores())]))


def aerosandbox(profiles: Sequence[Airfoil]) -> None:
    """AeroSandbox's wrapper; without the shim Debian's binary dies under it.

    Even so, version 4.2.10 can't read the polar files that Debian's 6.99 writes, and raises
    `XFoilError` once XFoil is done. The time until then is what is compared.
    """
    import aerosandbox as asb

    before = os.environ.get("LD_PRELOAD")
    os.environ["LD_PRELOAD"] = str(build_shim())
    try:
        for profile in profiles:
            foil = asb.Airfoil(name="profile", coordinates=profile.points)
            try:
                tool = asb.XFoil(foil, Re=1e6, hinge_point_x=None, xfoil_repanel_n_points=160)
                answered = tool.alpha(0)
                failures["no answer"] += len(answered["CL"]) == 0
            except Exception as problem:  # what it may raise is not documented
                failures[type(problem).__name__] += 1
    finally:
        os.environ.pop("LD_PRELOAD")
        if before is not None:
            os.environ["LD_PRELOAD"] = before


failures: Counter[str] = Counter()


def timed(work: Callable[[], object], number: int) -> float:
    """How many a second."""
    began = time.perf_counter()
    work()
    return number / (time.perf_counter() - began)


def spread(values: Sequence[float]) -> str:
    """From the lowest to the highest."""
    return f"{min(values):.2f} to {max(values):.2f}"


def heading(text: str) -> None:
    """A line over a table."""
    print(f"\n{text}", flush=True)


def row(name: str, value: object, more: str = "") -> None:
    """A line of a table."""
    print(f"  {name:<42} {value!s:>10}  {more}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
