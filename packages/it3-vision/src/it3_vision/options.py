"""The options that every task's commands have."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from it3_core import IT3Error

__all__ = ["Adapt", "Adaptation", "AsJson", "BFloat16", "BatchSizes", "Device",
           "EvaluationFolder", "Images", "NewRun", "Norm", "NormKind", "Normalise", "NormaliseBy",
           "Only", "Part", "Preset", "Quiet", "Rate", "RunFolder", "Second", "Seed", "Signal",
           "TrainDevice", "Vanilla", "Weight", "Weights", "Workers", "check_outside", "check_rate",
           "command", "left_out", "names", "numbers", "tell"]  # fmt: skip

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that train made.")]
NewRun = Annotated[Path, typer.Option(metavar="RUN", help="The folder to make.")]
Part = Annotated[str | None, typer.Option(help="Which, where DATA has several.")]
Seed = Annotated[int, typer.Option(min=0, help="Of all that is random.")]
Vanilla = Annotated[bool, typer.Option(
    "--vanilla", help="Train the same network without a signal too: as long again.")]  # fmt: skip
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


# Of `train`.
NormKind = Annotated[Norm, typer.Option(help="Batch norm or group norm.")]
Rate = Annotated[float, typer.Option(help="The largest rate of the cycle.")]
Signal = Annotated[Second, typer.Option(help="The second pass's signal.")]
Weight = Annotated[float, typer.Option(help="Of the second pass in the loss.")]
Weights = Annotated[Path | None, typer.Option(help="A safetensors file to start from.")]
NormaliseBy = Annotated[Normalise, typer.Option(help="imagenet: for WEIGHTS from there.")]
BFloat16 = Annotated[bool | None, typer.Option(
    help="Multiply in bfloat16, if the CPU can; without a word, on a GPU only.")]  # fmt: skip
Workers = Annotated[int, typer.Option(min=0, help="Processes that prepare images.")]
TrainDevice = Annotated[str | None, typer.Option(help="cpu, cuda ...; a GPU if there is.")]

# Of `evaluate`.
BatchSizes = Annotated[str, typer.Option(help="Images at once, separated by commas.")]
Only = Annotated[str | None, typer.Option(help="Names of methods, by semicolons.")]
EvaluationFolder = Annotated[Path | None, typer.Option(help="The folder; RUN/evaluation.")]

# Of `predict`.
Images = Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Files or folders.")]
Adapt = Annotated[Adaptation, typer.Option(help="auto is what tuning chose.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


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


def check_rate(lr: float) -> None:
    """Refuses a rate that nothing can be trained with, before images are read.

    Example:
        >>> check_rate(-1.0)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: lr must be a positive number, not -1.0
    """
    if not 0 < lr < math.inf:
        raise IT3Error(f"lr must be a positive number, not {lr}")


def check_outside(out: Path, data: Path) -> None:
    """Refuses to write between images, where pictures that are written would be read as more.

    Example:
        >>> check_outside(Path("photos/cats/run"), Path("photos"))
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: photos/cats/run lies in photos, and would be read as images: ...
    """
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(data)):
        raise IT3Error(f"{out} lies in {data}, and would be read as images: write elsewhere")


def left_out(problems: Sequence[object], most: int = 5) -> None:
    """Says on standard error what could not be used, and why: the first few of it."""
    for problem in problems[:most]:
        typer.echo(f"left out: {problem}", err=True)
    if len(problems) > most:
        typer.echo(f"left out: {len(problems) - most} more", err=True)


def tell(found: Sequence[Any], as_json: bool) -> None:
    """Prints predictions, one a line; exits with 2 if one of them has a problem."""
    for one in found:
        print(json.dumps(one.as_json(), ensure_ascii=False) if as_json else str(one))
    if any(one.problem is not None for one in found):
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
