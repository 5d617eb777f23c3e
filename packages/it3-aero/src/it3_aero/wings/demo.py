"""The whole job in a few minutes: generate, train, evaluate, report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from it3_aero.learning.job import Demo, train_and_report
from it3_aero.learning.model import Training
from it3_aero.wings.dataset import WingDataset
from it3_aero.wings.generating import generate
from it3_aero.wings.task import WINGS

__all__ = ["run_demo"]


def run_demo(
    out: str | Path,
    *,
    n: int = 300,
    seed: int = 0,
    solver: str = "auto",
    training: Training | None = None,
    progress: bool = True,
    say: Callable[[str], object] = print,
) -> Demo:
    """Generates profiles, trains the small preset, evaluates it and writes the report.

    Each step goes on where a killed one was, in the folders `data` and `run` of `out`.

    Args:
        out: the folder for all of it.
        n: number of profiles.
        seed: of the profiles and the training.
        solver: "auto" is XFoil where it works, and NeuralFoil elsewhere.
        training: something else than the small preset with fewer epochs.
        progress: whether to show bars.
        say: what to do with a line on where it is.
    """
    folder = Path(out)
    say(f"1/4 {n} profiles")
    generate(folder / "data", n=n, seed=seed, solver=solver, progress=progress)
    return train_and_report(
        WINGS,
        WingDataset(folder / "data"),
        folder / "data",
        folder,
        training or Training(seed=seed, epochs=60),
        levels=2,
        batch_sizes=(1, 16),
        most=40,
        progress=progress,
        say=say,
    )
