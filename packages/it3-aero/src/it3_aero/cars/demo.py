"""The whole job in a few minutes, on the cars that come with this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from it3_aero.cars.dataset import SAMPLE, CarDataset
from it3_aero.cars.task import CARS, Car
from it3_aero.learning.job import Demo, train_and_report
from it3_aero.learning.model import Training
from it3_aero.learning.predict import Prediction, answer, verify
from it3_aero.learning.runs import Run

__all__ = ["fresh_cars", "run_demo"]

_PASSES = 4_600  # cars times epochs


def run_demo(
    out: str | Path,
    *,
    data: str | Path = SAMPLE,
    training: Training | None = None,
    most: int = 40,
    progress: bool = True,
    say: Callable[[str], object] = print,
) -> Demo:
    """Trains the small preset, evaluates it and writes the report.

    Each step goes on where a killed one was, in the folder `run` of `out`.

    Args:
        out: the folder for all of it.
        data: a folder of `it3-aero cars generate` or a file of `pack` in place of the sample.
        training: something else than the small preset; without epochs of its own, it has fewer
            the more cars there are, so that the demo stays short.
        most: cars of a level at most.
        progress: whether to show bars.
        say: what to do with a line on where it is.
    """
    dataset = CarDataset(data)
    chosen = training or Training()
    if chosen.epochs is None:
        chosen = replace(chosen, epochs=_epochs(len(dataset), chosen.recipe(CARS).epochs))
    say(f"1/4 {len(dataset)} cars")
    return train_and_report(
        *(CARS, dataset, Path(data), Path(out), chosen),
        levels=CARS.levels,
        batch_sizes=CARS.batch_sizes,
        most=most,
        progress=progress,
        say=say,
    )


def fresh_cars(
    run: Run,
    out: str | Path,
    number: int,
    *,
    seed: int = 1,
    progress: bool = True,
) -> list[Prediction]:
    """Draws cars that nobody has seen, solves them, and has the network answer for them.

    A killed one goes on where it was.

    Args:
        run: who answers.
        out: the folder for the cases.
        number: of cars.
        seed: which ones.
        progress: whether to show a bar.
    """
    import trimesh

    from it3_aero.cars.generating import generate

    preset = str(run.settings["about"]["preset"])  # as fine as what it was trained on
    generate(out, n=number, seed=seed, preset=preset, progress=progress)
    dataset = CarDataset(out)
    cars = [
        Car(graph.name, trimesh.Trimesh(graph.pos.numpy(), graph.face.t().numpy(), process=False))
        for graph in dataset
    ]
    truth = {id(car): float(graph.y) for car, graph in zip(cars, dataset, strict=True)}
    found = answer(run, cars)
    verify(found, lambda car: (dataset.solver, truth[id(car)], None))
    return found


def _epochs(cars: int, most: int) -> int:
    return max(1, min(most, _PASSES // cars))
