"""The demonstration on drawn faces, so that nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from it3_core.files import make_folder
from it3_vision.age.drawing import draw_faces
from it3_vision.age.evaluate import Evaluation, Levels, evaluate_run
from it3_vision.age.network import FaceSettings
from it3_vision.age.report import write_report
from it3_vision.age.runs import Run, Training, train
from it3_vision.demonstrating import Demo

__all__ = ["run_demo"]

_TUNED = {4: 48, 16: 96}  # faces for tuning: enough for a demonstration


def run_demo(
    out: str | Path,
    *,
    n: int = 3000,
    seed: int = 0,
    epochs: int = 8,
    progress: bool = True,
    say: Callable[[str], object] = print,
) -> Demo[Run, Evaluation]:
    """Draws faces, trains, evaluates and writes the report.

    Args:
        out: the folder for all of it.
        n: faces to draw.
        seed: of everything.
        epochs: of the training.
        progress: whether to show bars.
        say: what to do with a line of text.
    """
    folder = make_folder(out)
    say(f"Drawing {n} faces and training a small network on those of 20 to 60 years ...")
    faces = draw_faces(n, seed)
    training = Training(FaceSettings("tiny"), epochs=epochs, batch_size=32, seed=seed)
    about = {"data": f"{n} faces drawn with OpenCV", "seed": seed}
    run = train(faces, folder / "run", training, about=about, tuned=_TUNED, progress=progress)
    say("Asking every method about younger and older ones ...")
    levels = Levels.of(run, faces, most=64, seed=seed)
    found = evaluate_run(
        run, levels, out=folder / "evaluation", batch_sizes=(4, 16), progress=progress
    )
    command = f"it3-vision age demo --n {n} --epochs {epochs} --seed {seed}"
    page = write_report(run, levels, found, folder / "report.html", command)
    return Demo(run, found, page)
