"""The commands of cars around a trained network: the shared ones, the packed file and the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from it3_aero.cars.task import CARS
from it3_aero.learning import cli
from it3_aero.learning.cli import Adapt, AsJson, Plot, Quiet, RunFolder

__all__ = ["Ground", "Nose", "Unit", "Up", "register"]

Up = Annotated[str | None, typer.Option(help="Axis of the file that is up: z, -y, ...")]
Nose = Annotated[str | None, typer.Option(help="Axis of the file to which the nose points.")]
Unit = Annotated[float | None, typer.Option(help="Metres per unit of the file.")]
Ground = Annotated[float | None, typer.Option(help="Height of the ground, in the file's unit.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `it3-aero cars`."""
    cli.register(app, CARS)
    for command in (predict, pack, demo):
        app.command()(command)


def predict(
    run: RunFolder,
    meshes: Annotated[
        list[Path], typer.Argument(metavar="MESH...", help="STL, OBJ, PLY, OFF, GLB or DAE.")
    ],
    adapt: Adapt = cli.Adaptation.auto,
    verify: Annotated[bool, typer.Option("--verify", help="Ask OpenFOAM too.")] = False,
    as_json: AsJson = False,
    plot: Plot = None,
    up: Up = None,
    nose: Nose = None,
    unit: Unit = None,
    ground: Ground = None,
) -> None:
    """Say the drag of cars in files, and how unusual they are; files are mended as by check.

    Exits with 2 if a file had a problem; the others are answered all the same.
    """
    from it3_aero.cars.intake import Options, admitted
    from it3_aero.cars.task import Car

    def read(path: Path) -> Car:
        return Car(path.stem, admitted(path, Options(up, nose, unit, ground)))

    cli.answer_files(CARS, run, meshes, adapt, verify, as_json, plot, read)


def pack(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The folder that generate made.")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Such as cars.safetensors.")],
) -> None:
    """Put all cars of a folder into one small file, which train and CarDataset read too."""
    from it3_aero.cars.packed import pack as run

    found = run(data, out)
    size = out.stat().st_size / 1e6
    print(f"{out}: {len(found.records)} cars, {size:.1f} MB")


def demo(
    out: Annotated[Path, typer.Option(help="The folder for all of it.")] = Path("it3-cars-demo"),
    data: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Instead of the cars that come with this.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the training.")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Of the training.")] = None,
    fresh: Annotated[int, typer.Option(min=0, help="New cars to solve with OpenFOAM.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train on the solved cars that come with this, evaluate and write the report.

    `--fresh 2` draws two more, solves them with OpenFOAM and has the network answer for them.
    """
    from it3_aero.cars.dataset import SAMPLE
    from it3_aero.cars.demo import fresh_cars, run_demo
    from it3_aero.learning.model import Training

    cli.one_thread("small")
    console = Console(highlight=False, emoji=False)
    made = run_demo(
        out,
        data=data or SAMPLE,
        training=Training(seed=seed, epochs=epochs),
        progress=not quiet,
        say=console.print,
    )
    if fresh:
        console.print(f"{fresh} new cars by OpenFOAM")
        for one in fresh_cars(made.run, out / "fresh", fresh, progress=not quiet):
            console.print(str(one), soft_wrap=True, markup=False)
    cli.closing(console, made)
