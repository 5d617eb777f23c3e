"""After training: what is chosen for rows and batches, and calibrated, each on rows of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from it3_core.batching import count, take
from it3_core.experiment.types import Problem, TrainingData, Trial
from it3_core.trust.candidates import Candidate, Tuned, Tuning, default_scores
from it3_core.trust.conformal import Predictor, calibrate
from it3_core.trust.tune import ExtrapolationSplit, apart, tune

_MOST = 5000  # rows of calibration that are kept in memory
FITTED = 2000  # training rows that scores of features learn from


def predictors_of(
    problem: Problem,
    data: TrainingData,
    model: nn.Module,
    trials: Sequence[Trial],
    splits: list[ExtrapolationSplit],
    progress: bool,
) -> dict[str, Predictor]:
    """For rows, and batches of each size: what is chosen, and calibrated on rows of its own."""
    adapter, seed = data.adapter, problem.recipe.seed
    kept = list(data.calibration)[:_MOST]
    groups = None if data.groups is None else data.groups[kept]
    parts = apart(len(kept), [3, 1], seed, groups)
    limits, rest = (data.plain([kept[row] for row in part]) if part else None for part in parts)
    fitted = data.plain(list(data.seen or data.rows)[:FITTED])[0] if problem.features else None
    chosen: dict[str, Tuning] = {}
    for trial in trials:
        if trial.candidates and limits is not None and rest is not None:
            unit = "row" if trial.rows else trial.batch_size
            chosen[str(unit)] = tune(
                model, adapter, (trial.x, trial.y), shifts=trial.shifts, thresholds=limits,
                extrapolation=splits or None, candidates=trial.candidates, scores=trial.scores,
                train=fitted, layer=problem.features, unit=unit,  # type: ignore[arg-type]
                max_harm=trial.max_harm, progress=progress,
            )  # fmt: skip
    if "row" not in chosen:
        some = next(iter(chosen.values()), None)
        kinds = trials[0].scores if trials and trials[0].scores else default_scores(model, adapter)
        why = (
            "No adaptation of single rows." if some else "No adaptation: nothing was to be chosen."
        )
        doubt = some.doubt if some else next(iter(kinds), None)
        plain = Tuning(Candidate("Source"), why, doubt=doubt)
        if some is not None:
            kept_of = {k: v for k, v in some.tensors.items() if k.startswith("doubt.")}
            plain = replace(plain, scores=some.scores, rows=some.rows, widths=some.widths,
                            tensors=kept_of)  # fmt: skip
        chosen = {"row": plain, **chosen}
    return {
        name: _calibrated(one.build(model, adapter), rest, data.plain(data.validation))
        for name, one in chosen.items()
    }


def _calibrated(method: Tuned, rest: Any, validation: Any) -> Predictor:
    """By whole batches where it takes these; without rows of its own it promises nothing."""
    unit = method.tuning.unit
    data = rest if rest is not None and count(rest[0]) > 1 else None
    if data is not None and isinstance(unit, int):
        whole = count(data[0]) - count(data[0]) % unit
        data = (take(data[0], slice(0, whole)), take(data[1], slice(0, whole))) if whole else None
    found = calibrate(method, validation if data is None else data)
    return found if data is not None else replace(found, misses=None)
