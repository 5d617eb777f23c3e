"""How well the idempotence error and its rivals tell the unusual, from measuring to a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from it3_core import Regression
from it3_core.bootstrap import bootstrap_interval
from it3_core.contrast import Contrast
from it3_core.judging import IDEMPOTENCE, judge
from it3_core.rivals import Dropout, Ensemble, Entropy, Mahalanobis, Score
from it3_core.tables import BEYOND

__all__ = ["advantage", "judged", "over_seeds", "trust_table"]

Line = Mapping[str, Any]

_MEMBERS = 5  # networks of an ensemble, as is usual


def trust_table(lines: Iterable[Line]) -> list[list[str]]:
    """A line for each score: means over seeds, and the AUROC against the idempotence error's.

    Args:
        lines: of `it3_core.judging.judge`, each with its `seed`.
    """
    kept = list(lines)
    header = ["score", "AUROC, shifted against known", "against the idempotence error",
              "Spearman with the error: known", "shifted",
              "Pearson with the error, batches of shifted ones", "seeds"]  # fmt: skip
    usual = next((line["level"] for line in kept), "")  # judge tells of it first
    table = [header]
    for name in dict.fromkeys(line["score"] for line in kept):
        apart = _by_seed(kept, name, BEYOND, "auroc")
        cells = [_mean(apart), "" if name == IDEMPOTENCE else _told(advantage(kept, name))]
        cells += [_mean(_by_seed(kept, name, level, "spearman")) for level in (usual, BEYOND)]
        cells.append(_mean(_by_seed(kept, name, BEYOND, "pearson")))
        table.append([name, *cells, str(len(apart))])
    return table


def advantage(lines: Iterable[Line], score: str, other: str = IDEMPOTENCE) -> Contrast | None:
    """The AUROC of one score less another's, seed by seed; None where no seed has both."""
    kept = list(lines)
    mine, theirs = (_by_seed(kept, name, BEYOND, "auroc") for name in (score, other))
    return _contrast([mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())])


def over_seeds(lines: Iterable[Line], key: str, less: float = 0.0) -> Contrast | None:
    """What the idempotence error is worth by `key` on all shifted levels, less so much."""
    return _contrast([value - less for value in _by_seed(lines, IDEMPOTENCE, BEYOND, key).values()])


def _contrast(values: Sequence[float]) -> Contrast | None:
    if not values:
        return None
    low, high = bootstrap_interval([torch.tensor([value]) for value in values]) or (None, None)
    return Contrast(sum(values) / len(values), low, high, None, len(values))


def judged(
    runs: Sequence[Any],
    known: Sequence[Any],
    levels: Mapping[str, Any],
    within: str,
    *,
    layer: str,
    labels: Tensor | None = None,
    ensemble: Sequence[Any] | None = None,
    batch_size: int = 64,
) -> list[dict[str, Any]]:
    """`judge`'s lines for each RUN, with its seed.

    Args:
        runs: with `model`, `adapter` and `seed`; they take the same inputs.
        known: batches of training inputs, for Mahalanobis distances.
        levels: what to judge on, by name.
        within: the level in distribution.
        layer: whose output is the features, for Mahalanobis distances.
        labels: the training inputs' classes, where they have any.
        ensemble: the RUNs that disagree; by default, of `runs`, each one and the next four.
        batch_size: how many instances are scored together.
    """
    lines = []
    around = [*runs, *runs]
    for number, run in enumerate(runs):
        members = ensemble or around[number : number + min(_MEMBERS, len(runs))]
        model, adapter = run.model, run.adapter
        features = Mahalanobis.fit(model, adapter, known, layer, labels=labels)
        rivals: dict[str, Score] = {"Mahalanobis, features": features}
        if not isinstance(adapter, Regression):
            rivals["entropy"] = Entropy(model, adapter)
        if len(members) > 1:
            rivals[f"ensemble of {len(members)}"] = Ensemble(
                [one.model for one in members], adapter
            )
        rivals["dropout"] = Dropout(model, adapter)
        found = judge(model, adapter, rivals, levels, within, batch_size=batch_size)
        lines += [{"seed": run.seed, **line} for line in found]
    return lines


def _by_seed(lines: Iterable[Line], score: str, level: str, key: str) -> dict[int, float]:
    wanted = [line for line in lines if line["score"] == score and line["level"] == level]
    return {line["seed"]: line[key] for line in wanted if line.get(key) is not None}


def _mean(values: Mapping[int, float]) -> str:
    return f"{sum(values.values()) / len(values):.2f}" if values else ""


def _told(found: Contrast | None) -> str:
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return f"{found.value:+.2f}"
    return f"{found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
