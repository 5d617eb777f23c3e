"""Records → tables: means over seeds, paired differences with their intervals, harm, cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from it3_core.bootstrap import bootstrap_intervals
from it3_core.errors import IT3Error
from it3_core.records import Record

__all__ = ["Row", "markdown", "overview", "summarise"]

Row = dict[str, Any]
"""One line of a table; `summarise` lists its keys."""


def summarise(
    records: Iterable[Record], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> list[Row]:
    """One row for each level, method and batch size, over all seeds, each of the same weight.

    A row holds

    - `level`, `method`, `batch_size`, `reference`, `in_distribution`, `seeds`, `n` (instances of
      all seeds together), `fallbacks`, and the mean `error`, `before` and `after`;
    - `difference` against the reference, its interval from `low` to `high` at `confidence`,
      `relative` (the difference as a share of the reference's error) and a `verdict`: "better"
      or "worse" where the interval excludes zero, else "no difference"; "unknown" where there is
      no interval, for want of seeds and instances; "failed" where no seed has a difference;
    - the same on the in-distribution level, for this method and batch size: `harm`, `harm_low`,
      `harm_high`, `harm_relative`, `harm_verdict`;
    - `cost`, the median over seeds, in passes of the reference;
    - `problem`: what went wrong, and with how many seeds; the numbers are of the others.

    Args:
        records: of one task, any number of seeds; of a cell that comes twice the last one counts.
        confidence: of the intervals; `bootstrap` says how they are made.
        resamples: how often to draw for them.
        seed: of the draws.

    Example:
        >>> from it3_core.summary import summarise
        >>> cell = {"seed": 0, "level": "clean", "batch_size": None, "reference": "source",
        ...         "in_distribution": True, "n": 4, "cost": 1.0}
        >>> rows = summarise([
        ...     cell | {"method": "source", "error": 2.0, "difference": 0.0},
        ...     cell | {"method": "IT3", "error": 1.5, "difference": -0.5,
        ...             "differences": [-0.5, -0.6, -0.4, -0.5]}])
        >>> rows[1]["difference"], rows[1]["relative"], rows[1]["verdict"]
        (-0.5, -0.25, 'better')
    """
    groups = _grouped(records)
    whole = [[record for record in group if _is_whole(record)] for group in groups]
    values = [[_differences(record) for record in group] for group in whole]
    found = [index for index, group in enumerate(values) if group]
    intervals = bootstrap_intervals(
        [values[index] for index in found], confidence=confidence, resamples=resamples, seed=seed
    )
    ends = dict(zip(found, intervals, strict=True))
    rows = [
        _row(group, whole[index], ends.get(index), confidence) for index, group in enumerate(groups)
    ]
    harms = {(row["method"], row["batch_size"]): row for row in rows if row["in_distribution"]}
    for row in rows:
        harm = harms.get((row["method"], row["batch_size"]), {})
        row["harm"] = harm.get("difference")
        for key in ("low", "high", "relative", "verdict"):
            row[f"harm_{key}"] = harm.get(key)
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table to paste, and a line below it that says how to read it.

    Example:
        >>> from it3_core.summary import markdown, summarise
        >>> cell = {"seed": 0, "level": "clean", "batch_size": None, "reference": "source",
        ...         "in_distribution": True, "n": 4, "cost": 1.0}
        >>> print(markdown(summarise([
        ...     cell | {"method": "source", "error": 2.0, "difference": 0.0}])))
        | level | method | batch | error | against source | % | verdict | cost | harm on clean |
        | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |
        | clean | source |  | 2.000 |  |  |  | 1.0 |  |
        <BLANKLINE>
        1 seed. In brackets 95 % intervals over seeds and instances; negative is better. Cost in
        passes of source.
    """
    if not rows:
        raise IT3Error("there is no row to put into a table")
    reference = rows[0]["reference"]
    unshifted = next((row["level"] for row in rows if row["in_distribution"]), None)
    titles = ["level", "method", "batch", "error", f"against {reference}", "%", "verdict", "cost"]
    marks = ["---", "---", "---:", "---:", "---:", "---:", "---", "---:"]
    if unshifted is not None:
        titles, marks = [*titles, f"harm on {unshifted}"], [*marks, "---:"]
    lines = [titles, marks, *(_line(row)[: len(titles)] for row in rows)]
    table = "\n".join(f"| {' | '.join(_escaped(text) for text in line)} |" for line in lines)
    seeds = sorted({row["seeds"] for row in rows})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    note = (
        f"{number} seed{'' if seeds == [1] else 's'}. In brackets "
        f"{100 * rows[0]['confidence']:g} % intervals over seeds and instances; negative is "
        f"better. Cost in passes of {reference}."
    )
    return f"{table}\n\n{note}\n"


def overview(rows: Sequence[Row]) -> str:
    """The rows as a short table for a terminal: methods by level, with the change in per cent.

    A change in round brackets may be chance; one without stands outside its interval.

    Example:
        >>> from it3_core.summary import overview, summarise
        >>> cell = {"seed": 0, "batch_size": None, "reference": "source", "in_distribution": False,
        ...         "n": 2, "cost": 1.0}
        >>> print(overview(summarise([
        ...     cell | {"level": "near", "method": "source", "error": 2.0, "difference": 0.0},
        ...     cell | {"level": "near", "method": "IT3", "error": 1.5, "difference": -0.5}])))
        method  near            cost
        source  2.000            1.0
        IT3     1.500 (-25.0%)   1.0
    """
    if not rows:
        raise IT3Error("there is no row to put into a table")
    levels = list(dict.fromkeys(row["level"] for row in rows))
    several = len({row["batch_size"] for row in rows if row["batch_size"] is not None}) > 1
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        name = row["method"]
        if several and row["batch_size"] is not None:
            name = f"{name}, batch {row['batch_size']}"
        lines.setdefault(name, {})[row["level"]] = row
    table = [["method", *levels, "cost"]]
    for name, cells in lines.items():
        costs = [row["cost"] for row in cells.values() if row["cost"] is not None]
        cost = _significant(statistics.median(costs), 2) if costs else ""
        table.append([name, *(_short(cells.get(level)) for level in levels), cost])
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join([*map(str.ljust, line[:-1], widths), line[-1].rjust(widths[-1])])
        for line in table
    )


def _short(row: Row | None) -> str:
    if row is None:
        return ""
    error = _significant(row["error"], 4) or row["verdict"]
    if row["method"] == row["reference"] or row["relative"] is None:
        return error
    change = f"{row['relative']:+z.1%}"
    return f"{error} {change}" if row["verdict"] in ("better", "worse") else f"{error} ({change})"


def _grouped(records: Iterable[Record]) -> list[list[Record]]:
    """By level, then method, both in order of appearance, then batch size; seeds in order."""
    cells = {(r["level"], r["method"], r["batch_size"], r["seed"]): r for r in records}
    references = sorted({str(record["reference"]) for record in cells.values()})
    if len(references) > 1:
        raise IT3Error(f"the records have several references: {', '.join(references)}")
    levels = list(dict.fromkeys(record["level"] for record in cells.values()))
    methods = list(dict.fromkeys(record["method"] for record in cells.values()))

    def place(record: Record) -> tuple[int, int, int, int]:
        level, method = levels.index(record["level"]), methods.index(record["method"])
        return level, method, record["batch_size"] or 0, record["seed"]

    groups: dict[tuple[int, ...], list[Record]] = {}
    for record in sorted(cells.values(), key=place):
        groups.setdefault(place(record)[:3], []).append(record)
    return list(groups.values())


def _is_whole(record: Record) -> bool:
    return record.get("problem") is None and record["difference"] is not None


def _differences(record: Record) -> Tensor:
    """Instance by instance; where they were not kept, their mean stands for them."""
    kept = record.get("differences") or [record["difference"]]
    return torch.tensor(kept, dtype=torch.double)


def _row(
    group: Sequence[Record],
    whole: Sequence[Record],
    interval: tuple[float, float] | None,
    confidence: float,
) -> Row:
    first = group[0]
    low, high = interval or (None, None)
    error, difference = _mean(whole, "error"), _mean(whole, "difference")
    relative = None
    if error is not None and difference is not None and error != difference:
        relative = difference / (error - difference)
    costs = [record["cost"] for record in whole if record.get("cost") is not None]
    problems = [record["problem"] for record in group if record.get("problem") is not None]
    return {
        "level": first["level"],
        "method": first["method"],
        "batch_size": first["batch_size"],
        "reference": first["reference"],
        "in_distribution": first["in_distribution"],
        "seeds": len(whole),
        "n": sum(record["n"] for record in whole),
        "error": error,
        "difference": difference,
        "low": low,
        "high": high,
        "confidence": confidence,
        "relative": relative,
        "verdict": _verdict(difference, low, high),
        "before": _mean(whole, "before"),
        "after": _mean(whole, "after"),
        "fallbacks": sum(record.get("fallbacks") or 0 for record in whole),
        "cost": statistics.median(costs) if costs else None,
        "problem": f"{len(problems)} of {len(group)} seeds: {problems[0]}" if problems else None,
    }


def _mean(records: Sequence[Record], key: str) -> float | None:
    values = [record.get(key) for record in records]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _verdict(difference: float | None, low: float | None, high: float | None) -> str:
    if difference is None:
        return "failed"
    if low is None or high is None:
        return "unknown"
    if high < 0:
        return "better"
    return "worse" if low > 0 else "no difference"


def _line(row: Row) -> list[str]:
    is_reference = row["method"] == row["reference"]
    problem = f" ({row['problem']})" if row["problem"] else ""
    harm = _with_interval(row["harm"], row["harm_low"], row["harm_high"])
    if row["harm_verdict"] in ("better", "worse"):
        harm = f"{harm} {row['harm_verdict']}"
    return [
        row["level"],
        row["method"],
        "" if row["batch_size"] is None else str(row["batch_size"]),
        _significant(row["error"], 4),
        "" if is_reference else _with_interval(row["difference"], row["low"], row["high"]),
        "" if is_reference or row["relative"] is None else f"{100 * row['relative']:+z.1f}",
        problem.strip() if is_reference else f"{row['verdict']}{problem}",
        _significant(row["cost"], 2),
        "" if is_reference else harm,
    ]


def _with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """As many digits as the interval's width makes sense of: two of its half."""
    if value is None:
        return ""
    if low is None or high is None:
        return f"{value:+z.3g}"
    if low == high:
        return f"{value:+z.3g} ({low:+z.3g} to {high:+z.3g})"
    digits = _decimals((high - low) / 2, 2)
    return f"{value:+z.{digits}f} ({low:+z.{digits}f} to {high:+z.{digits}f})"


def _significant(value: float | None, digits: int) -> str:
    """So many significant digits, but never an exponent."""
    return "" if value is None else f"{value:z.{_decimals(value, digits)}f}"


def _decimals(value: float, digits: int) -> int:
    if value == 0:
        return digits - 1
    return max(0, min(15, digits - 1 - math.floor(math.log10(abs(value)))))


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
