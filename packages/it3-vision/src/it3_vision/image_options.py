"""Options that the commands of the tasks share, and which network. Loads no torch."""

# Annotations are values here, not text: cyclopts reads them in the modules of subclasses.

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from cyclopts import App, Parameter
from cyclopts.validators import Number

from it3_core.errors import IT3Error
from it3_core.experiment import verbs
from it3_core.experiment.verbs import NotNegative, Positive, Quiet, Seed

Preset = Literal["paper"]
Size = Literal["tiny", "small", "full"]  # for a demonstration, for a few CPU cores, as published
Normalisation = Literal["batch", "group"]  # group norm answers one image as it answers many
Normalise = Literal["data", "imagenet", "tensorflow"]  # whose mean and deviation
Pretrained = Literal["efficientnet_lite0"]  # networks whose weights the extra `pretrained` brings
Distance = Literal["js", "kl", "l1", "l2"]  # of probabilities, see it3_core's Classification
SecondSignal = Literal["label", "noisy"]  # what the second pass is given in training


class Brings(NamedTuple):
    """What a network brings to its training, where no option says otherwise."""

    layer: str  # where the signal enters
    pixels: int = 32  # of an image's side
    lr: float = 0.2
    weight_decay: float = 5e-4
    normalise: Normalise | None = None  # as its pretrained weights expect it


NETWORKS = {
    "dla": Brings("level3"),
    **dict.fromkeys(("resnet18", "resnet34", "resnet50", "resnet152"), Brings("layer2")),
    # What their trained weights gain most by, see docs/classification.md.
    "resnet20": Brings("pool", lr=0.05, weight_decay=1e-4),
    "resnet56": Brings("pool", lr=0.03, weight_decay=1e-4),
    "efficientnet_lite0": Brings("pool", 96, lr=0.02, weight_decay=1e-4, normalise="tensorflow"),
}

Side = Annotated[int, Parameter(validator=Number(gte=8, lte=10_000))]
Epochs = Annotated[int, Parameter(validator=Number(gte=1))]
BatchSize = Annotated[int, Parameter(validator=Number(gte=2))]
Rate = Annotated[
    float,
    Parameter(
        help="The largest rate of SGD's schedule; by default the network's, or the preset's."
    ),
]
Decay = Annotated[float, Parameter(validator=Number(gte=0), help="The network's by default.")]
Tuned = Annotated[
    str, Parameter(help="Batch sizes to tune for, each with a number of validation images.")
]
BatchSizes = Annotated[str, Parameter(help="Images in a batch, separated by commas.")]
Most = Annotated[int, Parameter(validator=Number(gte=2))]
Many = Annotated[int, Parameter(validator=Number(gte=200), help="Images to draw.")]


def check_choice(value: object, kind: Any, what: str) -> None:
    """Refuses a word that is none of a Literal's."""
    if value not in get_args(kind):
        raise IT3Error(f"{what} is {', '.join(get_args(kind))}, not {value!r}")


def check_size(network: str, size: int) -> None:
    """Refuses images of which a network's last maps would be nothing."""
    if network == "efficientnet_lite0" and not 64 <= size <= 256:
        raise IT3Error(f"an efficientnet_lite0 takes images of 64 to 256 pixels, not {size}")


@Parameter(name="*")
@dataclass(frozen=True)
class NetworkSettings:
    """Which network, and where the signal enters.

    Attributes:
        name: dla, resnet18, 34, 50 or 152; a ResNet for CIFAR, resnet20 or 56; or
            efficientnet_lite0.
        size: full is as published; small has fewer channels (and, for a DLA, blocks), for
            a few CPU cores; tiny still fewer, for a demonstration. Of resnet20, 56 and
            efficientnet_lite0 small is as published. By default small, or the preset's.
        norm: Batch norm or group norm.
        layer: The stage where the signal enters; by default the authors' level3 of a DLA, its
            counterpart layer2 of a ResNet, and the pooled features, pool, of the others.
        pixels: Images are brought to this height and width, 32 by default, of an efficientnet_lite0
            96; up to 64 a ResNet's stem keeps it.
        pretrained: That network, with ImageNet's weights and a new last layer; it needs the extra
            it3-vision[pretrained].
    """

    name: Annotated[str, Parameter(name="--network")] = "dla"
    size: Size | None = None
    norm: Normalisation = "batch"
    layer: str | None = None
    pixels: Side | None = None
    pretrained: Pretrained | None = None

    def __post_init__(self) -> None:
        if self.name not in NETWORKS:
            raise IT3Error(f"there is no network {self.name!r}: take {', '.join(NETWORKS)}")
        check_choice(self.width, Size, "a size")
        if self.pretrained is not None:
            check_choice(self.pretrained, Pretrained, "a pretrained network")
            if self.name not in ("dla", self.pretrained):
                raise IT3Error(f"a {self.name} is not pretrained: leave --network out")
        check_size(self.network, self.side)

    @property
    def width(self) -> Size:
        """How many channels, and blocks."""
        return self.size or "small"

    @property
    def network(self) -> str:
        """The network's name."""
        return self.pretrained or self.name

    @property
    def stage(self) -> str:
        """Where the signal enters."""
        return self.layer or self.brings.layer

    @property
    def side(self) -> int:
        """Height and width of the images, in pixels."""
        return self.pixels or self.brings.pixels

    @property
    def brings(self) -> Brings:
        """What training takes from it."""
        found = NETWORKS[self.network]
        return found if self.pretrained else found._replace(normalise=None)


class Protocol(NamedTuple):
    """How a network is trained, by SGD."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    second_weight: float = 1.0
    schedule: str = "onecycle"
    nesterov: bool = True
    clip: float | None = 5.0


@dataclass(frozen=True, kw_only=True)
class ImageTrain(verbs.TrainOptions):
    """Options of `train`."""

    preset: Preset | None = None
    """paper: the paper's protocol in place of ours, as the task's page says it; what else is given
    goes before."""
    epochs: Epochs | None = None
    """Times through the images; by default 12, of faces 45, or the preset's."""
    batch_size: BatchSize | None = None
    """Images a step; by default 128, of faces 64, or the preset's."""
    lr: Rate | None = None
    weight_decay: Decay | None = None
    second_signal: SecondSignal = "label"
    """What the second pass is given in training: the label, or a noisy one."""
    second_weight: float | None = None
    """Of the second pass in the loss: by default 1, as in the paper, of faces a tenth."""
    weights: Path | None = None
    """A safetensors file to start from, with torchvision's names, or Idelbayev's of resnet20 and
    56."""
    new_head: bool = False
    """The last layer of these weights is for other classes."""
    normalise: Normalise | None = None
    """By the training images' own mean and deviation, or by ImageNet's; by default the latter
    where weights are given, unless they are an experiment's, which brings its own; pretrained
    networks bring theirs (tensorflow is 127 and 128 of 255)."""
    freeze_until: str | None = None
    """Train and adapt nothing before this stage, which saves its backward pass; best at or below
    the stage where the signal enters."""
    bfloat16: Annotated[bool | None, Parameter(negative="--no-bfloat16")] = None
    """Multiply in bfloat16, if the CPU can; by default on a GPU only."""
    tuned: Tuned = "16:1024"
    held_out: Annotated[float, Parameter(validator=Number(gt=0, lt=0.9))] = 0.1
    """Share of the images that is not trained on: a quarter of these is for every choice, the
    others set thresholds and intervals."""

    def __post_init__(self) -> None:
        """Refuses what no network can be trained with, before images are read."""
        for name in ("lr", "second_weight"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise IT3Error(f"{name.replace('_', '-')} must be a positive number, not {value}")
        if self.normalise is not None:
            check_choice(self.normalise, Normalise, "what images are normalised by")
        tuned_sizes(self.tuned)
        file = self.weights
        if file is not None and file.suffix == ".safetensors" and not file.is_file():
            raise IT3Error(f"there is no file {file}")

    @property
    def usual(self) -> Protocol:
        """The task's own protocol, or with the preset the paper's."""
        raise NotImplementedError

    @property
    def protocol(self) -> Protocol:
        """The same with what else is given."""
        given = {name: getattr(self, name, None) for name in Protocol._fields}
        return self.usual._replace(**{name: v for name, v in given.items() if v is not None})


@dataclass(frozen=True, kw_only=True)
class ImageEvaluate(verbs.EvaluateOptions):
    """Options of `evaluate`."""

    data: Path
    """Images to test on."""
    seed: NotNegative = 0
    """Of the sample of images, and of their corruptions."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ImageDemo:
    """Options of `demo`."""

    n: Many = 2000
    epochs: Positive = 5
    """Of the training."""
    seed: Seed = 0
    quiet: Quiet = False


def add_predict(app: App, name: str, task: str, what: str) -> None:
    """Gives a task's commands the `predict` of images as they are."""
    text = (
        f"Predict {what}, before and after adaptation, and how unusual the images are.\n\n"
        "Exits with 2 if an image had a problem; the others are predicted all the same.\n\n"
        f"Example: it3-vision {name} predict experiment new/*.jpg"
    )
    app.command(partial(predict, task), name="predict", help=text)


def predict(
    task: str,
    experiment: Path,
    images: list[Path],
    /,
    *,
    options: verbs.PredictOptions = verbs.PredictOptions(),
) -> int:
    """Predict, before and after adaptation.

    Args:
        experiment: The folder that train made.
        images: Files, folders or tars.
    """
    return verbs.predict(task, experiment, images, options)


def tuned_sizes(text: str) -> dict[int, int]:
    """Batch sizes, and how many images to tune with: "16:128,64:192"."""
    try:
        pairs = [(int(size), int(most)) for size, most in (p.split(":") for p in text.split(","))]
    except ValueError:
        pairs = []
    if not pairs or min(min(pair) for pair in pairs) < 1:
        raise IT3Error(f"tuned is SIZE:IMAGES, separated by commas, such as 16:128, not {text!r}")
    return dict(pairs)
