"""The pictures of an evaluation: boxes by level as in the paper, differences, sample faces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from it3_core.plots import box_by_level, difference_by_level, error_histograms

if TYPE_CHECKING:
    from it3_vision.age.evaluate import Evaluation

__all__ = ["figures", "samples"]

_PAPER = ("source", "IT³, source statistics", "online IT³, source statistics")
_UNSHOWN = ("mean age", "answer step")  # lines of the table that would crowd the pictures
_ERROR = "|error| in years"


def figures(found: Evaluation) -> dict[str, Figure]:
    """All pictures that the records allow, by name."""
    largest = max((r["batch_size"] or 0 for r in found.records), default=0)
    # Online is one stream whatever comes at a time: one batch size shows it.
    paper = [
        r
        for r in found.records
        if r["method"] in _PAPER
        and (not r["method"].startswith("online") or r["batch_size"] == largest)
    ]
    beside = [
        r
        for r in found.records
        if r["batch_size"] in (None, largest) and r["method"] not in _UNSHOWN
    ]
    kept = {(r["level"], r["method"], r["batch_size"]) for r in beside}
    rows = [r for r in found.rows if (r["level"], r["method"], r["batch_size"]) in kept]
    title = f"batches of {largest}"
    made = {
        "boxes": box_by_level(paper, error=_ERROR),
        "methods": box_by_level(beside, error=_ERROR, title=title),
    }
    if any(row["method"] != "source" for row in rows):
        made["differences"] = difference_by_level(rows, error=_ERROR, title=title)
    inside, *beyond = found.numbers["errors"].values()
    made["errors"] = error_histograms(
        [error for level in beyond for error in level["error"]],
        [error for level in beyond for error in level["error_after"]],
        inside["error"],
        error="idempotence error |y₁ − y₀|, in training standard deviations",
        title=f"before and after IT³'s step, {title}",
    )
    return made


def samples(lines: Sequence[Mapping[str, Any]], pixels: Sequence[Any]) -> Figure:
    """A row of faces for each level: age, answer before and after, and how unusual each is."""
    levels = list(dict.fromkeys(line["level"] for line in lines))
    columns = max(sum(line["level"] == level for line in lines) for level in levels)
    figure = Figure(figsize=(1.3 * columns + 0.5, 1.95 * len(levels)))
    # A row's last line must not look like the next one's title.
    figure.set_layout_engine("constrained", hspace=0.12)
    places = dict.fromkeys(levels, 0)
    for line, image in zip(lines, pixels, strict=True):
        row, column = levels.index(line["level"]), places[line["level"]]
        places[line["level"]] += 1
        axes = figure.add_subplot(len(levels), columns, row * columns + column + 1)
        axes.imshow(image)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        before, after = (f"{line[key]:.0f}" for key in ("before", "after"))
        said = before if before == after else f"{before} → {after}"
        axes.set_title(f"{line['age']:.0f} years", fontsize=7.5)
        axes.set_xlabel(f"said {said}\n{line['percentile']:.0f} %", fontsize=7)
        if column == 0:
            axes.set_ylabel(line["level"].replace(" by ", "\nby "), fontsize=7.5)
    return figure
