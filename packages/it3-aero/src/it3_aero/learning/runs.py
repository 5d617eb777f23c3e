"""A RUN: a folder with a trained network and all that was learnt about when to believe it.

`model.safetensors` holds the weights, the adapter, trust, tuning and ActMAD's activations;
`history.json` how training went; `data_card.json` what it was trained on. `training.safetensors`
and the three `tail*.safetensors` are where a killed training goes on from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from it3_aero import __version__
from it3_aero.learning.network import build
from it3_aero.learning.task import NetworkSettings, Task
from it3_core import Activations, Conditioned, IT3Error, Method, Regression, Trust
from it3_core.checkpoint import load
from it3_core.files import read_json
from it3_core.tuning import Tuning

__all__ = ["FORMAT", "Run", "load_run"]

FORMAT = 1
"""Of a RUN; another one can't be read."""


@dataclass(frozen=True)
class Run:
    """A trained network and all that goes with it; `train` and `load_run` make one."""

    task: Task
    folder: Path
    model: Conditioned
    adapter: Regression
    trust: Trust
    tuning: Tuning
    activations: Activations
    settings: dict[str, Any]
    history: dict[str, Any]
    card: dict[str, Any]

    @property
    def nodes(self) -> int:
        """Nodes of a graph that the network was trained on, the largest number of them."""
        return int(self.settings["nodes"])

    @property
    def seed(self) -> int:
        """The training seed."""
        return int(self.settings["seed"])

    def method(self) -> Method:
        """What tuning chose, ready to answer."""
        return self.tuning.build(self.model, self.adapter)


def load_run(task: Task, folder: str | Path) -> Run:
    """Reads a RUN; one that is missing, broken or of another version gets one clear sentence.

    Example:
        >>> from it3_aero.wings.task import WINGS
        >>> load_run(WINGS, "/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere is no RUN: make one with 'it3-aero wings train'
    """
    place = Path(folder)
    if not (place / "model.safetensors").is_file():
        raise IT3Error(f"{place} is no RUN: make one with 'it3-aero {task.name} train'")
    found = load(place / "model.safetensors")
    if found.settings.get("format") != FORMAT or "network" not in found.settings:
        written = found.versions.get("it3-aero", "something else")
        raise IT3Error(
            f"{place} was written by it3-aero {written}, and {__version__} can't read it: train "
            f"it again"
        )
    kind = found.settings.get("task", "wings")  # there were wings only when it was not said
    if kind != task.name:
        raise IT3Error(f"{place} is a RUN of it3-aero {kind}, not of {task.name}")
    adapter = found.adapter
    if not isinstance(adapter, Regression) or found.trust is None or found.tuning is None:
        raise IT3Error(f"{place} is no RUN of a graph network: train it again")
    network = NetworkSettings.from_description(found.settings["network"])
    return Run(
        task=task,
        folder=place,
        model=found.restore(build(task.trunk, network, adapter)).eval(),
        adapter=adapter,
        trust=Trust.from_description(found.trust),
        tuning=Tuning.from_description(found.tuning),
        activations=Activations.from_tensors(found.tensors),
        settings=found.settings,
        history=read_json(place / "history.json", "train the RUN again"),
        card=read_json(place / "data_card.json", "train the RUN again"),
    )
