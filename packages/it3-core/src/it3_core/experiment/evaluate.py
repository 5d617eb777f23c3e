"""`evaluate`: every line on every level, for every training seed; never trains."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import pandas as pd
from torch import Tensor

from it3_core.batching import count, take
from it3_core.errors import IT3Error
from it3_core.evaluation.evaluate import Predictor, peak_memory
from it3_core.evaluation.evaluate import evaluate as run_methods
from it3_core.evaluation.records import Record, read_records, replace_records
from it3_core.experiment.lines import AUTO, chosen_lines
from it3_core.experiment.predict import columns_of, doubts, interval_of, trust_of
from it3_core.experiment.statistics import IDEMPOTENCE as IDEMPOTENCE  # noqa: PLC0414
from it3_core.experiment.statistics import Row, auroc_or_none, correlation_or_none, summarise
from it3_core.experiment.summary import Course, NetworkSummary, ScoreSummary, Summary
from it3_core.experiment.tables import markdown, pooled
from it3_core.experiment.types import (
    Evaluation,
    Experiment,
    Group,
    Instances,
    Level,
    Line,
    Network,
    TestSet,
)
from it3_core.io.files import FilePath
from it3_core.io.output import EVALUATION, OutputFolder, inside, open_output
from it3_core.io.progress import Progress
from it3_core.io.tensors import digest
from it3_core.io.typed import as_kind, read_json, read_lines, to_line
from it3_core.methods.base import Adaptation
from it3_core.model.networks import weights_of

WITH_GRAPH = "forward pass with its graph"
RECORDS, ANSWERS, ABOUT, TABLE = "records.jsonl", "answers.jsonl", "evaluation.json", "table.md"

_BATCH = 64  # instances whose mean score is compared with their mean error


def evaluate(
    experiment: Experiment,
    test_set: TestSet,
    out: FilePath | None = None,
    *,
    only: Sequence[str] | None = None,
    ablation: bool = False,
    inputs: Iterable[FilePath] = (),
    overwrite: bool = False,
    progress: bool = True,
) -> Evaluation:
    """Runs all methods on all levels and writes records, answers, tables and pictures.

    Args:
        experiment: the trained networks.
        test_set: levels, methods and what to measure.
        out: the folder; `evaluation` in the experiment's by default. A killed evaluation goes on
            where it was.
        only: names of methods; all by default. The source is always there.
        ablation: also the lines that run only where they are asked for.
        inputs: paths that are read, in which the folder must not lie.
        overwrite: replace an evaluation with other settings.
        progress: whether to show how far it is.
    """
    sizes = sorted(set(test_set.batch_sizes), reverse=True)
    if not sizes or sizes[-1] < 1:
        raise IT3Error(f"batch sizes are numbers from 1, not {list(test_set.batch_sizes)}")
    lines = chosen_lines(test_set.lines, only, ablation)
    output = open_output(
        out if out is not None else inside(experiment.folder, EVALUATION),
        f"{experiment.settings['task']} evaluate",
        {
            "test": dict(test_set.identity),
            "levels": list(test_set.levels),
            "batch_sizes": sizes,
            "methods": [line.name for line in lines],
            "networks": {str(one.seed): _fingerprint(one) for one in experiment.networks},
        },
        files=[RECORDS, ANSWERS, ABOUT, TABLE, "report.html"],
        inputs=inputs,
        experiment=experiment.folder,
        overwrite=overwrite,
    )
    records: list[Record] = []
    answers: list[dict[str, Any]] = []
    for network in experiment.networks:
        records += _compared(network, test_set, lines, sizes, output, progress)
        answers += _answers(network, test_set, lines, sizes[0], progress)
    frame = pd.DataFrame(answers)
    summary: Summary = {
        "title": test_set.title,
        "noun": test_set.noun,
        "in_distribution": test_set.in_distribution,
        "columns": [*test_set.columns],
        "headline": list(test_set.headline),
        "groups": [
            (one.name, list(one.levels), one.same_instances, list(one.part))
            for one in test_set.groups
        ],
        "methods": {line.name: line.note for line in lines},
        "notes": list(test_set.notes),
        "scores": _assessed(frame, test_set),
        "memory": _memory(experiment.first, test_set, lines, sizes[0]) if test_set.memory else {},
        "networks": [_described(network) for network in experiment.networks],
        "settings": dict(experiment.settings),
        "provenance": dict(experiment.provenance),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "pictures": [],
    }
    found = Evaluation(output.path, records, rows_of(records, test_set.groups), frame, summary)
    pictures = list(test_set.pictures(found, experiment))
    summary["pictures"] = [(one.name, one.section, one.alt, one.caption) for one in pictures]
    with output.writing(RECORDS) as path:
        replace_records(records, path)
    output.write_bytes(ANSWERS, b"".join(map(to_line, answers)))
    output.write_text(TABLE, markdown(found.rows))
    for one in pictures:
        output.write_figure(f"{one.name}.png", one.figure)
    output.write_json(ABOUT, summary)
    return found


class _Answer(TypedDict):
    """What the page takes of an instance's line."""

    level: str
    flagged: bool


def load_evaluation(folder: FilePath) -> Evaluation:
    """Reads what `evaluate` wrote."""
    folder = Path(folder)
    if not (folder / ABOUT).exists():
        raise IT3Error(f"{folder} holds no evaluation: evaluate first")
    summary = read_json(inside(folder, ABOUT), Summary, "evaluate again")
    records = read_records(inside(folder, RECORDS))
    groups = [Group(*one) for one in summary["groups"]]
    answers = read_lines(inside(folder, ANSWERS), dict[str, Any], "evaluate again")
    as_kind(answers, list[_Answer], str(folder / ANSWERS), "evaluate again")
    said = summary["columns"] and summary["networks"]
    for name, found in ((RECORDS, records), (ANSWERS, answers), (ABOUT, said)):
        if not found:
            raise IT3Error(f"{folder / name} is empty: evaluate again")
    return Evaluation(folder, records, rows_of(records, groups), pd.DataFrame(answers), summary)


def rows_of(records: Sequence[Record], groups: Sequence[Group]) -> list[Row]:
    """The summary of the records, joined levels among them."""
    return summarise([*records, *joined(records, groups)])


def joined(records: Sequence[Record], groups: Sequence[Group]) -> list[Record]:
    """The records of joined levels."""
    found: list[Record] = []
    for group in groups:
        some = [record for record in records if record["level"] in group.levels]
        if group.part:
            some = [_part(record, group.part) for record in some]
        found += pooled(some, group.name, same_instances=group.same_instances)
    return found


def _part(record: Record, rows: Sequence[int]) -> Record:
    """A record of some of its instances."""
    keys = [key for key in ("errors", "differences") if record.get(key) is not None]
    return {**record, **{key: [record[key][row] for row in rows] for key in keys}, "n": len(rows)}


def _instances(level: Level, network: Network) -> Instances:
    return level if isinstance(level, Instances) else level(network)


def _compared(
    network: Network,
    test_set: TestSet,
    lines: Sequence[Line],
    sizes: Sequence[int],
    output: OutputFolder,
    progress: bool,
) -> list[Record]:
    """One network's records, one batch size after the other, the largest first."""

    def pair(level: Level) -> tuple[Any, Any]:
        return _instances(level, network)[:2]

    path = output.reserve(f"parts/{network.seed}.jsonl")
    found: dict[tuple[Any, ...], Record] = {}
    for size in sizes:
        run = [line for line in lines if size == sizes[0] or not line.once or line == lines[0]]
        made = {line.name: line.make(network, size) for line in run}
        methods = {name: one for name, one in made.items() if one is not None}
        records = run_methods(
            methods,
            {name: partial(pair, level) for name, level in test_set.levels.items()},
            test_set.measure,
            batch_sizes=[size],
            seed=network.seed,
            reference=lines[0].name,
            in_distribution=test_set.in_distribution,
            once=[line.name for line in run if line.once and line.name in methods],
            streams=[line.name for line in run if line.stream and line.name in methods],
            shifted=[line.name for line in run if line.shifted and line.name in methods],
            path=path,
            progress=progress,
        )
        found |= {(r["level"], r["method"], r["batch_size"]): r for r in records}
    return list(found.values())


def _answers(
    network: Network, test_set: TestSet, lines: Sequence[Line], size: int, progress: bool
) -> list[dict[str, Any]]:
    """Each instance's predictions before and after adaptation, and its scores."""
    plain = lines[0].make(network, size)  # the source
    assert plain is not None
    by_name = {line.name: line for line in lines}
    step = next((line for line in lines if line.idempotence), None)
    scores = {name: make(network) for name, make in test_set.scores.items()}
    found: list[dict[str, Any]] = []
    bar = Progress(len(test_set.levels), "predictions", progress)
    for done, (name, level) in enumerate(test_set.levels.items()):
        x, y, names = _instances(level, network)
        auto = _made(by_name.get(AUTO.name), network, size) or plain
        after = _made(step, network, size)
        for start in range(0, count(x), size):
            rows = range(start, min(start + size, count(x)))
            part, label = take(x, rows), take(y, rows)
            first = plain(part)
            assert isinstance(first, Adaptation)
            errors, chosen = first.error_before, auto(part)
            predictor = network.predictor(count(part))
            scores_of = doubts(predictor, part, first, test_set.wrap)
            columns = {
                **columns_of(network.answers, label, "truth"),
                **columns_of(network.answers, first.prediction, "initial"),
                **columns_of(network.answers, getattr(chosen, "prediction", chosen), "prediction"),
                IDEMPOTENCE: errors,
                "percentile": trust_of(predictor, network).percentile(scores_of),
                "flagged": trust_of(predictor, network).flag(scores_of),
            }
            if isinstance(chosen, Adaptation):
                columns["adapted"] = chosen.adapted
                columns |= interval_of(network.answers, predictor, chosen, scores_of, None)
            if after is not None and isinstance(adapted := after(part), Adaptation):
                columns["error_after"] = adapted.error_after
            columns["error"] = test_set.measure(first.prediction, label)["error"]
            columns |= {key: score(part) for key, score in scores.items()}
            called = [names[row] if names else str(row) for row in rows]
            same = {"seed": network.seed, "level": name}
            for one, *values in zip(called, *map(_listed, columns.values()), strict=True):
                found.append({**same, "name": one, **dict(zip(columns, values, strict=True))})
        bar.show(done + 1, name)
    bar.close()
    return found


def _made(line: Line | None, network: Network, size: int) -> Predictor | None:
    return None if line is None else line.make(network, size)


def _listed(values: Tensor) -> list[Any]:
    """A column as JSON: numbers to six digits, what is not finite as None."""
    if not values.is_floating_point():
        found: list[Any] = values.tolist()
        return found
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values.double().tolist()]


def _assessed(answers: pd.DataFrame, test_set: TestSet) -> list[ScoreSummary]:
    """How well each score finds wrong predictions and shifted inputs, for each training seed.

    `spearman` with the error; `auroc_wrong`, of predictions whose error is positive, or above its
    80th percentile; `auroc_shifted`; `pearson` of means over batches of 64 of one level.
    """
    found: list[ScoreSummary] = []
    for seed, some in answers.groupby("seed", sort=False):
        shifted = some["level"] != test_set.in_distribution
        error = some["error"].astype(float)
        wrong = error > (0 if set(error) <= {0.0, 1.0, 100.0} else error.quantile(0.8))
        batch = some.groupby("level", sort=False).cumcount() // _BATCH
        parts = some.groupby(["level", batch])[["error", IDEMPOTENCE, *test_set.scores]]
        means = parts.mean()[parts.size() == _BATCH]
        for name in (IDEMPOTENCE, *test_set.scores):
            score = some[name].astype(float)
            found.append(
                {
                    "seed": int(str(seed)),
                    "score": name,
                    "spearman": correlation_or_none(score, error, "spearman"),
                    "auroc_wrong": auroc_or_none(score[wrong], score[~wrong]),
                    "auroc_shifted": auroc_or_none(score[shifted], score[~shifted]),
                    "pearson": correlation_or_none(means[name], means["error"], "pearson"),
                }
            )
    return found


def _memory(
    network: Network, test_set: TestSet, lines: Sequence[Line], size: int
) -> dict[str, float]:
    """Peak memory of each method for one batch, with the weights, as multiples of the source's.

    Also of a plain forward pass that keeps what a backward pass would need.
    """
    x = take(_instances(test_set.levels[test_set.in_distribution], network).x, slice(0, size))
    weights = sum(p.numel() * p.element_size() for p in network.model.parameters())
    found: dict[str, float] = {}
    for line in lines:
        method = line.make(network, size)
        if method is None:
            continue
        try:
            method(x)  # what is made once is made now
            found[line.name] = weights + peak_memory(partial(method, x), network.device)
        except Exception:  # its records say why, and the others' are not lost for it
            if line == lines[0]:
                raise
    base, neutral = found[lines[0].name], network.adapter.neutral(x)
    found[WITH_GRAPH] = weights + peak_memory(lambda: network.model(x, neutral), network.device)
    return {name: round(value / base, 2) for name, value in found.items()}


def _described(network: Network) -> NetworkSummary:
    return {
        "seed": network.seed,
        "history": cast(Course, dict(network.history)),
        "measured": dict(network.measured),
        "parameters": sum(p.numel() for p in network.model.parameters()),
        "tunings": {str(size): one.describe() for size, one in network.tunings.items()},
        "paper": {kind: asdict(step) for kind, step in network.paper.items()},
    }


def _fingerprint(network: Network) -> str:
    """What tells this network, with its tunings, from another."""
    tensors = weights_of(network.model)
    others = {} if network.vanilla is None else {"vanilla": network.vanilla}
    for kind, model in (others | dict(network.baselines)).items():
        tensors |= {f"{kind}.{name}": v for name, v in weights_of(model).items()}
    tensors |= {f"statistics.{name}": value for name, value in network.statistics.items()}
    chosen = {"tunings": _described(network)["tunings"], "paper": _steps(network)}
    chosen["adapter"] = network.adapter.describe()
    return digest(tensors, chosen)[:16]


def _steps(network: Network) -> dict[str, list[float]]:
    return {kind: [step.steps, step.lr] for kind, step in network.paper.items()}
