"""Where a RUN comes from: its data, its training, and the command that made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from it3_aero import __version__
from it3_aero.learning.evaluate import Evaluation
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import Levels
from it3_core import __version__ as core_version
from it3_core.report import columns, facts, picture

__all__ = ["data_section", "made_section", "training_section"]


def data_section(run: Run, levels: Levels) -> list[str]:
    """What the data card says, and the labels of each level."""
    card = _flat(run.card)
    card |= {"training shapes": len(levels.train)}
    card |= {f"test shapes, {name}": len(shapes) for name, shapes in levels.test.items()}
    figure = Figure(figsize=(5.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    named = {"training": levels.train, **levels.test}
    shades = ["#9aa3b2", "#0f766e", "#d8c7f0", "#a78bda", "#7c4dbd", "#5b2a9d", "#3b1a6d"]
    axes.hist(
        [shapes.y.tolist() for shapes in named.values()],
        bins=40,
        stacked=True,
        label=list(named),
        color=[shades[min(i, len(shades) - 1)] for i in range(len(named))],
    )
    axes.set_xlabel(run.task.quantity)
    axes.set_ylabel("shapes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return [columns(facts(card), picture(figure, f"histogram of {run.task.quantity}"))]


def _flat(card: Mapping[str, Any]) -> dict[str, Any]:
    """What a data card says, without what is drawn beside it."""
    found: dict[str, Any] = {}
    for name, value in card.items():
        if name in ("settings", "counts", "lift_to_drag", "drag") and isinstance(value, Mapping):
            inner = {k: v for k, v in value.items() if k != "histogram" and v not in ({}, [], None)}
            found |= {str(k).replace("_", " "): v for k, v in inner.items()}
        elif value not in ({}, [], None):
            found[str(name).replace("_", " ")] = value
    return {k: v for k, v in found.items() if k not in ("kind", "format")}


def training_section(run: Run, found: Evaluation) -> list[str]:
    """The network, its curve, and how much of its signal it heeds."""
    figure = Figure(figsize=(5.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    history = run.history
    epochs = range(1, len(history["train"]) + 1)
    axes.plot(epochs, history["train"], color="#9aa3b2", label="training, both passes")
    axes.plot(epochs, history["validation"], color="#5b2a9d", label="held out, first pass")
    axes.axvline(history["best_epoch"], color="#5b2a9d", linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss, in training variances")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    told = {
        "network": run.settings["network"],
        "epochs": f"{len(history['train'])}, best {history['best_epoch']}",
        "seconds": history["seconds"],
        f"held-out error, {run.task.quantity}": run.settings["held_out_error"],
        "trust": repr(run.trust),
    }
    for line in found.numbers:
        told[f"seed {line['seed']}"] = (
            f"|dF/dy| {line['sensitivity']:.2f}, beyond {line['sensitivity_beyond'] or 0:.2f}"
        )
    return [columns(facts(told), picture(figure, "training curve"))]


def made_section(run: Run, found: Evaluation, command: str) -> str:
    """The command, files, seeds and versions."""
    seeds = sorted({record["seed"] for record in found.records})
    made = {
        "command": command or f"it3-aero {run.task.name} report",
        "RUN": run.folder,
        "records": found.folder / "records.jsonl",
        "training seeds": ", ".join(map(str, seeds)),
        "versions": f"it3-aero {__version__}, it3-core {core_version}",
    }
    return facts({name: str(value) for name, value in made.items()})
