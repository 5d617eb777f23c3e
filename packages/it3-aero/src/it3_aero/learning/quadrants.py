"""Whom to believe: test shapes by whether they are trusted, and whether the answer is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from it3_aero.learning.evaluate import DPI, Evaluation
from it3_aero.learning.shapes import WITHIN, Levels
from it3_aero.learning.task import Task
from it3_core.report import columns, picture, text

__all__ = ["QUADRANTS", "is_right", "quadrant", "trust_section"]

QUADRANTS = {
    (False, True): "trusted and right",
    (True, False): "not trusted, and wrong",
    (True, True): "not trusted, yet right",
    (False, False): "trusted, yet wrong",
}
"""By whether a shape was flagged, and whether the answer is right."""

_COLOURS = ("#0f766e", "#5b2a9d", "#b7791f", "#b42318")


def quadrant(task: Task, line: Mapping[str, Any]) -> str:
    """Where a test shape belongs: is it trusted, and is the network right about it?

    Example:
        >>> from it3_aero.wings.task import WINGS
        >>> quadrant(WINGS, {"y": 50.0, "before": 52.0, "flagged": False})
        'trusted and right'
        >>> quadrant(WINGS, {"y": 90.0, "before": 60.0, "flagged": True})
        'not trusted, and wrong'
    """
    return QUADRANTS[bool(line["flagged"]), is_right(task, line)]


def is_right(task: Task, line: Mapping[str, Any]) -> bool:
    """Whether the network's first answer is near enough to the solver's.

    Example:
        >>> from it3_aero.wings.task import WINGS
        >>> is_right(WINGS, {"y": 50.0, "before": 52.0})
        True
    """
    allowed = max(task.slack, task.tolerance * abs(line["y"]))
    return bool(abs(line["before"] - line["y"]) <= allowed)


def trust_section(levels: Levels, found: Evaluation) -> list[str]:
    """Three shapes of each quadrant, with their pressure, and the idempotence errors of all."""
    task = found.task
    shapes = {
        (level, name): (part, row)
        for level, part in levels.test.items()
        for row, name in enumerate(part.names)
    }
    groups: dict[str, list[Mapping[str, Any]]] = {name: [] for name in QUADRANTS.values()}
    for line in found.shapes:
        groups[quadrant(task, line)].append(line)
    counts = [f"{name}: {len(lines)} of {len(found.shapes)}" for name, lines in groups.items()]
    pictures = []
    for lines, title, colour in zip(groups.values(), counts, _COLOURS, strict=True):
        chosen = [line for line in _spread(lines, 3) if (line["level"], line["name"]) in shapes]
        if chosen:
            drawn = [(line, *shapes[line["level"], line["name"]]) for line in chosen]
            pictures.append(picture(task.gallery(drawn, colour, title), title))
    return [
        text(
            f"A shape is trusted unless its idempotence error |F(x, y₀) − y₀| is so large that at "
            f"most 5 % of the shapes like those trained on reach it; an answer is right within "
            f"{task.tolerance:.0%} of the solver's {task.quantity}, or within {task.slack:g}. "
            f"Three of each kind, with their pressure coefficient, and the percentile of their "
            f"idempotence error among held-out training shapes."
        ),
        text(f"{'; '.join(counts)}."),
        columns(*pictures),
        picture(
            found.picture("errors"),
            "histograms of idempotence errors",
            "Idempotence errors of known shapes, and of shapes beyond before and after one step of "
            "the paper's IT³ (batch 16), as in the paper's Figure 2.",
            dpi=DPI,
        )
        if any(line["level"] != WITHIN for line in found.shapes)
        else "",
    ]


def _spread(lines: Sequence[Mapping[str, Any]], number: int) -> list[Mapping[str, Any]]:
    """A few lines from the lowest label to the highest."""
    ordered = sorted(lines, key=lambda line: float(line["y"]))
    if len(ordered) <= number:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (number - 1))] for i in range(number)]
