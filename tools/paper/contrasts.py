"""Two methods, or two uncertainty scores, on the same networks and inputs: how far they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from it3_core import Regression
from it3_core.evaluation.records import Record
from it3_core.experiment.statistics import (
    IDEMPOTENCE,
    OUT_OF_DISTRIBUTION,
    assess_scores,
    bootstrap_intervals,
)
from it3_core.experiment.tables import interval
from it3_core.scores.uncertainty import Ensemble, Entropy, Mahalanobis, Score

Series = tuple[str, int | None]
"""A method and its batch size."""


@dataclass(frozen=True)
class Contrast:
    """How much larger the first's error is than the second's."""

    value: float  # the mean over seeds and instances; negative is better
    low: float | None  # the ends of the 95 % interval; None for a single value
    high: float | None
    scale: float | None  # the second's error; None where it is not known or zero
    seeds: int  # how many

    @property
    def sign(self) -> int:
        """−1 or 1 where the interval excludes zero, else 0."""
        if self.low is None or self.high is None:
            return 0
        return -1 if self.high < 0 else 1 if self.low > 0 else 0

    @property
    def percent(self) -> Contrast:
        """The same in per cent of the second's error; where that is not known, as it is."""
        if self.scale is None:
            return self
        factor = 100 / self.scale
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return replace(self, value=factor * self.value, low=low, high=high, scale=None)

    def __str__(self) -> str:
        percent = self.percent
        shown = interval(percent.value, percent.low, percent.high, 1, "+z")
        if self.scale is None:
            return shown
        value, bracket, ends = shown.partition(" (")
        return f"{value} %{bracket}{ends}"


def contrast(records: Iterable[Record], first: Series, second: Series) -> Contrast | None:
    """The first method's error less the second's, instance by instance, over all common seeds.

    The records are of one level; None where there is nothing to compare.
    """
    records = list(records)
    mine, other = _errors(records, first), _errors(records, second)
    common = sorted(mine.keys() & other.keys())
    differences = [mine[seed] - other[seed] for seed in common]
    return over_seeds(differences, [float(other[seed].mean()) for seed in common])


def slope(
    near: Iterable[Record], far: Iterable[Record], first: Series, second: Series
) -> Contrast | None:
    """How much faster the first's error grows from one level to another than the second's does.

    The levels may hold different instances, so that seeds alone say how sure it is.
    """
    near, far = list(near), list(far)
    parts = [_errors(records, series) for records in (near, far) for series in (first, second)]
    grown, scale = [], []
    for seed in sorted(set.intersection(*(set(part) for part in parts))):
        near_first, near_second, far_first, far_second = (part[seed].mean() for part in parts)
        grown.append((far_first - near_first - (far_second - near_second)).view(1))
        scale.append(float((far_second - near_second).abs()))
    return over_seeds(grown, scale)


def over_seeds(values: Sequence[Tensor], scales: Sequence[float] = ()) -> Contrast | None:
    """The mean over seeds, each with its instances' values, and its interval; None without any."""
    if not values:
        return None
    low, high = bootstrap_intervals([values])[0] or (None, None)
    value = sum(float(part.mean()) for part in values) / len(values)
    scale = sum(scales) / len(scales) if scales else 0.0
    return Contrast(value, low, high, scale or None, len(values))


def _errors(records: Iterable[Record], series: Series) -> dict[int, Tensor]:
    method, size = series
    return {
        record["seed"]: torch.tensor(record["errors"], dtype=torch.double)
        for record in records
        if record["method"] == method and record["batch_size"] == size and record.get("errors")
    }


Line = Mapping[str, Any]

_MEMBERS = 5  # networks of an ensemble


def trust_table(lines: Iterable[Line]) -> list[list[str]]:
    """A line for each score: means over seeds, and the AUROC against the idempotence error's."""
    kept = list(lines)
    header = ["score", "AUROC, shifted inputs", "against the idempotence error",
              "Spearman with the error: in distribution", "shifted",
              "Pearson with the error, batches of shifted ones", "seeds"]  # fmt: skip
    inside = next((line["level"] for line in kept), "")  # `assess_scores` begins with it
    table = [header]
    for name in dict.fromkeys(line["score"] for line in kept):
        apart = _by_seed(kept, name, OUT_OF_DISTRIBUTION, "auroc")
        gap = None if name == IDEMPOTENCE else advantage(kept, name)
        cells = [_mean(apart), "" if gap is None else interval(gap.value, gap.low, gap.high, 2)]
        cells += [
            _mean(_by_seed(kept, name, level, "spearman"))
            for level in (inside, OUT_OF_DISTRIBUTION)
        ]
        cells.append(_mean(_by_seed(kept, name, OUT_OF_DISTRIBUTION, "pearson")))
        table.append([name, *cells, str(len(apart))])
    return table


def advantage(lines: Iterable[Line], score: str) -> Contrast | None:
    """A score's AUROC less the idempotence error's, by seed; None where no seed has both."""
    kept = list(lines)
    mine, theirs = (
        _by_seed(kept, name, OUT_OF_DISTRIBUTION, "auroc") for name in (score, IDEMPOTENCE)
    )
    return _contrast([mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())])


def score_above(lines: Iterable[Line], key: str, less: float = 0.0) -> Contrast | None:
    """The idempotence error by `key` on all shifted levels, above so much."""
    return _contrast(
        [value - less for value in _by_seed(lines, IDEMPOTENCE, OUT_OF_DISTRIBUTION, key).values()]
    )


def _contrast(values: Sequence[float]) -> Contrast | None:
    return over_seeds([torch.tensor([value], dtype=torch.double) for value in values])


def assessed(
    networks: Sequence[Any],  # with `model`, `adapter` and `seed`; they take the same inputs
    training: Sequence[Any],  # batches of training inputs, for Mahalanobis distances
    levels: Mapping[str, Any],
    within: str,  # the level in distribution
    *,
    layer: str,  # whose output the distances are of
    labels: Tensor | None = None,  # of the training inputs, where they are classes
    ensemble: Sequence[Any] | None = None,  # by default of `networks`, each one and the next four
    batch_size: int = 64,
) -> list[dict[str, Any]]:
    """`assess_scores`'s lines for each network, with its seed."""
    lines = []
    around = [*networks, *networks]
    for number, network in enumerate(networks):
        members = ensemble or around[number : number + min(_MEMBERS, len(networks))]
        model, adapter = network.model, network.adapter
        features = Mahalanobis.fit(model, adapter, training, layer, labels=labels)
        scores: dict[str, Score] = {"Mahalanobis, features": features}
        if not isinstance(adapter, Regression):
            scores["entropy"] = Entropy(model, adapter)
        if len(members) > 1:
            models = [one.model for one in members]
            scores[f"ensemble of {len(members)}"] = Ensemble(models, adapter)
        found = assess_scores(model, adapter, scores, levels, within, batch_size=batch_size)
        lines += [{"seed": network.seed, **line} for line in found]
    return lines


def _by_seed(lines: Iterable[Line], score: str, level: str, key: str) -> dict[int, float]:
    wanted = [line for line in lines if line["score"] == score and line["level"] == level]
    return {line["seed"]: line[key] for line in wanted if line.get(key) is not None}


def _mean(values: Mapping[int, float]) -> str:
    return f"{sum(values.values()) / len(values):.2f}" if values else ""
