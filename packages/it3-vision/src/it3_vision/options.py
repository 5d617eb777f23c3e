"""The options that every task's commands have."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from it3_core import IT3Error

__all__ = ["Adaptation", "Device", "Norm", "Normalise", "Preset", "Quiet", "RunFolder", "Second",
           "command", "names", "numbers", "tell"]  # fmt: skip

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that train made.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
Device = Annotated[str, typer.Option(help="Where the network runs: cpu, cuda ...")]


class Preset(StrEnum):
    """Networks by size."""

    tiny = "tiny"
    small = "small"
    paper = "paper"


class Norm(StrEnum):
    """Kinds of normalisation."""

    batch = "batch"
    group = "group"


class Normalise(StrEnum):
    """Whose mean and deviation images are normalised by."""

    data = "data"
    imagenet = "imagenet"


class Second(StrEnum):
    """What the second pass is given in training."""

    label = "label"
    noisy = "noisy"
    own = "own"
    mixed = "mixed"


class Adaptation(StrEnum):
    """What to do with the network at test time."""

    auto = "auto"
    instance = "instance"
    batch = "batch"
    statistics = "statistics"
    none = "none"


def numbers(text: str, what: str) -> list[int]:
    """Whole numbers separated by commas.

    Example:
        >>> numbers("1,16,64", "batch sizes")
        [1, 16, 64]
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise IT3Error(f"{what} are whole numbers from 1 on, such as 1,4,16, not {text!r}")
    return found


def tell(found: Sequence[Any], as_json: bool) -> None:
    """Prints predictions, one a line; exits with 2 if one of them has a problem."""
    for one in found:
        print(json.dumps(one.as_json(), ensure_ascii=False) if as_json else str(one))
    if any(one.before is None for one in found):
        raise typer.Exit(2)


def names(text: str | None) -> list[str] | None:
    """Names of methods, separated by semicolons.

    Example:
        >>> names("IT³ auto; ActMAD")
        ['IT³ auto', 'ActMAD']
    """
    return None if text is None else [name.strip() for name in text.split(";")]


def command(task: str, run: Path, options: Mapping[str, Any]) -> str:
    """The line that makes an evaluation again, for its report.

    Example:
        >>> command("age", Path("run"), {"data": "my faces", "most": None, "vanilla": True})
        "it3-vision age evaluate run --data 'my faces' --vanilla"
    """
    words = ["it3-vision", task, "evaluate", str(run)]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return shlex.join(words)
