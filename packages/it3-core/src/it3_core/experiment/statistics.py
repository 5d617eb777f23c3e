"""Statistics of an evaluation: summary rows, paired bootstrap intervals, AUROC and correlation.

Two kinds of chance are in a mean over training seeds and test instances: another seed, and other
instances. The bootstrap resamples both: seeds with replacement, and instances with replacement, the
same ones for all seeds that have as many, because seeds often share a test set. The two deviations
are added, and widened as Student's t asks for few values. On simulated data, 95 % intervals then
cover the truth in 94 to 100 % of all cases from 3 seeds up.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from it3_core.batching import batches, whole
from it3_core.errors import IT3Error
from it3_core.evaluation.records import Record
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter
from it3_core.scores.uncertainty import Score

Row = dict[str, Any]
"""One line of a table; `summarise` lists its keys."""

Values: TypeAlias = "Tensor | Sequence[float] | NDArray[Any] | pd.Series[Any]"
"""One number for each instance, batch or level."""

CONFIDENCE = 0.95
OUT_OF_DISTRIBUTION = "out of distribution"  # the name of the joined level that `pooled` makes
_KEYS = ["level", "method", "size"]
_ENDS = ["low", "high", "relative", "verdict"]
_MEANS = ["error", "difference"]
_NUMBERS = [*_MEANS, "cost", "fallbacks", "n"]
_MOST_NUMBERS = 2**18  # in a block of resamples: 2 MB of draws and as much of weights


def summarise(records: Iterable[Record]) -> list[Row]:
    """One row for each level, method and batch size, over all seeds, each of the same weight.

    A row holds

    - `level`, `method`, `batch_size`, `reference`, `in_distribution`, `seeds`, `n` (instances of
      all seeds together), `fallbacks`, and the mean `error`;
    - `difference` against the reference, its 95 % interval from `low` to `high`,
      `relative` (the difference divided by the reference's error) and a `verdict`: "better"
      or "worse" where the interval excludes zero, else "no difference"; "unknown" where there is
      no interval, for want of seeds and instances; "failed" where no seed has a difference;
    - the same on the in-distribution level, for this method and batch size: `harm`, `harm_low`,
      `harm_high`, `harm_relative`, `harm_verdict`;
    - `cost`, the median over seeds, in passes of the reference;
    - `problem`: what went wrong, and with how many seeds; the numbers are of the others.

    What is not known is None.

    Args:
        records: of one task, any number of seeds; of a cell that comes twice the last one counts.

    Example:
        >>> from it3_core.experiment.statistics import summarise
        >>> cell = {"seed": 0, "level": "clean", "batch_size": None, "reference": "source",
        ...         "in_distribution": True, "n": 4, "cost": 1.0}
        >>> rows = summarise([
        ...     cell | {"method": "source", "error": 2.0, "difference": 0.0},
        ...     cell | {"method": "IT3", "error": 1.5, "difference": -0.5,
        ...             "differences": [-0.5, -0.6, -0.4, -0.5]}])
        >>> rows[1]["difference"], rows[1]["relative"], rows[1]["verdict"]
        (-0.5, -0.25, 'better')
    """
    cells = _cells(records)
    if cells.empty:
        return []
    rows = cells.groupby(_KEYS, observed=True).agg(
        batch_size=("batch_size", "first"),
        reference=("reference", "first"),
        in_distribution=("in_distribution", "first"),
        tried=("seed", "size"),
        problems=("problem", "count"),
        problem=("problem", "first"),
    )
    whole = cells[cells["problem"].isna() & cells["difference"].notna()]
    found = whole.groupby(_KEYS, observed=True)
    rows["seeds"], rows["cost"] = found.size(), found["cost"].median()
    rows[["n", "fallbacks"]] = found[["n", "fallbacks"]].sum()
    whole_means = found[_MEANS].count().eq(found.size(), axis=0)
    rows[_MEANS] = found[_MEANS].mean().where(whole_means)  # of all seeds, or not known
    values = {key: list(group["differences"]) for key, group in found}
    ends = dict(zip(values, bootstrap_intervals(list(values.values())), strict=True))
    rows["low"], rows["high"] = zip(
        *(ends.get(key) or (math.nan, math.nan) for key in rows.index), strict=True
    )
    reference = rows["error"] - rows["difference"]
    rows["relative"] = rows["difference"] / reference.where(reference != 0)
    rows["verdict"] = np.select(
        [rows["difference"].isna(), rows["low"].isna(), rows["high"] < 0, rows["low"] > 0],
        ["failed", "unknown", "better", "worse"],
        "no difference",
    )
    many = rows["problems"].astype(str) + " of " + rows["tried"].astype(str) + " seeds: "
    rows["problem"] = (many + rows["problem"].astype(str)).where(rows["problems"] > 0)
    rows = rows.join(_harm(rows), on=["method", "size"]).reset_index()
    whole_numbers = ["seeds", "n", "fallbacks"]
    rows[whole_numbers] = rows[whole_numbers].fillna(0).astype(int)
    rows["batch_size"] = rows["batch_size"].astype("Int64")
    return plain_rows(rows.drop(columns=["size", "tried", "problems"]))


def plain_rows(frame: pd.DataFrame) -> list[Row]:
    """A frame's rows as dicts, None for what is not known."""
    known = frame.astype(object).where(frame.notna(), None)
    return [dict(zip(known.columns, line, strict=True)) for line in known.itertuples(index=False)]


def _cells(records: Iterable[Record]) -> pd.DataFrame:
    """One line a record, sorted: levels and methods as they come, then batch size and seed."""
    columns = ["seed", *_KEYS[:2], "batch_size", "reference", "in_distribution", "problem"]
    cells = pd.DataFrame(list(records)).reindex(columns=[*columns, *_NUMBERS, "differences"])
    references = sorted(map(str, cells["reference"].unique()))
    if len(references) > 1:
        raise IT3Error(f"the records have several references: {', '.join(references)}")
    for name in ("level", "method"):
        cells[name] = pd.Categorical(cells[name], cells[name].unique())
    try:
        numeric = [*_NUMBERS, "batch_size"]
        cells[numeric] = cells[numeric].astype(float)
        # Where those of the instances were not kept, or not all are finite, there is the mean.
        cells.loc[cells["problem"].notna(), "differences"] = None
        pairs = zip(cells["differences"], cells["difference"], strict=True)
        kept = [values if isinstance(values, list) and values else [mean] for values, mean in pairs]
        tensors: list[Any] = [torch.tensor(values, dtype=torch.double) for values in kept]
    except (TypeError, ValueError) as problem:
        raise IT3Error("the records hold what is no number: evaluate again") from problem
    cells["differences"] = tensors
    cells["size"] = cells["batch_size"].fillna(0)
    cells["in_distribution"] = cells["in_distribution"].astype(bool)
    return cells.drop_duplicates([*_KEYS, "seed"], keep="last").sort_values([*_KEYS, "seed"])


def _harm(rows: pd.DataFrame) -> pd.DataFrame:
    """What the rows say of the in-distribution level, by method and batch size."""
    inside = rows[rows["in_distribution"]].droplevel("level")
    kept = inside.loc[~inside.index.duplicated(keep="last"), ["difference", *_ENDS]]
    return kept.set_axis(["harm", *(f"harm_{name}" for name in _ENDS)], axis=1)


def bootstrap_intervals(
    groups: Sequence[Sequence[Tensor]], resamples: int = 2000, *, seeds_fixed: bool = False
) -> list[tuple[float, float] | None]:
    """The 95 % intervals of means over seeds of means over instances; None for a single value.

    A group has a tensor for each seed: the instances' values, or the mean alone where no more is
    known. Groups of one size share their draws. With `seeds_fixed` other instances are the only
    chance that is counted: of a few seeds, the interval over seeds says little.
    """
    deviations = torch.zeros(resamples, len(groups), dtype=torch.double)
    for size in sorted({len(values) for group in groups for values in group} - {1}):
        columns = [i for i, group in enumerate(groups) if size in map(len, group)]
        values = torch.stack([_instances(groups[i], size) for i in columns], 1)
        scale, generator = _widening(size) / size, _generator("instances", size)
        for start in range(0, resamples, block := max(1, _MOST_NUMBERS // size)):
            rows = min(block, resamples - start)
            drawn = torch.randint(size, (rows, size), generator=generator)
            # How often each instance was drawn, so that a product gives the means of all groups.
            often = torch.zeros(rows, size, dtype=torch.double)
            often.scatter_add_(1, drawn, torch.ones((), dtype=torch.double).expand(rows, size))
            deviations[start : start + rows, columns] += often @ values * scale
    for number in sorted(() if seeds_fixed else {len(group) for group in groups} - {0, 1}):
        drawn = torch.randint(number, (resamples, number), generator=_generator("seeds", number))
        for index, group in enumerate(groups):
            if len(group) == number:
                means = torch.stack([values.double().mean() for values in group])
                moved = (means - means.mean())[drawn].mean(1)
                deviations[:, index] += moved * _widening(number)
    tails = torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], dtype=torch.double)
    ends: list[tuple[float, float] | None] = []
    for group, deviation in zip(groups, deviations.unbind(1), strict=True):
        fewest = len(group) if seeds_fixed else 1
        if sum(map(len, group)) <= fewest:
            ends.append(None)
            continue
        mean = sum(float(values.double().mean()) for values in group) / len(group)
        low, high = deviation.quantile(tails).tolist()
        ends.append((mean + low, mean + high))
    return ends


def _instances(group: Sequence[Tensor], size: int) -> Tensor:
    """Deviations of the instances from their mean, summed over seeds of this size, over all."""
    alike = torch.stack([values.double() for values in group if len(values) == size])
    return (alike - alike.mean(1, keepdim=True)).sum(0) / len(group)


@functools.cache
def _widening(number: int) -> float:
    """What a percentile interval of a mean of so few values lacks: Student's t over the normal's z,
    and the bootstrap's own spread, which is that of the values around their own mean.
    """
    if number > 300:  # less than 1 %
        return 1.0
    level = (1 + CONFIDENCE) / 2
    student = float(stats.t.ppf(level, number - 1) / stats.norm.ppf(level))
    return student * math.sqrt(number / (number - 1))


def _generator(what: str, number: int) -> torch.Generator:
    """Draws that depend on nothing else, so that adding a group doesn't change the others."""
    return torch.Generator().manual_seed(zlib.crc32(f"0 {what} {number}".encode()))


def correlation(a: Values, b: Values, kind: Literal["pearson", "spearman"] = "pearson") -> float:
    """How closely two quantities go together, from −1 to 1; NaN where one of them is constant.

    Args:
        a: one number per instance (or batch, or level).
        b: as many.
        kind: `"pearson"` for a straight line, `"spearman"` for any rising curve: the same on
            ranks, where equal values share their mean rank.
    """
    first, second = numbers(a, "a"), numbers(b, "b")
    if len(first) != len(second):
        raise IT3Error(f"a has {len(first)} values but b has {len(second)}: give pairs")
    if kind not in ("pearson", "spearman"):
        raise IT3Error(f'kind must be "pearson" or "spearman", not {kind!r}')
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    if kind == "spearman":
        first, second = stats.rankdata(first), stats.rankdata(second)
    return float(stats.pearsonr(first, second).statistic)


def auroc(scores_out: Values, scores_in: Values) -> float:
    """The chance that a shifted instance scores higher than another; a tie counts half.

    1 is a perfect alarm, 0.5 is chance.

    Args:
        scores_out: scores (such as idempotence errors) of instances out of distribution.
        scores_in: scores of instances in distribution.
    """
    out, inside = numbers(scores_out, "scores_out"), numbers(scores_in, "scores_in")
    if not len(out) or not len(inside):
        raise IT3Error("AUROC compares two sets of scores, and one of them is empty")
    return float(stats.mannwhitneyu(out, inside).statistic / (len(out) * len(inside)))


def numbers(values: Values, name: str) -> NDArray[np.float64]:
    """A flat array in double precision; refused by name where not finite."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    flat = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(flat).all():
        raise IT3Error(f"{name!r} holds NaN or Inf: leave those instances out first")
    return flat


IDEMPOTENCE = "idempotence error"
"""The score that the others are compared with."""


def assess_scores(
    model: nn.Module,
    adapter: Adapter,
    scores: Mapping[str, Score],
    levels: Mapping[str, Any],
    in_distribution: str,
    *,
    batch_size: int = 64,
) -> list[dict[str, Any]]:
    """How well the idempotence error and other scores find shifted inputs and predict the error.

    Args:
        model: the conditioned and trained network.
        adapter: what kind of answer it gives; its `error` is the mistake.
        scores: other scores by name.
        levels: data by name, or functions that load them.
        in_distribution: the level without a shift.
        batch_size: how many instances are scored together, which changes no score, and make up a
            batch for `pearson`.

    Returns:
        For each level, and for all shifted ones (`OUT_OF_DISTRIBUTION`), a line for each score:
        `spearman`, its rank correlation with the mistake; `pearson`, the correlation of its mean
        over a whole batch with the batch's mean mistake; and `auroc`, the chance that a shifted
        instance scores higher than one in distribution. None where there is no such number.
    """
    if in_distribution not in levels:
        raise IT3Error(
            f"there is no level {in_distribution!r} among {', '.join(map(repr, levels))}"
        )
    source, parts = Source(model, adapter), []
    for level in sorted(levels, key=lambda name: name != in_distribution):
        data = levels[level]
        x, y = whole(data() if callable(data) else data)
        pairs = zip(batches(x, batch_size), batches(y, batch_size), strict=True)
        for number, (part, label) in enumerate(pairs):
            first = source(part)
            found = {"": adapter.error(first.prediction, label), IDEMPOTENCE: first.error_before}
            found |= {name: score(part) for name, score in scores.items()}
            columns = {name: values.detach().double().cpu() for name, values in found.items()}
            parts.append(pd.DataFrame(columns).assign(level=level, batch=number))
    rows = pd.concat(parts, ignore_index=True)
    inside = rows[rows["level"] == in_distribution]
    named = {str(level): some for level, some in rows.groupby("level", sort=False)}
    if len(named) > 1:
        named[OUT_OF_DISTRIBUTION] = rows[rows["level"] != in_distribution]
    lines: list[dict[str, Any]] = []
    for level, some in named.items():
        groups = some.groupby(["level", "batch"], sort=False)
        means = groups.mean()[groups.size() == batch_size]
        others = inside.iloc[:0] if level == in_distribution else inside
        for name in (IDEMPOTENCE, *scores):
            lines.append(
                {
                    "level": level,
                    "score": name,
                    "n": len(some),
                    "auroc": auroc_or_none(some[name], others[name]),
                    "spearman": correlation_or_none(some[name], some[""], "spearman"),
                    "pearson": correlation_or_none(means[name], means[""], "pearson"),
                }
            )
    return lines


def correlation_or_none(a: Values, b: Values, kind: Literal["pearson", "spearman"]) -> float | None:
    """Their correlation, where there is one: two points lie on a line whatever they are."""
    found = correlation(a, b, kind) if len(a) > 2 else math.nan
    return None if math.isnan(found) else found


def auroc_or_none(higher: Values, lower: Values) -> float | None:
    """Their AUROC, unless one of them is empty."""
    return auroc(higher, lower) if len(higher) and len(lower) else None
