"""The paper's sixteen figures and five tables, one of them in three parts: how each is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from matplotlib.figure import Figure

from it3_core import IT3Error
from it3_core.experiment.tables import Table, markdown_table
from it3_core.io.files import figure_bytes, write_bytes, write_text
from paper import drawing, tables
from paper.diagram import diagram
from paper.records import Measured
from paper.running import small_png


class Item(NamedTuple):
    """A figure or a table of the paper: one of `draw`, `tabulate`, or a kept picture of inputs."""

    name: str
    place: str  # in the paper
    says: str  # what it shows
    task: str = ""  # whose records it is made from
    draw: Callable[[Measured], Figure] | None = None
    tabulate: Callable[[Measured], Table] | None = None
    claims: tuple[str, ...] = ()  # the beginnings of the claims that it is about
    also: tuple[str, ...] = ()  # further tasks that the same figure is drawn of
    paper: str = ""  # what the paper reports there; of its task by default
    caption: str | Callable[[Measured], str] = ""  # how to read the picture

    @property
    def kind(self) -> Literal["figure", "table"]:
        """What `--figure` and `--table` tell apart."""
        return "figure" if self.tabulate is None else "table"

    @property
    def is_gallery(self) -> bool:
        """Whether it shows inputs, which no records hold."""
        return self.draw is None and self.tabulate is None


def _boxes(name: str, place: str, says: str, task: str) -> Item:
    draw, caption = drawing.boxes, drawing.box_caption
    return Item(name, place, says, task, draw, claims=_HELPS, caption=caption)


_HELPS = ("IT³ lowers", "larger batches", "IT³ degrades", "IT³ beats")
_SCORES = "Below: correctness / completeness / quality in per cent. Grey: no data."

ITEMS: tuple[Item, ...] = (
    Item("method", "Figure 1", "training and test time", "", lambda _: diagram()),
    Item("idempotence", "Figure 2", "idempotence errors before and after the step", "wings",
         drawing.idempotence_histograms, claims=("the idempotence error",),
         paper="larger outside of the training distribution; smaller after the step",
         caption="The first seed's network at the largest batch size; dashes are medians."),
    _boxes("boston-box", "Figure 3", "Boston Housing, features zeroed", "tabular"),
    Item("cifar-bars", "Figure 4", "test error on CIFAR-10-C, severity 5", "cifar",
         drawing.corruption_bars, claims=_HELPS,
         caption="Means over images and seeds, and at the right over corruptions. IT³ and ActMAD "
         "keep the trained network's statistics above, and take the batch's below."),
    Item("face-samples", "Figure 5", "faces of the trained ages, older, younger", "age",
         caption="Test faces, with their ages."),
    _boxes("age-box", "Figure 6", "ages of younger and older faces", "age"),
    Item("road-samples", "Figure 7", "training towns left, test images right", "roads"),
    _boxes("road-box", "Figure 8", "roads on out-of-distribution images", "roads"),
    Item("road-iterations", "Figure 9", "segmentations after 5 and 15 iterations", "roads",
         caption=f"Four test images, from the lowest to the highest MSE. {_SCORES}"),
    Item("airfoil-samples", "Figure 10", "in-distribution profiles left, others right", "wings",
         caption="Black arrows: the solver's pressure, outwards where it sucks. Red: lift, a chord "
         "for a CL of 1, and drag, ten times as long."),
    _boxes("airfoil-box", "Figure 11", "lift-to-drag of out-of-distribution profiles", "wings"),
    Item("car-samples", "Figure 12", "in-distribution cars left, streamlined ones right", "cars",
         caption="The solver's pressure: red is high, blue is low (Cp from −1 to 1)."),
    _boxes("car-box", "Figure 13", "drag of streamlined cars", "cars"),
    Item("imagenet-bars", "Figure 14", "accuracy on ImageNet-C by severity", "imagenet",
         drawing.severity_bars, claims=_HELPS,
         caption="Means over corruptions, images and seeds. MEMO answers each image alone."),
    Item("accuracy-idempotence", "Figure 15", "accuracy against idempotence error", "imagenet",
         drawing.accuracy_against_scores, claims=("idempotence error and accuracy",),
         also=("cifar",), paper="Pearson −0.94 over batches of ImageNet-C",
         caption="A point is a batch of one corruption and severity, of the first seed; r is the "
         "mean over seeds. Below, entropy in the place of the idempotence error."),
    Item("segmentation-comparison", "Figure 16", "roads by several methods", "roads",
         caption=f"All methods keep the trained network's statistics. {_SCORES}"),
    *(
        Item(f"online-{shown}", f"Table 1, {side}", f"online IT³ on {shown}", task,
             tabulate=partial(tables.online, f"online-{shown}"), claims=("online",))
        for shown, side, task in (
            ("roads", "left", "roads"),
            ("airfoils", "middle", "wings"),
            ("cars", "right", "cars"),
        )
    ),
    *(
        Item(f"time-{shown}", f"Table {number}", f"inference time on {shown}", task,
             tabulate=partial(tables.time, task), claims=("IT³ costs",),
             paper="passes of the base model, in the table")
        for shown, number, task in (
            ("airfoils", 2, "wings"),
            ("cars", 3, "cars"),
            ("roads", 4, "roads"),
        )
    ),
    Item("memory", "Table 5", "memory on ImageNet-C, batches of 128", "imagenet",
         tabulate=tables.memory_table, claims=("IT³ needs",), paper="the table's GB"),
)  # fmt: skip

TABLES: dict[str, tuple[str, ...]] = {
    "online": ("online-roads", "online-airfoils", "online-cars"),
    **{item.name: (item.name,) for item in ITEMS if item.kind == "table"},
}
"""Names for `--table`: `online` is the whole of the paper's Table 1."""


def listed() -> list[str]:
    """A line for each figure and table, and for each part of one."""
    lines = []
    for item in ITEMS:
        if item.name == TABLES["online"][0]:
            lines.append(f"table   {'online':24} Table 1, in three parts:")
        part = "  " if item.name in TABLES["online"] else ""
        kind = "" if part else item.kind
        lines.append(f"{kind:7} {part + item.name:24} {item.place}: {item.says}")
    return lines


def named(name: str, kind: str) -> list[Item]:
    """The items of this name."""
    names = TABLES.get(name, ()) if kind == "table" else (name,)
    found = [item for item in ITEMS if item.name in names and item.kind == kind]
    if not found:
        there = ", ".join(TABLES if kind == "table" else (i.name for i in ITEMS if i.kind == kind))
        raise IT3Error(f"the paper has no {kind} {name!r}: take {there}")
    return found


def make(
    item: Item,
    found: Mapping[str, Measured],
    records: Path,
    folder: Path,
    missing: Mapping[str, str],
) -> str:
    """Makes one item in a folder; where it is, and a table's text."""
    if item.tabulate is not None:
        if item.task not in found:
            raise IT3Error(f"{item.name} is not measured: {missing.get(item.task, item.task)}")
        text = markdown_table(item.tabulate(found[item.task])) + "\n"
        return f"{write_text(folder / f'{item.name}.md', text)}\n\n{text}"
    made = pictures(item, found, records)
    if not made:
        why = missing.get(item.task, f"no records of {item.task} have it")
        raise IT3Error(f"{item.name} is not measured: {why}")
    return "\n".join(str(write_bytes(folder / f"{k}.png", one)) for k, one in made.items())


def pictures(item: Item, found: Mapping[str, Measured], records: Path) -> dict[str, bytes]:
    """A figure as small PNGs by name: of its task, and of others that have the same one."""
    if item.is_gallery:
        return {path.stem: path.read_bytes() for path in sorted(records.glob(f"{item.name}*.png"))}
    named = {item.task: item.name, **{task: f"{item.name}-{task}" for task in item.also}}
    made = {name: _picture(item, task, found) for task, name in named.items()}
    return {name: content for name, content in made.items() if content is not None}


def _picture(item: Item, task: str, found: Mapping[str, Measured]) -> bytes | None:
    """None where nothing was measured for it."""
    if item.draw is None or (task and task not in found):
        return None
    try:
        # The diagram needs no records.
        figure = item.draw(found.get(task, Measured("", [], [])))
        return small_png(figure_bytes(figure, dpi=110, facecolor="white"))
    except IT3Error:  # the records are of something else: there is nothing to draw
        return None
