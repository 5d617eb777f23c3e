"""What every evaluation does alike: lineups on levels, one batch size after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from it3_core import IT3Error
from it3_core.evaluation import Level, Record, evaluate
from it3_core.files import read_json
from it3_core.memory import peak_memory
from it3_core.metrics import auroc
from it3_vision.lineup import Lineup
from it3_vision.runs import TrainedRun

__all__ = ["Compared", "against", "compare", "finite", "memories", "read_summary", "separation"]


@dataclass(frozen=True)
class Compared:
    """What `compare` found.

    Attributes:
        records: of `it3_core.evaluation`, of all batch sizes.
        settings: how each method was made, by batch size.
        largest: the lineup of the largest batch size, for measurements of its own.
    """

    records: list[Record]
    settings: dict[str, dict[str, str]]
    largest: Lineup


def compare(
    run: TrainedRun[Any],
    lineup: Callable[[int], Lineup],
    levels: Mapping[str, Level],
    error: Callable[[Tensor, Tensor], Tensor],
    *,
    batch_sizes: Sequence[int],
    in_distribution: str,
    once: Collection[str],
    path: Path,
    streams: Collection[str] = (),
    only: Sequence[str] | None = None,
    progress: bool = True,
) -> Compared:
    """Runs the methods of every batch size on all levels; a killed one goes on where it was.

    Args:
        run: the trained network.
        lineup: the methods for a batch size; settings may depend on it.
        levels: as `it3_core.evaluation.evaluate` wants them.
        error: one number per instance.
        batch_sizes: how many images the methods get at a time.
        in_distribution: the level without a shift.
        once: names of methods whose answers don't depend on the batch size.
        path: the file where records gather.
        streams: names of methods that go through all levels without a reset.
        only: names of methods; all by default. The source is always there.
        progress: whether to show how far it is.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise IT3Error(f"batch sizes are whole numbers from 1 on, not {list(batch_sizes)}")
    records: dict[tuple[Any, ...], Record] = {}
    told: dict[str, dict[str, str]] = {}
    largest = max(batch_sizes)
    lineups = {
        size: lineup(size).chosen(only, tuple(once), size == largest)
        for size in sorted(set(batch_sizes), reverse=True)
    }
    for size, chosen in lineups.items():
        told[str(size)] = chosen.settings
        found = evaluate(
            chosen.methods,
            levels,
            error,
            batch_sizes=[size],
            seed=run.seed,
            in_distribution=in_distribution,
            once=[name for name in chosen.methods if name in once],
            streams=[name for name in chosen.methods if name in streams],
            path=path,
            progress=progress,
        )
        records |= {(r["level"], r["method"], r["batch_size"]): r for r in found}
    return Compared(list(records.values()), told, lineups[largest])


def memories(
    run: TrainedRun[Any], x: Tensor, lineup: Lineup, alone: Collection[str] = ()
) -> dict[str, float]:
    """Peak memory of each method for one batch, with the weights, as multiples of source's.

    Also of a plain forward pass that keeps what a backward pass would need: what the paper calls
    base, by its own figures (Tent's 1.07 is only possible so).

    Args:
        run: the trained network.
        x: the batch.
        lineup: the methods.
        alone: names of methods that look at one image at a time, and get one.
    """
    weights = sum(p.numel() * p.element_size() for p in run.model.parameters())
    found = {}
    for name, method in lineup.methods.items():
        asked = x[:1] if name in alone else x
        try:
            method(asked)  # what is made once is made now
            found[name] = weights + peak_memory(partial(method, asked), run.device)
        except Exception:  # its records say why, and the others' are not lost for it
            if name == "source":
                raise
    base = found["source"]
    recorded = weights + peak_memory(lambda: run.model(x, run.adapter.neutral(x)), run.device)
    ratios = {name: round(value / base, 2) for name, value in found.items()}
    return {**ratios, "forward pass with its graph": round(recorded / base, 2)}


def read_summary(folder: str | Path, task: str, *keys: str) -> list[Any]:
    """These parts of an evaluation's `summary.json`.

    Example:
        >>> read_summary("/nowhere", "age", "numbers")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no evaluation: make one with 'it3-vision age ...'
    """
    place = Path(folder)
    if not (place / "summary.json").is_file():
        raise IT3Error(f"{place} holds no evaluation: make one with 'it3-vision {task} evaluate'")
    found = read_json(place / "summary.json", "evaluate again")
    try:
        return [found[key] for key in keys]
    except KeyError as problem:
        raise IT3Error(f"{place / 'summary.json'} lacks {problem}: evaluate again") from problem


def against(row: Mapping[str, Any] | None, digits: int) -> str:
    """The difference to the reference with its interval; nothing for the reference itself.

    Example:
        >>> against({"method": "IT³", "reference": "source", "difference": -0.5, "low": -0.6,
        ...          "high": -0.4}, 1)
        '-0.5 (-0.6 to -0.4)'
    """
    if row is None or row["method"] == row["reference"] or row["difference"] is None:
        return ""
    told = f"{row['difference']:+.{digits}f}"
    if row["low"] is None or row["high"] is None:
        return told
    return f"{told} ({row['low']:+.{digits}f} to {row['high']:+.{digits}f})"


def separation(higher: Tensor, lower: Tensor) -> float | None:
    """AUROC, where there is something on both sides."""
    return auroc(higher, lower) if len(higher) and len(lower) else None


def finite(value: Any) -> Any:
    """The same for JSON: numbers that are none become None.

    Example:
        >>> finite({"a": math.nan, "b": {"c": 1.0}})
        {'a': None, 'b': {'c': 1.0}}
    """
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
