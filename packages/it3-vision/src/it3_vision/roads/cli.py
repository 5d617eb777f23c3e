"""The commands `it3-vision roads …`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from it3_core.errors import IT3Error
from it3_core.experiment import verbs
from it3_core.experiment.verbs import NotNegative, Overwrite, Positive, Quiet, Seed, application
from it3_vision.image_options import Normalisation, Preset, SecondSignal, Size

app = application(
    "roads",
    "Roads from the air: train a recurrent U-Net, compare every method, map images.\n\n"
    "Example: it3-vision roads demo",
)
verbs.add_report(app, "it3-vision roads")

TASK = "it3_vision.roads.task:TASK"
Side = Annotated[int, Parameter(validator=Number(gte=16, lte=4096, modulo=16))]
Metres = Annotated[float, Parameter(validator=Number(gt=0, lt=1000))]

_EXACT = (".png", ".tif", ".tiff", ".bmp")  # a mask has two values, which JPEG would blur
_ENDS = {"--out": ".png", "--overlay": "-overlay.png", "--lines": ".geojson"}
_KINDS = {"--out": _EXACT, "--overlay": (*_EXACT, ".jpg", ".jpeg")}


@dataclass(frozen=True, kw_only=True)
class Train(verbs.TrainOptions):
    """Options of `train`."""

    resolution: Metres | None = None
    "Metres a pixel of DATA; known for Massachusetts and RoadTracer."
    split: str | None = None
    "Which split, if DATA has several."
    at: Metres = 1.0
    "Metres a pixel that the network works at; scenes are brought to it."
    preset: Preset | None = None
    """paper: the paper's protocol in place of ours: the full network, true masks as second signal,
    and TTT's head; what else is given goes before."""
    size: Size | None = None
    """Filters: 32 to 256 and a state of 512 (full), a quarter (small), an eighth (tiny). By default
    small, or the preset's."""
    steps: Positive = 3
    "Recurrent steps; not IT3's."
    norm: Normalisation = "batch"
    "Batch norm or group norm."
    crop: Side = 112
    "Side of a crop, in pixels that the network works at; a multiple of 16."
    epochs: Positive = 80
    "Times through the scenes, each cut into as many crops as fit."
    batch_size: Annotated[int, Parameter(validator=Number(gte=2))] = 8
    "Crops a step."
    lr: Annotated[float, Parameter(validator=Number(gt=0, lt=1000))] = 3e-3
    "The largest rate of AdamW, in one cycle."
    second_signal: SecondSignal | None = None
    "What the second pass is given: true masks, or some of them with wrong patches, our default."
    noisy_fraction: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.5
    "The fraction of masks with wrong patches."
    rotation: Annotated[bool | None, Parameter(negative="--no-rotation")] = None
    "Train the head that TTT needs too, on a fourth of each batch; by default with the preset."
    bfloat16: Annotated[bool | None, Parameter(negative="--no-bfloat16")] = None
    "Multiply in bfloat16, if the CPU can; by default on a GPU only."
    held_out: Annotated[float, Parameter(validator=Number(gt=0, lt=0.9))] = 0.2
    """Share of the scenes that is not trained on, up to 128: a quarter of these is for every
    choice, the others set thresholds and intervals."""


@dataclass(frozen=True, kw_only=True)
class Evaluate(verbs.EvaluateOptions):
    """Options of `evaluate`."""

    data: Path
    "Scenes with masks, as for train."
    resolution: Metres | None = None
    "Metres a pixel of DATA; known for Massachusetts and RoadTracer."
    split: str | None = None
    "Which split, if DATA has several."
    window: Annotated[int, Parameter(validator=Number(gte=32))] | None = None
    "Take a square of this side, with the most data, from each image."
    most: Positive | None = None
    "Images at most."
    batch_sizes: str = "4,8,16"
    "Batch sizes in images, separated by commas."
    order: Literal["mse", "given"] = "mse"
    "Order of the images: by the source's MSE, or as they are in DATA."
    tile: Side = 256
    "Side of a tile, a multiple of 16."
    slack: Annotated[float, Parameter(validator=Number(gte=0))] = 5.0
    "Distance in pixels that correctness and completeness allow."
    further: NotNegative = 0
    """Add a network that is trained further on one half of DATA, for so many epochs, and predicts
    the other half. It takes their labels: no test-time method."""


@dataclass(frozen=True, kw_only=True)
class Predict(verbs.PredictOptions):
    """Options of `predict`."""

    out: Path | None = None
    "The mask, such as mask.png: 255 road, 0 none. For several images, a folder."
    overlay: Path | None = None
    "The image with its roads in red, or a folder."
    lines: Path | None = None
    "Centre lines as GeoJSON, or a folder; needs a world file or a GeoTIFF."
    resolution: Metres | None = None
    "Metres a pixel; else by the georeference, else the network's."
    tile: Side = 256
    "Side of a tile, a multiple of 16."
    overwrite: Overwrite = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of `demo`."""

    n: Annotated[int, Parameter(validator=Number(gte=16))] = 96
    "Scenes to train on."
    tested: Annotated[int, Parameter(validator=Number(gte=4))] = 12
    "Scenes to test on."
    epochs: Positive = 16
    "Of the training."
    seed: Seed = 0
    quiet: Quiet = False


@app.command
def train(data: Path, /, *, options: Train) -> None:
    """Train a network; started again, it goes on where it was. Works under torchrun.

    Example: it3-vision roads train epfl --resolution 0.3 --out experiment

    Args:
        data: images/ and masks/, sat/ and map/, RoadTracer's folders, or a tar.
    """
    verbs.train(TASK, data, options)


@app.command
def evaluate(experiment: Path, /, *, options: Evaluate) -> None:
    """Compare every method on every image; write records, tables, pictures and a page.

    Example: it3-vision roads evaluate experiment --data massachusetts --split test

    Args:
        experiment: The folder that train made.
    """
    verbs.evaluate(TASK, experiment, options)


@app.command
def predict(experiment: Path, images: list[Path], /, *, options: Predict = Predict()) -> int:
    """Map the roads of images: a mask, and on request an overlay and centre lines.

    Exits with 2 if an image had a problem; the others are predicted all the same.

    Example: it3-vision roads predict experiment town.tif --out mask.png --overlay town.jpg

    Args:
        experiment: The folder that train made.
        images: Aerial images.
    """
    _check_files(options, images, experiment)
    if options.adapt == "instance":  # an image is an instance, and its tiles are a batch
        options = replace(options, adapt="batch")
    return verbs.predict(TASK, experiment, images, options)


@app.command
def demo(*, out: Path = Path("it3-roads-demo"), options: DemoOptions = DemoOptions()) -> None:
    """Draw towns and countryside, train on the first, test on the second, write the report.

    Example: it3-vision roads demo --out demo --n 32 --epochs 2

    Args:
        out: The folder for all of it.
    """
    verbs.demo(TASK, out, options)


def files_of(options: Predict, image: Path) -> dict[str, Path]:
    """What to write for an image, by option; in a folder, a file of the image's name."""
    named = {"--out": options.out, "--overlay": options.overlay, "--lines": options.lines}
    return {
        option: path / f"{image.stem}{_ENDS[option]}" if path.is_dir() else path
        for option, path in named.items()
        if path is not None
    }


def _check_files(options: Predict, images: Sequence[Path], experiment: Path) -> None:
    """Says what could not be written, or would be written over, before the work is done."""
    from it3_core.io.output import output_file
    from it3_vision.roads.geo import find_world_file

    inputs = [*images, *filter(None, map(find_world_file, images))]
    files = [one for image in images for one in files_of(options, image).items()]
    for option, path in files:
        output_file(path, overwrite=options.overwrite, inputs=inputs, experiment=experiment)
        if (kinds := _KINDS.get(option)) and path.suffix.lower() not in kinds:
            raise IT3Error(f"{path} can't be written: its name must end in {', '.join(kinds)}")
    if len({path.resolve() for _, path in files}) < len(files):
        given = ", ".join(dict.fromkeys(option for option, _ in files))
        raise IT3Error(f"{given} name one file twice: name a folder for several images")
