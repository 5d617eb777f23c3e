"""The commands of wings around a trained network: the shared ones, and the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from it3_aero.learning import cli
from it3_aero.learning.cli import Adapt, AsJson, Plot, Quiet, RunFolder
from it3_aero.wings.task import WINGS

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to `it3-aero wings`."""
    cli.register(app, WINGS)
    for command in (predict, demo):
        app.command()(command)


def predict(
    run: RunFolder,
    shapes: Annotated[list[Path], typer.Argument(metavar="SHAPE...", help="Airfoil .dat files.")],
    adapt: Adapt = cli.Adaptation.auto,
    verify: Annotated[bool, typer.Option("--verify", help="Ask XFoil too.")] = False,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Say the lift-to-drag of airfoils in files, and how unusual they are.

    Exits with 2 if a file had a problem; the others are answered all the same.
    """
    from it3_aero.wings.files import read_airfoil

    cli.answer_files(WINGS, run, shapes, adapt, verify, as_json, plot, read_airfoil)


def demo(
    out: Annotated[Path, typer.Option(help="The folder for all of it.")] = Path("it3-wings-demo"),
    n: Annotated[int, typer.Option(min=100, help="Number of profiles.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is random.")] = 0,
    solver: Annotated[str, typer.Option(help="auto, xfoil or neuralfoil.")] = "auto",
    epochs: Annotated[int, typer.Option(min=1, help="Of the training.")] = 60,
    quiet: Quiet = False,
) -> None:
    """Generate profiles, train, evaluate and write the report: under five minutes on two cores."""
    from it3_aero.learning.model import Training
    from it3_aero.wings.demo import run_demo

    cli.one_thread("small")
    console = Console(highlight=False, emoji=False)
    training = Training(seed=seed, epochs=epochs)
    made = run_demo(
        out, n=n, seed=seed, solver=solver, training=training, progress=not quiet, say=console.print
    )
    cli.closing(console, made)
