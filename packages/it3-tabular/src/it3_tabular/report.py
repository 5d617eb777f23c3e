"""What an evaluation measured, as Markdown tables and as the paper's box plots."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from it3_core import IT3Error
from it3_core.evaluation import Record, read_records
from it3_core.summary import Row, summarise

__all__ = ["draw", "read_trust", "table", "trust_table", "write_report"]

_DRAWN = ("source", "ActMAD", "IT³", "auto")  # in the box plots, as in the paper
_COMPARED = ("second pass", "IT³ per instance", "online IT³", "auto", "vanilla", "ActMAD",
             "told: source, imputed", "told: boosting")  # fmt: skip


def write_report(folder: Path, names: Sequence[str], command: str, *, plots: bool = True) -> str:
    """Writes `table.md` and PNGs beside the records of these data sets, and returns the table.

    Args:
        folder: with `NAME.jsonl` and `NAME-trust.jsonl` of each data set.
        names: of the data sets.
        command: that made it, to be printed with it.
        plots: whether to draw.
    """
    parts = [_introduction(command)]
    for name in names:
        records = read_records(folder / f"{name}.jsonl")
        parts += [f"## {name}", table(summarise(records))]
        parts.append(trust_table(read_trust(folder / f"{name}-trust.jsonl")))
        if plots:
            draw(records, name, folder)
    text = "\n\n".join(parts) + "\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    return text


def table(rows: Sequence[Row]) -> str:
    """A method a line and a level a column: the mean error, and how far that is from source.

    Example:
        >>> from it3_core.summary import summarise
        >>> cell = {"seed": 0, "level": "clean", "batch_size": None, "reference": "source",
        ...         "in_distribution": True, "n": 4, "cost": 1.0}
        >>> print(table(summarise([
        ...     cell | {"method": "source", "error": 2.0, "difference": 0.0},
        ...     cell | {"method": "IT³", "batch_size": 8, "error": 1.5, "difference": -0.5,
        ...             "differences": [-0.5, -0.6, -0.4, -0.5]}])))
        | method | clean |
        | --- | --- |
        | source | 2.000 |
        | IT³, batch 8 | 1.500, **−0.50 (−0.64 to −0.36)** |
    """
    if not rows:
        raise IT3Error("there is nothing to put into a table")
    levels = list(dict.fromkeys(row["level"] for row in rows))
    series = list(dict.fromkeys((row["method"], row["batch_size"]) for row in rows))
    cells = {(row["method"], row["batch_size"], row["level"]): row for row in rows}
    lines = [["method", *levels], ["---"] * (len(levels) + 1)]
    for method, size in series:
        name = method if size is None else f"{method}, batch {size}"
        found = [cells.get((method, size, level)) for level in levels]
        lines.append([name, *("" if row is None else _cell(row) for row in found)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def trust_table(lines: Iterable[dict[str, Any]]) -> str:
    """Trust's quality, a line for each score and a column for each level: means over splits.

    Example:
        >>> print(trust_table([{"level": "clean", "score": "dropout", "spearman": 0.2}]))
        | score | Spearman with the true error: clean |
        | --- | ---: |
        | dropout | 0.20 |
    """
    kept = list(lines)
    levels = list(dict.fromkeys(line["level"] for line in kept))
    usual, *shifted = levels
    columns = [("spearman", level) for level in levels] + [("auroc", level) for level in shifted]
    head = ["score", f"Spearman with the true error: {usual}", *shifted]
    head += [f"AUROC against {usual}: {shifted[0]}", *shifted[1:]] if shifted else []
    rows = [head, ["---", *["---:"] * len(columns)]]
    for score in dict.fromkeys(line["score"] for line in kept):
        cells = [score]
        for key, level in columns:
            same = [line for line in kept if line["score"] == score and line["level"] == level]
            known = [line[key] for line in same if line.get(key) is not None]
            cells.append(f"{statistics.fmean(known):.2f}".replace("-", "−") if known else "")
        rows.append(cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def read_trust(path: Path) -> list[dict[str, Any]]:
    """The lines that `evaluate_split` wrote; where a split was measured again, the last ones."""
    found: dict[tuple[int, str, str], dict[str, Any]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
            found[line["seed"], line["level"], line["score"]] = line
        except (ValueError, KeyError):
            continue  # empty, cut off by a kill, or of a version without rivals: it is made again
    return list(found.values())


def draw(records: Sequence[Record], name: str, folder: Path) -> list[Path]:
    """Box plots as in the paper's figure, and paired differences, as PNGs."""
    from it3_core.plots import box_by_level, difference_by_level

    boxes, gaps = folder / f"{name}-boxes.png", folder / f"{name}-differences.png"
    box_by_level(
        [record for record in records if record["method"] in _DRAWN],
        each="seed",
        error="MAE of a split",
        title=f"{name}: features zeroed",
        path=boxes,
    )
    difference_by_level(
        [row for row in summarise(records) if row["method"] in (*_COMPARED, "source")],
        error="MAE",
        title=f"{name}: against the same net without adapting",
        path=gaps,
    )
    return [boxes, gaps]


def _cell(row: Row) -> str:
    if row["error"] is None:
        return row["problem"] or "failed"
    error = f"{row['error']:.3f}"
    if row["method"] == row["reference"]:
        return error
    if row["low"] is None or row["difference"] == row["low"] == row["high"]:
        return f"{error}, {row['difference']:+z.2g}".replace("-", "−")
    digits = 2 if row["high"] - row["low"] > 0.05 else 3
    gap = "{:+z.{d}f} ({:+z.{d}f} to {:+z.{d}f})".format(
        row["difference"], row["low"], row["high"], d=digits
    ).replace("-", "−")
    marks = {"better": f"**{gap}**", "worse": f"{gap} worse"}
    return f"{error}, {marks.get(row['verdict'], gap)}"


def _introduction(command: str) -> str:
    return (
        f"Made by `{command}`.\n\n"
        "Mean absolute error over the splits; then the paired difference from *source*, the same "
        "network without adapting, with its 95 % interval over splits and rows. Negative is "
        "better; **bold** is better beyond its interval, and *worse* is said. *clean* is the "
        "change in distribution. Methods after *told:* are told which values were lost."
    )
