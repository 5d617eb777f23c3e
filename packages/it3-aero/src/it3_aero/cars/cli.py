"""The commands `it3-aero cars ...`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from it3_aero.cars import model_cli

__all__ = ["app"]

app = typer.Typer(help="Cars: from a mesh to a drag coefficient.", no_args_is_help=True)


class PresetName(StrEnum):
    """How fine the mesh about a car is."""

    smoke = "smoke"
    coarse = "coarse"
    medium = "medium"


Preset = Annotated[PresetName, typer.Option(help="How fine: 10,000, 80,000 or 400,000 cells.")]
Ranks = Annotated[int, typer.Option(help="Processes of MPI for one case; 1 is best on few cores.")]


@app.callback()
def _cars() -> None:
    pass


@app.command()
def generate(
    out: Annotated[Path, typer.Argument(help="The folder; a run that was killed goes on in it.")],
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
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Use the cluster of a Dask scheduler.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Draw cars at random, solve each with OpenFOAM, and keep them in OUT for training.

    Killed at any moment and started again, it loses nothing and makes nothing twice. OUT gets
    raw/samples.jsonl, raw/meshes, what is worth keeping of each case in cases, the data card
    card.json and histogram.png.
    """
    from it3_aero.cars.generating import generate as run

    try:
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
    except KeyboardInterrupt:
        typer.echo(f"interrupted: run the same command to go on in {out}", err=True)
        raise typer.Exit(130) from None
    counts, settings = card["counts"], card["settings"]
    line = f"{out}: {counts['answered']} cars by {settings['solver']}"
    if counts["failed"]:
        line += f", {counts['failed']} without an answer (card.json says why)"
    if "drag" in card:
        line += f"; Cd {card['drag']['lowest']:.3f} to {card['drag']['highest']:.3f}"
    typer.echo(line)


model_cli.register(app)
