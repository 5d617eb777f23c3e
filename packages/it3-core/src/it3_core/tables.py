"""Tables of an evaluation as people read them: a line a method, a column a level.

Records and rows are those of `it3_core.records` and `it3_core.summary`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from it3_core.errors import IT3Error
from it3_core.records import Record
from it3_core.summary import Row

__all__ = ["BEYOND", "averaged", "compact", "label", "markdown_table", "pooled"]

BEYOND = "all beyond"
"""The name of the level that `pooled` makes."""


def pooled(records: Iterable[Record], level: str = BEYOND) -> list[Record]:
    """For each seed, method and batch size one record over all levels but the in-distribution one.

    Example:
        >>> cell = {"seed": 0, "method": "source", "batch_size": None, "reference": "source",
        ...         "n": 2, "cost": 1.0, "cpu_seconds": 0.1, "problem": None}
        >>> both = pooled([
        ...     cell | {"level": "near", "in_distribution": False, "errors": [1.0, 3.0],
        ...             "differences": [0.0, 0.0]},
        ...     cell | {"level": "far", "in_distribution": False, "errors": [5.0, 7.0],
        ...             "differences": [0.0, 0.0]}])
        >>> both[0]["error"], both[0]["n"]
        (4.0, 4)
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if not record["in_distribution"]:
            key = record["seed"], record["method"], record["batch_size"]
            groups.setdefault(key, []).append(record)
    return [_joined(group, level) for group in groups.values()]


def averaged(records: Iterable[Record], level: str = BEYOND) -> list[Record]:
    """Like `pooled`, where the levels hold the *same instances*: each has its mean over them.

    So an interval is over instances, and not over instances times levels, which would be too sure
    of itself: what is wrong with one image under one corruption is wrong with it under others.

    Example:
        >>> cell = {"seed": 0, "method": "source", "batch_size": None, "reference": "source",
        ...         "n": 2, "cost": 1.0, "cpu_seconds": 0.1, "problem": None}
        >>> both = averaged([
        ...     cell | {"level": "near", "in_distribution": False, "errors": [1.0, 3.0],
        ...             "differences": [0.0, 0.0]},
        ...     cell | {"level": "far", "in_distribution": False, "errors": [5.0, 7.0],
        ...             "differences": [0.0, 0.0]}])
        >>> both[0]["errors"], both[0]["error"]
        ([3.0, 5.0], 4.0)
    """
    records = list(records)
    found = pooled(records, level)
    for joined in found:
        if joined["problem"] is not None:
            continue
        names = ("seed", "method", "batch_size")
        group = [r for r in records if not r["in_distribution"]
                 and all(r[name] == joined[name] for name in names)]  # fmt: skip
        if len({record["n"] for record in group}) > 1:
            raise IT3Error("the levels hold different numbers of instances: use pooled()")
        joined["n"] = group[0]["n"]
        for key in ("errors", "differences"):
            columns = zip(*(record[key] for record in group), strict=True)
            joined[key] = [sum(column) / len(column) for column in columns]
    return found


def _joined(group: Sequence[Record], level: str) -> Record:
    problem = next((record["problem"] for record in group if record.get("problem")), None)
    joined = {**group[0], "level": level, "problem": problem, "before": None, "after": None}
    joined |= {"befores": None, "afters": None, "error": None, "difference": None}
    joined["n"] = sum(record["n"] for record in group)
    joined["fallbacks"] = sum(record.get("fallbacks") or 0 for record in group)
    joined["errors"], joined["differences"] = None, None
    if problem is not None:
        return joined
    seconds = [record["cpu_seconds"] for record in group]
    joined["cpu_seconds"] = sum(seconds)
    reference = sum(r["cpu_seconds"] / r["cost"] for r in group if r["cost"])
    joined["cost"] = sum(seconds) / reference if reference else None
    for key, mean in (("errors", "error"), ("differences", "difference")):
        if any(record.get(key) is None for record in group):
            raise IT3Error("joining levels needs the numbers of each instance: keep them")
        joined[key] = [value for record in group for value in record[key]]
        joined[mean] = sum(joined[key]) / len(joined[key]) if joined[key] else None
    return joined


def compact(rows: Sequence[Row], levels: Sequence[str] = (), digits: int = 2) -> list[list[str]]:
    """A table with the mean error at each level, and against the reference on the last level.

    Args:
        rows: of `summarise`.
        levels: the columns; all levels by default, in their order.
        digits: of errors, after the point.

    Returns:
        The header, and a line for each method and batch size.

    Example:
        >>> row = {"level": "near", "batch_size": 4, "reference": "source", "seeds": 1,
        ...        "harm": None, "harm_low": None, "harm_high": None, "harm_relative": None}
        >>> compact([row | {"method": "IT³", "error": 2.0, "difference": -0.5, "low": -0.6,
        ...                 "high": -0.4, "relative": -0.2, "verdict": "better", "cost": 3.1}])[1]
        ['IT³', '4', '2.00', '-0.50 (-0.60 to -0.40)', '-20 %', '', '3.1']
    """
    names = list(levels) or list(dict.fromkeys(row["level"] for row in rows))
    if not rows:
        raise IT3Error("there is no row to put into a table")
    reference = rows[0]["reference"]
    series = list(dict.fromkeys((row["method"], row["batch_size"]) for row in rows))
    cells = {(row["level"], row["method"], row["batch_size"]): row for row in rows}
    header = ["method", "batch", *names, f"against {reference}, {names[-1]}", "%", "harm", "cost"]
    lines = [header]
    for method, size in series:
        found = [cells.get((name, method, size)) for name in names]
        last = found[-1]
        errors = [_error(row, digits) for row in found]
        lines.append([method, "" if size is None else str(size), *errors, *_against(last, digits)])
    return lines


def label(method: str, batch_size: int | None) -> str:
    """A method and its batch size in words.

    Example:
        >>> label("IT³", 4), label("source", None)
        ('IT³, batch 4', 'source')
    """
    return method if batch_size is None else f"{method}, batch {batch_size}"


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells, the first of them the header, as Markdown; numbers to the right.

    Example:
        >>> print(markdown_table([["method", "error"], ["a|b", "1.0"]]))
        | method | error |
        | --- | ---: |
        | a\\|b | 1.0 |
    """
    header, *body = lines
    right = [all(_is_number(line[column]) for line in body) for column in range(len(header))]
    marks = ["---:" if yes else "---" for yes in right]
    escaped = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [escaped[0], marks, *escaped[1:]])


def _error(row: Row | None, digits: int) -> str:
    if row is None:
        return ""
    return "failed" if row["error"] is None else f"{row['error']:.{digits}f}"


def _against(row: Row | None, digits: int) -> list[str]:
    if row is None:
        return ["", "", "", ""]
    cost = "" if row["cost"] is None else f"{row['cost']:.1f}"
    if row["method"] == row["reference"] or row["difference"] is None:
        return ["", "", "", cost]
    relative = "" if row["relative"] is None else f"{100 * row['relative']:+.0f} %"
    return [_interval(row, "", digits), relative, _interval(row, "harm_", digits), cost]


def _interval(row: Row, prefix: str, digits: int) -> str:
    value = row["difference" if not prefix else "harm"]
    low, high = row[f"{prefix}low"], row[f"{prefix}high"]
    if value is None:
        return ""
    if low is None or high is None:
        return f"{value:+.{digits}f}"
    return f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def _is_number(cell: str) -> bool:
    try:
        float((cell.split(maxsplit=1) or ["0"])[0])
    except ValueError:
        return False
    return True
