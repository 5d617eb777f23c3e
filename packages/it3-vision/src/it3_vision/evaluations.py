"""The folder of an evaluation: `records.jsonl`, `table.md`, `summary.json`, pictures, `parts`.

In `parts` a killed evaluation finds the records that it has already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from it3_core import IT3Error
from it3_core.evaluation import Record
from it3_core.files import make_folder, read_json, write_figure, write_json, write_text
from it3_core.records import replace_records
from it3_core.tensorfile import digest
from it3_vision.runs import TrainedRun

__all__ = ["finite", "folder_for", "gathering_file", "read_summary", "write_evaluation"]


def folder_for(run: TrainedRun[Any], out: str | Path | None) -> Path:
    """The folder that is asked for, or `evaluation` in the RUN; made where there is none."""
    return make_folder(out if out is not None else run.folder / "evaluation")


def gathering_file(
    folder: Path, run: TrainedRun[Any], tensors: Mapping[str, Tensor], /, **told: Any
) -> Path:
    """Where records gather: a file of its own for each network, tuning and test set.

    Args:
        folder: of the evaluation.
        run: the trained network.
        tensors: of the test set, enough to know it by.
        told: what else tells it from another.
    """
    body = {"tunings": run.settings["tunings"], **told}
    beside = {} if run.vanilla is None else run.vanilla.state_dict()
    vanilla = {f"vanilla.{name}": value for name, value in beside.items()}
    name = digest({**run.model.state_dict(), **vanilla, **tensors}, body)[:12]
    return make_folder(folder / "parts") / f"{name}.jsonl"


def write_evaluation(
    folder: Path,
    records: Sequence[Record],
    texts: Mapping[str, str],
    summary: Mapping[str, Any],
    figures: Mapping[str, Any] | None = None,
) -> None:
    """Writes what was found, over what was there before.

    Args:
        folder: of the evaluation.
        records: all of them.
        texts: by the name of their file.
        summary: what `read_summary` reads.
        figures: of matplotlib, by name.
    """
    for name, text in texts.items():
        write_text(folder / name, text)
    write_json(folder / "summary.json", dict(summary))
    replace_records(records, folder / "records.jsonl")
    for name, figure in (figures or {}).items():
        write_figure(folder / f"{name}.png", figure)


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


def finite(value: Any) -> Any:
    """The same for JSON: numbers that are none become None.

    Example:
        >>> finite({"a": math.nan, "b": {"c": 1.0}})
        {'a': None, 'b': {'c': 1.0}}
    """
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
