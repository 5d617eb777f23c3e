"""The demonstration: train on drawn towns, test on the drawn countryside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from it3_core.files import make_folder
from it3_vision.demonstrating import Demo
from it3_vision.roads.drawing import drawn_scenes
from it3_vision.roads.evaluate import Evaluation, evaluate_run, views_of
from it3_vision.roads.network import DRUSettings
from it3_vision.roads.report import write_report
from it3_vision.roads.runs import Run, Training, train

__all__ = ["run_demo"]


def run_demo(
    out: str | Path,
    *,
    n: int = 96,
    tested: int = 12,
    seed: int = 0,
    epochs: int = 16,
    size: int = 128,
    progress: bool = True,
    say: Callable[[str], object] = print,
) -> Demo[Run, Evaluation]:
    """Draws, trains, evaluates and writes the report.

    Args:
        out: the folder for all of it.
        n: scenes to train on.
        tested: scenes to test on.
        seed: of everything.
        epochs: of the training.
        size: side of a scene in pixels, a multiple of 64.
        progress: whether to show bars.
        say: what to do with a line of text.
    """
    folder = make_folder(out)
    say(f"Drawing {n} towns and training a small recurrent network on them ...")
    towns = drawn_scenes("urban", n, size, seed=1000 * seed)
    # Four crops of a scene: more steps, which is what so short a training lacks.
    network = DRUSettings("tiny", steps=2)
    training = Training(network, size=size // 2, epochs=epochs, lr=2e-2, seed=seed)
    about = {"data": f"{n} drawn towns of {size} × {size} pixels", "seed": seed}
    run = train(towns, folder / "run", training, about=about, progress=progress)
    say(f"Drawing {tested} pieces of countryside, and asking every method about their roads ...")
    country = views_of(run, drawn_scenes("rural", tested, size, seed=1000 * seed + 500))
    found = evaluate_run(
        run,
        country,
        out=folder / "evaluation",
        batch_sizes=(1, 4),
        tile=size // 2 + 16,  # four tiles
        progress=progress,
    )
    command = f"it3-vision roads demo --n {n} --tested {tested} --epochs {epochs} --seed {seed}"
    page = write_report(run, country, found, folder / "report.html", command)
    return Demo(run, found, page)
