"""A RUN: a folder with a trained classifier and all that was learnt about when to believe it.

`model.safetensors` holds the weights, how images are prepared, trust, tuning, and the training
data's statistics that ActMAD and EATA need; `history.json` says how training went.
`training.safetensors` is where a killed training goes on from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from it3_core import (
    Activations,
    Classification,
    Conditioned,
    IT3Error,
    Method,
    Trust,
    sensitivity,
    zigzag_loss,
)
from it3_core.batching import batches
from it3_core.checkpoint import load, save
from it3_core.files import make_folder, read_json, write_json
from it3_core.losses import SecondSignal
from it3_core.training import fit
from it3_core.tuning import Candidate, Tuning
from it3_vision import __version__
from it3_vision.augmentation import Feed, augmentation
from it3_vision.classify.choosing import choose, wrong_share
from it3_vision.data import BadImage, ImageSet, Preparation
from it3_vision.methods import Fisher, joint_loss
from it3_vision.networks import NetworkSettings, build

__all__ = ["Run", "Training", "load_run", "train"]

FORMAT = 1
"""Of a RUN; another one can't be read."""

HELD_OUT = 0.1
"""Share of the training images that early stopping, trust and tuning look at; 5,000 at most."""

IN_MEMORY = 4e9
"""Training images are decoded once and kept if they take no more bytes than this."""


@dataclass(frozen=True)
class Training:
    """How to train.

    Attributes:
        network: which network, and where its signal enters.
        epochs: how often to go through the images.
        batch_size: images in a step.
        lr: the largest rate of SGD with momentum, in one cycle.
        second: what the second pass is given, see `zigzag_loss`.
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
    rotation: bool = True
    flip: bool = True
    seed: int = 0
    weights: str | os.PathLike[str] | None = None
    new_head: bool = False
    normalise: Literal["data", "imagenet"] = "data"
    bfloat16: bool | None = None

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        weights = None if self.weights is None else Path(self.weights).name
        return {**asdict(self), "network": self.network.describe(), "weights": weights}


@dataclass(frozen=True)
class Run:
    """A trained classifier and all that goes with it; `train` and `load_run` make one.

    Attributes:
        tunings: what was chosen for batches of so many images at least.
    """

    folder: Path
    model: Conditioned
    adapter: Classification
    classes: tuple[str, ...]
    prepare: Preparation
    trust: Trust
    tunings: dict[int, Tuning]
    activations: Activations
    fisher: Fisher
    settings: dict[str, Any]
    history: dict[str, Any]

    @property
    def seed(self) -> int:
        """The training seed."""
        return int(self.settings["training"]["seed"])

    @property
    def rotates(self) -> bool:
        """Whether there is a head for `TTT`."""
        return bool(self.settings["training"]["rotation"])

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.model.parameters()).device

    def tensor(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Images as the network wants them, where it is."""
        return self.prepare(pixels).to(self.device)

    def tuning(self, batch_size: int) -> Tuning:
        """What was chosen for batches of this size: nothing, if all tuning was for larger ones."""
        fitting = [size for size in self.tunings if size <= batch_size]
        if fitting:
            return self.tunings[max(fitting)]
        least = min(self.tunings, default=1)
        reason = f"No adaptation: it was tuned for batches of {least} images and more."
        return Tuning(Candidate("Source"), reason, ())

    def method(self, batch_size: int) -> Method:
        """The same, ready to answer."""
        return self.tuning(batch_size).build(self.model, self.adapter)


def train(
    images: ImageSet,
    out: str | os.PathLike[str],
    training: Training | None = None,
    *,
    about: Mapping[str, Any] | None = None,
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
    where = _device(device)
    folder = make_folder(out)
    known = {"format": FORMAT, "training": training.describe(), "classes": list(images.classes)}
    known["images"] = len(images)
    finished = _finished(folder, known)
    if finished is not None:
        return finished
    images, bad = _gathered(images, training.network.size, progress)
    held_out, rest = _parts(images, training.seed)
    prepare = _preparation(rest, training)
    adapter = Classification(len(images.classes))
    with torch.random.fork_rng([]):
        torch.manual_seed(training.seed)
        model = build(
            training.network,
            adapter,
            weights=training.weights,
            new_head=training.new_head,
            rotation=training.rotation,
        )
        # A seventh faster; torch's own types don't know this argument.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    feed = Feed(rest, prepare, augmentation(training.network.size, flip=training.flip))
    x, y = Feed(held_out, prepare).collate(list(range(len(held_out))))
    loss = partial(zigzag_loss, second=training.second, together=True)
    if training.rotation:
        loss = partial(joint_loss, base=loss, weight=0.5)
    history = fit(
        model,
        adapter,
        feed,
        collate=feed.collate,
        validation=(x, y),
        epochs=training.epochs,
        batch_size=training.batch_size,
        lr=training.lr,
        optimizer=_sgd,
        schedule="onecycle",
        clip=5.0,
        loss=partial(_mixed_precision, loss=loss, wanted=training.bfloat16),
        workers=workers,
        checkpoint=folder / "training.safetensors",
        seed=training.seed,
        progress=progress,
        device=where,
    )
    # As `load_run` has it, bit for bit; and torch 2.13's group norm crashes where channels are
    # last and only its own weights get a gradient, as in Fisher's information.
    model.cpu().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    usual = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    seen = Feed(rest.sample(min(2000, len(rest)), training.seed), prepare)
    inputs = list(batches(seen.collate(list(range(len(seen))))[0], 64))
    tunings = choose(
        model, adapter, prepare, held_out, training.seed, sizes=tuned, progress=progress
    )
    run = Run(
        folder=folder,
        model=model,
        adapter=adapter,
        classes=images.classes,
        prepare=prepare,
        trust=Trust.fit(model, adapter, batches(usual, 64)),
        tunings=tunings,
        activations=Activations.collect(model, adapter, inputs, _watched(model)),
        fisher=Fisher.collect(model, adapter, inputs[:8]),
        settings={
            **known,
            "about": dict(about or {}),
            "bad": [str(one) for one in bad[:100]],
            "prepare": prepare.describe(),
            "held_out_error": wrong_share(model, adapter, x, y),
            "sensitivity": sensitivity(model, adapter, x[:500]),
            "tunings": {str(size): tuning.describe() for size, tuning in tunings.items()},
        },
        history=history.describe(),
    )
    if int(os.environ.get("RANK", "0")) == 0:  # under torchrun all come here
        _write(run)
    return run


def _write(run: Run) -> None:
    write_json(run.folder / "history.json", run.history)
    save(
        run.folder / "model.safetensors",
        run.model,
        adapter=run.adapter,
        settings=run.settings,
        trust=run.trust,
        tensors={**run.activations.tensors(), **run.fisher.tensors()},
        versions={"it3-vision": __version__},
    )


def load_run(folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> Run:
    """Reads a RUN; one that is missing, broken or of another version gets one clear sentence.

    Args:
        folder: the RUN.
        device: where its network is to be.

    Example:
        >>> load_run("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere is no RUN: make one with 'it3-vision classify train'
    """
    place = Path(folder)
    if not (place / "model.safetensors").is_file():
        raise IT3Error(f"{place} is no RUN: make one with 'it3-vision classify train'")
    found = load(place / "model.safetensors")
    settings = found.settings
    if settings.get("format") != FORMAT or "training" not in settings:
        written = found.versions.get("it3-vision", "something else")
        raise IT3Error(
            f"{place} was written by it3-vision {written}, and {__version__} can't read it: train "
            f"it again"
        )
    adapter = found.adapter
    if not isinstance(adapter, Classification) or found.trust is None:
        raise IT3Error(f"{place} is no RUN of a classifier: train it again")
    network = NetworkSettings.from_description(settings["training"]["network"])
    model = build(network, adapter, rotation=settings["training"]["rotation"])
    tunings = {int(k): Tuning.from_description(v) for k, v in settings["tunings"].items()}
    return Run(
        folder=place,
        model=found.restore(model).eval().to(_device(device)),
        adapter=adapter,
        classes=tuple(settings["classes"]),
        prepare=Preparation.from_description(settings["prepare"]),
        trust=Trust.from_description(found.trust),
        tunings=tunings,
        activations=Activations.from_tensors(found.tensors),
        fisher=Fisher.from_tensors(found.tensors),
        settings=settings,
        history=read_json(place / "history.json", "train the RUN again"),
    )


def _sgd(parameters: Any, lr: float) -> Optimizer:
    return SGD(parameters, lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4)


def _mixed_precision(
    model: nn.Module, adapter: Any, x: Tensor, y: Tensor, *, loss: Any, wanted: bool | None
) -> Tensor:
    """The loss, in bfloat16 where a GPU computes it: that needs no scaling of the loss."""
    enabled = x.is_cuda if wanted is None else wanted
    with torch.autocast(x.device.type, torch.bfloat16, enabled=enabled):
        return loss(model, adapter, x, y).float()  # type: ignore[no-any-return]


def _device(wanted: torch.device | str | None) -> torch.device | str:
    """Where to train, after a look whether it is there."""
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        reason = str(problem).strip().splitlines()[0]
        raise IT3Error(f"can't train on {str(wanted)!r}: {reason}") from problem
    return wanted


def _gathered(images: ImageSet, size: int, progress: bool) -> tuple[ImageSet, list[BadImage]]:
    """The labelled images that can be read, in memory where they fit."""
    if len(images.classes) < 2:
        raise IT3Error("a classifier needs images of at least two classes: one folder for each")
    images = images.take(images.labels >= 0)
    if len(images) * size**2 * 3 <= IN_MEMORY:
        images, bad = images.load(size, workers=os.cpu_count() or 1, progress=progress)
    else:
        images, bad = images.sound(workers=os.cpu_count() or 1, progress=progress)
    counts = np.bincount(images.labels, minlength=len(images.classes))
    if len(images) < 20 or counts.min() < 2:
        fewest = images.classes[int(counts.argmin())]
        raise IT3Error(
            f"there are {len(images)} images to train on, and {counts.min()} of class {fewest!r}: "
            f"give 20 at least, and 2 of each class"
        )
    return images, bad


def _preparation(images: ImageSet, training: Training) -> Preparation:
    """How images become tensors, by a sample of all: folders come class by class."""
    size = training.network.size
    if training.normalise == "imagenet":
        return Preparation(size, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    if training.normalise != "data":
        raise IT3Error(f'images are normalised by "data" or "imagenet", not {training.normalise!r}')
    some = images.sample(min(20_000, len(images)), training.seed)
    return Preparation.fit(some.batch(slice(None), size))


def _parts(images: ImageSet, seed: int) -> tuple[ImageSet, ImageSet]:
    """The held-out images and the rest."""
    size = min(max(round(HELD_OUT * len(images)), 10), 5000)
    order = np.random.default_rng(seed + 1000).permutation(len(images))
    return images.take(np.sort(order[:size])), images.take(np.sort(order[size:]))


def _watched(model: Conditioned) -> list[str]:
    """The layers whose activations ActMAD aligns: the normalisations, as its authors do."""
    kinds = (nn.BatchNorm2d, nn.GroupNorm)
    return [name for name, layer in model.named_modules() if isinstance(layer, kinds)]


def _finished(folder: Path, known: Mapping[str, Any]) -> Run | None:
    """The RUN in this folder, where it is whole and was made with just these settings."""
    try:
        run = load_run(folder)
    except IT3Error:
        return None
    return run if known.items() <= run.settings.items() else None
