"""The experiment on shapes: what wings and cars hand to the pipeline, apart from their shapes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np
import torch
from torch import Tensor, nn

from it3_aero.shapes import paper
from it3_aero.shapes.data import IN_DISTRIBUTION, Levels, Shapes, threshold_of_top
from it3_aero.shapes.drawing import Paint, Tolerance, draw, pictures
from it3_aero.shapes.graph_net import NetworkSettings, build
from it3_aero.shapes.options import Train
from it3_aero.shapes.paper import Sample
from it3_core import IT3, Activations, Adapter, IT3Error, OnlineIT3, Regression, Source
from it3_core.batching import batches, is_graph, tensors
from it3_core.evaluation.evaluate import Predictor
from it3_core.experiment import types
from it3_core.experiment.lines import (
    ABLATION_LINES,
    AUTO,
    PAPER_LINES,
    SECOND_PASS,
    SOURCE,
    VANILLA,
    actmad,
    error_and_bias,
)
from it3_core.experiment.predict import in_words
from it3_core.experiment.statistics import OUT_OF_DISTRIBUTION
from it3_core.experiment.train import three_parts, trials
from it3_core.io.tensors import digest
from it3_core.io.typed import as_kind, printable, read_json
from it3_core.model.adapters import adapter_from
from it3_core.model.losses import zigzag_loss
from it3_core.scores.uncertainty import Mahalanobis

_HEAD: dict[str, Any] = {"parameters": "above"}  # the weights above where the signal enters


class StoredSettings(TypedDict):
    """The settings of an experiment that are read again."""

    network: NetworkSettings
    threshold: float
    levels: int
    nodes: int
    solver: str
    calibration: float
    shapes: str


class ShapeTask(NamedTuple):
    """What tells wings from cars."""

    name: str
    noun: str
    title: str  # of the report
    quantity: types.Quantity
    trunk: Callable[[NetworkSettings], nn.Module]  # shapes to pooled features
    inputs: Callable[[Sequence[Any]], Any]  # graphs to the network's input
    shifts: Mapping[str, Callable[..., Any]]  # what may happen to a shape on its way into a file
    tolerance: Tolerance
    paint: Paint  # a shape as it is read, or as the network takes it
    sample: Sample  # a shape of the data, as the paper's gallery has it
    caption: str  # what is to be seen there
    stored: type[StoredSettings]  # with what the task alone stores
    falling: bool = False  # whether labels fall, and do not grow, out of distribution


class Protocol(NamedTuple):
    """A network, how it is trained, and what share of the shapes it is tested on beyond it."""

    epochs: int
    lr: float
    second_weight: float
    batch_size: int | None = None
    schedule: str = "cosine"
    clip: float | None = 1.0
    top: float | None = None  # without it, a threshold decides
    network: NetworkSettings = NetworkSettings()


def protocol_of(options: Train, ours: Mapping[str, Protocol], paper: Protocol) -> Protocol:
    """Ours or the paper's, for a network of the size that the options name."""
    found = ours[options.size]
    if options.preset is None:
        return found
    return paper._replace(network=replace(found.network, entrance="nodes", damped=True))


def problem_of(
    task: ShapeTask,
    dataset: Any,
    data: Path,
    protocol: Protocol,
    options: Train,
    *,
    threshold: float | None,
    usual: float,
    levels: int,
    settings: types.Json,
) -> types.Problem:
    """Training on the shapes in distribution, by the protocol; the test shapes decide nothing.

    The `usual` threshold is for where neither a threshold nor a top is given. `settings` are what
    else decides the result, or is needed to test and to predict.
    """
    if threshold is not None and options.top is not None:
        raise IT3Error("give a threshold or a top, not both")
    top = options.share() or protocol.top
    if threshold is None and top is not None:
        labels = [float(dataset.get(index).y) for index in dataset.indices()]
        threshold = threshold_of_top(labels, top, falling=task.falling)
    threshold = usual if threshold is None else threshold
    network = protocol.network
    shapes = Levels.of(dataset, task.inputs, threshold, levels, task.falling).train
    found = _training_data(shapes, options.seed, options.kept())
    size = protocol.batch_size or (32 if len(found.rows) < 800 else 64)
    nodes = shapes.x.ptr.diff().max() if is_graph(shapes.x) else shapes.x.shape[1]
    return types.Problem(
        settings={
            "task": task.name,
            "protocol": options.preset or "ours",
            "network": asdict(network),
            "second_weight": protocol.second_weight,
            "threshold": threshold,
            "levels": levels,
            "nodes": int(nodes),
            "solver": dataset.solver,
            "calibration": options.kept(),
            **settings,
            "shapes": _fingerprint(shapes),
        },
        data=found,
        make=partial(_network, task, network),
        recipe=types.Recipe(
            options.epochs or protocol.epochs,
            size,
            protocol.lr,
            options.seed,
            schedule=protocol.schedule,
            clip=protocol.clip,
        ),
        answers=types.Answers([task.quantity]),
        loss=partial(
            zigzag_loss,
            second_weight=protocol.second_weight,
            shared_prefix=network.entrance == "head",  # nearly nothing lies below the nodes
        ),
        trials=trials(task.shifts, batch_size=16, seed=options.seed),
        features="model.trunk",
        extrapolation=types.Extrapolation("lower" if task.falling else "upper"),
        statistics=_statistics,
        restore=partial(restored, task),
        provenance={"data": str(data.resolve()), **_data_card(dataset)},
    )


def _fingerprint(shapes: Shapes) -> str:
    parts = {f"x.{index}": part for index, part in enumerate(tensors(shapes.x))}
    return digest({**parts, "y": shapes.y}, {})[:16]


def _training_data(shapes: Shapes, seed: int, share: float) -> types.TrainingData:
    least = min(20, len(shapes) - 1)
    rows, validation, calibration = three_parts(len(shapes), 0.15, share, seed, least)
    if len(rows) < 16:
        raise IT3Error(
            f"{len(shapes)} training shapes leave too few after validation: generate 60 at least"
        )
    return types.TrainingData(
        adapter=Regression.fit(shapes.y[rows]),
        rows=rows,
        validation=validation,
        calibration=calibration,
        plain=lambda some: (shapes.take(list(some)).x, shapes.y[list(some)]),
        seen=rows,
        labels=shapes.y,
    )


def _data_card(dataset: Any) -> dict[str, Any]:
    """The card that `generate` wrote, or the settings where there is none."""
    path = Path(dataset.root) / "card.json"
    if path.is_file():
        return read_json(path, dict[str, Any], "generate the data again")
    return dict(dataset.settings)


def _network(task: ShapeTask, settings: NetworkSettings, adapter: Adapter) -> nn.Module:
    return build(task.trunk, settings, cast(Regression, adapter))


def restored(task: ShapeTask, settings: types.Json, adapter_json: types.Json) -> types.Restored:
    """The network without its weights."""
    adapter = adapter_from(dict(adapter_json))
    if not isinstance(adapter, Regression):
        raise IT3Error("this is no network on shapes: train it again")
    stored = as_kind(dict(settings), task.stored, "the network's settings", "train it again")
    return types.Restored(
        _network(task, stored["network"], adapter), adapter, types.Answers([task.quantity])
    )


def _statistics(model: nn.Module, data: types.TrainingData) -> dict[str, Tensor]:
    """Activations that ActMAD aligns: node features, pooled features, the head's."""
    taps = [name for name, _ in model.named_modules() if name.startswith("model.trunk.taps.")]
    layers = [*taps, "model.trunk", "model.head.1", "model.head.3"]
    return Activations.collect(model, data.adapter, data.plain(data.seen), layers).tensors()


LINES = [
    SOURCE,
    SECOND_PASS,
    VANILLA,
    types.Line("ActMAD", actmad),
    *PAPER_LINES,
    types.Line("IT³ cheap", lambda one, size: IT3(one.model, one.adapter, **_HEAD)),
    AUTO,
    *ABLATION_LINES,
    types.Line(
        "online IT³",
        lambda one, size: OnlineIT3(one.model, one.adapter, anchor_gradient=True),
        stream=True,
    ),
]


def data_folder(experiment: types.Experiment, data: Path | None) -> Path:
    """Where an experiment's data are: where they were, unless `data` says otherwise."""
    folder = data or Path(str(experiment.provenance.get("data", "")))
    if not folder.exists():
        raise IT3Error(f"the experiment's data are not in {folder}: say where with --data")
    return folder


def test_set_of(
    task: ShapeTask,
    experiment: types.Experiment,
    dataset: Any,
    baselines: Callable[[Levels], Sequence[types.Line]],
    batch_sizes: Sequence[int],
    most: int,
) -> types.TestSet:
    """Every method on every level, with at most so many shapes each, and a practitioner's."""
    settings, quantity = experiment.settings, task.quantity
    threshold, number = settings["threshold"], settings["levels"]
    levels = Levels.of(dataset, task.inputs, threshold, number, task.falling).drawn(most)
    others, (fraction, absolute) = baselines(levels), task.tolerance
    outside = [name for name in levels.test if name != IN_DISTRIBUTION]
    if not outside:
        raise IT3Error(f"no {task.noun} is out of distribution: generate more")
    several = len(outside) > 1
    cheap = settings["network"]["entrance"] == "head"  # else it would adapt all layers
    return types.TestSet(
        title=task.title,
        noun=task.noun,
        levels={
            name: types.Instances(part.x, part.y, part.names) for name, part in levels.test.items()
        },
        in_distribution=IN_DISTRIBUTION,
        lines=[*(one for one in LINES if cheap or one.name != "IT³ cheap"), *others],
        batch_sizes=batch_sizes,
        measure=error_and_bias,
        columns=[
            types.Quantity(one, quantity.name, quantity.digits + 1) for one in ("error", "bias")
        ],
        headline=[OUT_OF_DISTRIBUTION] if several else outside,
        groups=[types.Group(OUT_OF_DISTRIBUTION, outside)] if several else [],
        scores={"Mahalanobis, features": partial(_mahalanobis, levels.train.x)},
        pictures=partial(_pictures, task, levels, [one.name for one in others]),
        notes=[
            f"A prediction counts as right within {fraction:.0%} of the solver's {quantity.name}, "
            f"or within {absolute:g}."
        ],
        identity={
            "most": most,
            "shapes": settings["shapes"],
            "tested": {name: _fingerprint(part) for name, part in levels.test.items()},
        },
    )


def _mahalanobis(train: Any, network: types.Network) -> Mahalanobis:
    """How far a shape's pooled features are from those of the training shapes."""
    return Mahalanobis.fit(network.model, network.adapter, train, "model.trunk")


def _pictures(
    task: ShapeTask,
    levels: Levels,
    baselines: Sequence[str],
    found: types.Evaluation,
    experiment: types.Experiment,
) -> Iterator[types.Picture]:
    """The paper's figures, then ours."""
    quantity = task.quantity
    yield paper.boxes(found, quantity)
    if "error_after" in found.answers:  # not with `--only` of other methods
        known = _training_errors(levels.train, experiment)
        yield paper.errors(found, experiment.first.seed, known)
    yield paper.samples(levels, quantity, task.sample, task.caption)
    yield from pictures(levels, quantity, task.paint, task.tolerance, baselines, found, experiment)


def _training_errors(shapes: Shapes, experiment: types.Experiment) -> list[float]:
    """Idempotence errors of shapes that the first network was trained on, a few hundred of them.

    Nothing where the data are no longer those of the training.
    """
    network = experiment.first
    if _fingerprint(shapes) != experiment.settings["shapes"]:
        return []
    share = float(experiment.settings["calibration"])
    some = shapes.take(_training_data(shapes, network.seed, share).rows).sample(500)
    source = Source(network.model, network.adapter)
    errors = [source(part).error_before for part in batches(some.x, 64)]
    return cast("list[float]", torch.cat(errors).tolist())


def from_parameters(
    name: str, levels: Levels, regressor: Callable[[Shapes, int], Any], most: int = 10**9
) -> list[types.Line]:
    """A line for a scikit-learn regressor from the parameters of shapes, where they are known.

    `regressor` is made for training shapes and a seed; it is fitted to at most so many of them.
    """
    if levels.train.parameters is None:
        return []

    def fitted(network: types.Network, size: int) -> Predictor:
        train = levels.train.sample(most, network.seed)
        return FromParameters(regressor(train, network.seed), train, list(levels.test.values()))

    why = "It gets the few numbers that shapes were made from, which a file does not have."
    return [types.Line(name, fitted, once=True, note=why)]


class FromParameters:
    """A regressor from shape parameters to labels, fitted.

    An evaluation gives it what the network gets, by which it finds the parameters of its shapes.
    """

    def __init__(self, regressor: Any, train: Shapes, others: Sequence[Shapes]) -> None:
        self._parameters: dict[bytes, Tensor] = {}
        for shapes in (train, *others):
            assert shapes.parameters is not None
            self._parameters |= zip(_keys(shapes.x), shapes.parameters.double(), strict=True)
        self._regressor = regressor
        with warnings.catch_warnings():  # a length scale at its bound is no reason to stop
            warnings.simplefilter("ignore")
            self._regressor.fit(self._inputs(train.x), train.y.double().numpy())

    def __call__(self, x: Any) -> Tensor:
        values = self._regressor.predict(self._inputs(x))
        return torch.as_tensor(np.asarray(values), dtype=torch.float32).unsqueeze(1)

    def _inputs(self, x: Any) -> Any:
        return torch.stack([self._parameters[key] for key in _keys(x)]).numpy()


def _keys(x: Any) -> list[bytes]:
    rows = x.pos.split(x.ptr.diff().tolist()) if is_graph(x) else x
    return [row.contiguous().numpy().tobytes() for row in rows]


def reader_of(
    task: ShapeTask,
    read: Callable[[Path], Any],
    batch: Callable[[types.Network, Sequence[Any]], Any],
    verify: Callable[[Any], types.Truth] | None,
) -> types.Reader:
    """Predictions for shapes in files."""

    def items(path: Path) -> Iterator[types.Item]:
        try:
            yield types.Item(str(path), read(path))
        except IT3Error as problem:
            name = printable(path)
            yield types.Item(name, problem=str(problem).removeprefix(f"{name}: "))

    text, picture = partial(words, task.quantity), partial(draw, task.quantity, task.paint)
    return types.Reader(task.noun, items, batch, text, verify=verify, draw=picture)


def words(quantity: types.Quantity, one: types.Prediction) -> str:
    """A prediction in a line."""
    digits = quantity.digits
    text = in_words(lambda found: f"{quantity.name} {found['prediction']:.{digits}f}", one)
    if one.truth is not None:
        truth, value = one.truth["prediction"], one.values["prediction"]
        text += f"; {one.solver} {truth:.{digits}f}, error {value - truth:+.{digits}f}"
    elif one.problem is not None:
        text += f"; not verified: {one.problem}"
    return text
