"""The parts that every report has: how methods were run, what tuning chose, how it was made."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from it3_core import __version__ as core_version
from it3_core.report import facts, picture, table
from it3_core.summary import Row
from it3_vision import __version__
from it3_vision.runs import TrainedRun

__all__ = ["drawn", "find_row", "made", "settings", "training", "tunings"]


def find_row(rows: Sequence[Row], level: str, method: str, batch_size: int) -> Row | None:
    """A method's row at a level, at that batch size or at none, unless it failed."""
    found = [
        row
        for row in rows
        if row["level"] == level
        and row["method"] == method
        and row["batch_size"] in (None, batch_size)
    ]
    return found[0] if found and found[0]["error"] is not None else None


def drawn(folder: Path, name: str, alt: str, caption: str = "") -> str:
    """A picture that lies beside an evaluation's tables, inside the page; nothing without it.

    Args:
        folder: of the evaluation. Where only the source was asked, there is less to draw.
        name: of the file, without its suffix.
        alt: what it shows, for those who can't see it.
        caption: below it.
    """
    file = folder / f"{name}.png"
    return picture(file.read_bytes(), alt, caption) if file.exists() else ""


def settings(by_size: Mapping[str, Mapping[str, str]]) -> str:
    """How each method was run, as a table."""
    lines = [["method", "batch", "how"]]
    for size, told in by_size.items():
        lines += [[name, size, how] for name, how in told.items()]
    return table(lines)


def tunings(run: TrainedRun[Any]) -> str:
    """What tuning chose for each batch size, and why, as a table."""
    lines = [["batch", "chosen", "why"]]
    for size, tuning in sorted(run.tunings.items()):
        lines.append([f"{size} and more", repr(tuning.chosen), tuning.reason])
    return table(lines)


def training(run: TrainedRun[Any], held_out: Mapping[str, Any]) -> str:
    """How the network was trained; `held_out` says how well, by whatever name."""
    told, history = run.settings["training"], run.history
    return facts(
        {
            "network": ", ".join(f"{k} {v}" for k, v in told["network"].items() if v is not None),
            "parameters": f"{sum(p.numel() for p in run.model.parameters()):,}",
            "the signal enters at": getattr(run.model, "layer", "the first layer"),
            "second signal": told["second"],
            "epochs": len(history["train"]),
            "seconds": round(history["seconds"]),
            **held_out,
            "|dF/ds| (0 deaf, 1 a copy)": run.settings["sensitivity"],
            "images that could not be read": len(run.settings["bad"]),
            "data": run.settings["about"],
        }
    )


def made(run: TrainedRun[Any], folder: Path, command: str) -> str:
    """Where everything lies, and which versions and command made it."""
    return facts(
        {
            "command": command,
            "run": run.folder,
            "records": folder / "records.jsonl",
            "it3-vision": __version__,
            "it3-core": core_version,
            "torch": torch.__version__,
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        }
    )
