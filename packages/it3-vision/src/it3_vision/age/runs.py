"""A RUN: a folder with a network that says ages, and all that was learnt about it.

`tail.safetensors` belongs to a second network, trained without the youngest and the oldest of the
training faces, for tuning to choose on; `vanilla.safetensors`, where there is one, is the same
network trained without a signal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from it3_core import (
    Activations,
    Conditioned,
    History,
    IT3Error,
    Regression,
    Trust,
    sensitivity,
    split_tail,
    zigzag_loss,
)
from it3_core.batching import batches
from it3_core.checkpoint import load, save
from it3_core.files import make_folder
from it3_core.losses import SecondSignal
from it3_core.tuning import Tail
from it3_vision import __version__
from it3_vision.age.choosing import choose
from it3_vision.age.faces import Interval, set_apart
from it3_vision.age.network import FaceSettings, build
from it3_vision.augmentation import Feed, face_augmentation
from it3_vision.data import ImageSet, Preparation
from it3_vision.runs import FORMAT, TrainedRun, finished, parts_of, read_run
from it3_vision.training import (
    Normalise,
    describe,
    first_weights,
    fit_network,
    in_memory,
    parts,
    place_for,
    preparation,
    watched,
)

__all__ = ["Run", "Training", "load_run", "train"]

FEWEST = 60
"""Faces to train on, at least."""

HELD_OUT = 20
"""Of them, at least: trust can promise nothing by fewer."""

USUAL = 1000
"""Training faces that batch norms' statistics are taken from, after each epoch."""

TAIL = 0.2
"""Share of the training faces that the second network does not see: half young, half old."""


@dataclass(frozen=True)
class Training:
    """How to train.

    Attributes:
        network: which network, and where its signal enters.
        low, high: the ages to train on, both ends included.
        tested: the share of the faces that is set apart for testing, by their names.
        epochs: how often to go through the faces.
        batch_size: faces in a step.
        lr: the largest rate of SGD with momentum, in one cycle.
        second: what the second pass is given, see `zigzag_loss`.
        seed: of the first weights, the held-out faces, their order and their variation.
        weights: a safetensors file to start from, with torchvision's names.
        new_head: whether these weights' last layer answers something else, as ImageNet's does.
        normalise: by the training faces' own mean and deviation, or by ImageNet's.
        bfloat16: whether to multiply in bfloat16: None does it on a GPU.

    Example:
        >>> Training(epochs=3).interval.name
        '20–60'
    """

    network: FaceSettings = field(default_factory=FaceSettings)
    low: int = 20
    high: int = 60
    tested: float = 0.2
    epochs: int = 45
    batch_size: int = 64
    lr: float = 0.05
    second: SecondSignal = "label"
    seed: int = 0
    weights: str | os.PathLike[str] | None = None
    new_head: bool = False
    normalise: Normalise = "data"
    bfloat16: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.tested < 1:
            raise IT3Error(f"the share of test faces is from 0 to below 1, not {self.tested}")

    @property
    def interval(self) -> Interval:
        """The ages that are trained on."""
        return Interval(self.low, self.high)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return describe(self)


@dataclass(frozen=True)
class Run(TrainedRun[Regression]):
    """A trained network and all that goes with it; `train` and `load_run` make one.

    Attributes:
        vanilla: the same network trained without a signal, where that was asked for.
    """

    vanilla: Conditioned | None = None

    @property
    def interval(self) -> Interval:
        """The ages that were trained on."""
        return Interval(self.settings["training"]["low"], self.settings["training"]["high"])

    @property
    def tested(self) -> float:
        """The share of the faces that was set apart for testing."""
        return float(self.settings["training"]["tested"])


def train(
    faces: ImageSet,
    out: str | os.PathLike[str],
    training: Training | None = None,
    *,
    about: Mapping[str, Any] | None = None,
    problems: list[str] | None = None,
    vanilla: bool = False,
    tuned: Mapping[int, int] | None = None,
    device: torch.device | str | None = None,
    workers: int = 0,
    progress: bool = True,
) -> Run:
    """Trains a network, learns what is usual and how to adapt, and writes the RUN.

    A training that was killed goes on where it was when it is called again; a finished one is
    returned. Under `torchrun` all processes train, and the first one writes.

    Args:
        faces: of any age; those outside the interval and those set apart are not trained on.
        out: the RUN's folder, made where there is none.
        training: network, ages, epochs and the like.
        about: what else to remember, such as the data's folder.
        problems: files that were left out, to remember them.
        vanilla: whether to train the same network without a signal too, as long again.
        tuned: batch sizes to choose a method for, and how many held-out faces to choose it with;
            `choosing.BATCHES` by default.
        device: where to train; a GPU if there is one. There, mixed precision is used.
        workers: processes that prepare batches.
        progress: whether to show bars.

    Example:
        >>> import tempfile
        >>> from it3_vision.age.drawing import draw_faces
        >>> tiny = Training(FaceSettings("tiny", size=16), epochs=1, batch_size=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train(draw_faces(200), folder, tiny, tuned={8: 8}, progress=False)
        ...     load_run(folder).interval.name
        '20–60'
    """
    training = training or Training()
    where = place_for(device)
    folder = make_folder(out)
    known = {"format": FORMAT, "training": training.describe(), "images": len(faces)}
    there = finished(folder, known, load_run)
    if there is not None and (there.vanilla is not None or not vanilla):
        return there
    chosen = training.interval.inside(faces.labels) & ~set_apart(faces.names, training.tested)
    images, bad = in_memory(faces.take(chosen), training.network.pixels, progress)
    if len(images) < FEWEST:
        raise IT3Error(
            f"there are {len(images)} faces of {training.low} to {training.high} years to train "
            f"on: give {FEWEST} at least"
        )
    held_out, rest = parts(images, training.seed, HELD_OUT)
    prepare = preparation(rest, training.network.pixels, training.normalise, training.seed)
    adapter = Regression.fit(torch.from_numpy(rest.labels))
    fitted = partial(_fitted, prepare, adapter, device=where, workers=workers, progress=progress)
    loss = partial(zigzag_loss, second=training.second, together=True)
    if there is None:
        model, history = fitted(rest, held_out, training, loss, folder / "training.safetensors")
        tail = _tail(fitted, rest, prepare, training, loss, folder / "tail.safetensors")
        x, y = Feed(held_out, prepare).collate(list(range(len(held_out))))
        usual = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
        seen = Feed(rest.sample(min(2000, len(rest)), training.seed), prepare)
        inputs = batches(seen.collate(list(range(len(seen))))[0], 64)
        tunings = choose(
            model, adapter, prepare, held_out, tail, training.seed, sizes=tuned, progress=progress
        )
        there = Run(
            folder=folder,
            model=model,
            adapter=adapter,
            prepare=prepare,
            trust=Trust.fit(model, adapter, batches(usual, 64)),
            tunings=tunings,
            activations=Activations.collect(model, adapter, inputs, watched(model)),
            settings={
                **known,
                "about": dict(about or {}),
                "bad": [*(problems or []), *(str(one) for one in bad)][:100],
                "faces": len(images),
                "prepare": prepare.describe(),
                "held_out_error": _mean_error(model, adapter, x, y),
                "held_out_error_of_the_mean": float((y - adapter.mean[0]).abs().mean()),
                "sensitivity": sensitivity(model, adapter, x[:500]),
                "tunings": {str(size): tuning.describe() for size, tuning in tunings.items()},
            },
            history=history.describe(),
        )
        there.write()
    if not vanilla:
        return there
    blind = partial(zigzag_loss, given=0.0)
    path = folder / "vanilla-training.safetensors"
    unsignalled, _ = fitted(rest, held_out, training, blind, path)
    if int(os.environ.get("RANK", "0")) == 0:
        versions = {"it3-vision": __version__}
        save(_vanilla(folder), unsignalled, adapter=adapter, settings=known, versions=versions)
    return replace(there, vanilla=unsignalled)


def load_run(folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> Run:
    """Reads a RUN; one that is missing, broken or of another version gets one clear sentence.

    Args:
        folder: the RUN.
        device: where its network is to be.

    Example:
        >>> load_run("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere is no RUN: make one with 'it3-vision age train'
    """
    found, adapter = read_run(folder, "age", Regression, "a network that says ages")
    network = FaceSettings.from_description(found.settings["training"]["network"])
    where = place_for(device)
    vanilla = None
    if _vanilla(folder).is_file():
        vanilla = load(_vanilla(folder)).restore(build(network, adapter)).eval().to(where)
    return Run(
        model=found.restore(build(network, adapter)).eval().to(where),
        adapter=adapter,
        vanilla=vanilla,
        **parts_of(folder, found),
    )


def _vanilla(folder: str | os.PathLike[str]) -> Path:
    return Path(folder) / "vanilla.safetensors"


def _fitted(
    prepare: Preparation,
    adapter: Regression,
    rest: ImageSet,
    held_out: ImageSet,
    training: Training,
    loss: Callable[..., Tensor],
    checkpoint: Path,
    **how: Any,
) -> tuple[Conditioned, History]:
    """A network from its first weights to its last."""
    weights, new_head = training.weights, training.new_head
    make = partial(build, training.network, adapter, weights=weights, new_head=new_head)
    model = first_weights(make, training.seed)
    feed = Feed(rest, prepare, face_augmentation(prepare.size))
    validation = Feed(held_out, prepare).collate(list(range(len(held_out))))
    some = rest.sample(min(USUAL, len(rest)), training.seed)
    usual, _ = Feed(some, prepare).collate(list(range(len(some))))
    history = fit_network(
        model, adapter, feed, validation, training, loss, checkpoint, usual=usual, **how
    )
    return model, history


def _tail(
    fitted: Callable[..., tuple[Conditioned, History]],
    rest: ImageSet,
    prepare: Preparation,
    training: Training,
    loss: Callable[..., Tensor],
    checkpoint: Path,
) -> Tail:
    """A network trained half as long without the youngest and the oldest faces, and these."""
    inside, beyond = split_tail(torch.from_numpy(rest.labels), TAIL, "both")
    held_out, known = parts(rest.take(inside.numpy()), training.seed)
    short = replace(training, epochs=max(1, training.epochs // 2))
    model, _ = fitted(known, held_out, short, loss, checkpoint)
    x, y = Feed(rest.take(beyond.numpy()), prepare).collate(list(range(len(beyond))))
    return Tail(model, x, y)


def _mean_error(model: Conditioned, adapter: Regression, x: Tensor, y: Tensor) -> float:
    """The mean absolute error in years, of the network as it is."""
    with torch.no_grad():
        parts_ = zip(batches(x, 256), torch.split(y, 256), strict=True)
        errors = [adapter.error(model(part, adapter.neutral(part)), age) for part, age in parts_]
    return float(torch.cat(errors).mean())
