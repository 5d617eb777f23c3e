"""A RUN: a folder with a network that says ages, and all that was learnt about it.

`tail.safetensors` and its like belong to networks that were trained without the youngest and the
oldest of the training faces, for tuning to choose on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from it3_core import (
    Activations,
    Conditioned,
    IT3Error,
    Regression,
    Trust,
    sensitivity,
)
from it3_core.batching import batches
from it3_core.checkpoint import Checkpoint
from it3_core.files import make_folder
from it3_vision.age.choosing import choose
from it3_vision.age.faces import Interval
from it3_vision.age.fitting import Fitting, Training
from it3_vision.age.network import FaceSettings, build
from it3_vision.data import ImageSet
from it3_vision.runs import FORMAT, TrainedRun, fingerprint, finished, remembered
from it3_vision.training import (
    blind_loss,
    in_memory,
    mean_error,
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


@dataclass(frozen=True)
class Run(TrainedRun[Regression]):
    """A trained network and all that goes with it; `train` and `load_run` make one."""

    task, kind, whose = "age", Regression, "a network that says ages"

    @property
    def interval(self) -> Interval:
        """The ages that were trained on."""
        return Interval(self.settings["training"]["low"], self.settings["training"]["high"])

    @property
    def tested(self) -> float:
        """The share of the faces that was set apart for testing."""
        return float(self.settings["training"]["tested"])

    @classmethod
    def blank(cls, found: Checkpoint) -> Conditioned:
        """The network without its weights."""
        network = FaceSettings.from_description(found.settings["training"]["network"])
        return build(network, cast(Regression, found.adapter))


load_run = Run.load
"""Reads a RUN, see `TrainedRun.load`."""


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
    known["fingerprint"] = fingerprint(faces)
    there = finished(folder, known, load_run)
    if there is not None and (there.vanilla is not None or not vanilla):
        return there
    images, bad = in_memory(training.seen(faces), training.network.pixels, progress)
    if len(images) < FEWEST:
        raise IT3Error(
            f"there are {len(images)} faces of {training.low} to {training.high} years to train "
            f"on: give {FEWEST} at least"
        )
    held_out, rest = parts(images, training.seed, HELD_OUT)
    prepare = preparation(rest, training.network.pixels, training.normalise, training.seed)
    adapter = Regression.fit(torch.from_numpy(rest.labels))
    how = {"device": where, "workers": workers, "progress": progress}
    fitting = Fitting(training, prepare, adapter, how)
    if there is None:
        model, history = fitting.network(
            rest, held_out, training.loss, folder / "training.safetensors"
        )
        tails = fitting.tails(rest, folder)
        x, y = fitting.tensors(held_out)
        usual = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
        seen, _ = fitting.tensors(rest.sample(min(2000, len(rest)), training.seed))
        tunings = choose(
            model, adapter, prepare, held_out, tails, training.seed, sizes=tuned, progress=progress
        )
        there = Run(
            folder=folder,
            model=model,
            adapter=adapter,
            prepare=prepare,
            trust=Trust.fit(model, adapter, batches(usual, 64)),
            tunings=tunings,
            activations=Activations.collect(model, adapter, batches(seen, 64), watched(model)),
            settings=remembered(
                known,
                about,
                [*(problems or []), *bad],
                prepare,
                tunings,
                faces=len(images),
                held_out_error=mean_error(model, adapter, x, y),
                held_out_error_of_the_mean=float((y - adapter.mean[0]).abs().mean()),
                sensitivity=sensitivity(model, adapter, x[:500]),
            ),
            history=history.describe(),
        )
        there.write()
    if not vanilla:
        return there
    path = folder / "vanilla-training.safetensors"
    return there.with_vanilla(fitting.network(rest, held_out, blind_loss, path)[0])
