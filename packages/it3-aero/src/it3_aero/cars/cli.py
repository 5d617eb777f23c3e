"""The commands `it3-aero cars ...`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from it3_aero.cars import model_cli
from it3_aero.cars.model_cli import Ground, Nose, Unit, Up
from it3_aero.generating_cli import Dask, Out, Quiet, counted, goes_on
from it3_core import IT3Error

__all__ = ["app"]

app = typer.Typer(help="Cars: from a mesh to a drag coefficient.", no_args_is_help=True)


class PresetName(StrEnum):
    """How fine the mesh about a car is."""

    smoke = "smoke"
    coarse = "coarse"
    medium = "medium"


Preset = Annotated[PresetName, typer.Option(help="How fine: 10,000, 80,000 or 400,000 cells.")]
Ranks = Annotated[int, typer.Option(help="Processes of MPI for one case; 1 is best on few cores.")]
Hole = Annotated[float, typer.Option(help="Largest hole to be capped, by the length.")]


@app.callback()
def _cars() -> None:
    pass


@app.command()
def generate(
    out: Out,
    n: Annotated[
        int | None, typer.Option("--n", "-n", help="Number of cars; default: 128, or all meshes.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which cars are drawn.")] = 0,
    preset: Preset = PresetName.coarse,
    meshes: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Take meshes; ShapeNet's layout too.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Most vertices of a sample's mesh.")] = 1000,
    ranks: Ranks = 1,
    workers: Annotated[int | None, typer.Option(help="Cases at a time; default: cores.")] = None,
    dask: Dask = None,
    quiet: Quiet = False,
) -> None:
    """Draw cars at random, solve each with OpenFOAM, and keep them in OUT for training.

    Killed at any moment and started again, it loses nothing and makes nothing twice. OUT gets
    raw/samples.jsonl, raw/meshes, what is worth keeping of each case in cases, the data card
    card.json and histogram.png.
    """
    from it3_aero.cars.generating import generate as run

    with goes_on(out):
        card = run(
            out,
            n,
            seed=seed,
            preset=preset.value,
            meshes=meshes,
            nodes=nodes,
            ranks=ranks,
            workers=workers,
            dask=dask,
            progress=not quiet,
        )
    line = counted(out, card, "cars")
    if "drag" in card:
        line += f"; Cd {card['drag']['lowest']:.3f} to {card['drag']['highest']:.3f}"
    typer.echo(line)


@app.command()
def check(
    files: Annotated[
        list[Path], typer.Argument(help="Meshes (STL, OBJ, PLY, OFF, GLB, DAE) or folders of them.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where pictures go; default: none.")
    ] = None,
    up: Up = None,
    nose: Nose = None,
    unit: Unit = None,
    ground: Ground = None,
    largest_hole: Hole = 0.25,
) -> None:
    """Say of each mesh whether it can be solved, what was mended for that, or why it can't be.

    With --out, a picture of each shows what would be solved, nose to the left, new faces in orange.
    Exits with 2 if one is turned away; the others are judged all the same.
    """
    from it3_aero.cars.intake import Options, found_meshes
    from it3_aero.cars.intake import check as judge
    from it3_aero.cars.pictures import write_picture

    options = Options(up, nose, unit, ground, largest_hole)
    accepted = []
    for place in files:
        for path in found_meshes(place):
            verdict = judge(path, options)
            typer.echo(str(verdict))
            accepted.append(verdict.accepted)
            if out is not None and verdict.mesh is not None:
                typer.echo(f"  picture: {write_picture(verdict, out)}")
    typer.echo(f"{sum(accepted)} of {len(accepted)} accepted")
    if not all(accepted):
        raise typer.Exit(2)


@app.command()
def solve(
    file: Annotated[Path, typer.Argument(help="A mesh: STL, OBJ, PLY, OFF, GLB or DAE.")],
    out: Annotated[Path, typer.Argument(help="Folder for the case; one that was killed goes on.")],
    preset: Preset = PresetName.coarse,
    ranks: Ranks = 1,
    up: Up = None,
    nose: Nose = None,
    unit: Unit = None,
    ground: Ground = None,
    largest_hole: Hole = 0.25,
) -> None:
    """The drag coefficient of one car, by OpenFOAM, with a picture of the pressure on it."""
    from it3_aero.cars.foam import solve as run
    from it3_aero.cars.intake import Options
    from it3_aero.cars.intake import check as judge
    from it3_aero.cars.pictures import write_pressure

    verdict = judge(file, Options(up, nose, unit, ground, largest_hole))
    typer.echo(str(verdict))
    if verdict.mesh is None or not verdict.accepted:
        raise typer.Exit(2)
    with goes_on(out):
        flow = run(verdict.mesh, out, preset.value, ranks=ranks)
    if flow.problem is not None:
        raise IT3Error(f"{file}: {flow.problem}")
    typer.echo(
        f"Cd {flow.cd:.4f} ± {flow.cd_std:.4f}, Cl {flow.cl:.4f}, on {flow.frontal_area:.4g} m²; "
        f"{flow.solver}, {flow.cells:,} cells, {flow.iterations} iterations, "
        f"{flow.cpu_seconds:.0f} s of CPU, {flow.peak_mb:.0f} MB"
    )
    typer.echo(f"picture: {write_pressure(verdict.mesh, flow, out)}")


model_cli.register(app)
