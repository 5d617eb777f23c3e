"""The commands `it3-aero wings ...`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from it3_aero.shapes import options as shared
from it3_aero.shapes.options import Demo, New, Trained, one_thread
from it3_aero.wings.geometry import FamilyName
from it3_core import IT3Error
from it3_core.experiment import verbs
from it3_core.experiment.verbs import NotNegative, Positive, Quiet, Seed, application

app = application("wings", "Wing sections: from their shape to a lift-to-drag ratio.")
verbs.add_report(app, "it3-aero wings")

TASK = "it3_aero.wings.task:TASK"
SolverName = Literal["auto", "xfoil", "neuralfoil"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Generate(shared.Generate):
    """Options of `generate`."""

    n: Annotated[int, Parameter(name=["--n", "-n"])] = 2000
    "Number of profiles."
    family: FamilyName = "naca4"
    "The kind of profile."
    ranges: Annotated[tuple[str, ...], Parameter(name="--range")] = ()
    "NAME=LOW:HIGH, such as camber=0:0.07; repeatable."
    reynolds: Annotated[float, Parameter(name=["--re", "--reynolds"])] = 1e6
    "Reynolds number."
    alpha: float = 0.0
    "Angle of attack in degrees."
    mach: float = 0.0
    "Mach number."
    solver: SolverName = "auto"
    "auto is XFoil where it runs, NeuralFoil elsewhere."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Train(shared.Train):
    """Options of `train`."""

    threshold: verbs.Finite | None = None
    "The largest L/D to train on; 60 if neither it nor a top is given."
    levels: Positive = 3
    "Levels that the profiles above it are sorted into."


Evaluate = shared.Evaluate
Predict = shared.Predict


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of `demo`."""

    n: Annotated[int, Parameter(validator=Number(gte=100))] = 300
    "Number of profiles."
    further: NotNegative = 450
    "Further profiles, for thresholds and intervals alone."
    seed: Seed = 0
    solver: SolverName = "auto"
    "auto is XFoil where it runs, NeuralFoil elsewhere."
    epochs: Positive = 60
    "Of the training."
    quiet: Quiet = False


@app.command
def generate(out: New, /, *, options: Generate = Generate()) -> None:
    """Draw profiles at random, solve each, and keep them in OUT for training.

    Killed at any moment and started again, it loses nothing and makes nothing twice. OUT gets
    raw/samples.jsonl, the data card card.json and histogram.png.

    Example: it3-aero wings generate data -n 300 --range camber=0:0.07 --alpha -2
    """
    from it3_aero.wings.generating import generate as run

    ranges = dict(map(_range, options.ranges))
    with shared.resumable(out):
        card = run(out, **options.settings() | {"ranges": ranges})
    print(shared.summary(out, card, "profiles", "L/D", "lift_to_drag"))


@app.command
def train(data: Path, /, *, options: Train) -> None:
    """Train a network on profiles up to some L/D; started again, it continues where it was.

    Example: it3-aero wings train data --out experiment --seeds 3 --vanilla

    Args:
        data: The folder that generate made.
    """
    one_thread(options.size)
    verbs.train(TASK, data, options)


@app.command
def evaluate(experiment: Trained, /, *, options: Evaluate = Evaluate()) -> None:
    """Compare every method on every level; write records, tables, pictures and the report.

    Example: it3-aero wings evaluate experiment --batch-sizes 1,16
    """
    one_thread()
    verbs.evaluate(TASK, experiment, options)


@app.command
def predict(experiment: Trained, shapes: list[Path], /, *, options: Predict = Predict()) -> int:
    """Predict the lift-to-drag ratio of airfoils in files, and say how unusual they are.

    Exits with 2 if a file has a problem; the others are predicted all the same. --verify runs the
    solver, at the training data's Reynolds number, angle and Mach number.

    Example: it3-aero wings predict experiment mine.dat --verify --plot mine.png

    Args:
        shapes: Airfoil .dat files.
    """
    one_thread()
    return verbs.predict(TASK, experiment, shapes, options, options.plot, options.overwrite)


@app.command
def demo(*, out: Demo = Path("it3-wings-demo"), options: DemoOptions = DemoOptions()) -> None:
    """Generate profiles, train, evaluate and write the report: under five minutes on two cores.

    Example: it3-aero wings demo --n 200
    """
    one_thread()
    verbs.demo(TASK, out, options)


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, ends = text.partition("=")
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        raise IT3Error(
            f"a range is NAME=LOW:HIGH, such as camber=0:0.07, unlike {text!r}"
        ) from None
    return name, (low, high)
