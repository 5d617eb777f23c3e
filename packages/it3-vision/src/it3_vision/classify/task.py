"""Classification under corruption: a problem, a test set and a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from it3_core import ETA, Classification, IT3Error, Tent, zigzag_loss
from it3_core.evaluation.evaluate import Predictor
from it3_core.experiment import types
from it3_core.experiment.figures import bars, error_against_accuracy
from it3_core.experiment.lines import PLAIN_ACTMAD, common_lines, norm_for
from it3_core.experiment.statistics import IDEMPOTENCE
from it3_core.experiment.train import mean_error
from it3_core.experiment.verbs import PredictOptions, batch_sizes
from it3_core.io.typed import as_kind
from it3_core.model.adapters import adapter_from
from it3_core.model.losses import supervised_loss
from it3_core.scores.uncertainty import Entropy
from it3_core.training.fit import Loss
from it3_core.trust.candidates import default_candidates
from it3_vision import image_task
from it3_vision.augmix import AugMix
from it3_vision.classify.cli import DemoOptions, Evaluate, Train
from it3_vision.classify.drawn import characters
from it3_vision.classify.levels import CLEAN, Shifts
from it3_vision.classify.validation import Chosen, check_unseen, chosen_of, decoded, open_apart
from it3_vision.corrupting import parse_severities, parse_types
from it3_vision.data import BadImage, ImageSet, open_images
from it3_vision.methods import MEMO, TTT, Fisher, joint_loss
from it3_vision.networks import NetworkSettings, build

FEWEST = 9  # images that have statistics of their own
SEVERITY = 5  # of the corruptions that tuning chooses by
DEMO_TUNED = "16:128,64:192"  # enough for a demonstration
_FURTHER = 2800  # characters that it draws for thresholds and intervals
DEMO_LINES = ("second pass", "batch statistics", "blended statistics", "IT³ (paper)",
              "IT³ (paper), batch statistics", "IT³ auto", "online IT³", "ActMAD", "Tent",
              "EATA")  # fmt: skip

DOES, TRUST = "What adaptation does", "Uncertainty scores"
_COLOURS = {
    "source": "#8a93a5",
    "batch statistics": "#0f766e",
    "blended statistics": "#5eaaa2",
    "TTT": "#713f12",
    "ActMAD": "#b7791f",
    "Tent": "#c2410c",
    "ETA": "#f59e0b",
    "MEMO": "#be185d",
    "IT³ (paper)": "#c4b5e8",
    "IT³ (paper), batch statistics": "#8b5cf6",
    "IT³ auto": "#4c1d95",
    "online IT³": "#a21caf",
}


@dataclass(frozen=True)
class Stored:
    """What a trained classifier's settings hold, as far as they are read again."""

    network: NetworkSettings
    rotation: bool
    flip: bool
    classes: tuple[str, ...]
    validation: Chosen | None = None


def stored(settings: types.Json) -> Stored:
    """The settings of a trained classifier."""
    return as_kind(dict(settings), Stored, "the classifier's settings", "train it again")


# --- train


def problem(data: Path, options: Train) -> types.Problem:
    """Training on labelled images."""
    provenance = {"data": str(data.resolve()), "split": options.split}
    if options.validation is not None:
        provenance["validation"] = str(options.validation.resolve())
    images = open_images(data, split=options.split)
    return problem_of(images, options, provenance, open_apart(options, images.classes))


def problem_of(
    images: ImageSet, options: Train, provenance: types.Json, apart: ImageSet | None = None
) -> types.Problem:
    """The same of images that are open.

    Args:
        images: with labels.
        options: of the training; the images' classes become the network's.
        provenance: where they come from, for the experiment folder.
        apart: labelled images to validate on, of which `options.validation_half` is taken.
    """
    if len(images.classes) < 2:
        raise IT3Error("a classifier needs images of at least two classes: one folder for each")
    chosen, brings = chosen_of(apart, options.validation_half), options.network.brings
    kept = Stored(options.network, options.rotation, options.flip, images.classes, chosen)
    second, weight = options.second_signal, options.protocol.second_weight
    zigzag = partial(zigzag_loss, second_signal=second, second_weight=weight, shared_prefix=True)
    return types.Problem(
        settings={
            "task": "classify",
            **asdict(kept),
            "distance": options.distance,
            **image_task.settings_of(options, brings, images),
        },
        data=partial(_read, images, options, apart),
        make=partial(
            build,
            options.network,
            weights=options.weights,
            new_head=options.new_head,
            pretrained=True,
            rotation=options.rotation,
        ),
        recipe=image_task.recipe_of(options, options.network.norm == "batch"),
        answers=types.Answers(classes=images.classes),
        loss=_loss(zigzag, options.rotation),
        vanilla_loss=_loss(supervised_loss, options.rotation),
        trials=partial(_trials, options),
        statistics=_statistics,
        restore=restore,
        provenance=provenance,
    )


def _loss(loss: Loss, rotation: bool) -> Loss:
    return partial(joint_loss, base=loss, weight=0.5) if rotation else loss


def restore(settings: types.Json, adapter_json: types.Json) -> types.Restored:
    """The network without its weights."""
    adapter, kept = adapter_from(dict(adapter_json)), stored(settings)
    if not isinstance(adapter, Classification):
        raise IT3Error("this is no classifier: train it again")
    image_task.preprocessing_of(settings)  # refuses what is wrong with it
    model = build(kept.network, adapter, rotation=kept.rotation)
    return types.Restored(model, adapter, types.Answers(classes=kept.classes))


def _read(images: ImageSet, options: Train, apart: ImageSet | None = None) -> types.TrainingData:
    """The labelled images that can be read, in memory where they fit."""
    size = options.network.side
    images, bad = image_task.in_memory(images.take(images.labels >= 0), size, not options.quiet)
    counts = np.bincount(images.labels, minlength=len(images.classes))
    if len(images) < 20 or counts.min() < 2:
        fewest = images.classes[int(counts.argmin())]
        raise IT3Error(
            f"there are {len(images)} images to train on, and {counts.min()} of class {fewest!r}: "
            f"give 20 at least, and 2 of each class"
        )
    adapter = Classification(len(images.classes), options.distance)
    augment = image_task.augmentation(size, flip=options.flip)
    worse: list[BadImage] = []
    if apart is not None:
        apart, worse = decoded(apart, options)
    brings, bad = options.network.brings, [*bad, *worse]
    return image_task.training_data(
        images, size, options, brings, lambda _: adapter, augment, bad, apart=apart
    )


def _statistics(model: nn.Module, data: types.TrainingData) -> Mapping[str, Tensor]:
    """What ActMAD and EATA need."""
    return {
        **image_task.activations(model, data),
        **Fisher.collect(model, data.adapter, data.plain(data.seen[:512])).tensors(),
    }


def _trials(options: Train, model: nn.Module, data: types.TrainingData) -> Iterator[types.Trial]:
    wrong = partial(mean_error, model, data.adapter)
    for size, x, y, shifts in image_task.shifted_validation(data, options, SEVERITY, wrong):
        yield types.Trial(size, x, y, shifts, default_candidates(model, size))


# --- evaluate


def test_set(experiment: types.Experiment, options: Evaluate) -> types.TestSet:
    """Clean images, and the same under each corruption."""
    sizes = batch_sizes(options.batch_sizes)
    kinds, severities = parse_types(options.corruptions), parse_severities(options.severities)
    kept = stored(experiment.settings)
    images = open_images(options.data, split=options.split, classes=kept.classes)
    images = images.take(images.labels >= 0)
    check_unseen(kept.validation, images, options.half)
    images = images if options.half is None else images.half(options.half)
    if not len(images):
        raise IT3Error(f"{options.data} holds no labelled image: nothing can be measured")
    images, bad = images.sample(min(options.most, len(images)), options.seed).sound()
    if not len(images):
        raise IT3Error(f"none of the images in {options.data} can be read: {bad[0]}")
    shifts = Shifts(images, kinds, severities, options.corrupted, options.seed)
    notes = [f"Left out: {one}." for one in bad[:20]]
    return comparison_of(experiment, shifts, sizes, slow=options.slow, notes=notes)


def comparison_of(
    experiment: types.Experiment,
    shifts: Shifts,
    sizes: Sequence[int],
    *,
    slow: bool = True,
    notes: Sequence[str] = (),
) -> types.TestSet:
    """The same of images that are open.

    Args:
        experiment: the trained networks.
        shifts: test images and corruptions.
        sizes: how many images come at once.
        slow: whether to have MEMO and TTT, which take many passes for each image.
        notes: for the report.
    """
    shifts.check()
    size = image_task.preprocessing_of(experiment.settings).size
    groups = [
        types.Group(
            f"mean {one}", [f"{kind} {one}" for kind in shifts.corruptions], same_instances=True
        )
        for one in shifts.severities
    ]
    return types.TestSet(
        title="Images: classification under corruption",
        noun="image",
        levels={name: partial(level_of, shifts, name) for name in shifts.names()},
        in_distribution=CLEAN,
        lines=[*common_lines(FEWEST), *own_lines(slow)],
        batch_sizes=sizes,
        measure=lambda found, y: {"error": 100.0 * (found.argmax(1) != y)},
        columns=[types.Quantity("error", "%", 1)],
        groups=groups,
        headline=[groups[-1].name],
        scores={"entropy": lambda network: Entropy(network.model, network.adapter)},
        pictures=partial(pictures, shifts),
        notes=[*notes, *shifts.unmeasured()],
        memory=True,
        identity={
            # Other images may have the same names; the first ones give them away.
            "images": image_task.fingerprint(shifts.images, shifts.pixels(size, CLEAN, 64)),
            "seed": shifts.seed,
            "corrupted": None if shifts.folder is None else shifts.folder.name,
        },
    )


def level_of(shifts: Shifts, name: str, network: types.Network) -> types.Instances:
    """A level for a network."""
    pixels = shifts.pixels(image_task.preprocessing_of(network.settings).size, name)
    return image_task.instances(network, pixels, shifts.images, torch.int64)


def own_lines(slow: bool) -> list[types.Line]:
    """Methods that lower entropy, and with `slow` those that take many passes an image."""

    def tent(network: types.Network, size: int, online: bool = True) -> Predictor:
        norm = norm_for(network, size, FEWEST)
        return Tent(network.model, network.adapter, norm=norm, online=online)

    def eta(network: types.Network, size: int, eata: bool = False) -> Predictor:
        fisher = Fisher.from_tensors(network.statistics).importance if eata else None
        norm = norm_for(network, size, FEWEST)
        return ETA(network.model, network.adapter, fisher, fisher_weight=1.0, norm=norm)

    def memo(network: types.Network, size: int) -> Predictor:
        images = image_task.preprocessing_of(network.settings)
        augment = AugMix(images.mean, images.std, flip=stored(network.settings).flip)
        return MEMO(network.model, network.adapter, augment, copies=16)

    def ttt(network: types.Network, size: int) -> Predictor | None:
        if not stored(network.settings).rotation:
            return None
        return TTT(network.model, network.adapter, steps=1, lr=1e-3)

    found = [
        PLAIN_ACTMAD,
        types.Line("Tent", tent, note="Online, Adam at 1e-3."),
        types.Line("Tent, episodic", partial(tent, online=False), note="Each batch anew."),
        types.Line("ETA", eta, note="Online, SGD at 5e-3, E0 = 0.4 ln C, d = 0.4."),
        types.Line("EATA", partial(eta, eata=True), note="ETA with the Fisher term, weight 1."),
    ]
    of_images = [
        types.Line("MEMO", memo, once=True, note="16 AugMix copies of each image, SGD at 5e-3."),
        types.Line("TTT", ttt, once=True, note="Four rotations of an image, SGD at 1e-3."),
    ]
    return [*found, *of_images] if slow else found


def pictures(
    shifts: Shifts, found: types.Evaluation, experiment: types.Experiment
) -> Iterator[types.Picture]:
    """Bars by corruption and by severity, scores against accuracy, and sample images."""
    sizes = sorted({r["batch_size"] for r in found.records if r["batch_size"] is not None}) or [1]
    names, severity = [*shifts.corruptions, "mean"], shifts.severities[-1]
    for size in sizes:
        drawn = bars(
            _errors(found, size, [f"{name} {severity}" for name in names]),
            [name.replace("_", "\n") for name in names],
            quantity="error, %",
            colours=_COLOURS,
            title=f"severity {severity}, batches of {size}",
            width=max(7.0, 0.78 * len(names)),
        )
        yield types.Picture(f"bars-{size}", drawn, DOES, f"error by corruption, batches of {size}")
    if len(shifts.severities) > 1:
        errors = _errors(found, sizes[-1], [f"mean {one}" for one in shifts.severities])
        drawn = bars(
            {m: [None if e is None else 100 - e for e in own] for m, own in errors.items()},
            [f"severity {one}" for one in shifts.severities],
            quantity="mean accuracy, %",
            colours=_COLOURS,
        )
        yield types.Picture("severities", drawn, DOES, "mean accuracy by severity")
    yield from _against_accuracy(found)
    note = (
        "The prediction, after → where adaptation changed it; green is right. Below, the "
        "percentage of validation images that are less unusual."
    )
    first, size = experiment.first, image_task.preprocessing_of(experiment.settings).size
    lines = found.answers[found.answers["seed"] == first.seed].groupby("level", sort=False)
    some = lines.head(2).head(32)
    pixels = {level: shifts.pixels(size, level, 2) for level in some["level"].unique()}
    names = [name[:12] for name in first.answers.classes]
    sheet = image_task.sample_sheet(some, pixels, "{level}", names.__getitem__, frames=True)
    yield types.Picture("samples", sheet, TRUST, "sample images with predictions", note)


def _errors(
    found: types.Evaluation, batch_size: int, levels: Sequence[str]
) -> dict[str, list[float | None]]:
    cells = {
        (row["method"], row["level"]): row["error"]
        for row in found.rows
        if row["batch_size"] in (None, batch_size)
    }
    methods = [m for m in _COLOURS if any((m, level) in cells for level in levels)]
    return {method: [cells.get((method, level)) for level in levels] for method in methods}


def _against_accuracy(found: types.Evaluation) -> Iterator[types.Picture]:
    """Mean scores of batches of 64 images of one level, against their accuracy."""
    first = found.answers[found.answers["seed"] == found.answers["seed"].iloc[0]]
    batch = first.groupby("level", sort=False).cumcount() // 64
    parts = first.groupby(["level", batch], sort=False)[["error", IDEMPOTENCE, "entropy"]]
    points = parts.mean()[parts.size() == 64]
    if len(points) < 3:
        return
    for score in (IDEMPOTENCE, "entropy"):
        drawn = error_against_accuracy(
            points[score].tolist(),
            (100 - points["error"]).tolist(),
            error=f"mean {score} of a batch of 64",
            quality="accuracy, %",
            title=score.capitalize(),
        )
        name = f"{score.replace(' ', '-')}-against-accuracy"
        yield types.Picture(name, drawn, TRUST, f"{score} against accuracy")


# --- predict and demo


def reader(experiment: types.Experiment, options: PredictOptions) -> types.Reader:
    """Images in files."""
    words = "{prediction} {probability:.2f}".format_map
    return image_task.reader_of(experiment.settings, "image", words)


def demo(out: Path, options: DemoOptions) -> types.Demo:
    """Drawn characters and a tiny network; ETA and MEMO are left to `evaluate`."""
    whole = options.n + _FURTHER
    train = Train(
        out=out / "experiment",
        seed=options.seed,
        network=NetworkSettings(size="tiny"),
        epochs=options.epochs,
        batch_size=32,
        lr=0.05,
        rotation=False,
        flip=False,
        tuned=DEMO_TUNED,
        held_out=round((_FURTHER + 0.1 * options.n) / whole, 3),
        quiet=options.quiet,
    )
    provenance = {"data": f"{whole} characters drawn with OpenCV's fonts"}

    def compared(experiment: types.Experiment) -> types.TestSet:
        shifts = Shifts(characters(options.tested, options.seed + 1), seed=options.seed)
        whole = comparison_of(experiment, shifts, (16, 64), slow=False)
        lines = [line for line in whole.lines if line.name in ("source", *DEMO_LINES)]
        return replace(whole, lines=lines)

    return types.Demo(problem_of(characters(whole, options.seed), train, provenance), compared)


TASK = types.Task("classify", problem, restore, test_set, reader, demo)
