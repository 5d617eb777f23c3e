"""What every evaluation does alike: lineups on levels, one batch size after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from it3_core import IT3Error
from it3_core.evaluation import Level, Record, evaluate
from it3_core.memory import peak_memory
from it3_core.metrics import auroc
from it3_vision.lineup import Lineup
from it3_vision.runs import TrainedRun

__all__ = ["WITH_GRAPH", "Compared", "against", "cell", "checked_sizes", "compare", "memories",
           "separation", "size_cell"]  # fmt: skip

WITH_GRAPH = "forward pass with its graph"
"""The name that `memories` gives to a forward pass that keeps what a backward pass would need."""


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


def checked_sizes(batch_sizes: Sequence[int]) -> list[int]:
    """Batch sizes, each once and the largest first.

    Example:
        >>> checked_sizes([1, 16, 16, 4])
        [16, 4, 1]
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise IT3Error(f"batch sizes are whole numbers from 1 on, not {list(batch_sizes)}")
    return sorted(set(batch_sizes), reverse=True)


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
    records: dict[tuple[Any, ...], Record] = {}
    told: dict[str, dict[str, str]] = {}
    sizes = checked_sizes(batch_sizes)
    lineups = {size: lineup(size).chosen(only, tuple(once), size == sizes[0]) for size in sizes}
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
    return Compared(list(records.values()), told, lineups[sizes[0]])


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
    return {**ratios, WITH_GRAPH: round(recorded / base, 2)}


def cell(row: Mapping[str, Any] | None, digits: int) -> str:
    """A row's error for a table; nothing where there is no such row.

    Example:
        >>> cell({"error": 12.345}, 1), cell({"error": None}, 1), cell(None, 1)
        ('12.3', 'failed', '')
    """
    if row is None:
        return ""
    return "failed" if row["error"] is None else f"{row['error']:.{digits}f}"


def size_cell(batch_size: int | None) -> str:
    """A batch size for a table; nothing for a method that has none.

    Example:
        >>> size_cell(16), size_cell(None)
        ('16', '')
    """
    return "" if batch_size is None else str(batch_size)


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
