"""What the commands that run solvers share: options, how they are interrupted, what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["Dask", "Out", "Quiet", "counted", "goes_on"]

Out = Annotated[Path, typer.Argument(help="The folder; a run that was killed goes on in it.")]
Dask = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Use the cluster of a Dask scheduler.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


@contextmanager
def goes_on(out: Path) -> Iterator[None]:
    """Interrupted, the command says how to go on in a folder, and ends as shells expect.

    Example:
        >>> try:
        ...     with goes_on(Path("wings")):
        ...         raise KeyboardInterrupt
        ... except typer.Exit as ended:
        ...     ended.exit_code
        130
    """
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted: run the same command to go on in {out}", err=True)
        raise typer.Exit(130) from None


def counted(out: Path, card: Mapping[str, Any], things: str) -> str:
    """How many a data card has, by whom, and how many failed.

    Example:
        >>> counts = {"asked": 3, "answered": 2, "failed": 1}
        >>> counted(Path("out"), {"counts": counts, "settings": {"solver": "XFoil"}}, "profiles")
        'out: 2 profiles by XFoil, 1 without an answer (card.json says why)'
    """
    counts = card["counts"]
    line = f"{out}: {counts['answered']} {things} by {card['settings']['solver']}"
    if counts["failed"]:
        line += f", {counts['failed']} without an answer (card.json says why)"
    return line
