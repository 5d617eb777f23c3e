"""What the network as it is says about every level: whom to believe, and some answers to show."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from it3_core import Source
from it3_core.batching import batches
from it3_core.metrics import correlation
from it3_core.progress import Progress
from it3_vision.classify.runs import Run
from it3_vision.classify.shifts import CLEAN, Shifts
from it3_vision.comparing import separation
from it3_vision.evaluations import finite
from it3_vision.methods.base import entropy

__all__ = ["believe", "sample"]


def believe(
    run: Run, shifts: Shifts, progress: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Does the idempotence error foretell accuracy, over batches of 64; and does entropy?

    Returns:
        the numbers that say so, and a point for each batch.
    """
    method = Source(run.model, run.adapter)
    found: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    points: list[dict[str, Any]] = []
    names = shifts.names()
    bar = Progress(len(names), "trust", progress)
    for done, name in enumerate(names):
        x, y = shifts.load(run, name)
        parts = []
        for part, labels in zip(batches(x, 64), torch.split(y, 64), strict=True):
            answer = method(part)
            right = 1 - run.adapter.error(answer.initial, labels)
            parts.append((answer.error_before, entropy(answer.initial), right))
            if len(labels) == 64:
                means = [round(float(value.mean()), 6) for value in parts[-1]]
                keys = ("error", "entropy", "accuracy")
                points.append({"level": name, **dict(zip(keys, means, strict=True))})
        columns = list(zip(*parts, strict=True))
        found[name] = (torch.cat(columns[0]), torch.cat(columns[1]), torch.cat(columns[2]))
        bar.show(done + 1, name)
    bar.close()
    error, unsure, right = (torch.cat([one[i] for one in found.values()]) for i in range(3))
    beyond = [one for name, one in found.items() if name != CLEAN]
    numbers: dict[str, Any] = {"batches": len(points)}
    for index, (key, values) in enumerate((("error", error), ("entropy", unsure))):
        over = [point[key] for point in points]
        accuracy = [point["accuracy"] for point in points]
        numbers[key] = {
            "pearson": correlation(over, accuracy) if len(over) > 2 else None,
            "spearman": correlation(values, 1 - right, "spearman"),
            "auroc_wrong": separation(values[right == 0], values[right == 1]),
            "auroc_corrupted": separation(torch.cat([one[index] for one in beyond]),
                                           found[CLEAN][index]),
        }  # fmt: skip
    flagged = run.trust.flag(found[CLEAN][0]).float().mean()
    numbers["flagged_clean"] = float(flagged)
    numbers["flagged_corrupted"] = float(
        run.trust.flag(torch.cat([one[0] for one in beyond])).float().mean()
    )
    return finite(numbers), points


def sample(run: Run, shifts: Shifts, size: int) -> list[dict[str, Any]]:
    """What the network says about the first images of each level, before and after."""
    lines = []
    source = Source(run.model, run.adapter)
    for name in shifts.names():
        method = run.method(size)
        x = run.tensor(shifts.pixels(run.prepare.size, name, size))
        plain = source(x)  # as the network is, whatever statistics the method is on
        errors = plain.error_before
        columns = zip(
            plain.initial.softmax(1),
            method(x).prediction.softmax(1),
            errors,
            run.trust.percentile(errors),
            strict=True,
        )
        for row, (before, after, error, percentile) in enumerate(columns):
            if row == 4:
                break
            lines.append(
                {
                    "level": name,
                    "row": row,
                    "truth": int(shifts.images.labels[row]),
                    "before": int(before.argmax()),
                    "sure_before": round(float(before.max()), 4),
                    "after": int(after.argmax()),
                    "sure_after": round(float(after.max()), 4),
                    "error": round(float(error), 6),
                    "percentile": round(float(percentile), 2),
                }
            )
    return lines
