"""Training: a network, what is usual for it, and how it adapts, written down as a RUN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from it3_aero import __version__
from it3_aero.learning.fitting import fit_network, hold_out, tails_of
from it3_aero.learning.runs import FORMAT, Run, load_run
from it3_aero.learning.shapes import Shapes, named_tensors
from it3_aero.learning.task import NetworkSettings, Recipe, Task
from it3_core import (
    Activations,
    Conditioned,
    IT3Error,
    Regression,
    Trust,
    sensitivity,
    zigzag_loss,
)
from it3_core.batching import batches, is_graph
from it3_core.candidates import Candidate
from it3_core.checkpoint import save
from it3_core.files import make_folder, write_json
from it3_core.tensorfile import digest
from it3_core.tuning import tune

__all__ = ["Training", "candidates", "train", "train_vanilla"]


@dataclass(frozen=True)
class Training:
    """How to train: a preset, and what differs from it.

    Attributes:
        preset: `"small"` or `"paper"`.
        seed: of the first weights, the held-out shapes and the order of the rows.
        epochs: at most; by default the preset's.
        network: settings of your own in place of the preset's.
        second: what the second pass weighs in the loss; by default the preset's.

    Example:
        >>> Training(epochs=3).epochs
        3
    """

    preset: str = "small"
    seed: int = 0
    epochs: int | None = None
    network: NetworkSettings | None = None
    second: float | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any], seed: int) -> Training:
        """How a RUN with these settings was trained, with another seed.

        Example:
            >>> told = {"preset": "small", "epochs": 3, "second": 0.5}
            >>> told["network"] = NetworkSettings(layers=2).describe()
            >>> Training.of(told, seed=7).network.layers
            2
        """
        network = NetworkSettings.from_description(settings["network"])
        second = settings.get("second")  # the preset's, in a RUN that does not say
        return cls(settings["preset"], seed, settings["epochs"], network, second)

    def recipe(self, task: Task) -> Recipe:
        """The preset's, with what differs from it."""
        found = task.recipe(self.preset)
        if self.second is not None and not 0 < self.second < math.inf:
            raise IT3Error(f"the second pass weighs more than nothing, not {self.second}")
        return replace(
            found,
            network=self.network or found.network,
            epochs=self.epochs or found.epochs,
            second=found.second if self.second is None else self.second,
        )


def train(
    task: Task,
    shapes: Shapes,
    out: str | Path,
    training: Training | None = None,
    *,
    card: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Run:
    """Trains a network, learns what is usual and how to adapt, and writes the RUN.

    A training that was killed goes on where it was when it is called again.

    Args:
        task: what kind of shapes.
        shapes: the training shapes; a part is held out, see `hold_out`.
        out: the RUN's folder, made where there is none.
        training: preset, seed and the like.
        card: the data card, kept in the RUN.
        about: what else to remember, such as the data's folder and the split.
        progress: whether to show bars.

    Example:
        >>> import tempfile, torch
        >>> from it3_aero.wings.task import WINGS
        >>> shapes = Shapes(torch.rand(60, 10, 2), torch.rand(60) * 60, [str(i) for i in range(60)])
        >>> tiny = Training(epochs=1, network=NetworkSettings(layers=2, channels=4, hidden=4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train(WINGS, shapes, folder, tiny, progress=False)
        ...     load_run(WINGS, folder).nodes
        10
    """
    training = training or Training()
    recipe = training.recipe(task)
    folder = make_folder(out)
    known: dict[str, Any] = {
        "task": task.name,
        "format": FORMAT,
        "network": recipe.network.describe(),
        "preset": training.preset,
        "seed": training.seed,
        "epochs": recipe.epochs,
        "second": recipe.second,
        "nodes": _nodes(shapes.x),
        "shapes": digest({**named_tensors(shapes.x), "y": shapes.y}, {})[:16],
    }
    finished = _finished(task, folder, known)
    if finished is not None:
        return finished
    held_out, rest = hold_out(shapes, training.seed)
    adapter = Regression.fit(rest.y)
    make = partial(fit_network, task, adapter, recipe, training.seed, progress=progress)
    model, history = make(rest, held_out, folder / "training.safetensors")
    tails = tails_of(task, adapter, rest, recipe, training.seed, folder, progress)
    trust = Trust.fit(model, adapter, batches(held_out.x, 64))
    generator = torch.Generator().manual_seed(training.seed)
    tuning = tune(
        model,
        adapter,
        held_out.x,
        held_out.y,
        shifts={name: partial(shift, generator=generator) for name, shift in task.shifts().items()},
        tail=tails,
        candidates=candidates(model),
        batch_size=16,
        progress=progress,
    )
    activations = Activations.collect(model, adapter, batches(rest.x, 64), _watched(model))
    settings = {
        **known,
        "sensitivity": sensitivity(model, adapter, held_out.x),
        "held_out_error": _error(model, adapter, held_out),
        "about": dict(about or {}),
    }
    save(
        folder / "model.safetensors",
        model,
        adapter=adapter,
        settings=settings,
        trust=trust,
        tuning=tuning,
        tensors=activations.tensors(),
        versions={"it3-aero": __version__},
    )
    write_json(folder / "history.json", history.describe())
    write_json(folder / "data_card.json", dict(card or {}))
    return load_run(task, folder)


def train_vanilla(run: Run, shapes: Shapes, *, progress: bool = True) -> Conditioned:
    """The same network, data, seed and epochs without a signal; kept in the RUN for next time."""
    training = Training.of(run.settings, run.seed)
    held_out, rest = hold_out(shapes, training.seed)
    path = run.folder / "vanilla.safetensors"
    recipe, blind = training.recipe(run.task), partial(zigzag_loss, given=0.0)
    model, _ = fit_network(
        *(run.task, run.adapter, recipe, run.seed, rest, held_out, path),
        loss=blind,
        progress=progress,
    )
    return model


def candidates(model: Conditioned) -> list[Candidate]:
    """What tuning tries, the cheapest first."""
    found = [Candidate("AnswerStep", {"alpha": a}) for a in (-1.0, -0.5, 0.5, 1.0, 2.0)]
    above = {"parameters": "above"} if model.layer == "trunk" else {}
    for lr in (0.01, 0.05):
        settings = {"optimizer": "SGD", "power": 2.0, "lr": lr}
        found.append(Candidate("IT3", {**settings, "steps": 1, **above}))
        found.append(Candidate("IT3", {**settings, "steps": 3, **above}))
    found.append(Candidate("IT3", {"lr": 2e-4, **above}))
    found.append(Candidate("IT3", {"anchor_gradient": True, "trust_region": False}))  # the paper's
    return found


@torch.no_grad()
def _error(model: Conditioned, adapter: Regression, shapes: Shapes) -> float:
    """The mean error of the first answer."""
    answers = [model(x, adapter.neutral(x)) for x in batches(shapes.x, 64)]
    return float(adapter.error(torch.cat(answers), shapes.y).mean())


def _finished(task: Task, folder: Path, known: Mapping[str, Any]) -> Run | None:
    """The RUN in this folder, where it is whole and was made with just these settings."""
    try:
        run = load_run(task, folder)
    except IT3Error:
        return None
    return run if known.items() <= {"task": "wings", **run.settings}.items() else None


def _watched(model: Conditioned) -> list[str]:
    """The layers whose activations ActMAD aligns: node features, pooled features, the head's."""
    named = [name for name, _ in model.named_modules()]
    taps = [name for name in named if name.startswith("model.trunk.taps.")]
    return [*taps, "model.trunk", "model.head.1", "model.head.3"]


def _nodes(x: Any) -> int:
    return int(x.ptr.diff().max()) if is_graph(x) else int(x.shape[1])
