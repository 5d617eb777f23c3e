"""The command `it3-aero`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from it3_aero import __version__
from it3_aero.cars.cli import app as cars
from it3_aero.wings.cli import app as wings
from it3_core.commands import exit_code, saying

__all__ = ["app", "main"]

app = typer.Typer(
    name="it3-aero",
    help="IT3 (idempotent test-time training) for aerodynamics: shapes such as wings and cars.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(wings, name="wings")
app.add_typer(cars, name="cars")
_version = saying(f"it3-aero {__version__}")


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor() -> None:
    """Say what is installed, try it on a NACA 0012, and say how to get the rest.

    Exits with 1 if no solver works.
    """
    from it3_aero.doctor import examine

    findings = list(examine())
    for finding in findings:
        print(finding)
    if not any(finding.works for finding in findings if finding.solver):
        raise typer.Exit(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for what the user can mend."""
    return exit_code(app, "it3-aero", argv)


if __name__ == "__main__":
    sys.exit(main())
