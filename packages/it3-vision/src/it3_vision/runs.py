"""What every RUN has: a folder with a trained network and all that was learnt about it.

`model.safetensors` holds the weights, how images are prepared, trust, tuning, and the training
data's statistics that methods need; `history.json` says how training went.
`training.safetensors` is where a killed training goes on from, and `training.json` says what it was
begun with; `vanilla.safetensors`, where there is one, is the same network trained without a signal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from it3_core import Activations, Adapter, IT3Error, Method, Trust
from it3_core.candidates import Candidate
from it3_core.checkpoint import Checkpoint, load, save
from it3_core.files import read_json, write_json
from it3_core.tensorfile import digest
from it3_core.tuning import Tuning
from it3_vision import __version__
from it3_vision.data import BadImage, ImageSet, Preparation
from it3_vision.training import place_for

__all__ = ["FORMAT", "OtherRun", "TrainedRun", "fingerprint", "finished", "remembered"]

FORMAT = 1
"""Of a RUN; another one can't be read."""

NOTES = "training.json"
"""What a training was begun with."""

A = TypeVar("A", bound=Adapter)
_Run = TypeVar("_Run", bound="TrainedRun[Any]")


class OtherRun(IT3Error):  # noqa: N818
    """A RUN of another task."""


@dataclass(frozen=True)
class TrainedRun(Generic[A]):
    """A trained network and all that goes with it, whatever its task.

    Attributes:
        task: the command that makes one: "classify", "age" ...
        kind: of the adapter that its checkpoint has.
        whose: of whom it is: "a classifier", say.
        tunings: what was chosen for batches of so many images at least.
        vanilla: the same network trained without a signal, where that was asked for.
    """

    task: ClassVar[str]
    kind: ClassVar[type[Adapter]]
    whose: ClassVar[str]

    folder: Path
    model: nn.Module
    adapter: A
    prepare: Preparation
    trust: Trust
    tunings: dict[int, Tuning]
    activations: Activations
    settings: dict[str, Any]
    history: dict[str, Any]
    vanilla: nn.Module | None = field(default=None, kw_only=True)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Reads a RUN; one that is missing, broken or of another kind gets one clear sentence.

        Args:
            folder: the RUN.
            device: where its network is to be.

        Example:
            >>> from it3_vision.classify.runs import load_run
            >>> load_run("/nowhere")
            Traceback (most recent call last):
            ...
            it3_core.errors.IT3Error: /nowhere is no RUN: make one with 'it3-vision classify train'
        """
        place = Path(folder)
        found = cls._checked(place)
        settings, where = found.settings, place_for(device)
        vanilla = None
        if (path := _vanilla(place)).is_file():
            vanilla = load(path).restore(cls.blank(found)).eval().to(where)
        return cls(
            **{"adapter": found.adapter, **cls.own_parts(place, found, where)},
            folder=place,
            model=found.restore(cls.blank(found)).eval().to(where),
            vanilla=vanilla,
            prepare=Preparation.from_description(settings["prepare"]),
            trust=Trust.from_description(found.trust or {}),
            tunings={int(k): Tuning.from_description(v) for k, v in settings["tunings"].items()},
            activations=Activations.from_tensors(found.tensors),
            settings=settings,
            history=read_json(place / "history.json", "train the RUN again"),
        )

    @classmethod
    def _checked(cls, place: Path) -> Checkpoint:
        if not (place / "model.safetensors").is_file():
            raise IT3Error(f"{place} is no RUN: make one with 'it3-vision {cls.task} train'")
        found = load(place / "model.safetensors")
        settings = found.settings
        if settings.get("format") != FORMAT or "training" not in settings:
            written = found.versions.get("it3-vision", "something else")
            raise IT3Error(
                f"{place} was written by it3-vision {written}, and {__version__} can't read it: "
                f"train it again"
            )
        if not isinstance(found.adapter, cls.kind) or found.trust is None:
            raise OtherRun(
                f"{place} is no RUN of {cls.whose}: give one that 'it3-vision {cls.task} train' "
                f"made"
            )
        return found

    @classmethod
    def blank(cls, found: Checkpoint) -> nn.Module:
        """The network without its weights."""
        raise NotImplementedError

    @classmethod
    def own_parts(
        cls, folder: Path, found: Checkpoint, where: torch.device | str
    ) -> dict[str, Any]:
        """What a task's RUN has of its own: nothing, unless it says otherwise."""
        return {}

    @property
    def seed(self) -> int:
        """The training seed."""
        return int(self.settings["training"]["seed"])

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

    def tensors(self) -> dict[str, Tensor]:
        """The training data's statistics, to be kept beside the weights."""
        return self.activations.tensors()

    def with_vanilla(self, network: nn.Module) -> Self:
        """This RUN with the network trained without a signal, which is put into its folder."""
        if _first():
            save(
                _vanilla(self.folder),
                network,
                adapter=self.adapter,
                settings={"training": self.settings["training"]},
                versions={"it3-vision": __version__},
            )
        return replace(self, vanilla=network)

    def write(self) -> None:
        """Puts the RUN into its folder; under torchrun, the first process does."""
        if not _first():
            return
        write_json(self.folder / "history.json", self.history)
        save(
            self.folder / "model.safetensors",
            self.model,
            adapter=self.adapter,
            settings=self.settings,
            trust=self.trust,
            tensors=self.tensors(),
            versions={"it3-vision": __version__},
        )


def _vanilla(folder: Path) -> Path:
    return folder / "vanilla.safetensors"


def _first() -> bool:
    """Whether this is the first process, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def remembered(
    known: Mapping[str, Any],
    about: Mapping[str, Any] | None,
    bad: Sequence[BadImage | str],
    prepare: Preparation,
    tunings: Mapping[int, Tuning],
    **measured: Any,
) -> dict[str, Any]:
    """A new RUN's settings, which `TrainedRun.load` reads.

    Args:
        known: what was settled before training, see `finished`.
        about: whatever else the caller wants to keep.
        bad: what could not be read; the first hundred are kept.
        prepare: makes tensors of images.
        tunings: what was chosen, by batch size.
        measured: what was found out about the network.
    """
    return {
        **known,
        "about": dict(about or {}),
        "bad": [str(one) for one in bad[:100]],
        "prepare": prepare.describe(),
        **measured,
        "tunings": {str(size): tuning.describe() for size, tuning in tunings.items()},
    }


def finished(folder: Path, known: Mapping[str, Any], read: Callable[[Path], _Run]) -> _Run | None:
    """The RUN in this folder, or None where its training is to begin or to go on.

    A folder of another task, of other settings or of other images is refused: what was trained
    there would go by a false name, or be written over.

    Args:
        folder: the RUN's.
        known: what is settled before training.
        read: reads a finished RUN.
    """
    there: _Run | None = None
    try:
        there = read(folder)
    except OtherRun as problem:
        raise IT3Error(f"{folder} holds a RUN of another task: name a new folder") from problem
    except IT3Error:  # none yet, or a damaged one, which training makes again
        pass
    if there is not None:
        _compare(folder, there.settings, known)
        return there
    begun = (folder / "training.safetensors").exists()  # else there is nothing to lose
    if begun and (folder / NOTES).is_file():
        _compare(folder, read_json(folder / NOTES, "name a new folder"), known)
    elif _first():
        write_json(folder / NOTES, known)
    return None


def fingerprint(images: ImageSet) -> str:
    """What tells these images from others before they are read: their names, classes and labels.

    Example:
        >>> pixels = np.zeros((2, 8, 8, 3), np.uint8)
        >>> one, other = (ImageSet.from_array(pixels, labels) for labels in ([0, 1], [1, 0]))
        >>> fingerprint(one) == fingerprint(other)
        False
    """
    told = {"names": list(images.names), "classes": list(images.classes)}
    return digest({"labels": torch.from_numpy(np.asarray(images.labels))}, told)[:16]


def _compare(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Says what has changed since; what an earlier version did not note down is let pass."""
    as_read = json.loads(json.dumps(now))
    changed = list(_changes(before, as_read))
    if changed:
        raise IT3Error(
            f"{folder} was begun with other settings or images ({'; '.join(changed)}): give the "
            f"same again to go on, or name a new folder"
        )


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in (key for key in now if key in before):
        then, this = before[key], now[key]
        if then == this:
            continue
        if isinstance(then, dict) and isinstance(this, dict):
            yield from _changes(then, this)
        elif isinstance(then, list) or isinstance(this, list) or key == "fingerprint":
            yield f"the {'images' if key == 'fingerprint' else key} are others"
        else:
            yield f"{key} was {then} and is {this}"
