"""The command `it3-tabular`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from threadpoolctl import threadpool_limits

from it3_core import IT3Error
from it3_core.commands import exit_code
from it3_tabular import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="it3-tabular",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)


class Task(StrEnum):
    """What to predict."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


class Adapt(StrEnum):
    """What to do with the rows to predict."""

    auto = "auto"
    instance = "instance"
    batch = "batch"
    online = "online"
    none = "none"


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """IT³ (idempotent test-time training) for **tables**: rows of numbers, with gaps.

    A small network learns to predict a column, to say how unusual a row is, and, where that helped
    on held-out rows, to adapt to the rows it gets.

    Start with `it3-tabular demo`. Then, with a CSV of your own:

    - `it3-tabular train houses.csv --target price --out run`

    - `it3-tabular predict run new.csv --out predicted.csv`
    """
    if version:
        print(f"it3-tabular {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
    if version or context.invoked_subcommand is None:
        raise typer.Exit


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 0,
) -> None:
    """Train on the Energy set in the package, damage its test rows, and see what happens.

    Takes a few seconds and needs no files. The table shows the mean absolute error (heating load
    in kWh/m²) of the network as it is and of what `auto` chose, and how many rows are flagged.
    """
    from it3_tabular.demo import demonstrate

    _out.print("Training on 614 of the 768 buildings of the UCI Energy Efficiency set …")
    model, lines = demonstrate(seed, verbose=True)
    shown = Table(title="154 test rows, damaged in several ways")
    for title in ("damage", "error, as it is", "error, auto", "flagged as unusual"):
        shown.add_column(title, justify="left" if title == "damage" else "right")
    for line in lines:
        flagged = f"{100 * line.flagged:.0f} %"
        shown.add_row(line.damage, f"{line.source:.2f}", f"{line.auto:.2f}", flagged)
    _out.print(shown)
    assert model.tuning_ is not None
    _out.print(f"auto: {model.tuning_.reason}", soft_wrap=True)
    _out.print("5 % of undamaged rows are flagged by design; a gap (NaN) is filled from the row.")


@app.command()
def train(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet; the first line names the columns.")],
    target: Annotated[str, typer.Option(help="Name of the column to predict.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; made if it is not there.")],
    task: Annotated[
        Task, typer.Option(help="auto: classification where the target is text.")
    ] = Task.auto,
    adapt: Annotated[
        Adapt,
        typer.Option(
            help="What predictions do. auto: what did best on held-out rows, or nothing. "
            "instance: adapt to each row alone. batch: to 8 rows together. online: without "
            "starting anew. none: nothing."
        ),
    ] = Adapt.auto,
    hidden: Annotated[str, typer.Option(help="Widths of the hidden layers.")] = "30,20,10",
    epochs: Annotated[int, typer.Option(min=1, help="Epochs at most; it stops early.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
) -> None:
    """Train on a table, all of whose columns but the target are features.

    Every feature must be a number. An empty cell, NA, NaN, null or ? is a missing value, which is
    fine. Writes OUT/model.safetensors.

    Example: `it3-tabular train houses.csv --target price --out run`
    """
    from it3_tabular.commands import MODEL, train_file

    settings: dict[str, Any] = {
        "adapt": None if adapt is Adapt.none else adapt.value,
        "hidden_layer_sizes": _widths(hidden),
        "max_iter": epochs,
        "random_state": seed,
        "verbose": not quiet,
    }
    model, table = train_file(file, target, out, task.value, settings)
    kind = "classes" if hasattr(model, "classes_") else "a number"
    _say(f"{len(table.y):,} rows, {len(table.names)} features, predicting {kind}: {target}")
    if model.validation_error_ is not None:
        classes = hasattr(model, "classes_")
        error = (
            f"{100 * model.validation_error_:.1f} %"
            if classes
            else (f"{model.validation_error_:.4g}")
        )
        name = "share of wrong answers" if classes else "mean absolute error"
        _say(f"held-out rows: {name} {error}, after {model.n_iter_} epochs")
    else:
        _say("too few rows to hold any out: nothing says how good this is")
    if model.tuning_ is not None:
        _say(model.tuning_.reason)
    _say(f"wrote {out / MODEL}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder that train made, or a model file.")],
    file: Annotated[Path, typer.Argument(help="CSV or Parquet with the training columns.")],
    out: Annotated[Path, typer.Option(help="CSV to write.")],
    adapt: Annotated[
        Adapt | None, typer.Option(help="Instead of what the model was trained with.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Copy the file's columns too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
) -> None:
    """Predict a file of any length, in bounded memory.

    The CSV has one line for each row, in the same order: `prediction`; `before`, what it would be
    without adapting; `error`, how far the network disagrees with itself on this row; and `flag`,
    1 where that is more than on 95 % of the held-out training rows.

    Columns are found by name, whatever their order; others are ignored.

    Example: `it3-tabular predict run new.csv --out predicted.csv`
    """
    from it3_tabular.commands import predict_file

    wanted: str | None = "" if adapt is None else adapt.value
    if adapt is Adapt.none:
        wanted = None
    with _progress(quiet) as bar:
        task = bar.add_task("predict", total=1.0)

        def show(position: float, rows: int) -> None:
            bar.update(task, completed=position, description=f"predict, {rows:,} rows")

        done = predict_file(run, file, out, adapt=wanted, keep=keep, show=show)
    share = 100 * done.flagged / done.rows
    _say(
        f"{done.rows:,} rows in {done.seconds:.1f} s; {share:.1f} % are flagged as unusual "
        f"(of rows like the training rows it would be about 5 %)"
    )
    if done.ignored:
        _say(f"ignored: {', '.join(done.ignored)}")
    _say(f"wrote {out}")


@app.command()
def evaluate(
    out: Annotated[Path, typer.Option(help="Folder for records, table.md and PNGs.")],
    data: Annotated[
        Path | None, typer.Option(help="Folder of UCI folders [default: $IT3_DATA/uci].")
    ] = None,
    sets: Annotated[
        str, typer.Option(help="Names of data sets, with commas between.")
    ] = "bostonHousing,energy,concrete,wine-quality-red",
    splits: Annotated[int, typer.Option(min=1, help="How many of the standard splits.")] = 20,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs at most, per network.")] = 200,
    plots: Annotated[bool, typer.Option(help="Draw PNGs; needs it3-tabular[plots].")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
) -> None:
    """Measure all methods as the paper does: features zeroed with p = 5, 10, 15, 20 %.

    Each data set is a folder with `data.txt`, `index_features.txt`, `index_target.txt` and
    `index_train_K.txt`, `index_test_K.txt` of split K. A run that was stopped goes on where it
    was.

    Example: `IT3_DATA=/data it3-tabular evaluate --out results`
    """
    from it3_tabular.protocol import evaluate_split
    from it3_tabular.report import write_report
    from it3_tabular.uci import load_uci

    root = _data_folder(data)
    names = [name.strip() for name in sets.split(",") if name.strip()]
    if not names:
        raise IT3Error("name at least one data set, such as --sets energy")
    found = [load_uci(root / name) for name in names]
    with _progress(quiet) as bar:
        task = bar.add_task("evaluate", total=sum(min(splits, len(d.splits)) for d in found))
        for each in found:
            for number in range(min(splits, len(each.splits))):
                bar.update(task, description=f"{each.name}, split {number}")
                evaluate_split(each, number, out, {"max_iter": epochs})
                bar.advance(task)
    command = f"it3-tabular evaluate --sets {','.join(names)} --splits {splits} --out {out.name}"
    print(write_report(out, names, command, plots=plots))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    # These networks are too small to share between cores: waiting costs more than working.
    threadpool_limits(1)
    torch.set_num_threads(1)
    return exit_code(app, "it3-tabular", argv)


def _say(text: str) -> None:
    _out.print(escape(text), soft_wrap=True)


def _progress(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=_err,
        transient=True,
        disable=quiet or not _err.is_terminal,  # in a log, bars are noise
    )


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        widths = ()
    if not widths or min(widths) < 1:
        raise IT3Error(f"--hidden must be widths such as 30,20,10, not {text!r}")
    return widths


def _data_folder(data: Path | None) -> Path:
    if data is not None:
        return data
    if "IT3_DATA" not in os.environ:
        raise IT3Error("say where the data sets are: --data FOLDER, or IT3_DATA in the environment")
    return Path(os.environ["IT3_DATA"]) / "uci"


if __name__ == "__main__":
    sys.exit(main())
