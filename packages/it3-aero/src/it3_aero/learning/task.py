"""What is special about wings, or about cars: one object, which all that is shared asks.

Nothing here imports torch: the commands read their help from a task, and that has to be quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from it3_core import IT3Error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn

    from it3_aero.learning.runs import Run
    from it3_aero.learning.shapes import Levels
    from it3_core.evaluation import Predictor

__all__ = ["Ask", "Entrance", "Later", "NetworkSettings", "Recipe", "Task"]

Entrance = Literal["head", "nodes"]

Ask = Callable[[Any], tuple[str, float | None, str | None]]
"""Asks a solver about a shape: the solver's name, its answer, or why there is none."""


@dataclass(frozen=True)
class Later:
    """A function or class by where it is; its module is imported when it is first called.

    Example:
        >>> Later("math", "sqrt")(9.0)
        3.0
    """

    module: str
    name: str

    def __call__(self, *args: Any) -> Any:
        """What it is there says."""
        return getattr(import_module(self.module), self.name)(*args)


@dataclass(frozen=True)
class NetworkSettings:
    """All that a network is made from, as plain values that a checkpoint can hold.

    Attributes:
        layers: GMM layers.
        channels: features of a node.
        kernels: Gaussians of a layer.
        hidden: width of the head.
        stride: 2 takes every second node of an outline: half the cost, and each layer sees twice
            as far along it. A mesh has all of its nodes.
        entrance: where the signal enters: `"head"` (added to the pooled features, so that `f` and
            `F` share all GMM layers) or `"nodes"` (added to every node's first features, the
            paper's way).

    Example:
        >>> NetworkSettings(layers=3).describe()["layers"]
        3
    """

    layers: int = 25
    channels: int = 16
    kernels: int = 2
    hidden: int = 64
    stride: int = 2
    entrance: Entrance = "head"

    def describe(self) -> dict[str, Any]:
        """These settings as JSON; `NetworkSettings.from_description` makes them again."""
        return asdict(self)

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> NetworkSettings:
        """The settings that `describe()` described.

        Example:
            >>> NetworkSettings.from_description({"layers": 2, "width": 3})
            Traceback (most recent call last):
            ...
            it3_core.errors.IT3Error: these are no settings of a graph network: ...
        """
        try:
            return cls(**description)
        except TypeError as problem:
            raise IT3Error(f"these are no settings of a graph network: {problem}") from problem


@dataclass(frozen=True)
class Recipe:
    """How a preset is trained.

    Attributes:
        network: what is trained.
        epochs: at most.
        lr: Adam's rate at first.
        batch_size: of a step; None takes 32, or 64 from 800 shapes on.
        second: what the second pass weighs in the loss; 1 is the paper's.

    Example:
        >>> Recipe(NetworkSettings(), epochs=40).lr
        0.003
    """

    network: NetworkSettings
    epochs: int
    lr: float = 3e-3
    batch_size: int | None = None
    second: float = 1.0


@dataclass(frozen=True)
class Task:
    """What training, evaluation, report, predictions and commands must know of a kind of shape.

    Attributes:
        name: the command's, such as "wings".
        title: of the report.
        thing: what a sample is called, such as "profile".
        quantity: what is predicted, such as "L/D".
        digits: of it that are worth printing.
        beyond: on which side of the threshold what was never trained on lies.
        threshold: where that is, unless told otherwise; None takes a quantile.
        levels: into how many levels what lies beyond is sorted.
        tolerance: an answer is right within this share of the solver's,
        slack: or within this much.
        presets: by name.
        batch_sizes: of an evaluation.
        solver: who `--verify` asks.
        references: lines of the table that are no network, with why they are there, for people.
        trunk: makes what turns shapes into pooled features.
        inputs: makes the network's input of graphs.
        graph: makes a graph of a shape that was read, with about so many nodes.
        dataset: the data set in a folder, with about so many nodes a graph; None is as it comes.
        shifts: what may happen to a shape on its way into a file, by name.
        yardsticks: what a practitioner would do instead, as methods by name.
        verify: the solver to ask, from what a RUN remembers of its data.
        gallery: a figure of up to three test shapes, with pressure, for the report.
        sketch: draws one shape that was read.
        about: what a RUN remembers of its data beyond the threshold and the folder.

    Example:
        >>> from it3_aero.wings.task import WINGS
        >>> WINGS.said(41.26), WINGS.said(-0.5, more=1, sign="+")
        ('41.3', '-0.50')
        >>> WINGS.recipe("huge")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: there is no preset 'huge': take small or paper
    """

    name: str
    title: str
    thing: str
    quantity: str
    digits: int
    beyond: Literal["upper", "lower"]
    threshold: float | None
    levels: int
    tolerance: float
    slack: float
    presets: Mapping[str, Recipe]
    batch_sizes: tuple[int, ...]
    solver: str
    references: Mapping[str, str]
    trunk: Callable[[NetworkSettings], nn.Module]
    inputs: Callable[[Sequence[Any]], Any]
    graph: Callable[[Any, int], Any]
    dataset: Callable[[Path, int | None], Any]
    shifts: Callable[[], Mapping[str, Callable[..., Any]]]
    yardsticks: Callable[[Run, Levels], dict[str, Predictor]]
    verify: Callable[[Mapping[str, Any]], Ask]
    gallery: Callable[..., Figure]
    sketch: Callable[[Axes, Any, str], None]
    about: Callable[[Any], dict[str, Any]]

    def recipe(self, preset: str) -> Recipe:
        """How a preset is trained; an unknown one gets an error that lists those there are."""
        if preset not in self.presets:
            raise IT3Error(f"there is no preset {preset!r}: take {' or '.join(self.presets)}")
        return self.presets[preset]

    def said(self, value: float, more: int = 0, sign: str = "") -> str:
        """A value of the quantity, with as many digits as it is worth."""
        return f"{value:{sign}.{self.digits + more}f}"
