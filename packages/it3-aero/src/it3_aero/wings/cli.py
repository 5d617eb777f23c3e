"""The commands `it3-aero wings ...`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from it3_aero.generating_cli import Dask, Out, Quiet, counted, goes_on
from it3_aero.wings import model_cli
from it3_aero.wings.families import Range
from it3_core import IT3Error

__all__ = ["app"]

app = typer.Typer(
    help="Wing sections: from their shape to a lift-to-drag ratio.", no_args_is_help=True
)


class SolverName(StrEnum):
    """Who answers."""

    auto = "auto"
    xfoil = "xfoil"
    neuralfoil = "neuralfoil"


class FamilyName(StrEnum):
    """What is drawn."""

    naca4 = "naca4"
    naca5 = "naca5"


@app.callback()
def _wings() -> None:
    pass


@app.command()
def generate(
    out: Out,
    n: Annotated[int, typer.Option("--n", "-n", help="Number of profiles.")] = 2000,
    seed: Annotated[int, typer.Option(help="Which profiles are drawn.")] = 0,
    family: Annotated[FamilyName, typer.Option(help="What is drawn.")] = FamilyName.naca4,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="NAME=LOW:HIGH", help="Such as camber=0:0.07; repeatable."),
    ] = None,
    reynolds: Annotated[float, typer.Option(help="Reynolds number.")] = 1e6,
    alpha: Annotated[float, typer.Option(help="Angle of attack in degrees.")] = 0.0,
    mach: Annotated[float, typer.Option(help="Mach number.")] = 0.0,
    solver: Annotated[
        SolverName, typer.Option(help="auto is XFoil where it runs, NeuralFoil elsewhere.")
    ] = SolverName.auto,
    workers: Annotated[int | None, typer.Option(help="At a time; default: cores + 1.")] = None,
    dask: Dask = None,
    quiet: Quiet = False,
) -> None:
    """Draw profiles at random, solve each, and keep them in OUT for training.

    Killed at any moment and started again, it loses nothing and makes nothing twice. OUT gets
    raw/samples.jsonl, the data card card.json and histogram.png.
    """
    from it3_aero.wings.generating import generate as run

    with goes_on(out):
        card = run(
            out,
            n,
            seed=seed,
            family=family.value,
            ranges=dict(map(_range, ranges or [])),
            reynolds=reynolds,
            alpha=alpha,
            mach=mach,
            solver=solver.value,
            workers=workers,
            dask=dask,
            progress=not quiet,
        )
    line = counted(out, card, "profiles")
    if "lift_to_drag" in card:
        ratios = card["lift_to_drag"]
        line += f"; L/D {ratios['lowest']:.1f} to {ratios['highest']:.1f}, "
        line += f"{100 * ratios['share_beyond_60']:.1f} % beyond 60"
    typer.echo(line)


def _range(text: str) -> tuple[str, Range]:
    name, _, ends = text.partition("=")
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        raise IT3Error(
            f"a range is NAME=LOW:HIGH, such as camber=0:0.07, unlike {text!r}"
        ) from None
    return name, (low, high)


model_cli.register(app)
