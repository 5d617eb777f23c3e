"""The values that the four verbs work on: what a task says of itself, and what training leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from it3_core.evaluation.evaluate import Predictor as Answering
from it3_core.experiment.summary import Summary
from it3_core.methods.paper import PaperStep
from it3_core.model.adapters import Adapter
from it3_core.model.losses import supervised_loss
from it3_core.training.fit import Loss
from it3_core.trust.calibration import Trust
from it3_core.trust.candidates import Candidate, ScoreKind, Tuning
from it3_core.trust.conformal import Predictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

Json = Mapping[str, Any]
Rows = Sequence[int]
Pair = tuple[Any, Any]
"""Inputs and labels: tensors, graph batches, or anything with `len()` and `take(rows)`."""

Baseline = tuple[Callable[[Adapter], nn.Module], Loss]
"""Another network to train as long on the same data, with its first weights, and its loss."""

Score = Callable[[Any], Tensor]
Shift = Callable[[Any], Any]


# --- what `train` needs


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train, in plain values: as JSON they are the training's identity."""

    epochs: int  # at most
    batch_size: int  # of a step
    lr: float  # the largest rate of the schedule
    seed: int = 0  # of the first weights, the splits and the order of the rows
    optimizer: str = "Adam"  # its name in `torch.optim`
    optimizer_options: Json = field(default_factory=dict)  # what else it is given
    schedule: str = "cosine"  # "constant", "cosine", "onecycle", "step" or "step30"
    clip: float | None = 1.0  # the largest norm of a gradient
    patience: int | None = None  # epochs without a better validation loss; None never stops
    bfloat16: bool | None = False  # compute in it; None means where a GPU does
    channels_last: bool = False  # the memory format, which is faster for convolutions
    freeze_until: str | None = None  # the layer before which nothing is trained
    refresh: int = 0  # rows that batch norms take their statistics from before each validation


@dataclass(frozen=True)
class TrainingData:
    """Examples by row number, read and split."""

    adapter: Adapter  # what kind of answer the labels are
    rows: Rows  # to train on
    validation: Rows  # for early stopping and every choice
    plain: Callable[[Rows], Pair]  # inputs and labels of some rows, as they come at test time
    # The same for training; a `Dataset` is read batch by batch.
    augmented: Callable[[Rows], Pair | Dataset[Any]] | None = None
    calibration: Rows = ()  # for thresholds and intervals alone
    groups: Tensor | None = None  # of each row: rows of one group stay together
    seen: Rows = ()  # training rows that statistics are taken of
    labels: Tensor | None = None  # one number a row, which extrapolation splits need
    # What only reading tells, and `restore`, `test_set` and `reader` need again.
    settings: Json = field(default_factory=dict)
    skipped: Sequence[str] = ()  # what could not be read, and why


class Trial(NamedTuple):
    """What `tune` chooses by, for gates of batches of one size or of rows, and the paper's step;
    without candidates only the latter."""

    batch_size: int
    x: Any
    y: Any
    shifts: Mapping[str, Shift]
    candidates: Sequence[Candidate]
    rows: bool = False  # whether the gate opens for single rows
    scores: Sequence[ScoreKind] | None = None  # to choose from; all by default
    max_harm: float = 0.02


@dataclass(frozen=True)
class Extrapolation:
    """Networks trained without one end of the labels, so that tuning can be tried on that end."""

    side: Literal["upper", "lower", "both"]
    fraction: float = 0.2  # of the training rows
    networks: int = 3  # each with first weights of its own
    epochs: float = 0.5  # a fraction of the recipe's
    validation: tuple[float, int] = (0.15, 4)  # fraction of the remaining rows, and the fewest


class Quantity(NamedTuple):
    """A number that people read."""

    name: str
    unit: str = ""
    digits: int = 2


def as_rows(output: Any) -> Tensor:
    """A regression's own numbers: (n,) or (n, k) as (n, k)."""
    rows: Tensor = output.reshape(len(output), -1)
    return rows


@dataclass(frozen=True)
class Answers:
    """What an output says to people: its numbers, or its classes. Outputs and labels alike."""

    quantities: Sequence[Quantity] = ()
    classes: Sequence[str] = ()
    values: Callable[[Any], Tensor] = as_rows


class Restored(NamedTuple):
    """What code, and not a file, gives back to a stored network."""

    model: nn.Module
    adapter: Adapter
    answers: Answers
    baselines: Mapping[str, Callable[[], nn.Module]] = {}  # those that a problem may have


@dataclass(frozen=True)
class Problem:
    """What `train` needs."""

    # What decides the result, and what is needed again to restore the network. Has `task`,
    # the name of the task.
    settings: Json
    # The examples, or a function that reads them once the folder was accepted.
    data: TrainingData | Callable[[], TrainingData]
    make: Callable[[Adapter], nn.Module]  # the network with its first weights
    recipe: Recipe  # how long and how fast
    answers: Answers  # what an output says to people
    loss: Loss  # of training; `vanilla_loss` of the network without a signal
    vanilla_loss: Loss = supervised_loss
    baselines: Mapping[str, Baseline] = field(default_factory=dict)  # by the name of their file
    # What to tune by, from the trained network.
    trials: Callable[[nn.Module, TrainingData], Iterable[Trial]] | None = None
    extrapolation: Extrapolation | None = None  # networks without one end of the labels, or None
    # Of the training data, which methods need at test time.
    statistics: Callable[[nn.Module, TrainingData], Mapping[str, Tensor]] | None = None
    features: str | None = None  # the layer that scores of features look at
    # The network without its weights, from settings and the adapter's JSON.
    restore: Callable[[Json, Json], Restored] | None = None
    provenance: Json = field(default_factory=dict)  # where the data came from; decides nothing


# --- what training leaves


@dataclass(frozen=True)
class Network:
    """One training seed: the network and all that was learnt about it."""

    seed: int
    model: nn.Module
    adapter: Adapter
    answers: Answers
    settings: Json  # the problem's and the data's
    statistics: Mapping[str, Tensor]  # of the training data, as methods need them
    # What was chosen for each row ("row", which is always there) and for batches of a size ("16"),
    # with intervals and with which scores are usual.
    predictors: Mapping[str, Predictor]
    history: Json  # of the training
    measured: Json  # on validation rows
    vanilla: nn.Module | None = None  # the same network trained without a signal
    baselines: Mapping[str, nn.Module] = field(default_factory=dict)  # that were trained
    # The paper's step, on "source" and on "batch" statistics and "online", chosen without labels.
    paper: Mapping[str, PaperStep] = field(default_factory=dict)

    def paper_step(self, kind: str = "source") -> PaperStep:
        """The steps and the rate of the paper's IT³; the authors' where none were chosen."""
        return self.paper.get(kind, self.paper.get("source", PaperStep()))

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.model.parameters()).device

    @property
    def tunings(self) -> Mapping[str, Tuning]:
        """What was chosen, and why."""
        return {name: one.method.tuning for name, one in self.predictors.items()}  # type: ignore[attr-defined]

    @property
    def sizes(self) -> list[int]:
        """Of the batches that something was chosen for, the largest first."""
        return sorted((int(name) for name in self.predictors if name != "row"), reverse=True)

    @property
    def trust(self) -> Trust:
        """Which scores are usual."""
        found = self.predictors["row"].trust
        assert found is not None  # training has made it
        return found

    def predictor(self, batch_size: int) -> Predictor:
        """What was chosen for batches of this size, or for each row."""
        return self.predictors.get(str(batch_size), self.predictors["row"])


@dataclass(frozen=True)
class Experiment:
    """An experiment folder: networks of the same settings, one a training seed."""

    folder: Path
    networks: Sequence[Network]
    settings: Json
    provenance: Json

    @property
    def first(self) -> Network:
        """The network that answers: that of the smallest seed."""
        return self.networks[0]


# --- what `evaluate` needs, and leaves


class Instances(NamedTuple):
    """A level's inputs and labels; row i is the same instance for every training seed."""

    x: Any
    y: Any
    names: Sequence[str] = ()


Level = Instances | Callable[[Network], Instances]
"""A value, or a function that is called when the level's turn comes, for each network."""


class Group(NamedTuple):
    """A joined line of the tables: several levels pooled; of the same instances, their mean."""

    name: str
    levels: Sequence[str]
    same_instances: bool = False
    part: Sequence[int] = ()  # of each level these rows alone; without it, all


class Line(NamedTuple):
    """One method of the comparison."""

    name: str
    make: Callable[[Network, int], Answering | None]  # by batch size; None where it does not apply
    once: bool = False  # whether its predictions do not depend on the batch size
    stream: bool = False  # whether it goes through all levels without a reset
    shifted: bool = False  # whether such a stream starts anew after the in-distribution level
    idempotence: bool = False  # whether to keep its errors after the step, for the paper's Figure 2
    note: str = ""  # what a reader should know of it
    ablation: bool = False  # whether it runs only where it is asked for


class Picture(NamedTuple):
    """A figure, and where it stands on the page."""

    name: str
    figure: Figure
    section: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, as it lies in its folder: all that `report` needs."""

    folder: Path
    records: Sequence[Json]  # a method on a level, with the numbers of each instance
    rows: Sequence[dict[str, Any]]  # their summary, with intervals and verdicts
    answers: DataFrame  # an instance a row: level, name, truth, predictions, score, percentile
    summary: Summary


@dataclass(frozen=True)
class TestSet:
    """What `evaluate` needs."""

    __test__: ClassVar[bool] = False  # else pytest takes it for a test, and warnings are errors

    title: str  # of the page
    noun: str  # what an instance is called
    levels: Mapping[str, Level]  # from the nearest to the furthest shift, in their order
    in_distribution: str  # the level on which harm is measured
    lines: Sequence[Line]  # the methods, the source first
    batch_sizes: Sequence[int]  # how many instances make up a batch
    # From predictions and labels to columns, one number an instance, "error" first.
    measure: Callable[[Any, Any], Mapping[str, Tensor]]
    columns: Sequence[Quantity]  # what these columns are
    headline: Sequence[str]  # the levels and groups of the main table
    groups: Sequence[Group] = ()  # joined levels
    # Other uncertainty scores, which are assessed beside the idempotence error.
    scores: Mapping[str, Callable[[Network], Score]] = field(default_factory=dict)
    # Of what was found.
    pictures: Callable[[Evaluation, Experiment], Iterable[Picture]] = lambda *_: ()
    notes: Sequence[str] = ()  # sentences for the page
    memory: bool = False  # whether to measure each method's memory
    # Put around what says how doubtful an answer is, where an instance is not what a network takes.
    wrap: Callable[[Answering], Answering] = lambda method: method
    identity: Json = field(default_factory=dict)  # JSON that tells these test data from others


# --- what `predict` needs, and gives


class Item(NamedTuple):
    """One thing that was read from a path, or why it was not."""

    name: str
    value: Any = None
    problem: str | None = None
    fields: Json | None = None


class Truth(NamedTuple):
    """What a solver says of an item."""

    solver: str
    values: Json | None
    problem: str | None = None


@dataclass
class Prediction:
    """The fields of `--json` for one item, and the outputs for files."""

    item: Item
    values: Json = field(default_factory=dict)
    initial: Json = field(default_factory=dict)
    interval: Json = field(default_factory=dict)  # at the coverage that was asked for
    percentile: float | None = None
    flagged: bool = False
    adapted: bool = False
    truth: Json | None = None
    solver: str | None = None
    problem: str | None = None
    output: Any = None
    first_output: Any = None


@dataclass(frozen=True)
class Reader:
    """What `predict` needs."""

    noun: str  # what an item is called
    read: Callable[[Path], Iterable[Item]]  # the items at a path
    batch: Callable[[Network, Sequence[Any]], Any]  # the network's input from items' values
    words: Callable[[Prediction], str]  # a prediction for people
    batch_size: int = 64  # items that make up a batch
    # Put around each method, where an item is not what a network takes.
    wrap: Callable[[Answering], Answering] = lambda method: method
    write: Callable[[Prediction], None] | None = None  # its outputs, to files
    verify: Callable[[Any], Truth] | None = None  # a solver's answer for an item's value
    draw: Callable[[Sequence[Prediction]], Figure] | None = None  # a picture of all predictions


# --- a task


class Demo(NamedTuple):
    """What a demonstration trains and evaluates."""

    problem: Problem
    test_set: Callable[[Experiment], TestSet]
    vanilla: bool = False


class Task(NamedTuple):
    """A task's functions. Options are dataclasses of its command line, so they are `Any` here."""

    name: str
    problem: Callable[[Path, Any], Problem]
    restore: Callable[[Json, Json], Restored]
    test_set: Callable[[Experiment, Any], TestSet]
    reader: Callable[[Experiment, Any], Reader]
    demo: Callable[[Path, Any], Demo]
