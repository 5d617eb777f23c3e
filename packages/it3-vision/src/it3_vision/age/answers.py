"""What the network says about every face, before and after, and whom to believe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from it3_core import IT3, Source
from it3_core.batching import batches
from it3_core.metrics import correlation
from it3_vision.age.levels import Levels
from it3_vision.age.runs import Run
from it3_vision.comparing import separation
from it3_vision.evaluations import finite
from it3_vision.lineup import paper_step

__all__ = ["ask", "believe", "sample"]

SHOWN = 8
"""Faces of a level that are answered for by name."""


def ask(run: Run, levels: Levels, name: str, size: int) -> dict[str, Tensor]:
    """What the network says about each face of a level, before and after."""
    x, age = levels.load(run, name)
    source, method = Source(run.model, run.adapter), run.method(size)
    step = IT3(run.model, run.adapter, **paper_step(run, size, "source"))
    plain = [source(part) for part in batches(x, size)]
    error = torch.cat([one.error_before for one in plain])
    return {
        "age": age,
        "before": torch.cat([one.initial for one in plain]).flatten(),
        "after": torch.cat([method(part).prediction for part in batches(x, size)]).flatten(),
        "error": error,
        "error_after": torch.cat([step(part).error_after for part in batches(x, size)]),
        "percentile": run.trust.percentile(error),
    }


def believe(
    run: Run, levels: Levels, answers: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    """Does the idempotence error foretell the mistake, and tell the unknown apart?"""
    inside = answers[levels.within]
    beyond = [found for name, found in answers.items() if name != levels.within]
    away = torch.cat([found["error"] for found in beyond])
    error = torch.cat([inside["error"], away])
    mistake = torch.cat([(one["before"] - one["age"]).abs() for one in (inside, *beyond)])
    numbers = {
        "spearman": correlation(error, mistake, "spearman"),
        "spearman_within": correlation(
            inside["error"], (inside["before"] - inside["age"]).abs(), "spearman"
        ),
        "auroc": separation(away, inside["error"]),
        "flagged_within": float(run.trust.flag(inside["error"]).float().mean()),
        "flagged_beyond": float(run.trust.flag(away).float().mean()),
        "bias": {n: float((one["before"] - one["age"]).mean()) for n, one in answers.items()},
    }
    plain: dict[str, Any] = finite(numbers)
    return plain


def sample(levels: Levels, name: str, found: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """What is said about the first faces of a level."""
    part = levels.parts[name]
    return [
        {
            "level": name,
            "row": row,
            "name": part.names[row],
            **{key: round(float(values[row]), 4) for key, values in found.items()},
        }
        for row in range(min(SHOWN, len(part)))
    ]
