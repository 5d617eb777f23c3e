"""The experiment folder: whose it is, what lies in it, and how it is read again elsewhere.

`it3-output.json` holds the task and settings. Each training seed has a folder of its own:
`network.safetensors`, written last, holds the weights and all that was learnt about them;
`history.json` says how training went; `vanilla.safetensors` is the network without a signal, and
other baselines have files of their names; `training.safetensors` and its like are where a killed
training goes on from.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from it3_core.errors import IT3Error
from it3_core.experiment.types import Experiment, Json, Network, Problem, Restored
from it3_core.io.files import FilePath
from it3_core.io.output import MARKER, OutputFolder, inside, open_output, read_marker
from it3_core.io.tensors import load as load_checkpoint
from it3_core.io.tensors import save
from it3_core.io.typed import as_kind, read_json
from it3_core.methods.paper import PaperStep
from it3_core.model.adapters import Adapter, adapter_from
from it3_core.training.frozen import freeze
from it3_core.training.resume import History
from it3_core.trust.storing import parts_of, predictors_from

NETWORK, VANILLA, HISTORY = "network.safetensors", "vanilla", "history.json"
Restore = Callable[[Json, Json], Restored]


@dataclass(frozen=True)
class _Stored:
    """What a network's file says beside weights, adapter, trust and tuning."""

    settings: dict[str, Any]
    measured: dict[str, Any]
    provenance: dict[str, Any]
    paper: dict[str, PaperStep]


def is_first() -> bool:
    """Whether this is the first of the processes that `torchrun` started, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def claim(folder: FilePath, problem: Problem, inputs: Iterable[FilePath] = ()) -> OutputFolder:
    """The folder for this problem; one of another task, other settings or other data is refused.

    So is one in what is read. A folder where no training has begun may get other settings.
    """
    folder = Path(folder)
    for _ in range(600):  # the first process makes the folder, the others find it
        if is_first() or (folder / MARKER).exists():
            break
        time.sleep(0.1)
    # All that decides the result but the seed, which names the folder below.
    recipe = {name: v for name, v in asdict(problem.recipe).items() if name != "seed"}
    return open_output(
        folder,
        f"{problem.settings['task']} train",
        {**problem.settings, "recipe": recipe},
        inputs=inputs,
        overwrite=not any(folder.glob("*/*.safetensors")),
    )


def write_network(out: OutputFolder, network: Network, provenance: Json) -> None:
    """The history, and then the network's file, which is the sign that training is finished."""
    out.write_json(f"{network.seed}/{HISTORY}", network.history)
    trust, tuning, tensors = parts_of(network.predictors)
    with out.writing(f"{network.seed}/{NETWORK}") as path:
        save(
            path,
            network.model,
            adapter=network.adapter,
            settings={
                "settings": dict(network.settings),
                "measured": dict(network.measured),
                "provenance": dict(provenance),
                "paper": {kind: asdict(step) for kind, step in network.paper.items()},
            },
            trust=trust,
            tuning=tuning,
            tensors={**network.statistics, **tensors},
        )


def baseline_file(seed: int, name: str) -> str:
    """Where a baseline lies, the network without a signal among them."""
    return f"{seed}/{name}.safetensors"


def write_baseline(
    out: OutputFolder, seed: int, name: str, model: nn.Module, adapter: Adapter
) -> None:
    """The network that was trained without a signal, or another one to compare with."""
    with out.writing(baseline_file(seed, name)) as path:
        save(path, model, adapter=adapter, settings={})


def _read_network(folder: Path, seed: int, restore: Restore) -> tuple[Network, Json]:
    """A network from its seed's folder alone, and where its data came from."""
    path, history_path = (inside(folder, f"{seed}/{name}") for name in (NETWORK, HISTORY))
    found = load_checkpoint(path)
    stored = as_kind(found.settings, _Stored, f"the metadata of {path}", "train it again")
    names = found.trust or {}
    if "row" not in names or not all(name == "row" or name.isdecimal() for name in names):
        raise IT3Error(f"{path} is not the network of an experiment: train it again")
    make: dict[str, Callable[[], nn.Module]] = {
        VANILLA: lambda: restore(stored.settings, found.adapter_description).model
    }
    try:
        blank = restore(stored.settings, found.adapter_description)
        make |= blank.baselines
        files = {name: inside(folder, baseline_file(seed, name)) for name in make}
        baselines = {
            name: load_checkpoint(file).restore(make[name]()).eval()
            for name, file in files.items()
            if file.is_file()
        }
    except (RuntimeError, OverflowError, MemoryError) as problem:  # torch's, of mad sizes
        raise IT3Error(f"{path} has settings of no network: train it again") from problem
    history = read_json(history_path, History, "train it again")
    model = found.restore(blank.model).eval()
    parts = (found.trust, found.tuning, found.tensors)
    network = Network(
        seed=seed,
        model=model,
        adapter=blank.adapter,
        answers=blank.answers,
        settings=stored.settings,
        statistics={k: v for k, v in found.tensors.items() if not k.startswith("predictor.")},
        predictors=predictors_from(*parts, model, blank.adapter, str(path)),
        history=asdict(history),
        measured=stored.measured,
        vanilla=baselines.pop(VANILLA, None),
        baselines=baselines,
        paper=stored.paper,
    )
    return network, stored.provenance


def load(folder: FilePath, task: str, restore: Restore, device: str = "cpu") -> Experiment:
    """An experiment from its folder alone, wherever that is now.

    Args:
        folder: that `train` wrote.
        task: its name.
        restore: the task's, or your own: a network without its weights.
        device: where the networks are to compute.
    """
    folder = Path(folder)
    if not (folder / MARKER).is_file():
        raise IT3Error(f"{folder} is no experiment folder: train one first")
    marker = read_marker(folder)
    if marker.task != f"{task} train":
        raise IT3Error(f"{folder} is the output of {marker.task!r}, not of '{task} train'")
    names = [path.parent.name for path in folder.glob(f"*/{NETWORK}")]
    seeds = sorted(int(name) for name in names if name.isdecimal())
    if not seeds:
        raise IT3Error(f"the training in {folder} is not finished: start it again to go on")
    device = device_for(device)
    found = [_read_network(folder, seed, restore) for seed in seeds]
    still = marker.settings.get("recipe", {}).get("freeze_until")
    for network, _ in found:
        for model in filter(None, (network.model, network.vanilla, *network.baselines.values())):
            freeze(model.to(device), still)
    first, provenance = found[0]
    return Experiment(folder, [network for network, _ in found], first.settings, provenance)


def restore_of(problem: Problem) -> Restore:
    """The problem's own, or for a user's network: an adapter of it3-core, and `make` again."""
    if problem.restore is not None:
        return problem.restore

    def restore(settings: Json, adapter_json: Json) -> Restored:
        adapter = adapter_from(dict(adapter_json))
        return Restored(problem.make(adapter), adapter, problem.answers)

    return restore


def device_for(wanted: str | None) -> str:
    """Where to compute, after a look whether it is there; None takes a GPU if there is one."""
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=wanted).item()  # "meta" has none
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        reason = str(problem).strip().splitlines()[0].split(". ")[0][:150]  # it goes on at length
        raise IT3Error(f"can't compute on {wanted!r}: {reason}; take cpu") from problem
    return wanted
