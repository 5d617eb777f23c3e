"""The commands around a trained network, for any task."""

# Annotations are values here, not text: the commands' help depends on the task.

import json
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from it3_aero.learning.task import Task
from it3_core import IT3Error

__all__ = [
    "Adapt",
    "Adaptation",
    "AsJson",
    "Plot",
    "Quiet",
    "RunFolder",
    "answer_files",
    "closing",
    "one_thread",
    "register",
]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that train made.")]
DataFolder = Annotated[Path | None, typer.Option(help="Where the RUN's data are now.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


class Preset(StrEnum):
    """Networks by size."""

    small = "small"
    paper = "paper"


class Adaptation(StrEnum):
    """What to do with the weights at test time."""

    auto = "auto"
    instance = "instance"
    batch = "batch"
    none = "none"


Adapt = Annotated[Adaptation, typer.Option(help="auto is what tuning chose.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the shapes.")]


def register(app: typer.Typer, task: Task) -> None:
    """Add train, evaluate and report to `it3-aero wings`, or to `it3-aero cars`."""
    for make in (_train, _evaluate, _report):
        app.command()(make(task))


def _train(task: Task) -> Callable[..., None]:
    most = "largest" if task.beyond == "upper" else "smallest"

    def train(
        data: Annotated[
            Path, typer.Argument(metavar="DATA", help="The folder that generate made.")
        ],
        out: Annotated[Path, typer.Option(metavar="RUN", help="The folder to make.")],
        preset: Annotated[Preset, typer.Option(help="small: minutes on two cores.")] = Preset.small,
        seed: Annotated[int, typer.Option(min=0, help="Of weights and rows.")] = 0,
        epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the preset's.")] = None,
        threshold: Annotated[
            float | None, typer.Option(help=f"The {most} {task.quantity} to train on.")
        ] = task.threshold,
        quiet: Quiet = False,
    ) -> None:
        from it3_aero.learning.job import about, data_card, levels_of, threshold_of
        from it3_aero.learning.model import Training
        from it3_aero.learning.model import train as train_run

        one_thread(preset.value)
        dataset = task.dataset(data, None)
        limit = threshold_of(task, dataset) if threshold is None else threshold
        levels = levels_of(task, dataset, limit)
        run = train_run(
            *(task, levels.train, out, Training(preset.value, seed, epochs)),
            card=data_card(dataset),
            about=about(task, dataset, data, limit),
            progress=not quiet,
        )
        history = run.history
        print(
            f"{out}: trained on {len(levels.train)} {task.thing}s ({dataset.solver}) for "
            f"{len(history['train'])} epochs in {history['seconds']:.0f} s; off by "
            f"{task.said(run.settings['held_out_error'], 1)} in {task.quantity} on held-out ones; "
            f"|dF/dy| {run.settings['sensitivity']:.2f}.\n{run.tuning.reason}"
        )

    side = "up to" if task.beyond == "upper" else "down to"
    train.__doc__ = (
        f"Train a network on {task.thing}s {side} some {task.quantity}; started again, it goes on "
        f"where it was."
    )
    return train


def _evaluate(task: Task) -> Callable[..., None]:
    def evaluate(
        run: RunFolder,
        data: DataFolder = None,
        out: Annotated[Path | None, typer.Option(help="The folder; RUN/evaluation.")] = None,
        seeds: Annotated[int, typer.Option(min=1, help="Training seeds; others are trained.")] = 1,
        batch_sizes: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(
            map(str, task.batch_sizes)
        ),
        most: Annotated[int, typer.Option(min=1, help="Shapes of a level at most.")] = 100,
        quiet: Quiet = False,
    ) -> None:
        """Compare every method on every level; write records, tables, pictures and the report."""
        from it3_aero.learning.evaluate import evaluate_run
        from it3_aero.learning.report import write_report
        from it3_aero.learning.runs import load_run
        from it3_core.tables import markdown_table

        sizes = _sizes(batch_sizes)
        trained = load_run(task, run)
        one_thread(trained.settings["preset"])
        levels = _levels(trained, data)
        found = evaluate_run(
            *(trained, levels),
            out=out,
            seeds=seeds,
            batch_sizes=sizes,
            most=most,
            progress=not quiet,
        )
        command = f"it3-aero {task.name} evaluate {run} --seeds {seeds} --most {most}"
        place = found.folder / "report.html"
        page = write_report(trained, levels.drawn(most), found, place, command)
        print(markdown_table(found.table()))
        print(f"\n{found.folder / 'table.md'}\n{page}")

    return evaluate


def _report(task: Task) -> Callable[..., None]:
    def report(
        run: RunFolder,
        evaluation: Annotated[Path | None, typer.Option(help="RUN/evaluation.")] = None,
        data: DataFolder = None,
        out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page.")] = None,
    ) -> None:
        """Write the page of an evaluated RUN again."""
        from it3_aero.learning.evaluate import load_evaluation
        from it3_aero.learning.report import write_report
        from it3_aero.learning.runs import load_run

        trained = load_run(task, run)
        one_thread(trained.settings["preset"])
        found = load_evaluation(task, evaluation or run / "evaluation")
        levels = _levels(trained, data)
        print(write_report(trained, levels, found, out or found.folder / "report.html"))

    return report


def answer_files(
    task: Task,
    run: Path,
    files: list[Path],
    adapt: Adaptation,
    verify: bool,
    as_json: bool,
    plot: Path | None,
    read: Callable[[Path], Any],
) -> None:
    """What `predict` does: a line for each file, and exit code 2 if one had a problem."""
    from it3_aero.learning.predict import draw, predict
    from it3_aero.learning.runs import load_run

    trained = load_run(task, run)
    one_thread(trained.settings["preset"])
    found = predict(trained, files, read, adapt.value)
    if verify:
        _verify(task, found, trained.settings["about"])
    console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
    for one in found:
        if as_json:
            print(json.dumps(one.as_json(), ensure_ascii=False, allow_nan=False))
        else:
            console.print(str(one), style="red" if one.before is None else None)
    if plot is not None and any(one.shape is not None for one in found):
        draw(found, plot)
    if any(one.before is None for one in found):
        raise typer.Exit(2)


def one_thread(preset: str) -> None:
    """Small layers gain nothing from a second thread, and lose tenfold to it on a busy machine."""
    import torch

    if preset == "small" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def closing(console: Console, made: Any) -> None:
    """What a demo ends with: the short table, what tuning chose, and where the page is."""
    console.print(_short_table(made.evaluation))
    console.print(made.run.tuning.reason)
    console.print(f"report: {made.report}", soft_wrap=True)


def _short_table(found: Any) -> Table:
    """One line a method, at the largest batch."""
    from it3_aero.learning.shapes import WITHIN

    task = found.task
    shown = Table(title=f"mean |error| in {task.quantity}", title_justify="left")
    shown.add_column("method", no_wrap=True)
    for name in ("known shapes", "beyond", "change", "cost"):
        shown.add_column(name, justify="right", no_wrap=True)
    known = {(r["method"], r["batch_size"]): r for r in found.rows if r["level"] == WITHIN}
    last = found.rows[-1]["level"]
    rows = {r["method"]: r for r in found.rows if r["level"] == last}  # the largest batch is last
    for method, row in rows.items():
        before = known[method, row["batch_size"]]["error"]
        if row["error"] is None or before is None:
            shown.add_row(method, "failed", "failed", "", "")
            continue
        change = "" if row["relative"] is None else f"{100 * row['relative']:+.1f} %"
        shown.add_row(
            method,
            task.said(before, 1),
            task.said(row["error"], 1),
            "" if method == row["reference"] else change,
            "" if row["cost"] is None else f"{row['cost']:.1f}",
        )
    return shown


def _levels(run: Any, data: Path | None) -> Any:
    """The RUN's data, split as it was."""
    from it3_aero.learning.job import levels_of, threshold_of

    told, task = run.settings["about"], run.task
    place = data or Path(str(told.get("data", "")))
    if not place.exists():
        raise IT3Error(f"the RUN's data are not in {place}: say where with --data")
    dataset = task.dataset(place, run.nodes)
    threshold = float(told.get("threshold") or threshold_of(task, dataset))
    return levels_of(task, dataset, threshold, int(told.get("levels", task.levels)))


def _verify(task: Task, found: list[Any], about: dict[str, Any]) -> None:
    from it3_aero.learning.predict import verify

    ask = task.verify(about)
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        step = bar.add_task(f"asking {task.solver}", total=len(found))
        verify(found, ask, lambda: bar.advance(step))


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise IT3Error(f"batch sizes are whole numbers from 1 on, such as 1,4,16, not {text!r}")
    return sizes
