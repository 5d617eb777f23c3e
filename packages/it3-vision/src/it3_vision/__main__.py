"""The command `it3-vision`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from it3_core.commands import exit_code, saying
from it3_vision import __version__
from it3_vision.age.cli import app as age
from it3_vision.classify.cli import app as classify
from it3_vision.corrupting import corrupt
from it3_vision.options import Quiet, Seed
from it3_vision.roads.cli import app as roads

__all__ = ["app", "main"]

app = typer.Typer(
    name="it3-vision",
    help="IT3 (idempotent test-time training) for images: corrupted ones, faces of other ages, "
    "roads from the air.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(classify, name="classify")
app.add_typer(age, name="age")
app.add_typer(roads, name="roads")
app.command()(corrupt)
_version = saying(f"it3-vision {__version__}")


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for all of it.")] = Path("it3-vision-demo"),
    n: Annotated[int, typer.Option(min=200, help="Images to train on.")] = 2000,
    tested: Annotated[int, typer.Option(min=32, help="Images to test on.")] = 128,
    epochs: Annotated[int, typer.Option(min=1, help="Of the training.")] = 5,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Draw characters, train, corrupt, compare eleven methods, write the report."""
    from it3_vision.classify.demo import run_demo

    made = run_demo(out, n=n, tested=tested, seed=seed, epochs=epochs, progress=not quiet)
    made.tell(made.evaluation.summary(made.evaluation.severities[-1]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for what the user can mend."""
    return exit_code(app, "it3-vision", argv)


if __name__ == "__main__":
    sys.exit(main())
