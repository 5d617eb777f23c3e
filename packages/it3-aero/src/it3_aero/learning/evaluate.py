"""The paper's tables: every method on every level, beside what a practitioner would do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from it3_aero.learning.model import Training, train, train_vanilla
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import WITHIN, Levels, Shapes, named_tensors
from it3_aero.learning.task import Task
from it3_core import (
    IT3,
    ActMAD,
    AnswerStep,
    Conditioned,
    IT3Error,
    OnlineIT3,
    Source,
    sensitivity,
)
from it3_core.batching import batches
from it3_core.evaluation import Predictor, Record, evaluate, read_records
from it3_core.files import make_folder, write_figure, write_text
from it3_core.metrics import auroc, correlation
from it3_core.plots import box_by_level, difference_by_level, error_histograms
from it3_core.records import replace_records
from it3_core.summary import Row, markdown, summarise
from it3_core.tables import BEYOND, compact, markdown_table, pooled
from it3_core.tensorfile import digest

__all__ = ["Evaluation", "evaluate_run", "load_evaluation", "methods"]

DPI = 160
"""Of the pictures."""

_ONCE = ("source", "second pass", "vanilla net")


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, as it lies in its folder.

    Attributes:
        task: what kind of shapes.
        folder: where `records.jsonl`, `table.md`, `summary.json` and the pictures are.
        records: of `it3_core.evaluation`, with the joined level of `pooled`.
        rows: the summary of the records.
        numbers: trust and sensitivity, per seed.
        shapes: a line for each test shape of the first seed: level, name, y, before, after, errors.
    """

    task: Task
    folder: Path
    records: Sequence[Record]
    rows: Sequence[Row]
    numbers: Sequence[Mapping[str, Any]]
    shapes: Sequence[Mapping[str, Any]] = field(default=())

    def table(self) -> list[list[str]]:
        """The main table: a line a method, a column a level."""
        return compact(self.rows, digits=max(2, self.task.digits + 1))

    def picture(self, name: str) -> bytes:
        """A picture of its folder, such as "boxes"."""
        try:
            return (self.folder / f"{name}.png").read_bytes()
        except OSError as problem:
            raise IT3Error(f"can't read {problem.filename}: evaluate again") from problem


def methods(run: Run, vanilla: Conditioned, levels: Levels) -> dict[str, Predictor]:
    """Every line of the table, by name, made anew."""
    model, adapter = run.model, run.adapter
    cheap = {"parameters": "above"} if model.layer == "trunk" else {}
    return {
        "source": Source(model, adapter),
        "second pass": AnswerStep(model, adapter, alpha=1.0),
        "vanilla net": Source(vanilla, adapter),
        "ActMAD": ActMAD(model, adapter, run.activations),
        "IT³ paper": IT3(model, adapter, anchor_gradient=True, trust_region=False),
        "IT³ cheap": IT3(model, adapter, **cheap),  # type: ignore[arg-type]
        "IT³ auto": run.method(),
        "online IT³": OnlineIT3(model, adapter, anchor_gradient=True),
        **run.task.yardsticks(run, levels),
    }


def evaluate_run(
    run: Run,
    levels: Levels,
    *,
    out: str | Path | None = None,
    seeds: int = 1,
    batch_sizes: Sequence[int] = (),
    most: int | None = 100,
    progress: bool = True,
) -> Evaluation:
    """Runs all methods on all levels and writes records, tables and pictures.

    Args:
        run: the trained network; more training seeds are trained like it, into its `seeds` folder.
        levels: training and test shapes.
        out: the folder to write to; `evaluation` in the RUN by default. A killed evaluation
            goes on where it was.
        seeds: number of training seeds.
        batch_sizes: how many shapes the methods get at a time; the task's by default.
        most: shapes of a level at most, drawn once; None takes all.
        progress: whether to show how far it is.
    """
    levels = levels.drawn(most)
    folder = make_folder(out if out is not None else run.folder / "evaluation")
    records: list[Record] = []
    numbers: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    for one in _runs(run, levels.train, seeds, progress):
        vanilla = train_vanilla(one, levels.train, progress=progress)
        predictors = methods(one, vanilla, levels)
        records += evaluate(
            predictors,
            {name: (part.x, part.y) for name, part in levels.test.items()},
            one.adapter.error,
            batch_sizes=batch_sizes or run.task.batch_sizes,
            seed=one.seed,
            in_distribution=WITHIN,
            once=[name for name in predictors if name in (*_ONCE, *run.task.references)],
            streams=["online IT³"],
            path=_part(folder, one, levels),
            progress=progress,
        )
        answers = _answers(one, levels)
        shapes = shapes or answers
        numbers.append(_numbers(one, levels, answers))
    return _written(Evaluation(run.task, folder, records, [], numbers, shapes))


def load_evaluation(task: Task, folder: str | Path) -> Evaluation:
    """Reads what `evaluate_run` wrote.

    Example:
        >>> from it3_aero.wings.task import WINGS
        >>> load_evaluation(WINGS, "/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no evaluation: make one with 'it3-aero wings ...'
    """
    place = Path(folder)
    if not (place / "summary.json").is_file():
        raise IT3Error(
            f"{place} holds no evaluation: make one with 'it3-aero {task.name} evaluate'"
        )
    try:
        found = json.loads((place / "summary.json").read_text(encoding="utf-8"))
        numbers, shapes = found["numbers"], found["shapes"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise IT3Error(f"{place / 'summary.json'} is damaged: evaluate again") from problem
    records = read_records(place / "records.jsonl")
    return Evaluation(task, place, records, _rows(records), numbers, shapes)


def _runs(run: Run, shapes: Shapes, seeds: int, progress: bool) -> list[Run]:
    found = [run]
    for seed in range(run.seed + 1, run.seed + seeds):
        training = Training.of(run.settings, seed)
        folder = run.folder / "seeds" / str(seed)
        about = run.settings["about"]
        found.append(
            train(
                *(run.task, shapes, folder, training),
                card=run.card,
                about=about,
                progress=progress,
            )
        )
    return found


def _part(folder: Path, run: Run, levels: Levels) -> Path:
    """Where a seed's records gather: a file of its own for each network, tuning and test set."""
    tensors = dict(run.model.state_dict())
    for number, shapes in enumerate(levels.test.values()):
        tensors |= {**named_tensors(shapes.x, f"test.{number}.x"), f"test.{number}.y": shapes.y}
    whole = digest(tensors, {"tuning": run.tuning.describe(), "levels": list(levels.test)})
    (folder / "parts").mkdir(exist_ok=True)
    return folder / "parts" / f"{run.seed}-{whole[:12]}.jsonl"


def _answers(run: Run, levels: Levels) -> list[dict[str, Any]]:
    """What the network says about each test shape, before and after the paper's step at 16."""
    method = IT3(run.model, run.adapter, anchor_gradient=True)
    auto = run.method()
    lines = []
    for level, shapes in levels.test.items():
        got = [method(x) for x in batches(shapes.x, 16)]
        final = torch.cat([auto(x).prediction for x in batches(shapes.x, 16)])
        before = torch.cat([one.error_before for one in got])
        columns = {
            "y": shapes.y,
            "before": torch.cat([one.initial for one in got]).flatten(),
            "after": final.flatten(),
            "error": before,
            "error_after": torch.cat([one.error_after for one in got]),
            "percentile": run.trust.percentile(before),
        }
        flags = run.trust.flag(before).tolist()
        for row, name in enumerate(shapes.names):
            values = {key: round(float(column[row]), 6) for key, column in columns.items()}
            lines.append({"level": level, "name": name, **values, "flagged": flags[row]})
    return lines


def _numbers(run: Run, levels: Levels, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is said of trust: does the error foretell the mistake, and tell the unknown apart?"""
    inside = [line for line in answers if line["level"] == WITHIN]
    beyond = [line for line in answers if line["level"] != WITHIN]

    def mistakes(lines: Sequence[Mapping[str, Any]]) -> list[float]:
        return [abs(line["before"] - line["y"]) for line in lines]

    def errors(lines: Sequence[Mapping[str, Any]]) -> list[float]:
        return [line["error"] for line in lines]

    everything = [*inside, *beyond]
    found: dict[str, Any] = {
        "seed": run.seed,
        "sensitivity": run.settings["sensitivity"],
        "sensitivity_beyond": None,
        "held_out_error": run.settings["held_out_error"],
        "chosen": repr(run.tuning.chosen),
        "reason": run.tuning.reason,
        "spearman": correlation(errors(everything), mistakes(everything), "spearman"),
        "auroc": None,
        "spearman_beyond": None,
    }
    if beyond:
        found["sensitivity_beyond"] = _sensitivity(
            run, [part for name, part in levels.test.items() if name != WITHIN]
        )
        found["auroc"] = auroc(errors(beyond), errors(inside))
        found["spearman_beyond"] = correlation(errors(beyond), mistakes(beyond), "spearman")
    return {k: None if isinstance(v, float) and v != v else v for k, v in found.items()}


def _sensitivity(run: Run, parts: Sequence[Shapes]) -> float:
    """|dF/dy| over all of them, each shape with the same weight."""
    total = sum(len(part) * sensitivity(run.model, run.adapter, part.x) for part in parts)
    return total / sum(map(len, parts))


def _rows(records: Sequence[Record]) -> list[Row]:
    several = len({record["level"] for record in records}) > 2
    return summarise([*records, *(pooled(records) if several else [])])


def _written(found: Evaluation) -> Evaluation:
    folder, rows = found.folder, _rows(found.records)
    whole = Evaluation(found.task, folder, found.records, rows, found.numbers, found.shapes)
    summary = {"numbers": list(found.numbers), "shapes": list(found.shapes)}
    texts = {
        "table.md": f"{markdown_table(whole.table())}\n\n{markdown(rows)}",
        "summary.json": json.dumps(summary, ensure_ascii=False),
    }
    for name, content in texts.items():
        write_text(folder / name, content)
    replace_records(found.records, folder / "records.jsonl")
    for name, figure in figures(whole).items():
        write_figure(folder / f"{name}.png", figure, dpi=DPI)
    return whole


def figures(found: Evaluation) -> dict[str, Any]:
    """The pictures of an evaluation: boxes by level, differences by level, error histograms."""
    task = found.task
    networks = [r for r in found.records if r["method"] not in task.references]
    largest = max((r["batch_size"] or 0 for r in networks), default=0)
    shown = [r for r in networks if r["batch_size"] in (None, largest)]
    rows = [r for r in found.rows if r["level"] != BEYOND]
    kept = {(r["method"], r["batch_size"]) for r in shown}
    beside = [r for r in rows if (r["method"], r["batch_size"]) in kept]
    inside = [line["error"] for line in found.shapes if line["level"] == WITHIN]
    beyond = [line for line in found.shapes if line["level"] != WITHIN]
    made = {
        "boxes": box_by_level(shown, error=f"|error| in {task.quantity}"),
        "differences": difference_by_level(beside, error=f"|error| in {task.quantity}"),
    }
    if beyond:
        made["errors"] = error_histograms(
            [line["error"] for line in beyond],
            [line["error_after"] for line in beyond],
            inside,
            error="idempotence error |y₁ − y₀|, in training standard deviations",
        )
    return made
