"""A RUN of roads: a trained DRU-Net and all that was learnt about when to believe it.

Beside what every RUN has, `held-out.safetensors` keeps the crops that were held out of training,
so that every evaluation can say what adaptation does to images that the network knows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from it3_core import Activations, DenseMap, History, IT3Error, Trust, sensitivity
from it3_core.adapters import ProbabilityDistance
from it3_core.batching import batches
from it3_core.checkpoint import Checkpoint
from it3_core.files import make_folder
from it3_core.progress import Progress
from it3_core.tensorfile import read_tensors, write_tensors
from it3_vision.data import BadImage
from it3_vision.roads.adapter import RoadMap
from it3_vision.roads.feed import Crops, fitted, middle_crops
from it3_vision.roads.learning import Second, recurrent_zigzag
from it3_vision.roads.network import FACTOR, DRUNet, DRUSettings, Pixels, build
from it3_vision.roads.scenes import Scene, Scenes
from it3_vision.roads.shifting import choose
from it3_vision.runs import FORMAT, TrainedRun, finished, remembered
from it3_vision.training import first_weights, fit_network, mean_error, place_for

__all__ = ["Run", "Training", "load_run", "train"]

_SEEN = 200  # training crops, as they are, that statistics are taken from

HELD_OUT = 0.2
"""Share of the scenes that early stopping, trust and tuning look at; 64 at most."""


@dataclass(frozen=True)
class Training:
    """How to train.

    Attributes:
        network: which network.
        resolution: metres a pixel that the network works at; scenes are brought to it.
        size: side of a training crop, in pixels of that resolution.
        epochs: how often to go through the scenes, each cut into as many crops as fit.
        batch_size: crops in a step.
        lr: the largest rate of AdamW, in one cycle.
        second: what the second pass is given, see `Second`.
        seed: of the first weights, the held-out scenes and all variation.
        bfloat16: whether to multiply in bfloat16: None does it on a GPU.

    Example:
        >>> Training(epochs=3).network.preset
        'small'
    """

    network: DRUSettings = field(default_factory=DRUSettings)
    resolution: float = 1.0
    size: int = 112
    epochs: int = 80
    batch_size: int = 8
    lr: float = 3e-3
    second: Second = "mixed"
    seed: int = 0
    bfloat16: bool | None = None

    def __post_init__(self) -> None:
        if self.size < FACTOR or self.size % FACTOR:
            raise IT3Error(f"the side of a crop is a multiple of {FACTOR}, not {self.size}")
        if not 0 < self.resolution < 1000:
            raise IT3Error(f"a resolution is in metres a pixel, such as 1.0, not {self.resolution}")

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "network": self.network.describe()}


@dataclass(frozen=True)
class Run(TrainedRun[RoadMap]):
    """A trained network for roads and all that goes with it; `train` and `load_run` make one.

    Attributes:
        held_out: inputs and labels of the crops that were held out.
    """

    task, kind, whose = "roads", DenseMap, "roads"

    model: DRUNet
    held_out: tuple[Tensor, Tensor]

    @property
    def resolution(self) -> float:
        """Metres a pixel that the network works at."""
        return float(self.settings["training"]["resolution"])

    def write(self) -> None:
        """Puts the RUN into its folder; under torchrun, the first process does."""
        if int(os.environ.get("RANK", "0")) == 0:
            x, y = self.held_out
            tensors = {"x": x, "y": y.to(torch.int8)}
            write_tensors(self.folder / "held-out.safetensors", tensors, {}, kind="crops")
        super().write()

    @classmethod
    def blank(cls, found: Checkpoint) -> DRUNet:
        """The network without its weights."""
        return build(DRUSettings(**found.settings["training"]["network"]))

    @classmethod
    def own_parts(
        cls, folder: Path, found: Checkpoint, where: torch.device | str
    ) -> dict[str, Any]:
        """Its adapter, and the held-out crops."""
        if found.settings.get("task") != "roads":
            raise IT3Error(f"{folder} is no RUN of roads: train one with 'it3-vision roads train'")
        kept = read_tensors(folder / "held-out.safetensors", kind="crops").tensors
        kind = cast(DenseMap, found.adapter)
        return {
            "adapter": RoadMap(cast(ProbabilityDistance, kind.distance_name)),
            "held_out": (kept["x"].to(where), kept["y"].long().to(where)),
        }


load_run = Run.load
"""Reads a RUN, see `TrainedRun.load`."""


def train(
    scenes: Scenes,
    out: str | os.PathLike[str],
    training: Training | None = None,
    *,
    about: Mapping[str, Any] | None = None,
    vanilla: bool = False,
    device: torch.device | str | None = None,
    workers: int = 0,
    progress: bool = True,
) -> Run:
    """Trains a network, learns what is usual and how to adapt, and writes the RUN.

    A training that was killed goes on where it was when it is called again; a finished one is
    returned. Under `torchrun` all processes train, and the first one writes.

    Args:
        scenes: with masks; a part is held out, see `HELD_OUT`.
        out: the RUN's folder, made where there is none.
        training: network, resolution, epochs and the like.
        about: what else to remember, such as the data's folder.
        vanilla: whether to train the same network without a signal too, as long again.
        device: where to train; a GPU if there is one. There, mixed precision is used.
        workers: processes that prepare batches.
        progress: whether to show bars.

    Example:
        >>> train.__module__
        'it3_vision.roads.runs'
    """
    training = training or Training()
    where = place_for(device)
    folder = make_folder(out)
    known = {"format": FORMAT, "task": "roads", "training": training.describe()}
    known["scenes"] = list(scenes.names)
    known["metres"] = (about or {}).get("resolution")
    there = finished(folder, known, load_run)
    if there is not None and (there.vanilla is not None or not vanilla):
        return there
    read, bad = _gathered(scenes, training.resolution, progress)
    held_out, rest = _parts(read, training.seed)
    prepare = fitted(rest, training.size)
    adapter = RoadMap()
    crops = Crops(rest, prepare, training.size)
    x, y = middle_crops(held_out, prepare, training.size)
    seen = middle_crops(rest[:_SEEN], prepare, training.size)[0]

    def trained(blind: bool, checkpoint: str) -> tuple[DRUNet, History]:
        model = first_weights(partial(build, training.network), training.seed)
        history = fit_network(
            model,
            adapter,
            crops,
            (x, y),
            training,
            partial(recurrent_zigzag, second=training.second, blind=blind),
            folder / checkpoint,
            device=where,
            optimizer=_adamw,
            usual=seen[:32],
            workers=workers,
            progress=progress,
        )
        return model, history

    if there is None:
        model, history = trained(False, "training.safetensors")
        tunings = choose(model, adapter, x, y, progress=progress)
        there = Run(
            folder=folder,
            model=model,
            adapter=adapter,
            prepare=prepare,
            trust=Trust.fit(model, adapter, batches(x, 16)),
            tunings=tunings,
            activations=Activations.collect(model, adapter, batches(seen, 8), _watched(model)),
            settings=remembered(
                known,
                about,
                bad,
                prepare,
                tunings,
                held_out_error=mean_error(model, adapter, x, y),
                sensitivity=sensitivity(model, adapter, x[:16]),
            ),
            history=history.describe(),
            held_out=(x, y),
        )
        there.write()
    if not vanilla:
        return there
    return there.with_vanilla(trained(True, "vanilla-training.safetensors")[0])


def _gathered(
    scenes: Scenes, resolution: float, progress: bool
) -> tuple[list[Scene], list[BadImage]]:
    """The scenes that can be read, at the network's resolution."""
    found: list[Scene] = []
    bad: list[BadImage] = []
    bar = Progress(len(scenes), "read", progress)
    for row in range(len(scenes)):
        try:
            scene = scenes[row]
        except BadImage as problem:
            bad.append(problem)
            continue
        if scene.label is None:
            raise IT3Error(f"{scene.name} has no mask: nothing can be learnt from it")
        if scene.known.any():
            found.append(scene.at(resolution))
        bar.show(row + 1, scene.name)
    bar.close()
    if len(found) < 10:
        first = f" ({bad[0]})" if bad else ""
        raise IT3Error(f"there are {len(found)} scenes to train on{first}: give 10 at least")
    return found, bad


def _parts(scenes: Sequence[Scene], seed: int) -> tuple[list[Scene], list[Scene]]:
    """The held-out scenes, 8 at least and half of all at most, and the rest."""
    size = min(max(round(HELD_OUT * len(scenes)), 8), 64)
    order = np.random.default_rng(seed + 1000).permutation(len(scenes))
    held_out, rest = sorted(order[:size]), sorted(order[size:])
    return [scenes[row] for row in held_out], [scenes[row] for row in rest]


def _adamw(parameters: Any, lr: float) -> Optimizer:
    return AdamW(parameters, lr=lr, weight_decay=1e-2)


def _watched(model: DRUNet) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, Pixels)]
