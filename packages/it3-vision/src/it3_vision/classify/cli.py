"""The commands `it3-vision classify ...`. Loads no torch."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from it3_core.errors import IT3Error
from it3_core.experiment import verbs
from it3_core.experiment.verbs import application
from it3_vision import image_options as image

TASK = "it3_vision.classify.task:TASK"
Half = Annotated[
    Literal[0, 1] | None, Parameter(help="Only one half of these images, the same each time.")
]
Part = Annotated[str | None, Parameter(help="Which, where DATA has several.")]

app = application(
    "classify",
    "Train a classifier with a second input, compare every method, predict images.\n\n"
    "Example: it3-vision classify train photos --out experiment",
)
verbs.add_report(app, "it3-vision classify")
image.add_predict(app, "classify", TASK, "classes")


_STEPS: dict[str, Any] = {"schedule": "step30", "nesterov": False, "clip": None}
PAPER = {
    # Yu et al. 2018 and their code (ucbdrive/dla, classify.py), whose images are ImageNet's.
    "dla": (image.Protocol(120, 256, 0.1, 1e-4, **_STEPS), 32),
    # pytorch/examples, imagenet/main.py.
    "resnet18": (image.Protocol(90, 256, 0.1, 1e-4, **_STEPS), 224),
}
"""The networks of the paper: how they are trained, and the images' pixels."""


@dataclass(frozen=True, kw_only=True)
class Train(image.ImageTrain):
    """Options of `train`."""

    split: Part = None
    validation: Path | None = None
    """Images for every choice and for calibration, in place of a tenth of DATA: where weights to
    start from have seen all of DATA, as CIFAR's have, other images must be chosen by."""
    validation_split: Part = None
    validation_half: Half = None
    network: image.NetworkSettings = field(default_factory=image.NetworkSettings)
    distance: image.Distance = "l1"
    """Of the two passes' probabilities, the idempotence error: Jensen–Shannon, Kullback–Leibler,
    the sum of absolute differences or the Euclidean distance. Training does not depend on it."""
    rotation: Annotated[bool, Parameter(negative="--no-rotation")] = True
    """Train the head that TTT needs too, on a fourth of each batch."""
    flip: Annotated[bool, Parameter(negative="--no-flip")] = True
    """Augment by flipping left and right; not for digits and letters."""
    tuned: image.Tuned = "1:512,4:1024,16:1024,64:1024"

    def __post_init__(self) -> None:
        """Refuses a part of a set that was not given; the preset's network is as published."""
        super().__post_init__()
        if self.validation is None and (self.validation_half, self.validation_split) != (None,) * 2:
            raise IT3Error("--validation-half and --validation-split are of --validation: give it")
        network, name = self.network, self.network.network
        size: image.Size = network.size or ("small" if self.preset is None else "full")
        object.__setattr__(self, "network", replace(network, size=size))
        if self.preset is None:
            return
        if name not in PAPER:
            raise IT3Error(f"the paper has no {name}, but {' and '.join(PAPER)}")
        pixels = network.pixels or PAPER[name][1]
        object.__setattr__(self, "network", replace(network, size=size, pixels=pixels))
        if name == "resnet18" and self.normalise is None:
            object.__setattr__(self, "normalise", "imagenet")

    @property
    def usual(self) -> image.Protocol:
        """Ours, or that of the network's authors."""
        brings = self.network.brings
        if self.preset is None:
            return image.Protocol(12, 128, brings.lr, brings.weight_decay)
        return PAPER[self.network.network][0]


@dataclass(frozen=True, kw_only=True)
class Evaluate(image.ImageEvaluate):
    """Options of `evaluate`."""

    split: Part = None
    half: Half = None
    corrupted: Path | None = None
    """CIFAR-10-C or ImageNet-C of the same images; made here without it."""
    corruptions: str = "all"
    """Names, separated by commas, or all."""
    severities: str = "5"
    """Such as 5 or 1,3,5."""
    batch_sizes: image.BatchSizes = "1,16,64"
    most: image.Most = 2000
    """Test images at most."""
    slow: Annotated[bool, Parameter(negative="--no-slow")] = True
    """MEMO and TTT, many passes an image."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions(image.ImageDemo):
    """Options of `demo`."""

    tested: Annotated[int, Parameter(validator=Number(gte=32))] = 128
    """Images to test on."""


@app.command
def train(data: Path, /, *, options: Train) -> None:
    """Train a classifier; started again, it goes on where it was. Works under torchrun.

    Example: it3-vision classify train cifar-10-batches-bin --split train --out experiment

    Args:
        data: CLASS/FILE folders, a tar of them, CIFAR's .bin files, MNIST's IDX files ...
    """
    verbs.train(TASK, data, options)


@app.command
def evaluate(experiment: Path, /, *, options: Evaluate) -> None:
    """Compare every method under every corruption; write records, tables, pictures and the report.

    Example: it3-vision classify evaluate experiment --data cifar-10-batches-bin --split test

    Args:
        experiment: The folder that train made.
    """
    verbs.evaluate(TASK, experiment, options)


@app.command
def demo(*, out: Path = Path("it3-classify-demo"), options: DemoOptions = DemoOptions()) -> None:
    """Draw characters, train, corrupt, compare eleven methods, write the report.

    Example: it3-vision classify demo --out demo --n 500 --epochs 2

    Args:
        out: The folder for all of it.
    """
    verbs.demo(TASK, out, options)
