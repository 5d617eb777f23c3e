"""The commands `it3-vision roads …`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from it3_core import IT3Error
from it3_vision import options
from it3_vision.options import Preset

if TYPE_CHECKING:
    from it3_vision.roads.scenes import Scenes

__all__ = ["app"]

app = typer.Typer(
    help="Roads from the air: train a recurrent U-Net, compare every method, map an image.",
    no_args_is_help=True,
)

Resolution = Annotated[float | None, typer.Option(
    help="Metres a pixel of DATA; known for Massachusetts and RoadTracer.")]  # fmt: skip
DataFolder = Annotated[Path, typer.Argument(metavar="DATA", help="images/ and masks/, sat/ and "
                                            "map/, RoadTracer's folders, or a tar.")]  # fmt: skip


class Second(StrEnum):
    """What the second pass is given in training."""

    label = "label"
    noisy = "noisy"
    mixed = "mixed"


class Order(StrEnum):
    """Of the stream of images."""

    mse = "mse"
    given = "given"


class Adaptation(StrEnum):
    """What to do with the network at test time."""

    auto = "auto"
    it3 = "it3"
    statistics = "statistics"
    none = "none"


@app.command()
def train(
    data: DataFolder,
    out: options.NewRun,
    resolution: Resolution = None,
    at: Annotated[float, typer.Option(help="Metres a pixel that the network works at.")] = 1.0,
    split: options.Part = None,
    preset: Annotated[Preset, typer.Option(help="small: for a few CPU cores.")] = Preset.small,
    steps: Annotated[int, typer.Option(min=1, help="Recurrent steps; not IT3's.")] = 3,
    norm: options.NormKind = options.Norm.batch,
    size: Annotated[int, typer.Option(min=16, help="Side of a crop, times 16.")] = 112,
    epochs: Annotated[int, typer.Option(min=1, help="Times through the scenes.")] = 90,
    batch_size: Annotated[int, typer.Option(min=2, help="Crops a step.")] = 8,
    lr: options.Rate = 3e-3,
    second: Annotated[Second, typer.Option(help="The second pass's signal.")] = Second.mixed,
    bfloat16: options.BFloat16 = None,
    vanilla: options.Vanilla = False,
    seed: options.Seed = 0,
    workers: options.Workers = 0,
    device: options.TrainDevice = None,
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Train a network; started again, it goes on where it was. Works under torchrun.

    Example: it3-vision roads train epfl --resolution 0.3 --out run
    """
    from it3_vision.roads.network import DRUSettings
    from it3_vision.roads.reading import open_roads
    from it3_vision.roads.runs import Training
    from it3_vision.roads.runs import train as train_run

    options.check_rate(lr)
    scenes = open_roads(data, resolution=resolution, split=split)
    training = Training(
        DRUSettings(preset.value, steps, norm.value),
        resolution=at,
        size=size,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        second=second.value,
        seed=seed,
        bfloat16=bfloat16,
    )
    about = {"data": str(data), "split": split, "resolution": _resolution(scenes)}
    run = train_run(
        scenes,
        out,
        training,
        about=about,
        vanilla=vanilla,
        device=device,
        workers=workers,
        progress=not quiet,
    )
    options.left_out(run.settings["bad"])
    print(f"held-out quality {100 * (1 - run.settings['held_out_error']):.1f} %")
    print(run.tuning(max(run.tunings)).reason)
    print(run.folder)


@app.command()
def evaluate(
    run: options.RunFolder,
    data: Annotated[Path, typer.Option(help="Scenes with masks, as for train.")],
    resolution: Resolution = None,
    split: options.Part = None,
    window: Annotated[int | None, typer.Option(
        min=32, help="Take a square of this side, with the most data, from each image.")] = None,
    most: Annotated[int | None, typer.Option(min=1, help="Images at most.")] = None,
    batch_sizes: options.BatchSizes = "1,4,8",
    order: Annotated[Order, typer.Option(help="Of the stream: by the source's MSE, or as it "
                                         "comes.")] = Order.mse,
    tile: Annotated[int, typer.Option(min=16, help="Side of a tile, times 16.")] = 256,
    slack: Annotated[float, typer.Option(min=0, help="Of the metric, in pixels.")] = 5.0,
    only: options.Only = None,
    out: options.EvaluationFolder = None,
    device: options.Device = "cpu",
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Compare every method on every image; write records, tables, pictures and a page.

    Example: it3-vision roads evaluate run --data massachusetts --split test
    """
    from it3_core.tables import markdown_table
    from it3_vision.roads.evaluate import evaluate_run, views_of
    from it3_vision.roads.reading import open_roads
    from it3_vision.roads.report import write_report
    from it3_vision.roads.runs import load_run

    sizes = options.numbers(batch_sizes, "batch sizes")
    trained = load_run(run, device)
    tested = views_of(
        trained, open_roads(data, resolution=resolution, split=split), window=window, most=most
    )
    options.left_out(tested.skipped)
    found = evaluate_run(
        trained,
        tested,
        out=out,
        batch_sizes=sizes,
        order=order.value,
        tile=tile,
        slack=slack,
        only=options.names(only),
        progress=not quiet,
    )
    asked = {"data": data, "resolution": resolution, "split": split, "window": window,
             "most": most, "batch-sizes": batch_sizes, "order": order.value, "tile": tile,
             "slack": slack, "only": only, "out": out}  # fmt: skip
    line = options.command("roads", run, asked)
    page = write_report(trained, tested, found, found.folder / "report.html", line)
    print(markdown_table(found.table()))
    print(f"\n{found.folder / 'table.md'}\n{page}")


@app.command()
def predict(
    run: options.RunFolder,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An aerial image.")],
    out: Annotated[Path, typer.Option(metavar="MASK.png", help="255 road, 0 none.")],
    overlay: Annotated[Path | None, typer.Option(help="The image with its roads in red.")] = None,
    lines: Annotated[Path | None, typer.Option(
        help="Centre lines as GeoJSON; needs a world file or a GeoTIFF.")] = None,
    resolution: Annotated[float | None, typer.Option(
        help="Metres a pixel; else by the georeference, else the network's.")] = None,
    adapt: Annotated[Adaptation, typer.Option(help="auto is what tuning chose.")] = Adaptation.auto,
    steps: Annotated[int, typer.Option(min=1, help="Of IT3, with --adapt it3.")] = 1,
    tile: Annotated[int, typer.Option(min=16, help="Side of a tile, times 16.")] = 256,
    device: options.Device = "cpu",
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Map the roads of an image: a mask, and on request an overlay and centre lines.

    Example: it3-vision roads predict run town.tif --out mask.png --overlay town.jpg
    """
    from it3_vision.roads.georeference import find_georeference
    from it3_vision.roads.predict import check_files, read_scene, write_prediction
    from it3_vision.roads.predict import predict as answer
    from it3_vision.roads.runs import load_run

    check_files(image, out, overlay, lines)
    trained = load_run(run, device)
    where = find_georeference(image) if image.is_file() else None
    if lines is not None and where is None and image.is_file():
        raise IT3Error(
            f"{image} has no georeference: put a world file beside it, or leave out --lines"
        )
    scene = read_scene(image, resolution, trained.resolution)
    found = answer(trained, scene, adapt.value, steps=steps, tile=tile, progress=not quiet)
    write_prediction(found, scene, out, overlay, lines)
    print(found)
    if resolution is None and (where is None or where.resolution is None):
        print(
            f"{image} does not say its ground resolution: taken for the network's, "
            f"{trained.resolution:g} m a pixel; say another with --resolution",
            file=sys.stderr,
        )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for all of it.")] = Path("it3-roads-demo"),
    n: Annotated[int, typer.Option(min=16, help="Scenes to train on.")] = 96,
    tested: Annotated[int, typer.Option(min=4, help="Scenes to test on.")] = 12,
    epochs: Annotated[int, typer.Option(min=1, help="Of the training.")] = 16,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Draw towns and countryside, train on the first, test on the second, write the report."""
    from it3_vision.roads.demo import run_demo

    made = run_demo(out, n=n, tested=tested, seed=seed, epochs=epochs, progress=not quiet)
    made.tell(made.evaluation.table())


def _resolution(scenes: Scenes) -> float | None:
    """That of the first scene that can be read; training tells of the others."""
    from it3_vision.data import BadImage

    for row in range(len(scenes)):
        try:
            return scenes[row].resolution
        except BadImage:
            continue
    return None
