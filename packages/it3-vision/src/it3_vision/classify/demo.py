"""The demonstration: characters drawn with OpenCV's own fonts, so that nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_core.files import make_folder
from it3_vision.classify.evaluate import Evaluation, Shifts, evaluate_run
from it3_vision.classify.report import write_report
from it3_vision.classify.runs import Run, Training, train
from it3_vision.data import ImageSet
from it3_vision.demonstrating import Demo
from it3_vision.networks import NetworkSettings

__all__ = ["CHARACTERS", "characters", "run_demo"]

CHARACTERS = "ABEGHKMPRSTXYZ247"
"""What is drawn: characters that can be told apart in all fonts."""

_FONTS = (
    cv2.FONT_HERSHEY_SIMPLEX,
    cv2.FONT_HERSHEY_PLAIN,
    cv2.FONT_HERSHEY_DUPLEX,
    cv2.FONT_HERSHEY_COMPLEX,
    cv2.FONT_HERSHEY_TRIPLEX,
    cv2.FONT_HERSHEY_COMPLEX_SMALL,
)
_SIZE = 32
_TUNED = {16: 128, 64: 192}  # images for tuning: enough for a demonstration
_ROWS = ("second pass", "batch statistics", "blended statistics", "IT³, source statistics",
         "IT³, batch statistics", "IT³ auto", "online IT³", "ActMAD", "Tent", "EATA")  # fmt: skip
_LARGER = 4  # drawn so many times larger, and shrunk: smooth edges


def characters(n: int, seed: int = 0) -> ImageSet:
    """Images of single characters: font, place, slant, size, colours and light differ.

    Args:
        n: how many; the classes come in turn.
        seed: of everything else.

    Example:
        >>> images = characters(20)
        >>> images.image(0).shape, images.classes[images.labels[0]]
        ((32, 32, 3), 'A')
    """
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % len(CHARACTERS)
    pixels = np.stack([_drawn(CHARACTERS[label], rng) for label in labels])
    return ImageSet.from_array(pixels, labels, list(CHARACTERS), title="characters")


def _drawn(character: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    side = _SIZE * _LARGER
    font, thickness = _FONTS[int(rng.integers(len(_FONTS)))], int(rng.integers(6, 14))
    (width, height), _ = cv2.getTextSize(character, font, 1.0, 1)
    scale = side * rng.uniform(0.5, 0.72) / max(width, height, 1)
    (width, height), _ = cv2.getTextSize(character, font, scale, thickness)
    mask: NDArray[Any] = np.zeros((side, side), np.uint8)
    corner = ((side - width) // 2, (side + height) // 2)
    cv2.putText(mask, character, corner, font, scale, 255, thickness, cv2.LINE_AA)
    middle = (side / 2, side / 2)
    turn: NDArray[Any] = cv2.getRotationMatrix2D(middle, rng.uniform(-15, 15), 1.0)
    turn[:, 2] += rng.uniform(-0.08, 0.08, 2) * side
    turn[0, 1] += rng.uniform(-0.15, 0.15)  # a slant
    mask = cv2.warpAffine(mask, turn, (side, side))
    mask = cv2.resize(mask, (_SIZE, _SIZE), interpolation=cv2.INTER_AREA)
    paper = rng.uniform(140, 240) + rng.uniform(-30, 30, 3)
    ink = rng.uniform(0, 90) + rng.uniform(-30, 30, 3)
    towards = rng.uniform(-1, 1, 2)
    places = np.linspace(-1, 1, _SIZE)
    light = 30 * (towards[0] * places[:, None] + towards[1] * places[None, :])[..., None]
    share = (mask / 255.0)[..., None]
    image = share * ink + (1 - share) * paper + light + rng.normal(0, 4, (_SIZE, _SIZE, 3))
    drawn: NDArray[np.uint8] = image.clip(0, 255).astype(np.uint8)
    return drawn


def run_demo(
    out: str | Path,
    *,
    n: int = 2000,
    tested: int = 128,
    seed: int = 0,
    epochs: int = 5,
    progress: bool = True,
    say: Callable[[str], object] = print,
) -> Demo[Run, Evaluation]:
    """Draws, trains, corrupts, evaluates and writes the report.

    Args:
        out: the folder for all of it.
        n: images to train on.
        tested: images to test on.
        seed: of everything.
        epochs: of the training.
        progress: whether to show bars.
        say: what to do with a line of text.
    """
    folder = make_folder(out)
    training = Training(
        NetworkSettings(preset="tiny"),
        epochs=epochs,
        batch_size=32,
        lr=0.05,
        rotation=False,  # TTT, whose head that is, is left out below
        flip=False,
        seed=seed,
    )
    say(f"Drawing {n} characters and training a small network on them ...")
    about = {"data": f"{n} characters drawn with OpenCV's fonts", "seed": seed}
    run = train(
        characters(n, seed), folder / "run", training, about=about, tuned=_TUNED, progress=progress
    )
    say(f"Corrupting {tested} others in fifteen ways, and asking eleven methods about them ...")
    shifts = Shifts(characters(tested, seed + 1), seed=seed)
    found = evaluate_run(
        run,
        shifts,
        out=folder / "evaluation",
        batch_sizes=(16, 64),
        slow=False,  # MEMO and TTT would take longer than all the rest
        only=_ROWS,  # ETA is much like EATA, and Tent for each batch alone like Tent
        progress=progress,
    )
    command = f"it3-vision demo --n {n} --tested {tested} --epochs {epochs} --seed {seed}"
    page = write_report(run, shifts, found, folder / "report.html", command)
    return Demo(run, found, page)
