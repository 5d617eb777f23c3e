"""The page of a RUN of roads: what the shift does, what adaptation does about it, at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from it3_core.files import write_figure
from it3_core.report import Page, cards, table, text
from it3_core.tables import label
from it3_vision.reporting import drawn, find_row, made, settings, training, tunings
from it3_vision.roads.evaluate import ALL, HELD_OUT, Evaluation, Views
from it3_vision.roads.pictures import bars, iterated, qualitative
from it3_vision.roads.runs import Run

__all__ = ["draw_figures", "write_report"]

RATE = 3e-4
"""Of each iteration in the qualitative figure."""

_CAPTION = (
    "In per cent. Quality is correctness and completeness in one; in brackets 95 % intervals of "
    "the paired difference over images, above zero is better. Cost is CPU time in units of source."
)


def draw_figures(run: Run, tested: Views, found: Evaluation, shown: int = 4) -> None:
    """Draws the pictures of an evaluation beside its tables.

    Args:
        run: the trained network.
        tested: the images.
        found: the evaluation.
        shown: how many images the qualitative figure has, from easy to hard.
    """
    order = {name: row for row, name in enumerate(tested.names)}
    ranked = [order[name] for name in found.numbers["names"]]
    rows = [ranked[round((i + 0.5) * len(ranked) / shown - 0.5)] for i in range(shown)]
    once = list(dict.fromkeys(rows))
    images = iterated(run, tested, once, lr=RATE, tile=found.numbers["tile"])
    figures = {"qualitative": qualitative(images, found.numbers["slack"]), "quartiles": bars(found)}
    for name, figure in figures.items():
        write_figure(found.folder / f"{name}.png", figure, facecolor="white")


def write_report(
    run: Run, tested: Views, found: Evaluation, path: str | Path, command: str = ""
) -> Path:
    """Writes the page and returns its path.

    Args:
        run: the trained network.
        tested: what it was tested on, for the pictures.
        found: its evaluation.
        path: the page.
        command: what made it, for the last section.
    """
    draw_figures(run, tested, found)
    numbers = found.numbers
    sizes = sorted({r["batch_size"] for r in found.rows if r["batch_size"] is not None}) or [1]
    high, wide = numbers["size"]
    page = Page(
        "Roads from the air",
        f"DRU-Net, {run.settings['training']['network']['preset']} preset, at "
        f"{run.resolution:g} m a pixel, training seed {run.seed}; {numbers['images']} test images "
        f"of {wide} × {high} pixels.",
    )
    page.section("In short", text(*_verdict(run, found, sizes[-1])), cards(_cards(found, sizes)))
    page.section("What adaptation does", table(found.table(), _CAPTION))
    page.section(
        "By distance from the training data",
        text("Images are ranked by the source's mean squared error and cut into quartiles."),
        drawn(found.folder, "quartiles", "quality by quartile"),
        table(found.by_quartile(), "Quality, in per cent."),
    )
    note = (
        f"Each image adapted to alone, at a rate of {RATE:g}. Below, correctness / completeness / "
        f"quality. Grey has no data."
    )
    page.section(
        "What it sees",
        drawn(found.folder, "qualitative", "images, answers and truth", note),
    )
    page.section("How each method was run", settings(numbers["settings"]))
    page.section("What tuning chose", tunings(run))
    held_out = {"held-out quality, %": round(100 * (1 - run.settings["held_out_error"]), 1)}
    page.section("Training", training(run, held_out))
    page.section("How this was made", made(run, found.folder, command or "it3-vision roads"))
    return page.write(path)


def _verdict(run: Run, found: Evaluation, size: int) -> list[str]:
    source, held = (find_row(found.rows, level, "source", size) for level in (ALL, HELD_OUT))
    said = []
    if source is not None and held is not None:
        said.append(
            f"The network has a quality of {100 - held['error']:.1f} % on held-out crops of its "
            f"training data and of {100 - source['error']:.1f} % on these images."
        )
    rows = [r for r in found.rows if r["level"] == ALL and r["error"] is not None]
    best = min(rows, key=lambda row: row["error"])
    said.append(
        f"The best here is {label(best['method'], best['batch_size'])} with "
        f"{100 - best['error']:.1f} %; it was not chosen on these images, but it is the best of "
        f"{len(rows)}."
    )
    return [" ".join(said), run.tuning(max(run.tunings, default=1)).reason]


def _cards(found: Evaluation, sizes: Sequence[int]) -> list[tuple[str, str, str]]:
    made_of = []
    for level, what in ((HELD_OUT, "held-out crops"), (ALL, "test images")):
        source = find_row(found.rows, level, "source", sizes[-1])
        auto = find_row(found.rows, level, "IT³ auto", sizes[-1])
        if source and auto:
            number = f"{100 - source['error']:.1f} → {100 - auto['error']:.1f} %"
            made_of.append((what, number, f"quality, before → after, {sizes[-1]} at once"))
    return made_of
