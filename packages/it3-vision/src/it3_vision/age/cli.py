"""The commands `it3-vision age ...`. Loads no torch."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from cyclopts import Parameter

from it3_core.errors import IT3Error
from it3_core.experiment import verbs
from it3_core.experiment.verbs import NotNegative, Positive, application
from it3_vision import image_options as image

TASK = "it3_vision.age.task:TASK"

app = application(
    "age",
    "Train a network that predicts the age of a face, compare every method, predict ages.\n\n"
    "Example: it3-vision age train UTKFace --out experiment",
)
verbs.add_report(app, "it3-vision age")
image.add_predict(app, "age", TASK, "ages")


class Shape(NamedTuple):
    """A size: depth and width of the ResNet, widths of its head, and the images' pixels."""

    depth: int
    width: int
    head: tuple[int, ...]
    pixels: int


SIZES: dict[image.Size, Shape] = {
    "tiny": Shape(18, 8, (16,), 32),
    "small": Shape(18, 32, (128, 64, 32, 16), 64),
    "full": Shape(152, 64, (1024, 512, 256, 128), 224),
}


@Parameter(name="*")
@dataclass(frozen=True)
class FaceSettings:
    """Which network, and where the signal enters.

    Attributes:
        size: full is a ResNet-152 with five linear layers; small a ResNet-18 of half the width
            with five narrower ones, for a CPU core; tiny is for demonstrations.
        norm: Batch norm or group norm.
        layer: The stage where the signal enters; by default layer2 of a ResNet, and the pooled
            features, pool, of a pretrained network.
        pixels: Images are brought to this height and width; by default the size's 32, 64 or 224,
            and 96 for a pretrained network.
        pretrained: This network with ImageNet's weights, and the size's linear layers; it needs
            the extra it3-vision[pretrained].
    """

    size: image.Size | None = None
    norm: image.Normalisation = "batch"
    layer: str | None = None
    pixels: image.Side | None = None
    pretrained: image.Pretrained | None = None

    def __post_init__(self) -> None:
        image.check_choice(self.width, image.Size, "a size")
        if self.pretrained is not None:
            image.check_choice(self.pretrained, image.Pretrained, "a pretrained network")
            image.check_size(self.pretrained, self.side)

    @property
    def width(self) -> image.Size:
        """How many layers and channels."""
        return self.size or "small"

    @property
    def stage(self) -> str:
        """Where the signal enters."""
        return self.layer or self.brings.layer

    @property
    def side(self) -> int:
        """Height and width of the images, in pixels."""
        return self.pixels or self.brings.pixels

    @property
    def brings(self) -> image.Brings:
        """What training takes from it."""
        if self.pretrained is not None:
            return image.NETWORKS[self.pretrained]
        return image.Brings("layer2", SIZES[self.width].pixels, lr=0.05)


@dataclass(frozen=True, kw_only=True)
class Train(image.ImageTrain):
    """Options of `train`."""

    network: FaceSettings = field(default_factory=FaceSettings)
    low: NotNegative = 20
    """The youngest to train on, in years."""
    high: Positive = 60
    """The oldest to train on."""
    tested: float = 0.2
    """Fraction of the faces that is never trained on but kept for testing, by their names."""
    tuned: image.Tuned = "4:512,16:512"
    coral: bool = False
    """Train the same network with CORAL's head in place of its last layer too, for comparison."""

    def __post_init__(self) -> None:
        """Refuses what no network can be trained with, before images are read."""
        from it3_vision.age.faces import Interval

        super().__post_init__()
        size: image.Size = self.network.size or ("small" if self.preset is None else "full")
        object.__setattr__(self, "network", replace(self.network, size=size))
        if not 0 <= self.tested < 1:
            raise IT3Error(f"the fraction of test faces is from 0 to below 1, not {self.tested}")
        Interval(self.low, self.high)  # refuses what is no interval

    @property
    def usual(self) -> image.Protocol:
        """The paper's is both terms alike; of the optimiser it says nothing, so that is ours."""
        brings = self.network.brings
        # With a tenth the second pass corrects more than with 1 (docs/experiments.md).
        weight = 0.1 if self.preset is None else 1.0
        return image.Protocol(45, 64, brings.lr, brings.weight_decay, weight)


@dataclass(frozen=True, kw_only=True)
class Evaluate(image.ImageEvaluate):
    """Options of `evaluate`."""

    levels: str = "10,20"
    """Years outside the interval where levels end."""
    batch_sizes: image.BatchSizes = "4,8,16"
    most: image.Most = 300
    """Faces of a level at most."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions(image.ImageDemo):
    """Options of `demo`."""

    n: image.Many = 3000
    epochs: Positive = 8
    """Of the training."""


@app.command
def train(data: Path, /, *, options: Train) -> None:
    """Train a network; started again, it goes on where it was. Works under torchrun.

    Example: it3-vision age train UTKFace --out experiment --bfloat16

    Args:
        data: A folder, folders of parts or a tar of AGE_GENDER_RACE_DATE.jpg, as UTKFace's are.
    """
    verbs.train(TASK, data, options)


@app.command
def evaluate(experiment: Path, /, *, options: Evaluate) -> None:
    """Compare every method on younger and older faces; write records, tables, pictures, a page.

    Example: it3-vision age evaluate experiment --data UTKFace

    Args:
        experiment: The folder that train made.
    """
    verbs.evaluate(TASK, experiment, options)


@app.command
def demo(*, out: Path = Path("it3-age-demo"), options: DemoOptions = DemoOptions()) -> None:
    """Draw faces, train, compare every method, write the report.

    Example: it3-vision age demo --out demo --n 500 --epochs 2

    Args:
        out: The folder for all of it.
    """
    verbs.demo(TASK, out, options)
