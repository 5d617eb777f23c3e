"""Where an experiment finds its data, how much it measures, and where it leaves what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

Size = Literal["quick", "small", "full"]
"""How much to measure: minutes, hours a seed, or all that the paper has."""

Preset = Literal["paper"]

Options = TypeVar("Options")

FOLDERS: dict[str, tuple[tuple[str, ...], str]] = {
    "boston": (("uci/bostonHousing",), "Boston Housing with its standard splits"),
    "cifar": (("cifar-10-batches-bin", "cifar10"),
              "CIFAR-10: the binary version, or train.tar.gz and test.tar.gz of CLASS/FILE"),
    "cifar-c": (("CIFAR-10-C",), "a .npy a corruption; made here where it is missing"),
    "imagenet": (("imagenet", "tiny-imagenet-50"),
                 "ImageNet or a part of it: train and val of CLASS/FILE, folders or .tar.gz"),
    "imagenet-c": (("ImageNet-C",),
                   "CORRUPTION/SEVERITY/CLASS/FILE; made here where it is missing"),
    "faces": (("UTKFace", "utkface"), "a folder or a tar of AGE_GENDER_RACE_DATE.jpg"),
    "towns": (("roadtracer", "roads/epfl-400.tar.gz"),
              "RoadTracer: imagery/ with masks/ or graphs/; or EPFL's towns"),
    "country": (("massachusetts", "roads/massachusetts-1500.tar.gz"),
                "Massachusetts Roads: sat/ and map/, with splits or without"),
    "cars": (("shapenet-cars",), "meshes, as of ShapeNet's cars, which OpenFOAM then solves"),
    "weights": (("weights",), "cifar10-resnet56.safetensors"),
}  # fmt: skip
"""What is looked for below IT3_DATA, the paper's own data first, and what it holds."""


class NotHereError(Exception):
    """What is missing for an experiment, in a sentence."""


@dataclass(frozen=True)
class Place:
    """What one run of a task is given."""

    size: Size  # how much to measure
    data: Path | None  # the folder that IT3_DATA names
    folder: Path  # of this task; a killed run goes on from what lies there
    records: Path  # the folder where what was measured is kept
    preset: Preset | None = None  # the paper's own protocol
    seeds: int | None = None  # training seeds; the size's by default
    seed: int | None = None  # this one alone
    progress: bool = True
    made: Mapping[str, str] = field(default_factory=dict)  # commit, command, machine

    def of(self, quick: Any, small: Any, full: Any) -> Any:
        """The value for this size."""
        return {"quick": quick, "small": small, "full": full}[self.size]

    def given(self, what: str, *parts: str) -> Path | None:
        """The first of the folders of this name that holds such a file, if there is one."""
        names = FOLDERS[what][0] if self.data is not None else ()
        paths = [Path(self.data or "", name, *parts) for name in names]
        return next((path for path in paths if path.exists()), None)

    def options(self, kind: type[Options], **given: Any) -> Options:
        """A command's options: the preset, if it has one, and of `given` what is not None."""
        names = {one.name for one in fields(kind)}  # type: ignore[arg-type]
        own: dict[str, Any] = {"preset": self.preset, "quiet": not self.progress, **given}
        return kind(**{k: v for k, v in own.items() if k in names and v is not None})
