"""Tables of an evaluation as people read them: a line a method, a column a level.

Records are those of `evaluation.records`, rows those of `experiment.statistics.summarise`. A table
is a list of lines of cells, the first line its header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from it3_core.errors import IT3Error
from it3_core.evaluation.records import Record
from it3_core.experiment.statistics import CONFIDENCE, OUT_OF_DISTRIBUTION, Row

Table = list[list[str]]


def pooled(
    records: Iterable[Record], level: str = OUT_OF_DISTRIBUTION, *, same_instances: bool = False
) -> list[Record]:
    """One record a seed, method and batch size over all levels but the in-distribution one.

    Where the levels hold the same instances, shifted differently, each has its mean over the
    levels: an interval over instances times levels would be too sure of itself.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if not record["in_distribution"]:
            key = record["seed"], record["method"], record["batch_size"]
            groups.setdefault(key, []).append(record)
    return [_joined(group, level, same_instances) for group in groups.values()]


def _joined(group: Sequence[Record], level: str, same_instances: bool) -> Record:
    problem = next((record["problem"] for record in group if record.get("problem")), None)
    unknown = ("error", "difference", "errors", "differences")
    joined = {**group[0], **dict.fromkeys(unknown), "level": level, "problem": problem}
    joined["n"] = sum(record["n"] for record in group)
    joined["fallbacks"] = sum(record.get("fallbacks") or 0 for record in group)
    if problem is not None:
        return joined
    joined["cpu_seconds"] = sum(record["cpu_seconds"] for record in group)
    reference = sum(record["cpu_seconds"] / record["cost"] for record in group if record["cost"])
    joined["cost"] = joined["cpu_seconds"] / reference if reference else None
    for key, mean in (("errors", "error"), ("differences", "difference")):
        if any(record.get(key) is None for record in group):
            raise IT3Error("joining levels needs the numbers of each instance: keep them")
        lists = [record[key] for record in group]
        values = list(chain.from_iterable(lists))
        joined[mean] = fmean(values) if values else None
        if same_instances and len(set(map(len, lists))) > 1:
            raise IT3Error("the levels hold different numbers of instances: same_instances=False")
        joined[key] = list(map(fmean, zip(*lists, strict=True))) if same_instances else values
        joined["n"] = len(joined[key])
    return joined


def levels_of(rows: Iterable[Row]) -> list[str]:
    """The levels' names, in the order that they come in."""
    return list(dict.fromkeys(row["level"] for row in rows))


def label(method: str, batch_size: int | None) -> str:
    """A method and its batch size in words."""
    return method if batch_size is None else f"{method}, batch {batch_size}"


def fixed(value: float | None, digits: int = 1, unknown: str = "") -> str:
    """So many digits after the point; `unknown` for None."""
    return unknown if value is None else f"{value:.{digits}f}"


def error_cell(row: Row | None, digits: int) -> str:
    """A row's error; nothing where there is no such row."""
    return "" if row is None else fixed(row["error"], digits, "failed")


def change_cell(row: Row | None, digits: int, of: str = "difference") -> str:
    """The `"difference"` to the reference with its interval, or the `"harm"`; else nothing."""
    if row is None or row["method"] == row["reference"] or row[of] is None:
        return ""
    low, high = (row[f"harm_{end}" if of == "harm" else end] for end in ("low", "high"))
    return interval(row[of], low, high, digits)


def interval(
    value: float, low: float | None, high: float | None, digits: int, sign: str = "+"
) -> str:
    """A change and the ends of its interval, with their signs; `"+z"` shows −0.0 as +0.0."""
    how = f"{sign}.{digits}f"
    if low is None or high is None:
        return format(value, how)
    return f"{value:{how}} ({low:{how}} to {high:{how}})"


def by_level(
    rows: Iterable[Row],
    levels: Sequence[str],
    cell: Callable[[Row | None], str],
    more: Callable[[list[Row | None]], list[str]] = lambda found: [],
) -> Table:
    """A line for each method and batch size: both, a `cell` for each level's row, `more` of all."""
    cells = {(row["method"], row["batch_size"], row["level"]): row for row in rows}
    lines = []
    for method, size in dict.fromkeys(key[:2] for key in cells):
        found = [cells.get((method, size, level)) for level in levels]
        lines.append([method, fixed(size, 0), *map(cell, found), *more(found)])
    return lines


def compact(rows: Sequence[Row], levels: Sequence[str] = (), digits: int = 2) -> Table:
    """The mean error at each level, by default all, and against the reference on the last one."""
    if not rows:
        raise IT3Error("there is no row to put into a table")
    names = list(levels) or levels_of(rows)
    against = f"against {rows[0]['reference']}, {names[-1]}"

    def more(found: list[Row | None]) -> list[str]:
        row = found[-1]
        if row is None:
            return ["", "", "", ""]
        change, fraction = change_cell(row, digits), row["relative"]
        relative = f"{100 * fraction:+.0f} %" if change and fraction is not None else ""
        harm = change_cell(row, digits, "harm") if change else ""
        return [change, relative, harm, fixed(row["cost"])]

    lines = by_level(rows, names, lambda row: error_cell(row, digits), more)
    return [["method", "batch", *names, against, "%", "harm", "cost"], *lines]


def markdown(rows: Sequence[Row]) -> str:
    """All rows as a table to paste, and a line below it that says how to read it.

    Example:
        >>> from it3_core.experiment.statistics import summarise
        >>> from it3_core.experiment.tables import markdown
        >>> cell = {"seed": 0, "level": "clean", "batch_size": None, "reference": "source",
        ...         "in_distribution": True, "n": 4, "cost": 1.0}
        >>> print(markdown(summarise([
        ...     cell | {"method": "source", "error": 2.0, "difference": 0.0},
        ...     cell | {"method": "IT3", "error": 1.5, "difference": -0.5}])))
        | level | method | batch | error | against source | % | verdict | cost | harm on clean |
        | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |
        | clean | source |  | 2.000 |  |  |  | 1.0 |  |
        | clean | IT3 |  | 1.500 | -0.5 | -25.0 | unknown | 1.0 | -0.5 |
        <BLANKLINE>
        1 seed. In brackets 95 % intervals over seeds and instances; negative is better. Cost in
        passes of source.
    """
    if not rows:
        raise IT3Error("there is no row to put into a table")
    reference = rows[0]["reference"]
    titles = ["level", "method", "batch", "error", f"against {reference}", "%", "verdict", "cost"]
    titles += [f"harm on {row['level']}" for row in rows if row["in_distribution"]][:1]
    table = markdown_table([titles, *(_line(row)[: len(titles)] for row in rows)])
    seeds = sorted({row["seeds"] for row in rows})
    number = " to ".join(str(seed) for seed in dict.fromkeys([seeds[0], seeds[-1]]))
    return (
        f"{table}\n\n{number} seed{'' if seeds == [1] else 's'}. In brackets "
        f"{100 * CONFIDENCE:g} % intervals over seeds and instances; negative is "
        f"better. Cost in passes of {reference}.\n"
    )


def is_number(cell: str) -> bool:
    """Whether a cell belongs to the right: a number with or without a unit, or nothing."""
    return not cell or cell.lstrip("+-−<≤≈ ")[:1].isdigit()


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells, the first of them the header, as Markdown; numbers to the right."""
    header, *body = lines
    right = [all(is_number(line[column]) for line in body) for column in range(len(header))]
    marks = ["---:" if yes else "---" for yes in right]
    escaped = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [escaped[0], marks, *escaped[1:]])


def _line(row: Row) -> list[str]:
    is_reference = row["method"] == row["reference"]
    problem = f" ({row['problem']})" if row["problem"] else ""
    change = relative = harm = ""
    if not is_reference:
        change = _sensible(row["difference"], row["low"], row["high"])
        relative = "" if row["relative"] is None else f"{100 * row['relative']:+z.1f}"
        harm = _sensible(row["harm"], row["harm_low"], row["harm_high"])
        harm += f" {row['harm_verdict']}" if row["harm_verdict"] in ("better", "worse") else ""
    return [
        row["level"],
        row["method"],
        fixed(row["batch_size"], 0),
        _significant(row["error"], 4),
        change,
        relative,
        problem.strip() if is_reference else f"{row['verdict']}{problem}",
        _significant(row["cost"], 2),
        harm,
    ]


def _sensible(value: float | None, low: float | None, high: float | None) -> str:
    """As many digits as the interval's width makes sense of: two of its half."""
    if value is None:
        return ""
    if low is None or high is None:
        return f"{value:+z.3g}"
    if low == high:
        return f"{value:+z.3g} ({low:+z.3g} to {high:+z.3g})"
    return interval(value, low, high, _decimals((high - low) / 2, 2), "+z")


def _significant(value: float | None, digits: int) -> str:
    """So many significant digits, but never an exponent."""
    return "" if value is None else f"{value:z.{_decimals(value, digits)}f}"


def _decimals(value: float, digits: int) -> int:
    if value == 0:
        return digits - 1
    return max(0, min(15, digits - 1 - math.floor(math.log10(abs(value)))))
