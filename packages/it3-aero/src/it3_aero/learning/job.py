"""From a data set to a RUN, its evaluation and the report: the steps that demos are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from it3_aero.learning.evaluate import Evaluation, evaluate_run
from it3_aero.learning.model import Training, train
from it3_aero.learning.report import write_report
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import Levels
from it3_aero.learning.task import Task
from it3_core import IT3Error

__all__ = ["Demo", "about", "data_card", "levels_of", "threshold_of", "train_and_report"]


@dataclass(frozen=True)
class Demo:
    """What a demo made: a RUN, its evaluation, and the page."""

    run: Run
    evaluation: Evaluation
    report: Path


def train_and_report(
    task: Task,
    dataset: Any,
    data: Path,
    out: Path,
    training: Training,
    *,
    levels: int,
    batch_sizes: Sequence[int],
    most: int,
    progress: bool = True,
    say: Callable[[str], object] = print,
) -> Demo:
    """Trains on a data set, evaluates and writes the page, into the folder `run` of `out`."""
    threshold = threshold_of(task, dataset)
    parts = levels_of(task, dataset, threshold, levels)
    if len(parts.test) < 2:
        raise IT3Error(f"no {task.thing} lies beyond the threshold: generate more")
    say(f"2/4 training on {len(parts.train)} of them; {dataset.solver} gave the answers")
    run = train(
        *(task, parts.train, out / "run", training),
        card=data_card(dataset),
        about=about(task, dataset, data, threshold, levels),
        progress=progress,
    )
    say("3/4 evaluating")
    found = evaluate_run(run, parts, batch_sizes=batch_sizes, most=most, progress=progress)
    say("4/4 report")
    command = f"it3-aero {task.name} demo"
    page = write_report(run, parts.drawn(most), found, out / "report.html", command)
    return Demo(run, found, page)


def threshold_of(task: Task, dataset: Any) -> float:
    """The task's own threshold, or where the data set has its quantile."""
    return float(dataset.threshold() if task.threshold is None else task.threshold)


def levels_of(task: Task, dataset: Any, threshold: float, levels: int | None = None) -> Levels:
    """The data set split at the threshold, as the task's networks take it."""
    falling = task.beyond == "lower"
    return Levels.of(dataset, task.inputs, threshold, levels or task.levels, falling)


def about(
    task: Task, dataset: Any, folder: Path, threshold: float, levels: int | None = None
) -> dict[str, object]:
    """What a RUN remembers of its data."""
    return {
        "data": str(folder.resolve()),
        "threshold": threshold,
        "levels": levels or task.levels,
        **task.about(dataset),
    }


def data_card(dataset: Any) -> dict[str, object]:
    """The card that `generate` wrote, or the settings where there is none."""
    path = Path(dataset.root) / "card.json"
    if path.is_file():
        card: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
        return card
    return dict(dataset.settings)
