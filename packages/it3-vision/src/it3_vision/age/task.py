"""Ages from faces: a problem, a test set and a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from matplotlib.figure import Figure
from torch import nn

from it3_core import (
    AnswerStep,
    Conditioned,
    IT3Error,
    Regression,
    Source,
    condition,
    zigzag_loss,
)
from it3_core.evaluation.evaluate import Predictor
from it3_core.experiment import types
from it3_core.experiment.figures import box_by_level, difference_by_level, error_histograms
from it3_core.experiment.lines import PLAIN_ACTMAD, common_lines, error_and_bias, gain_of
from it3_core.experiment.statistics import IDEMPOTENCE
from it3_core.experiment.verbs import PredictOptions, batch_sizes
from it3_core.io.tensors import digest
from it3_core.io.typed import as_kind
from it3_core.model.adapters import adapter_from
from it3_core.trust.candidates import default_candidates
from it3_vision import image_task
from it3_vision.age.cli import SIZES, DemoOptions, Evaluate, FaceSettings, Train
from it3_vision.age.coral import Ranks, coral_loss
from it3_vision.age.faces import Interval, draw_faces, for_testing, read_faces
from it3_vision.data import ImageSet
from it3_vision.networks import EfficientNetLite, ResNet, hidden_of, start

FEWEST_FACES, FEWEST_VALIDATION = 60, 20  # trust can promise nothing by fewer
FEWEST = 4  # faces from whose own statistics "batch statistics" are taken
FULL_SIZE = 48  # pixels from which on a ResNet's stem shrinks the images, as for ImageNet
SEVERITY = 3  # of the corruptions that tuning chooses by
_FURTHER = 600  # faces that a demonstration draws for thresholds and intervals
OUTSIDE = "out of distribution"
CORAL = "coral"  # the name of the baseline's file
YEARS = types.Quantity("age", "years", 1)
DEMO_TUNED = "4:48,16:96"  # enough for a demonstration

DOES, TRUST = "What adaptation does", "Uncertainty scores"
_PAPER = ("source", "IT³ (paper)")
# Lines of the table that would crowd the pictures.
_UNSHOWN = ("mean age", "answer step", "ActMAD, source statistics")
_ERROR = "|error| in years"
_BOXES = (
    "A box holds the middle half of the faces, with the median as a line and the mean as a "
    "diamond; whiskers reach from the 5th to the 95th percentile."
)
_GALLERY = "Test faces, with their ages: trained on, older and younger."
_SAMPLES = (
    "Above a face its level and its age. Below it the prediction, after → where adaptation changed "
    "it, and the percentage of validation faces that are less unusual."
)


@dataclass(frozen=True)
class Stored:
    """What a trained network's settings hold, as far as they are read again."""

    network: FaceSettings
    low: int
    high: int
    tested: float


def stored(settings: types.Json) -> Stored:
    """The settings of a trained network."""
    return as_kind(dict(settings), Stored, "the network's settings", "train it again")


# --- train


def problem(data: Path, options: Train) -> types.Problem:
    """Training on faces of an interval of ages."""
    faces = read_faces(data)
    provenance = {"data": str(data.resolve())}
    return problem_of(faces.images, options, provenance, faces.problems)


def problem_of(
    faces: ImageSet, options: Train, provenance: types.Json, skipped: Sequence[str] = ()
) -> types.Problem:
    """The same of faces that are open: of the interval of ages, and not test faces."""
    second, weight = options.second_signal, options.protocol.second_weight
    starts: dict[str, Any] = {"weights": options.weights, "new_head": options.new_head}
    make = partial(build, options.network, pretrained=True, **starts)
    ranked = partial(make, ranks=(options.low, options.high))
    return types.Problem(
        settings={
            "task": "age",
            **asdict(Stored(options.network, options.low, options.high, options.tested)),
            **image_task.settings_of(options, options.network.brings, faces),
        },
        data=partial(_read, faces, options, skipped),
        make=make,
        recipe=image_task.recipe_of(options, batch_norm=True),
        answers=types.Answers([YEARS]),
        loss=partial(zigzag_loss, second_signal=second, second_weight=weight, shared_prefix=True),
        baselines={CORAL: (ranked, partial(coral_loss, low=options.low))} if options.coral else {},
        trials=partial(_trials, options),
        extrapolation=types.Extrapolation("both", validation=(image_task.VALIDATION, 10)),
        statistics=image_task.activations,
        restore=restore,
        provenance=provenance,
    )


def trainable(faces: ImageSet, low: int, high: int, tested: float) -> ImageSet:
    """The faces that may be trained on: inside the interval, and not test faces."""
    inside = Interval(low, high).inside(faces.labels)
    return faces.take(inside & ~for_testing(faces.names, tested))


def _read(faces: ImageSet, options: Train, skipped: Sequence[str]) -> types.TrainingData:
    size = options.network.side
    some = trainable(faces, options.low, options.high, options.tested)
    images, bad = image_task.in_memory(some, size, not options.quiet)
    if len(images) < FEWEST_FACES:
        raise IT3Error(
            f"there are {len(images)} faces of {options.low} to {options.high} years to train "
            f"on: give {FEWEST_FACES} at least"
        )
    return image_task.training_data(
        images,
        size,
        options,
        options.network.brings,
        adapter=lambda rest: Regression.fit(torch.from_numpy(rest.labels)),
        augment=image_task.face_augmentation(size),
        skipped=[*skipped, *bad],
        least=FEWEST_VALIDATION,
    )


def bare(
    settings: FaceSettings, adapter: Regression, ranks: tuple[int, int] | None = None
) -> ResNet | EfficientNetLite:
    """The network without a signal, with first weights; its head is the layer `fc`.

    With `ranks`, the youngest and the oldest age, that ends as CORAL's does.
    """
    shape = SIZES[settings.width]
    network: ResNet | EfficientNetLite
    if settings.pretrained is not None:
        network = EfficientNetLite(1)
    else:
        stem = "imagenet" if settings.side >= FULL_SIZE else "small"
        network = ResNet(shape.depth, 1, width=shape.width, stem=stem, norm=settings.norm)  # type: ignore[arg-type]
    widths = (network.fc.in_features, *shape.head)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        layers += [layer, nn.ReLU()]
    if ranks is None:
        layers += [nn.Linear(widths[-1], 1), adapter.rescale()]
    else:
        layers.append(Ranks(widths[-1], *ranks))
    network.add_module("fc", nn.Sequential(*layers))
    return network


def build(
    settings: FaceSettings,
    adapter: Regression,
    *,
    weights: Path | None = None,
    new_head: bool = False,
    pretrained: bool = False,
    ranks: tuple[int, int] | None = None,
) -> Conditioned:
    """The network `f(x, signal)`; until it is trained, it predicts as the bare one does."""
    network, new = bare(settings, adapter, ranks), new_head or ranks is not None
    start(network, settings.pretrained if pretrained else None, weights, new_head=new)
    return condition(network, adapter, layer=settings.stage, hidden=hidden_of(settings.stage))


def restore(settings: types.Json, adapter_json: types.Json) -> types.Restored:
    """The network without its weights."""
    adapter, kept = adapter_from(dict(adapter_json)), stored(settings)
    if not isinstance(adapter, Regression):
        raise IT3Error("this is no network that predicts ages: train it again")
    image_task.preprocessing_of(settings)  # refuses what is wrong with it
    ranked = partial(build, kept.network, adapter, ranks=(kept.low, kept.high))
    answers = types.Answers([YEARS])
    return types.Restored(build(kept.network, adapter), adapter, answers, {CORAL: ranked})


def _trials(options: Train, model: nn.Module, data: types.TrainingData) -> Iterator[types.Trial]:
    """Faces come one by one: a batch of one age has statistics that are not of the camera's."""
    found = list(image_task.shifted_validation(data, options, SEVERITY))
    size, x, y, shifts = max(found, key=lambda one: one[0])
    yield types.Trial(size, x, y, shifts, default_candidates(model), rows=True)


# --- evaluate


def test_set(experiment: types.Experiment, options: Evaluate) -> types.TestSet:
    """Faces of the trained ages, and younger and older ones, level by level."""
    sizes, edges = batch_sizes(options.batch_sizes), batch_sizes(options.levels, "levels")
    faces = read_faces(options.data)
    return comparison_of(
        experiment,
        faces.images,
        sizes,
        edges=tuple(edges),
        most=options.most,
        seed=options.seed,
        skipped=faces.problems,
    )


def levels_of(
    settings: types.Json,  # which ages the experiment was trained on, which are its test faces
    faces: ImageSet,  # of all ages
    edges: tuple[int, ...] = (10, 20),  # years outside the interval where levels end
    *,
    most: int = 300,  # faces of a level, drawn with `seed`
    seed: int = 0,
) -> tuple[dict[str, ImageSet], list[str]]:
    """The faces of each level, in memory, the trained ages first; and what could not be read."""
    kept, size = stored(settings), image_task.preprocessing_of(settings).size
    interval = Interval(kept.low, kept.high, edges)
    tested = ~interval.inside(faces.labels) | for_testing(faces.names, kept.tested)
    faces = faces.take(tested)
    parts: dict[str, ImageSet] = {}
    bad: list[str] = []
    for name, rows in interval.levels(faces.labels).items():
        part, problems = faces.take(rows).sample(min(most, len(rows)), seed).load(size)
        bad += [str(problem) for problem in problems]
        if len(part):
            parts[name] = part
    if interval.name not in parts or len(parts) < 2:
        there = ", ".join(f"{len(part)} of {name}" for name, part in parts.items())
        raise IT3Error(
            f"testing needs faces of {interval.name} years that training did not see, and "
            f"younger or older ones; there are {there or 'none'}"
        )
    return parts, bad


def comparison_of(
    experiment: types.Experiment,
    faces: ImageSet,
    sizes: Sequence[int],
    *,
    skipped: Sequence[str] = (),
    **drawn: Any,
) -> types.TestSet:
    """The same of faces that are open; `drawn` are further arguments of `levels_of`."""
    parts, bad = levels_of(experiment.settings, faces, **drawn)
    inside, *outside = parts
    sides = {side: [n for n in outside if n.startswith(side)] for side in ("younger", "older")}
    groups = [types.Group(f"all {side}", names) for side, names in sides.items() if names]
    prints = {n: image_task.fingerprint(p, p.batch(slice(64))) for n, p in parts.items()}
    return types.TestSet(
        title="Faces: ages outside the trained interval",
        noun="face",
        levels={name: partial(level_of, part) for name, part in parts.items()},
        in_distribution=inside,
        lines=[*common_lines(FEWEST, stream=True), *OWN_LINES],
        batch_sizes=sizes,
        measure=error_and_bias,
        columns=[types.Quantity("error", "years", 2), types.Quantity("bias", "years", 2)],
        groups=[*groups, types.Group(OUTSIDE, outside)],
        headline=[group.name for group in groups],
        pictures=partial(pictures, parts),
        notes=[f"Left out: {one}." for one in [*skipped, *bad][:20]],
        memory=True,
        identity={"images": digest({}, prints)[:16]},
    )


def level_of(part: ImageSet, network: types.Network) -> types.Instances:
    """A level for a network."""
    pixels = part.batch(slice(None), image_task.preprocessing_of(network.settings).size)
    return image_task.instances(network, pixels, part, torch.float32)


def _mean_age(network: types.Network, size: int) -> Predictor:
    age = cast(Regression, network.adapter).mean[0]
    return lambda x: torch.full((len(x), 1), age, device=x.device)


def _answer_step(network: types.Network, size: int) -> Predictor:
    """The answer step that did best on validation faces; 1 is the second pass."""
    steps = [one for one in network.tunings["row"].tried if one["method"] == "AnswerStep"]
    tried = [one for one in steps if one["gain"] is not None]
    best = max(tried, key=gain_of, default=None)
    alpha = 1.0 if best is None else float(best["settings"]["alpha"])
    return AnswerStep(network.model, network.adapter, alpha=alpha)


def _coral(network: types.Network, size: int) -> Predictor | None:
    ranks = network.baselines.get(CORAL)
    return None if ranks is None else Source(ranks, network.adapter)


# The statistics of a batch of faces of one age hold what is then normalised away: so ActMAD is also
# compared on the training data's statistics.
OWN_LINES = [
    types.Line("answer step", _answer_step, once=True, note="y0 + α (y1 − y0), α by validation."),
    PLAIN_ACTMAD,
    types.Line("CORAL", _coral, once=True, note="Ordinal ranks (Cao et al. 2020), no signal."),
    types.Line("mean age", _mean_age, once=True, note="Of the training faces, for every face."),
]


def pictures(
    parts: Mapping[str, ImageSet], found: types.Evaluation, experiment: types.Experiment
) -> Iterator[types.Picture]:
    """Boxes by level as in the paper, differences, idempotence errors, sample faces."""
    records = [dict(record) for record in found.records]
    largest = max((r["batch_size"] or 0 for r in records), default=0)
    paper = [r for r in records if r["method"] in _PAPER]
    shown = [r for r in records if r["method"] not in _UNSHOWN]
    beside = [r for r in shown if r["batch_size"] in (None, largest)]
    kept = {(r["level"], r["method"], r["batch_size"]) for r in beside}
    rows = [dict(r) for r in found.rows if (r["level"], r["method"], r["batch_size"]) in kept]
    title = f"batches of {largest}"
    yield types.Picture("boxes", box_by_level(paper, error=_ERROR), DOES, "error by level", _BOXES)
    drawn = box_by_level(beside, error=_ERROR, title=title)
    yield types.Picture("methods", drawn, DOES, "error by level and method", _BOXES)
    if any(row["method"] != "source" for row in rows):
        drawn = difference_by_level(rows, error=_ERROR, title=title)
        yield types.Picture("differences", drawn, DOES, "difference to source by level")
    first = found.answers[found.answers["seed"] == experiment.first.seed]
    inside = first["level"] == next(iter(parts))
    if "error_after" in first:
        drawn = error_histograms(
            first[~inside][IDEMPOTENCE].tolist(),
            first[~inside]["error_after"].tolist(),
            first[inside][IDEMPOTENCE].tolist(),
            error="idempotence error |y₁ − y₀|, in training standard deviations",
            title=f"before and after IT³'s step, {title}",
        )
        yield types.Picture("errors", drawn, TRUST, "idempotence errors")
    some = first.groupby("level", sort=False).head(8)
    pixels = {level: part.batch(slice(8)) for level, part in parts.items()}
    yield types.Picture("faces", gallery(parts), TRUST, "faces by age", _GALLERY)
    sheet = image_task.sample_sheet(some, pixels, "{level}\n{truth:.0f} years", "{:.0f}".format)
    yield types.Picture("samples", sheet, TRUST, "sample faces with predictions", _SAMPLES)


def gallery(parts: Mapping[str, ImageSet]) -> Figure:
    """The paper's: ten faces of the trained ages, below them ten older and ten younger ones."""
    inside, *outside = parts
    rows = {f"{inside} years": [inside]}
    rows |= {side: [n for n in outside if n.startswith(side)] for side in ("older", "younger")}
    figure = Figure(figsize=(9.0, 2.95), layout="constrained")
    for row, (side, levels) in enumerate(rows.items()):
        # One face of each level in turn: all distances are seen.
        faces = [parts[levels[n % len(levels)]] for n in range(10)] if levels else []
        for column, part in enumerate(faces):
            number = column // len(levels)
            if number >= len(part):
                continue
            axes = figure.add_subplot(3, 10, 10 * row + column + 1, xticks=[], yticks=[])
            axes.imshow(part.image(number), interpolation="antialiased")
            axes.set_xlabel(f"{part.labels[number]}", fontsize=7, labelpad=1)
            if column == 0:
                axes.set_ylabel(side, fontsize=8)
    return figure


# --- predict and demo


def reader(experiment: types.Experiment, options: PredictOptions) -> types.Reader:
    """Faces in files; their names don't matter."""
    words = "{prediction:.1f} years".format_map
    return image_task.reader_of(experiment.settings, "face", words)


def demo(out: Path, options: DemoOptions) -> types.Demo:
    """Drawn faces and a tiny network."""
    whole = options.n + _FURTHER
    faces = draw_faces(whole, options.seed)
    train = Train(
        out=out / "experiment",
        seed=options.seed,
        network=FaceSettings("tiny"),
        epochs=options.epochs,
        batch_size=32,
        tuned=DEMO_TUNED,
        held_out=round((_FURTHER + 0.1 * options.n) / whole, 3),
        quiet=options.quiet,
    )
    provenance = {"data": f"{whole} faces drawn with OpenCV"}
    return types.Demo(
        problem_of(faces, train, provenance),
        lambda experiment: comparison_of(experiment, faces, (4, 16), most=64, seed=options.seed),
    )


TASK = types.Task("age", problem, restore, test_set, reader, demo)
