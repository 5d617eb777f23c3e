"""The paper's tables, with our numbers beside the paper's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from it3_core.evaluation.records import Record
from it3_core.experiment.tables import Table, fixed
from paper import numbers
from paper.claims import costs, memory, source_of, span
from paper.intervals import ENOUGH, contrast, in_percent, over_seeds
from paper.numbers import (
    ACTMAD,
    IT3,
    ON_BATCH,
    ONLINE,
    SHIFTED,
    SOURCE,
    STATISTICS,
    STOPPED,
    VANILLA,
)  # fmt: skip
from paper.records import MAIN, STEM, Measured

_UNKNOWN = "–"
_FURTHER = {
    STOPPED: "IT³, gradient stopped", ON_BATCH: "IT³ on batch statistics",
    STATISTICS: "batch statistics alone", "TTT": "TTT", ACTMAD: "ActMAD",
    SHIFTED: "IT³ (online), shifted inputs alone", VANILLA[0]: "network trained without a signal",
    "trained further, with OOD labels": "trained further on the other half of these images' labels",
}  # fmt: skip
"""Our rows below the paper's, at the largest batch size of each."""


def online(name: str, one: Measured) -> Table:
    """A part of the paper's Table 1."""
    paper = numbers.ONLINE_TABLE[name]
    titles = [f"paper: {column}" for column in paper.columns]
    titles += [f"ours: {column}" for column in paper.columns]
    lines = [["method", *titles, "change of the error"]]
    main = one.part()
    for row, values in paper.rows.items():
        shown = [f"{value:g}" for value in values]
        method, size = _series(row, main)
        lines.append([row, *shown, *_ours(main, method, size, paper.columns)])
    for method, title in _FURTHER.items():
        if main.sizes(method):
            size = main.largest(method)
            own = _ours(main, method, size, paper.columns)
            title = title if size is None else f"{title} (batch={size})"
            lines.append([title, *([_UNKNOWN] * len(paper.columns)), *own])
    return lines


def _series(row: str, one: Measured) -> tuple[str, int | None]:
    """What we call a row of the paper's."""
    if found := re.search(r"batch=(\d+)", row):
        return IT3, int(found.group(1))
    method = ONLINE if "online" in row else SOURCE
    return method, one.largest(method)


def _ours(one: Measured, method: str, size: int | None, columns: Sequence[str]) -> list[str]:
    """Our numbers in the paper's columns, and the change of the error with its interval."""
    if size not in one.sizes(method):
        return [_UNKNOWN] * (len(columns) + 1)
    found = []
    for column in columns:
        values = _values(one, method, size, column)
        found.append(_value(values, column) if values else _UNKNOWN)
    change = contrast(one.shifted(), (method, size), source_of(one))
    shown = "" if method == SOURCE or change is None else str(change)
    return [*found, f"{shown}; {change.by_seed}" if shown and change and change.by_seed else shown]


def _values(one: Measured, method: str, size: int | None, column: str) -> dict[int, list[float]]:
    """Each seed's instances; quality is what the error is less than 100."""
    found: dict[int, list[float]] = {}
    for r in one.records:
        if (r["method"], r["batch_size"]) == (method, size) and not r["in_distribution"]:
            values = r.get("errors" if column in ("MAE", "quality") else column) or []
            values = [100 - value for value in values] if column == "quality" else values
            found.setdefault(r["seed"], []).extend(value for value in values if value is not None)
    return {seed: values for seed, values in found.items() if values}


def _value(values: dict[int, list[float]], column: str) -> str:
    """A mean; of what is between 0 and 100 with its interval on that scale."""
    import torch

    mean = fmean(fmean(some) for some in values.values())
    if column == "MAE":
        return f"{mean:.3g}"
    whole = over_seeds([torch.tensor(some, dtype=torch.double) for some in values.values()])
    if whole is None or whole.low is None or whole.high is None:
        return fixed(mean)
    low, high = in_percent(mean, whole.low, whole.high)
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def time(task: str, one: Measured) -> Table:
    """Inference time on out-of-distribution data, in passes of the base model."""
    lines = [["method", "paper", "ours"]]
    main = one.part()
    paper = {m: f"{times:g}×" for m, times in numbers.COSTS[task].items()}
    for method in (*paper, f"{IT3}, steps: 1"):
        ours = f"{span(costs(main, method))}×" if main.sizes(method) else ""
        if method in paper or ours:
            lines.append([_plain(method), paper.get(method, _UNKNOWN), ours or _UNKNOWN])
    return lines


def memory_table(one: Measured) -> Table:
    """Peak memory of one batch."""
    known, paper = memory(one), numbers.MEMORY
    lines = [["method", "paper, GB", "paper, of base", "ours, MB", "ours, of base"]]
    for method in (*paper, *(name for name in known if name not in paper)):
        cells = [method]
        for values, scale, digits in ((paper, 1, 1), (known, 1e6, 0)):
            there = method in values
            cells.append(f"{values[method] / scale:.{digits}f}" if there else _UNKNOWN)
            cells.append(f"{values[method] / values[SOURCE]:.2f}" if there else _UNKNOWN)
        lines.append([_plain(method), *cells[1:]])
    return lines


def _plain(method: str) -> str:
    return {SOURCE: "base model", IT3: "IT³", "Tent": "TENT"}.get(method, method)


def ablation(found: Sequence[Measured]) -> Table:
    """The paper's steps, its loss without anchor and its other readings, task by task."""
    lines = [["task", "method", "batch", "change of the error under shift", "in distribution"]]
    for one in found:
        main = one.part()
        for method in dict.fromkeys(r["method"] for r in main.records):
            if not method.startswith((f"{IT3}, steps", "IT³ without", STOPPED)):
                continue
            series, source = (method, main.largest(method)), source_of(main)
            changes = [
                contrast(some, series, source) for some in (main.shifted(), main.in_distribution())
            ]
            cells = [_UNKNOWN if change is None else str(change) for change in changes]
            lines.append([one.task, method, fixed(series[1], 0), *cells])
    return lines


def networks(found: Sequence[Measured]) -> Table:
    """Each task's networks before any adaptation, and the paper's step that was chosen for them."""
    lines = [["task", "network", "seeds", "error in distribution", "under shift",
              "trained without a signal", "under shift", "the paper's step"]]  # fmt: skip
    for one in found:
        steps = [about.get("paper", {}).get("source") for about in one.about]
        chosen = dict.fromkeys(f"{step['steps']:g} × {step['lr']:.0e}" for step in steps if step)
        for part, name, method in (
            (MAIN, "{}", SOURCE),
            (STEM, "{}, signal at the input layer", SOURCE),
            (MAIN, "{}, CORAL's head in place of the last layer, no signal", "CORAL"),
        ):
            some = one.part(part)
            plain = next((name for name in VANILLA if method == SOURCE and some.sizes(name)), "")
            errors = [_errors(records, which) for which in (method, plain)
                      for records in (some.in_distribution(), some.shifted())]  # fmt: skip
            if errors[0] == errors[1] == _UNKNOWN:
                continue
            seeds = len({record["seed"] for record in some.records})
            step = ", ".join(chosen) if (part, method) == (MAIN, SOURCE) else ""
            network = name.format(one.about[0]["network"])
            lines.append([one.task, network, str(seeds), *errors, step])
    return lines


def _errors(records: Sequence[Record], method: str) -> str:
    """A method's mean error, and each seed's where they are few."""
    seeds: dict[int, list[float]] = {}
    for record in records:
        if record["method"] == method and record["error"] is not None:
            seeds.setdefault(record["seed"], []).append(record["error"])
    means = [fmean(some) for some in seeds.values()]
    if not means:
        return _UNKNOWN
    each = ", ".join(f"{mean:.3g}" for mean in means)
    return f"{fmean(means):.3g}" + (f" ({each})" if 1 < len(means) < ENOUGH else "")
