"""The commands `it3-vision age …`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from it3_vision import options
from it3_vision.options import Preset

__all__ = ["app"]

app = typer.Typer(
    help="Train a network that says how old a face is, compare every method, answer for faces.",
    no_args_is_help=True,
)


class Split(StrEnum):
    """Which faces to test on."""

    test = "test"
    all = "all"


@app.command()
def train(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder, folders of parts or a tar "
                                         "of AGE_GENDER_RACE_DATE.jpg, as UTKFace's are.")],
    out: options.NewRun,
    low: Annotated[int, typer.Option(min=0, help="The youngest to train on, in years.")] = 20,
    high: Annotated[int, typer.Option(min=1, help="The oldest to train on.")] = 60,
    tested: Annotated[float, typer.Option(help="Share that is set apart for testing.")] = 0.2,
    preset: Annotated[Preset, typer.Option(help="small: ResNet-18, paper: ResNet-152.")] = (
        Preset.small
    ),
    norm: options.NormKind = options.Norm.batch,
    layer: Annotated[str, typer.Option(help="Where the signal enters.")] = "layer2",
    size: Annotated[int | None, typer.Option(
        min=8, max=10_000, help="Images are brought to this size.",
        show_default="64, or 224 for paper")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times through the faces.")] = 45,
    batch_size: Annotated[int, typer.Option(min=2, help="Faces a step.")] = 64,
    lr: options.Rate = 0.05,
    second: options.Signal = options.Second.label,
    weight: options.Weight = 0.1,
    weights: options.Weights = None,
    new_head: Annotated[bool, typer.Option(help="WEIGHTS answer something else.")] = False,
    normalise: options.NormaliseBy = options.Normalise.data,
    bfloat16: options.BFloat16 = None,
    vanilla: options.Vanilla = False,
    seed: options.Seed = 0,
    workers: options.Workers = 0,
    device: options.TrainDevice = None,
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Train a network; started again, it goes on where it was. Works under torchrun.

    Example: it3-vision age train UTKFace --out run --bfloat16
    """
    from it3_vision.age.faces import read_faces
    from it3_vision.age.network import FaceSettings
    from it3_vision.age.runs import Training
    from it3_vision.age.runs import train as train_run

    options.check_rate(lr)
    training = Training(
        FaceSettings(preset.value, norm.value, layer, size),
        low,
        high,
        tested,
        epochs,
        batch_size,
        lr,
        second.value,
        weight,
        seed,
        weights,
        new_head,
        normalise.value,
        bfloat16,
    )
    training.interval  # noqa: B018  # says what is wrong with it before anything is read
    faces = read_faces(data)
    options.left_out(faces.problems)
    run = train_run(
        faces.images,
        out,
        training,
        about={"data": str(data)},
        problems=faces.problems,
        vanilla=vanilla,
        device=device,
        workers=workers,
        progress=not quiet,
    )
    told, history = run.settings, run.history
    print(
        f"{out}: trained on {told['faces']:,} faces of {run.interval.name} years for "
        f"{len(history['train'])} epochs in {history['seconds']:.0f} s; wrong by "
        f"{told['held_out_error']:.2f} years on held-out ones, where the mean age is by "
        f"{told['held_out_error_of_the_mean']:.2f}; |dF/ds| {told['sensitivity']:.2f}."
    )
    for number, tuning in sorted(run.tunings.items()):
        print(f"Batches of {number} and more: {tuning.reason}")


@app.command()
def evaluate(
    run: options.RunFolder,
    data: Annotated[Path, typer.Option(help="Faces of all ages, named as for train.")],
    split: Annotated[Split, typer.Option(
        help="test: of the trained ages only those that train set apart.")] = Split.test,
    levels: Annotated[str, typer.Option(help="Years beyond the interval where levels end.")] = (
        "10,20"
    ),
    batch_sizes: options.BatchSizes = "4,8,16",
    most: Annotated[int, typer.Option(min=2, help="Faces of a level at most.")] = 300,
    only: options.Only = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw of the faces.")] = 0,
    out: options.EvaluationFolder = None,
    device: options.Device = "cpu",
    quiet: options.Quiet = False,
) -> None:  # fmt: skip
    """Compare every method on younger and older faces; write records, tables, pictures, a page.

    Example: it3-vision age evaluate run --data UTKFace
    """
    from it3_core.tables import markdown_table
    from it3_vision.age.evaluate import Levels, evaluate_run
    from it3_vision.age.faces import read_faces
    from it3_vision.age.report import write_report
    from it3_vision.age.runs import load_run

    sizes = options.numbers(batch_sizes, "batch sizes")
    trained = load_run(run, device)
    edges = tuple(options.numbers(levels, "levels"))
    faces = read_faces(data)
    shifts = Levels.of(
        trained, faces.images, edges, most=most, seed=seed, everything=split == Split.all
    )
    options.left_out([*faces.problems, *shifts.bad])
    found = evaluate_run(
        trained,
        shifts,
        out=out,
        batch_sizes=sizes,
        only=options.names(only),
        progress=not quiet,
    )
    asked = {"data": data, "split": split.value, "levels": levels, "batch-sizes": batch_sizes,
             "most": most, "only": only, "seed": seed, "out": out}  # fmt: skip
    page = write_report(
        trained, shifts, found, found.folder / "report.html", options.command("age", run, asked)
    )
    print(markdown_table(found.summary()))
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
    """Say how old faces are, before and after adaptation, and how unusual they are.

    Exits with 2 if an image had a problem; the others are answered all the same.
    """
    from it3_vision.age.predict import predict as answer
    from it3_vision.age.runs import load_run

    options.tell(answer(load_run(run, device), images, adapt.value, progress=not quiet), as_json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for all of it.")] = Path("it3-age-demo"),
    n: Annotated[int, typer.Option(min=200, help="Faces to draw.")] = 3000,
    epochs: Annotated[int, typer.Option(min=1, help="Of the training.")] = 8,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Draw faces, train, compare every method, write the report."""
    from it3_vision.age.demo import run_demo

    made = run_demo(out, n=n, seed=seed, epochs=epochs, progress=not quiet)
    made.tell(made.evaluation.summary())
