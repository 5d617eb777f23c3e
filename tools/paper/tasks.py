"""The paper's experiments, each by the functions of its package.

A task gets a `Place` and gives an `Outcome`, or raises `NotHereError` with what it would need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from it3_core.batching import batches
from it3_core.evaluation.records import Record
from paper.contrasts import assessed
from paper.outcomes import Outcome, Place, Roles

Task = Callable[[Place], Outcome]

IMAGE_ROLES = Roles(statistics="batch statistics")

_KNOWN = 1000  # training images that Mahalanobis distances are learnt from, at most


class NotHereError(Exception):
    """What is missing for an experiment, in a sentence."""


def tabular(place: Place) -> Outcome:
    """Boston Housing with features zeroed; Energy, which comes with the package, without it."""
    from it3_core.io.files import make_folder
    from it3_tabular.protocol import evaluate_split, read_trust
    from it3_tabular.uci import UCI, load_energy, load_uci

    if (boston := place.given("uci", "bostonHousing")) is not None:
        data = load_uci(boston)
    else:
        x, y = load_energy()
        rows = [np.random.default_rng(split).permutation(len(y)) for split in range(20)]
        data = UCI("energy", x, y, [(part[77:], part[:77]) for part in rows])
    folder = make_folder(place.folder)
    records: list[Record] = []
    splits = min(place.of(3, 20, 20), len(data.splits))
    for split in range(splits):
        records += evaluate_split(data, split, folder)
    return Outcome(
        "tabular",
        records,
        Roles(vanilla="vanilla", auto="auto"),
        same=True,
        unit="MAE",
        trust=read_trust(folder, data.name),
        about={"data": data.name, "splits": splits},
    )


def wings(place: Place) -> Outcome:
    """NACA profiles by XFoil, beyond a lift-to-drag ratio of 60."""
    from it3_aero.wings.cli import Evaluate, Train
    from it3_aero.wings.generating import generate
    from it3_aero.wings.task import TASK

    n, data = place.of(300, 2000, 2000), place.folder / "data"
    card = generate(data, n, seed=0, progress=place.progress)
    source = f"{n} profiles, {card['settings']['solver']}"
    return _shapes(place, TASK, data, source, "MAE of L/D", place.of(2, 10, 40), Train, Evaluate)


def cars(place: Place) -> Outcome:
    """Parametric cars by OpenFOAM, streamlined ones beyond: those that come with the package."""
    from it3_aero.cars.cli import Evaluate, Train
    from it3_aero.cars.dataset import SAMPLE, CarDataset
    from it3_aero.cars.task import TASK

    if not SAMPLE.exists():
        raise NotHereError("the package holds no solved cars yet")
    dataset = CarDataset(SAMPLE)
    source = f"{len(dataset)} cars, {dataset.solver}"
    return _shapes(place, TASK, SAMPLE, source, "MAE of Cd", place.of(1, 5, 5), Train, Evaluate)


def _shapes(
    place: Place,
    task: Any,
    data: Path,
    source: str,
    unit: str,
    seeds: int,
    options: Any,
    tested: Any,
) -> Outcome:
    """Seeds of one experiment; `options` and `tested` are the task's of train and evaluate."""
    from it3_core.experiment.evaluate import evaluate

    size = "full" if place.preset == "full" else "small"
    given = {"size": size, "epochs": place.of(15, None, None)}

    def problem(seed: int, out: Path) -> Any:
        return task.problem(data, options(out=out, seed=seed, **given))

    experiment = _trained(place, seeds, problem)
    tests = task.test_set(experiment, tested(most=place.of(10, 50, 10**9)))
    found = evaluate(experiment, tests, progress=place.progress)
    rows = problem(seeds - 1, place.folder).data
    known = rows.plain(sorted([*rows.rows, *rows.validation]))[0]
    networks, parts = experiment.networks, list(batches(known, 64))
    levels = _levels(tests, experiment.first)
    return Outcome(
        task.name,
        list(map(dict, found.records)),
        Roles(),
        same=False,
        unit=unit,
        trust=assessed(networks, parts, levels, tests.in_distribution, layer="model.head.3"),
        about=_about(source, f"{size} network", networks),
    )


def _trained(place: Place, seeds: int, problem: Callable[[int, Path], Any]) -> Any:
    """An experiment of so many training seeds, each with its vanilla network."""
    from it3_core.experiment.train import train

    folder = place.folder / "experiment"
    for seed in range(seeds):
        experiment = train(problem(seed, folder), folder, vanilla=True, progress=place.progress)
    return experiment


def cifar(place: Place) -> Outcome:
    """CIFAR-10 under the fifteen corruptions; drawn characters where it is not there."""
    from it3_vision.classify.drawn import characters
    from it3_vision.data import open_images

    train, test = place.given("cifar10", "train.tar.gz"), place.given("cifar10", "test.tar.gz")
    if place.preset == "quick" or train is None or test is None:
        return _images(place, "cifar", "drawn characters", characters(1500), characters(64, 1))
    return _images(place, "cifar", "CIFAR-10", open_images(train), open_images(test))


def imagenet(place: Place) -> Outcome:
    """Fifty classes of Tiny-ImageNet with a ResNet-18; at 32×32 where hours are to do."""
    from it3_vision.data import open_images

    train = place.given("tiny-imagenet-50", "train.tar.gz")
    test = place.given("tiny-imagenet-50", "val.tar.gz")
    if train is None or test is None:
        raise NotHereError("IT3_DATA has no tiny-imagenet-50/train.tar.gz and val.tar.gz")
    if place.preset == "quick":
        raise NotHereError("training takes longer than quick may: use --preset small")
    size = place.of(32, 32, 64)
    data = f"tiny-imagenet-50, {size} pixels"
    return _images(place, "imagenet", data, open_images(train), open_images(test), "resnet18", size)


def _images(
    place: Place,
    task: str,
    data: str,
    train_set: Any,
    test_set: Any,
    network: str = "dla",
    size: int = 32,
) -> Outcome:
    from it3_core.experiment.evaluate import WITH_GRAPH, evaluate
    from it3_vision.classify.cli import Train
    from it3_vision.classify.levels import CLEAN, Shifts
    from it3_vision.classify.task import comparison_of, problem_of
    from it3_vision.networks import NetworkSettings

    drawn = data == "drawn characters"
    most = place.of(64, 256, 2000)
    sizes = place.of((64,), (4, 16, 64) if network == "dla" else (4, 64), (1, 4, 16, 64))
    width: Any = "tiny" if drawn else place.of("tiny", "small", "full")
    training: dict[str, Any] = _long(place, 5, 100)
    training |= {"rotation": place.preset == "full"}
    training |= {"tuned": ",".join(f"{n}:{512 if n == 1 else 1024}" for n in sizes)}
    if network != "dla":  # few images, so more steps of fewer, and a second pass that costs little
        training |= {"batch_size": 32, "lr": 0.05, "second_weight": 0.1}
    if drawn:
        training = {"epochs": 4, "batch_size": 32, "lr": 0.05, "rotation": False, "flip": False}
        training |= {"tuned": "16:128,64:192"}
    training |= {
        "network": NetworkSettings(network, width, pixels=size),
        "quiet": not place.progress,
    }

    def problem(seed: int, out: Path) -> Any:
        return problem_of(train_set, Train(out=out, seed=seed, **training), {"data": data})

    # Small: many short trainings tell more about a method than one long one.
    experiment = _trained(place, place.of(1, 5, 5), problem)
    shifts = Shifts(test_set.sample(min(most, len(test_set)), 0))
    compared = comparison_of(experiment, shifts, sizes, slow=place.preset == "full")
    found = evaluate(experiment, compared, progress=place.progress)
    levels = _levels(compared, experiment.first)
    mild: list[Record] = []
    if network != "dla":  # of these the paper has all severities
        compared = comparison_of(experiment, replace(shifts, severities=(1,)), sizes[-1:])
        out, only = place.folder / "mild", [IMAGE_ROLES.it3]
        milder = evaluate(experiment, compared, out, only=only, progress=place.progress)
        mild = list(map(dict, milder.records))
    some = train_set.sample(min(_KNOWN, len(train_set)), 0)
    trust = _assessed_images(experiment, some, levels, CLEAN, "model.pool", classes=True)
    return Outcome(
        task,
        list(map(dict, found.records)),
        IMAGE_ROLES,
        same=True,
        unit="error in per cent",
        trust=trust,
        mild=mild,
        memory={
            name: value / found.summary["memory"][WITH_GRAPH]
            for name, value in found.summary["memory"].items()
            if name != WITH_GRAPH
        },
        about=_about(data, f"{network} {width}", experiment.networks),
    )


def _assessed_images(
    experiment: Any, some: Any, levels: Any, inside: Any, layer: str, *, classes: bool = False
) -> list[dict[str, Any]]:
    """Uncertainty scores of all networks, where distances are learnt from `some` images."""
    from it3_vision.image_task import preprocessing_of, tensor_of

    size = preprocessing_of(experiment.settings).size
    images, _ = some.load(size)
    known = list(batches(tensor_of(experiment.first, images.batch(slice(None), size)), 64))
    labels = torch.from_numpy(images.labels) if classes else None
    return assessed(experiment.networks, known, levels, inside, layer=layer, labels=labels)


def _levels(test_set: Any, network: Any) -> dict[str, Any]:
    """A test set's inputs and labels by level, loaded when their turn comes."""

    def pair(level: Any) -> tuple[Any, Any]:
        x, y, _ = level(network) if callable(level) else level
        return x, y

    return {name: partial(pair, level) for name, level in test_set.levels.items()}


def _about(data: str, network: str, networks: Sequence[Any]) -> dict[str, Any]:
    """What to say of an experiment; |dF/dy| is a network's sensitivity to its signal."""
    sensitivities = ", ".join(f"{one.measured['sensitivity']:.2f}" for one in networks)
    numbers = {"training seeds": len(networks), "|dF/dy|": sensitivities}
    return {"data": data, "network": network, **numbers}


def _long(place: Place, small: int, full: int) -> dict[str, Any]:
    """Epochs, and bfloat16 where CPUs are to finish within hours: those that have it use it."""
    epochs = place.of(None, small, full)
    return {"epochs": epochs, "bfloat16": True if place.preset == "small" else None}


def age(place: Place) -> Outcome:
    """UTKFace, trained on ages 20 to 60; drawn faces where it is not there."""
    from it3_core.experiment.evaluate import evaluate
    from it3_vision.age.cli import FaceSettings, Train
    from it3_vision.age.faces import draw_faces, read_faces
    from it3_vision.age.task import comparison_of, problem_of, trainable

    given = next(iter(sorted((place.given("utkface") or place.folder).glob("*.tar*"))), None)
    drawn = place.preset == "quick" or given is None
    faces = draw_faces(1500) if drawn or given is None else read_faces(given).images
    # Small: five short trainings of a tiny network tell more about a method than one long one.
    width: Any = "tiny" if drawn else place.of("tiny", "tiny", "full")
    network = FaceSettings(width)
    data = "drawn faces" if drawn else f"UTKFace, {network.side} pixels"
    fewer: dict[str, Any] = _long(place, 10, 60)
    if drawn:
        fewer = {"epochs": 5, "tuned": "4:48,16:96"}
    options = partial(Train, network=network, quiet=not place.progress, **fewer)
    experiment = _trained(
        place,
        place.of(1, 5, 5),
        lambda seed, out: problem_of(faces, options(out=out, seed=seed), {"data": data}),
    )
    most, sizes = place.of(32, 64, 300), place.of((4, 16), (4, 8, 16), (4, 8, 16))
    compared = comparison_of(experiment, faces, sizes, most=most)
    found = evaluate(experiment, compared, progress=place.progress)
    ages = options(out=place.folder)
    seen = trainable(faces, ages.low, ages.high, ages.tested)
    some = seen.sample(min(_KNOWN, len(seen)), 0)
    levels, inside = _levels(compared, experiment.first), compared.in_distribution
    trust = _assessed_images(experiment, some, levels, inside, "model.pool")
    return Outcome(
        "age",
        list(map(dict, found.records)),
        IMAGE_ROLES,
        same=False,
        unit="MAE in years",
        trust=trust,
        about=_about(data, f"{width} size", experiment.networks),
    )


def roads(place: Place) -> Outcome:
    """EPFL's towns to Massachusetts' countryside; drawn ones where they are not there."""
    from it3_core.experiment.evaluate import evaluate, joined
    from it3_vision.roads.cli import Train
    from it3_vision.roads.drawn import drawn_scenes
    from it3_vision.roads.reading import open_roads
    from it3_vision.roads.scenes import images_of
    from it3_vision.roads.task import VALIDATION, comparison, inputs_of, problem_of, validation_of

    towns = place.given("roads", "epfl-400.tar.gz")
    country = place.given("roads", "massachusetts-1500.tar.gz")
    drawn = place.preset == "quick" or towns is None or country is None
    if drawn or towns is None or country is None:
        urban, rural = drawn_scenes("urban", 96, 128), drawn_scenes("rural", 8, 128, seed=500)
        settings: dict[str, Any] = {"size": "tiny", "crop": 64, "epochs": 16, "lr": 2e-2}
    else:
        urban, rural = open_roads(towns, resolution=0.3), open_roads(country, resolution=1.0)
        settings = {"size": place.of("tiny", "small", "full"), **_long(place, 40, 80)}
    settings["steps"] = 2 if drawn or place.preset == "small" else 3
    data = "drawn towns and countryside" if drawn else "EPFL to Massachusetts"
    options = Train(out=place.folder, quiet=not place.progress, **settings)
    experiment = _trained(
        place,
        place.of(1, 5, 5),
        lambda seed, out: problem_of(urban, replace(options, out=out, seed=seed), {"data": data}),
    )
    less: dict[str, Any] = {"tile": 80} if drawn else place.of({}, {"tile": 112}, {})
    images = images_of(rural, options.at, window=place.of(None, 192, None))
    sizes = place.of((1, 4), (1, 4, 8), (1, 4, 8))
    test_set = comparison(experiment, images, sizes, **less)
    found = evaluate(experiment, test_set, progress=place.progress)
    records = list(map(dict, found.records))
    quartiles = joined(records, test_set.groups)
    near, far = (images_of(some, options.at, window=options.crop) for some in (urban, rural))
    trust: list[dict[str, Any]] = []
    for network in experiment.networks:  # each has other validation crops
        # Distances are learnt from all scenes, and the ensemble's other networks were trained on
        # most of this one's validation scenes: both in favour of these scores.
        parts = {VALIDATION: validation_of(network), "all": inputs_of(far.scenes, network)}
        tested = {
            name: (torch.stack(list(part.x)), torch.stack(list(part.y)).long())
            for name, part in parts.items()
        }
        trust += assessed(
            [network],
            list(batches(torch.stack(list(inputs_of(near.scenes, network).x)), 8)),
            tested,
            VALIDATION,
            layer=f"cell.down.{len(network.model.cell.down) - 1}.conv2",
            ensemble=experiment.networks,
            batch_size=8,  # more would be run in parts, of which a layer's output shows one
        )
    return Outcome(
        "roads",
        [*(record for record in records if record["level"] == VALIDATION), *quartiles],
        IMAGE_ROLES,
        same=False,
        unit="100 − quality",
        trust=trust,
        about=_about(data, f"{options.size} size", experiment.networks),
    )


TASKS: dict[str, Task] = {
    "tabular": tabular,
    "wings": wings,
    "cars": cars,
    "cifar": cifar,
    "imagenet": imagenet,
    "age": age,
    "roads": roads,
}
"""By name, in the order in which they run."""
