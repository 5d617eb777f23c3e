"""The whole job in a few minutes: generate, train, evaluate, report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from it3_aero.wings.dataset import WingDataset
from it3_aero.wings.evaluate import Evaluation, Levels, evaluate_run
from it3_aero.wings.generating import generate
from it3_aero.wings.model import Run, Training, train
from it3_aero.wings.report import write_report
from it3_core import IT3Error

__all__ = ["Demo", "about", "run_demo"]


@dataclass(frozen=True)
class Demo:
    """What the demo made: a RUN, its evaluation, and the page."""

    run: Run
    evaluation: Evaluation
    report: Path


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
    dataset = WingDataset(folder / "data")
    levels = Levels.of(dataset, levels=2)
    if len(levels.test) < 2:
        raise IT3Error(f"none of the {n} profiles lies beyond the threshold: generate more")
    say(f"2/4 training on {len(levels.train)} of them; {dataset.solver} gave the answers")
    run = train(
        levels.train,
        folder / "run",
        training or Training(seed=seed, epochs=60),
        card=data_card(dataset),
        about=about(dataset, folder / "data", levels=2),
        progress=progress,
    )
    say("3/4 evaluating")
    asked = "NeuralFoil" not in dataset.solver  # it is no yardstick for its own answers
    found = evaluate_run(
        run, levels, batch_sizes=(1, 16), most=40, neuralfoil=asked, progress=progress
    )
    say("4/4 report")
    page = write_report(run, levels.drawn(40), found, folder / "report.html", "it3-aero wings demo")
    return Demo(run, found, page)


def about(
    dataset: WingDataset, folder: Path, threshold: float = 60.0, levels: int = 3
) -> dict[str, object]:
    """What a RUN remembers of its data."""
    return {
        "data": str(folder.resolve()),
        "threshold": threshold,
        "levels": levels,
        "solver": dataset.solver,
        "reynolds": dataset.settings["reynolds"],
        "alpha": dataset.settings["alpha"],
    }


def data_card(dataset: WingDataset) -> dict[str, object]:
    """The card that `generate` wrote, or the settings where there is none."""
    path = Path(dataset.root) / "card.json"
    if path.is_file():
        card: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
        return card
    return dict(dataset.settings)
