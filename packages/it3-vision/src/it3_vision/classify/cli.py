"""The commands `it3-vision classify …`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from it3_core import IT3Error
from it3_vision import options
from it3_vision.options import Preset

if TYPE_CHECKING:
    from it3_vision.classify.evaluate import Shifts
    from it3_vision.classify.runs import Run

__all__ = ["app"]

app = typer.Typer(
    help="Train a classifier with a second input, compare every method, answer for images.",
    no_args_is_help=True,
)


@app.command()
def train(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="CLASS/FILE folders, a tar of them, "
                                         "CIFAR's .bin files, MNIST's IDX files ...")],
    out: options.NewRun,
    split: options.Part = None,
    network: Annotated[str, typer.Option(help="dla, resnet18, 34, 50 or 152.")] = "dla",
    preset: Annotated[Preset, typer.Option(help="small: for a few CPU cores.")] = Preset.small,
    norm: options.NormKind = options.Norm.batch,
    layer: Annotated[str | None, typer.Option(help="Where the signal enters.")] = None,
    size: Annotated[int, typer.Option(
        min=8, max=10_000, help="Images are brought to this size.")] = 32,
    epochs: Annotated[int, typer.Option(min=1, help="Times through the images.")] = 12,
    batch_size: Annotated[int, typer.Option(min=2, help="Images a step.")] = 128,
    lr: options.Rate = 0.2,
    second: options.Signal = options.Second.label,
    weight: options.Weight = 1.0,
    rotation: Annotated[bool, typer.Option(help="Train TTT's head too.")] = True,
    flip: Annotated[bool, typer.Option(help="Not for digits and letters.")] = True,
    weights: options.Weights = None,
    new_head: Annotated[bool, typer.Option(help="WEIGHTS know other classes.")] = False,
    normalise: options.NormaliseBy = options.Normalise.data,
    bfloat16: options.BFloat16 = None,
    vanilla: options.Vanilla = False,
    seed: options.Seed = 0,
    workers: options.Workers = 0,
    device: options.TrainDevice = None,
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Train a classifier; started again, it goes on where it was. Works under torchrun.

    Example: it3-vision classify train cifar-10-batches-bin --split train --out run
    """
    from it3_vision.classify.runs import Training
    from it3_vision.classify.runs import train as train_run
    from it3_vision.data import open_images
    from it3_vision.networks import NetworkSettings

    options.check_rate(lr)
    options.check_outside(out, data)
    images = open_images(data, split=split)
    settings = NetworkSettings(network, preset.value, norm.value, layer, size)
    training = Training(
        settings,
        epochs,
        batch_size,
        lr,
        second.value,
        weight,
        rotation,
        flip,
        seed,
        weights,
        new_head,
        normalise.value,
        bfloat16,
    )
    run = train_run(
        images,
        out,
        training,
        about={"data": str(data), "split": split},
        vanilla=vanilla,
        device=device,
        workers=workers,
        progress=not quiet,
    )
    history = run.history
    print(
        f"{out}: trained on {run.settings['images']:,} images of {len(run.classes)} classes for "
        f"{len(history['train'])} epochs in {history['seconds']:.0f} s; wrong on "
        f"{100 * run.settings['held_out_error']:.1f} % of the held-out ones; |dF/ds| "
        f"{run.settings['sensitivity']:.2f}."
    )
    for number, tuning in sorted(run.tunings.items()):
        print(f"Batches of {number} and more: {tuning.reason}")
    if run.settings["bad"]:
        print(f"{len(run.settings['bad'])} images were left out: {run.settings['bad'][0]}")


@app.command()
def evaluate(
    run: options.RunFolder,
    data: Annotated[Path, typer.Option(help="Clean test images, of the same classes.")],
    split: options.Part = None,
    corrupted: Annotated[Path | None, typer.Option(
        help="CIFAR-10-C or ImageNet-C of the same images; made here without it.")] = None,
    corruptions: Annotated[str, typer.Option(help="Names, separated by commas, or all.")] = "all",
    severities: Annotated[str, typer.Option(help="Such as 5 or 1,3,5.")] = "5",
    batch_sizes: options.BatchSizes = "1,16,64",
    most: Annotated[int, typer.Option(min=2, help="Test images at most.")] = 2000,
    slow: Annotated[bool, typer.Option(help="MEMO and TTT, many passes an image.")] = True,
    only: options.Only = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw and the corruptions.")] = 0,
    out: options.EvaluationFolder = None,
    device: options.Device = "cpu",
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Compare every method under every corruption; write records, tables, pictures and a page.

    Example: it3-vision classify evaluate run --data cifar-10-batches-bin --split test
    """
    from it3_core.tables import markdown_table
    from it3_vision.classify.evaluate import evaluate_run
    from it3_vision.classify.report import write_report
    from it3_vision.classify.runs import load_run

    sizes = options.numbers(batch_sizes, "batch sizes")
    trained = load_run(run, device)
    shifts = shifts_of(trained, data, split, corrupted, corruptions, severities, most, seed)
    if lost := shifts.unmeasured():
        typer.echo(f"{data}: {lost}", err=True)
    found = evaluate_run(
        trained,
        shifts,
        out=out,
        batch_sizes=sizes,
        slow=slow,
        only=options.names(only),
        progress=not quiet,
    )
    asked = {"data": data, "split": split, "corrupted": corrupted, "corruptions": corruptions,
             "severities": severities, "batch-sizes": batch_sizes, "most": most, "only": only,
             "seed": seed, "out": out, "no-slow": not slow}  # fmt: skip
    page = write_report(
        trained,
        shifts,
        found,
        found.folder / "report.html",
        options.command("classify", run, asked),
    )
    print(markdown_table(found.summary(found.severities[-1])))
    print(f"\n{found.folder / 'table.md'}\n{page}")


@app.command()
def predict(
    run: options.RunFolder,
    images: options.Images,
    adapt: options.Adapt = options.Adaptation.auto,
    as_json: options.AsJson = False,
    device: options.Device = "cpu",
    quiet: options.Quiet = False,
) -> None:
    """Say what images show, before and after adaptation, and how unusual they are.

    Exits with 2 if an image had a problem; the others are answered all the same.
    """
    from it3_vision.classify.predict import predict as answer
    from it3_vision.classify.runs import load_run

    options.tell(answer(load_run(run, device), images, adapt.value, progress=not quiet), as_json)


def shifts_of(
    run: Run,
    data: Path,
    split: str | None,
    corrupted: Path | None,
    corruptions: str,
    severities: str,
    most: int,
    seed: int,
) -> Shifts:
    """The test images that a command line asks for."""
    from it3_vision.classify.evaluate import Shifts
    from it3_vision.corruptions import CORRUPTIONS, constants
    from it3_vision.data import open_images

    kinds = tuple(dict.fromkeys(name.strip() for name in corruptions.split(",")))
    if kinds == ("all",):
        kinds = CORRUPTIONS
    strengths = tuple(sorted(set(options.numbers(severities, "severities"))))
    for kind in kinds:
        for severity in strengths:
            constants(kind, severity, "imagenet")  # says what is wrong with either
    images = open_images(data, split=split, classes=run.classes)
    images = images.take(images.labels >= 0)
    if not len(images):
        raise IT3Error(f"{data} holds no labelled image: there is nothing to compare with")
    images, bad = images.sample(min(most, len(images)), seed).sound()
    options.left_out(bad)
    if not len(images):
        raise IT3Error(f"none of the images in {data} can be read: {bad[0]}")
    return Shifts(images, kinds, strengths, corrupted, seed)
