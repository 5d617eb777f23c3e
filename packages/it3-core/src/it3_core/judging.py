"""How good a score is that says how unusual an input is: the idempotence error, and its rivals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, cat, nn, tensor

from it3_core.adapters import Adapter
from it3_core.batching import batches
from it3_core.errors import IT3Error
from it3_core.methods.source import Source
from it3_core.metrics import auroc, correlation
from it3_core.rivals import Score
from it3_core.tables import BEYOND

__all__ = ["IDEMPOTENCE", "judge"]

IDEMPOTENCE = "idempotence error"
"""The name that `judge` gives to what the others are compared with."""


def judge(
    model: nn.Module,
    adapter: Adapter,
    rivals: Mapping[str, Score],
    levels: Mapping[str, Any],
    within: str,
    *,
    batch_size: int = 64,
) -> list[dict[str, Any]]:
    """How well the idempotence error and its rivals tell the unusual and foretell the mistake.

    Args:
        model: the conditioned and trained network.
        adapter: what kind of answer it gives; its `error` is the mistake.
        rivals: other scores by name.
        levels: `(x, y)` by name, or functions that load them.
        within: the level in distribution.
        batch_size: how many instances are scored together, which changes no score, and make up a
            batch for `pearson`.

    Returns:
        For each level, and for all shifted ones together (`BEYOND`), a line for each score:
        `spearman`, its rank correlation with the mistake; `pearson`, the correlation of its mean
        over a whole batch with the batch's mean mistake; and `auroc`, the chance that a shifted
        instance scores higher than one in distribution. None where there is no such number.

    Example:
        >>> import torch
        >>> from it3_core import Regression, widen
        >>> _ = torch.manual_seed(0)
        >>> adapter, x = Regression(), torch.randn(50, 3)
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> _ = torch.nn.init.normal_(model.model.weight)  # stands in for training
        >>> far = lambda x: x.abs().sum(1)
        >>> lines = judge(model, adapter, {"far": far},
        ...               {"known": (x, x.sum(1)), "far": (x + 9, x.sum(1))}, "known")
        >>> [(line["level"], line["score"], line["auroc"]) for line in lines[2:4]]
        [('far', 'idempotence error', ...), ('far', 'far', 1.0)]
    """
    if within not in levels:
        raise IT3Error(f"there is no level {within!r} among {', '.join(map(repr, levels))}")
    source = Source(model, adapter)
    found: dict[str, dict[str, Tensor]] = {}
    over: dict[str, dict[str, Tensor]] = {}  # means over whole batches
    for level in [within, *(name for name in levels if name != within)]:
        data = levels[level]
        x, y = data() if callable(data) else data
        parts: dict[str, list[Tensor]] = {}
        for part, label in zip(batches(x, batch_size), batches(y, batch_size), strict=True):
            answer = source(part)
            scores = {IDEMPOTENCE: answer.error_before}
            scores |= {name: rival(part) for name, rival in rivals.items()}
            scores[""] = adapter.error(answer.prediction, label)
            for name, values in scores.items():
                parts.setdefault(name, []).append(values.detach().double().cpu())
        found[level] = {name: cat(values) for name, values in parts.items()}
        over[level] = {
            name: tensor([float(part.mean()) for part in values if len(part) == batch_size])
            for name, values in parts.items()
        }
    for kept in (found, over):
        beyond = [kept[level] for level in kept if level != within]
        if beyond:
            kept[BEYOND] = {name: cat([one[name] for one in beyond]) for name in beyond[0]}
    lines = []
    for level, scores in found.items():
        wrong = scores[""]
        for name in (IDEMPOTENCE, *rivals):
            apart = None if level == within else auroc(scores[name], found[within][name])
            line = {"level": level, "score": name, "n": len(wrong), "auroc": apart}
            line["spearman"] = _told(scores[name], wrong, "spearman")
            line["pearson"] = _told(over[level][name], over[level][""], "pearson")
            lines.append(line)
    return lines


def _told(score: Tensor, wrong: Tensor, kind: Literal["pearson", "spearman"]) -> float | None:
    """Their correlation, where there is one: two batches lie on a line whatever they are."""
    found = correlation(score, wrong, kind) if len(score) > 2 else math.nan
    return None if math.isnan(found) else found
