"""A RUN: a folder with a trained classifier and all that was learnt about when to believe it.

`model.safetensors` holds the weights, how images are prepared, trust, tuning, and the training
data's statistics that ActMAD and EATA need; `history.json` says how training went.
`training.safetensors` is where a killed training goes on from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from it3_core import (
    Activations,
    Classification,
    Conditioned,
    History,
    IT3Error,
    Trust,
    sensitivity,
    zigzag_loss,
)
from it3_core.batching import batches
from it3_core.checkpoint import Checkpoint
from it3_core.files import make_folder
from it3_core.losses import SecondSignal, check_weight
from it3_core.norms import has_batch_norm
from it3_vision.augmentation import Feed, augmentation
from it3_vision.classify.choosing import choose
from it3_vision.data import BadImage, ImageSet
from it3_vision.methods import Fisher, joint_loss
from it3_vision.networks import NetworkSettings, build
from it3_vision.runs import FORMAT, TrainedRun, fingerprint, finished, remembered
from it3_vision.training import (
    Normalise,
    blind_loss,
    describe,
    first_weights,
    fit_network,
    in_memory,
    mean_error,
    parts,
    place_for,
    preparation,
    watched,
)

__all__ = ["Run", "Training", "load_run", "train"]


@dataclass(frozen=True)
class Training:
    """How to train.

    Attributes:
        network: which network, and where its signal enters.
        epochs: how often to go through the images.
        batch_size: images in a step.
        lr: the largest rate of SGD with momentum, in one cycle.
        second: what the second pass is given, see `zigzag_loss`.
        weight: of the second pass in the loss; 1 is the paper's.
        rotation: whether to train the head that `TTT` needs as well, on a fourth of each batch.
        flip: whether left and right may be exchanged; not for digits and letters.
        seed: of the first weights, the held-out images, their order and their variation.
        weights: a safetensors file to start from, with torchvision's names.
        new_head: whether these weights' last layer knows other classes.
        normalise: by the training images' own mean and deviation, or by ImageNet's, as weights
            that were trained there expect.
        bfloat16: whether to multiply in bfloat16: None does it on a GPU. CPUs that have
            instructions for it (avx512_bf16, amx_bf16) train a third faster with it.

    Example:
        >>> Training(epochs=3).network.name
        'dla'
    """

    network: NetworkSettings = field(default_factory=NetworkSettings)
    epochs: int = 12
    batch_size: int = 128
    lr: float = 0.2
    second: SecondSignal = "label"
    weight: float = 1.0
    rotation: bool = True
    flip: bool = True
    seed: int = 0
    weights: str | os.PathLike[str] | None = None
    new_head: bool = False
    normalise: Normalise = "data"
    bfloat16: bool | None = None

    def __post_init__(self) -> None:
        check_weight(self.weight)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return describe(self)


@dataclass(frozen=True)
class Run(TrainedRun[Classification]):
    """A trained classifier and all that goes with it; `train` and `load_run` make one."""

    task, kind, whose = "classify", Classification, "a classifier"

    model: Conditioned
    classes: tuple[str, ...]
    fisher: Fisher

    @property
    def rotates(self) -> bool:
        """Whether there is a head for `TTT`."""
        return bool(self.settings["training"]["rotation"])

    def tensors(self) -> dict[str, Tensor]:
        """The training data's statistics, to be kept beside the weights."""
        return {**super().tensors(), **self.fisher.tensors()}

    @classmethod
    def blank(cls, found: Checkpoint) -> Conditioned:
        """The network without its weights."""
        told = found.settings["training"]
        network = NetworkSettings.from_description(told["network"])
        return build(network, cast(Classification, found.adapter), rotation=told["rotation"])

    @classmethod
    def own_parts(
        cls, folder: Path, found: Checkpoint, where: torch.device | str
    ) -> dict[str, Any]:
        """Its classes, and what EATA needs."""
        return {
            "classes": tuple(found.settings["classes"]),
            "fisher": Fisher.from_tensors(found.tensors),
        }


load_run = Run.load
"""Reads a RUN, see `TrainedRun.load`."""


def train(
    images: ImageSet,
    out: str | os.PathLike[str],
    training: Training | None = None,
    *,
    about: Mapping[str, Any] | None = None,
    vanilla: bool = False,
    tuned: Mapping[int, int] | None = None,
    device: torch.device | str | None = None,
    workers: int = 0,
    progress: bool = True,
) -> Run:
    """Trains a classifier, learns what is usual and how to adapt, and writes the RUN.

    A training that was killed goes on where it was when it is called again; a finished one is
    returned. Under `torchrun` all processes train, and the first one writes.

    Args:
        images: the training images, with their labels; a part is held out, see `HELD_OUT`.
        out: the RUN's folder, made where there is none.
        training: network, epochs and the like.
        about: what else to remember, such as the data's folder.
        vanilla: whether to train the same network without a signal too, as long again.
        tuned: batch sizes to choose a method for, and how many held-out images to choose it with;
            `choosing.BATCHES` by default.
        device: where to train; a GPU if there is one. There, mixed precision is used.
        workers: processes that prepare batches.
        progress: whether to show bars.

    Example:
        >>> import tempfile, numpy as np
        >>> labels = np.arange(200) % 3
        >>> pixels = np.random.default_rng(0).integers(0, 155, (200, 16, 16, 3), np.uint8)
        >>> pixels[np.arange(200), :, :, labels] += 50  # red, green and blue ones
        >>> images = ImageSet.from_array(pixels, labels)
        >>> tiny = Training(NetworkSettings("dla", "tiny", size=16), epochs=2, batch_size=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train(images, folder, tiny, tuned={8: 8}, progress=False)
        ...     load_run(folder).classes
        ('0', '1', '2')
    """
    training = training or Training()
    where = place_for(device)
    folder = make_folder(out)
    known = {"format": FORMAT, "training": training.describe(), "classes": list(images.classes)}
    known |= {"images": len(images), "fingerprint": fingerprint(images)}
    there = finished(folder, known, load_run)
    if there is not None and (there.vanilla is not None or not vanilla):
        return there
    images, bad = _gathered(images, training.network.size, progress)
    held_out, rest = parts(images, training.seed)
    prepare = preparation(rest, training.network.size, training.normalise, training.seed)
    adapter = Classification(len(images.classes))
    feed = Feed(rest, prepare, augmentation(training.network.size, flip=training.flip))
    x, y = Feed(held_out, prepare).collate(list(range(len(held_out))))
    some = Feed(rest.sample(min(2000, len(rest)), training.seed), prepare)
    seen = some.collate(list(range(len(some))))[0]

    def fitted(loss: Callable[..., Tensor], checkpoint: str) -> tuple[Conditioned, History]:
        model = first_weights(partial(_network, training, adapter), training.seed)
        history = fit_network(
            model,
            adapter,
            feed,
            (x, y),
            training,
            partial(joint_loss, base=loss, weight=0.5) if training.rotation else loss,
            folder / checkpoint,
            device=where,
            # Training's moving averages have a share of turned images, which TTT's head looks at.
            usual=seen[:1000] if has_batch_norm(model) else None,
            workers=workers,
            progress=progress,
        )
        return model, history

    if there is None:
        second, weight = training.second, training.weight
        told = partial(zigzag_loss, second=second, weight=weight, together=True)
        model, history = fitted(told, "training.safetensors")
        usual = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
        inputs = list(batches(seen, 64))
        tunings = choose(
            model, adapter, prepare, held_out, training.seed, sizes=tuned, progress=progress
        )
        there = Run(
            folder=folder,
            model=model,
            adapter=adapter,
            classes=images.classes,
            prepare=prepare,
            trust=Trust.fit(model, adapter, batches(usual, 64)),
            tunings=tunings,
            activations=Activations.collect(model, adapter, inputs, watched(model)),
            fisher=Fisher.collect(model, adapter, inputs[:8]),
            settings=remembered(
                known,
                about,
                bad,
                prepare,
                tunings,
                held_out_error=mean_error(model, adapter, x, y),
                sensitivity=sensitivity(model, adapter, x[:500]),
            ),
            history=history.describe(),
        )
        there.write()
    if not vanilla:
        return there
    return there.with_vanilla(fitted(blind_loss, "vanilla-training.safetensors")[0])


def _network(training: Training, adapter: Classification) -> Conditioned:
    return build(
        training.network,
        adapter,
        weights=training.weights,
        new_head=training.new_head,
        rotation=training.rotation,
    )


def _gathered(images: ImageSet, size: int, progress: bool) -> tuple[ImageSet, list[BadImage]]:
    """The labelled images that can be read, in memory where they fit."""
    if len(images.classes) < 2:
        raise IT3Error("a classifier needs images of at least two classes: one folder for each")
    images = images.take(images.labels >= 0)
    images, bad = in_memory(images, size, progress)
    counts = np.bincount(images.labels, minlength=len(images.classes))
    if len(images) < 20 or counts.min() < 2:
        fewest = images.classes[int(counts.argmin())]
        raise IT3Error(
            f"there are {len(images)} images to train on, and {counts.min()} of class {fewest!r}: "
            f"give 20 at least, and 2 of each class"
        )
    return images, bad
