"""The commands around a trained network: train, evaluate, predict, report and demo."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from it3_core import IT3Error

__all__ = ["register"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that train made.")]
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


def register(app: typer.Typer) -> None:
    """Add the commands to `it3-aero wings`."""
    for command in (train, evaluate, predict, report, demo):
        app.command()(command)


def train(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The folder that generate made.")],
    out: Annotated[Path, typer.Option(metavar="RUN", help="The folder to make.")],
    preset: Annotated[Preset, typer.Option(help="small: minutes on two cores.")] = Preset.small,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and rows.")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the preset's.")] = None,
    threshold: Annotated[float, typer.Option(help="The largest L/D to train on.")] = 60.0,
    quiet: Quiet = False,
) -> None:
    """Train a network on profiles up to an L/D; started again, it goes on where it was."""
    from it3_aero.wings.dataset import WingDataset
    from it3_aero.wings.demo import about, data_card
    from it3_aero.wings.evaluate import Levels
    from it3_aero.wings.model import Training
    from it3_aero.wings.model import train as train_run

    _one_thread(preset.value)
    dataset = WingDataset(data)
    levels = Levels.of(dataset, threshold)
    run = train_run(
        levels.train,
        out,
        Training(preset.value, seed, epochs),
        card=data_card(dataset),
        about=about(dataset, data, threshold),
        progress=not quiet,
    )
    history = run.history
    print(
        f"{out}: trained on {len(levels.train)} profiles ({dataset.solver}) for "
        f"{len(history['train'])} epochs in {history['seconds']:.0f} s; off by "
        f"{run.settings['held_out_error']:.2f} in L/D on held-out ones; |dF/dy| "
        f"{run.settings['sensitivity']:.2f}.\n{run.tuning.reason}"
    )


def evaluate(
    run: RunFolder,
    data: Annotated[Path | None, typer.Option(help="Where the RUN's data are now.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder; RUN/evaluation.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds; others are trained.")] = 1,
    batch_sizes: Annotated[str, typer.Option(help="Separated by commas.")] = "1,4,16",
    most: Annotated[int, typer.Option(min=1, help="Shapes of a level at most.")] = 100,
    quiet: Quiet = False,
) -> None:
    """Compare every method on every level, and write records, tables, pictures and the report."""
    from it3_aero.wings.evaluate import evaluate_run
    from it3_aero.wings.model import load_run
    from it3_aero.wings.report import write_report
    from it3_core.tables import markdown_table

    sizes = _sizes(batch_sizes)
    trained = load_run(run)
    _one_thread(trained.settings["preset"])
    levels, neuralfoil = _levels(trained, data)
    found = evaluate_run(
        trained,
        levels,
        out=out,
        seeds=seeds,
        batch_sizes=sizes,
        most=most,
        neuralfoil=neuralfoil,
        progress=not quiet,
    )
    command = f"it3-aero wings evaluate {run} --seeds {seeds} --most {most}"
    page = write_report(trained, levels.drawn(most), found, found.folder / "report.html", command)
    print(markdown_table(found.table()))
    print(f"\n{found.folder / 'table.md'}\n{page}")


def predict(
    run: RunFolder,
    shapes: Annotated[list[Path], typer.Argument(metavar="SHAPE...", help="Airfoil .dat files.")],
    adapt: Annotated[Adaptation, typer.Option(help="auto is what tuning chose.")] = Adaptation.auto,
    verify: Annotated[bool, typer.Option("--verify", help="Ask XFoil too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the shapes.")] = None,
) -> None:
    """Say the lift-to-drag of airfoils in files, and how unusual they are.

    Exits with 2 if a file had a problem; the others are answered all the same.
    """
    from it3_aero.wings.model import load_run
    from it3_aero.wings.predict import draw
    from it3_aero.wings.predict import predict as answer

    trained = load_run(run)
    _one_thread(trained.settings["preset"])
    found = answer(trained, shapes, adapt.value)
    if verify:
        _verify(found, trained.settings["about"])
    console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
    for one in found:
        if as_json:
            print(json.dumps(one.as_json(), ensure_ascii=False, allow_nan=False))
        else:
            console.print(str(one), style="red" if one.before is None else None)
    if plot is not None and any(one.airfoil is not None for one in found):
        draw(found, plot)
    if any(one.before is None for one in found):
        raise typer.Exit(2)


def report(
    run: RunFolder,
    evaluation: Annotated[Path | None, typer.Option(help="RUN/evaluation.")] = None,
    data: Annotated[Path | None, typer.Option(help="Where the RUN's data are now.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page.")] = None,
) -> None:
    """Write the page of an evaluated RUN again."""
    from it3_aero.wings.evaluate import load_evaluation
    from it3_aero.wings.model import load_run
    from it3_aero.wings.report import write_report

    trained = load_run(run)
    _one_thread(trained.settings["preset"])
    found = load_evaluation(evaluation or run / "evaluation")
    levels, _ = _levels(trained, data)
    print(write_report(trained, levels, found, out or found.folder / "report.html"))


def demo(
    out: Annotated[Path, typer.Option(help="The folder for all of it.")] = Path("it3-wings-demo"),
    n: Annotated[int, typer.Option(min=100, help="Number of profiles.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is random.")] = 0,
    solver: Annotated[str, typer.Option(help="auto, xfoil or neuralfoil.")] = "auto",
    epochs: Annotated[int, typer.Option(min=1, help="Of the training.")] = 60,
    quiet: Quiet = False,
) -> None:
    """Generate profiles, train, evaluate and write the report: under five minutes on two cores."""
    from it3_aero.wings.demo import run_demo
    from it3_aero.wings.model import Training

    _one_thread("small")
    console = Console(highlight=False, emoji=False)
    training = Training(seed=seed, epochs=epochs)
    made = run_demo(
        out, n=n, seed=seed, solver=solver, training=training, progress=not quiet, say=console.print
    )
    console.print(_short_table(made.evaluation))
    console.print(made.run.tuning.reason)
    console.print(f"report: {made.report}", soft_wrap=True)


def _one_thread(preset: str) -> None:
    """Small layers gain nothing from a second thread, and lose tenfold to it on a busy machine."""
    import torch

    if preset == "small" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _short_table(found: Any) -> Table:
    """One line a method, at the largest batch."""
    from it3_aero.wings.evaluate import WITHIN

    shown = Table(title="mean |error| in L/D", title_justify="left")
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
            f"{before:.2f}",
            f"{row['error']:.2f}",
            "" if method == row["reference"] else change,
            "" if row["cost"] is None else f"{row['cost']:.1f}",
        )
    return shown


def _levels(run: Any, data: Path | None) -> tuple[Any, bool]:
    """The RUN's data, split as it was; and whether NeuralFoil is a yardstick for them."""
    from it3_aero.wings.dataset import WingDataset
    from it3_aero.wings.evaluate import Levels

    told = run.settings["about"]
    place = data or Path(str(told.get("data", "")))
    if not place.is_dir():
        raise IT3Error(f"the RUN's data are not in {place}: say where with --data")
    dataset = WingDataset(place, run.nodes)
    levels = Levels.of(dataset, float(told.get("threshold", 60.0)), int(told.get("levels", 3)))
    return levels, "NeuralFoil" not in dataset.solver


def _verify(found: list[Any], told: dict[str, Any]) -> None:
    from it3_aero.wings.predict import verify
    from it3_aero.wings.solvers import choose

    solver = choose("auto")
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(f"asking {solver.name}", total=len(found))
        verify(
            found,
            solver,
            float(told.get("reynolds", 1e6)),
            float(told.get("alpha", 0.0)),
            lambda: bar.advance(task),
        )


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise IT3Error(f"batch sizes are whole numbers from 1 on, such as 1,4,16, not {text!r}")
    return sizes
