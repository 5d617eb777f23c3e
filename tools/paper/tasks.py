"""The paper's experiments, each by the functions of its package.

A task gets a `Place` and gives an `Outcome`, or raises `NotHereError` with what it would need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from it3_core.batching import batches
from it3_core.evaluation import Record
from it3_core.tables import BEYOND
from paper.outcomes import Outcome, Place, Roles
from paper.trust import judged

__all__ = ["TASKS", "NotHereError"]

Task = Callable[[Place], Outcome]

_KNOWN = 1000  # training images that Mahalanobis distances are learnt from, at most


class NotHereError(Exception):
    """What is missing for an experiment, in a sentence."""


def tabular(place: Place) -> Outcome:
    """Boston Housing with features zeroed; Energy, which comes with the package, without it."""
    from it3_core.files import make_folder
    from it3_tabular.protocol import evaluate_split
    from it3_tabular.report import read_trust
    from it3_tabular.uci import UCI, load_energy, load_uci

    boston = place.given("uci", "bostonHousing")
    if boston is not None:
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
        trust=read_trust(folder / f"{data.name}-trust.jsonl"),
        about={"data": data.name, "splits": splits},
    )


def wings(place: Place) -> Outcome:
    """NACA profiles by XFoil, beyond a lift-to-drag ratio of 60."""
    from it3_aero.wings import WingDataset
    from it3_aero.wings.generating import generate
    from it3_aero.wings.task import WINGS

    n = place.of(300, 2000, 2000)
    generate(place.folder / "data", n, seed=0, progress=place.progress)
    dataset = WingDataset(place.folder / "data")
    data = f"{n} profiles, {dataset.solver}"
    return _shapes(place, WINGS, dataset, data, "MAE of L/D", place.of(2, 10, 40))


def cars(place: Place) -> Outcome:
    """Parametric cars by OpenFOAM, streamlined ones beyond: those that come with the package."""
    from it3_aero.cars.dataset import SAMPLE, CarDataset
    from it3_aero.cars.task import CARS

    if not Path(SAMPLE).exists():
        raise NotHereError("the package holds no solved cars yet")
    dataset = CarDataset(SAMPLE)
    data = f"{len(dataset)} cars, {dataset.solver}"
    return _shapes(place, CARS, dataset, data, "MAE of Cd", place.of(1, 5, 5))


def _shapes(place: Place, task: Any, dataset: Any, data: str, unit: str, seeds: int) -> Outcome:
    from it3_aero.learning.evaluate import evaluate_run
    from it3_aero.learning.job import levels_of, threshold_of
    from it3_aero.learning.model import Training, train
    from it3_aero.learning.runs import load_run
    from it3_aero.learning.shapes import WITHIN

    levels = levels_of(task, dataset, threshold_of(task, dataset))
    preset = "paper" if place.preset == "full" else "small"
    training = Training(preset, epochs=place.of(15, None, None))
    run = train(task, levels.train, place.folder / "run", training, progress=place.progress)
    most = place.of(10, 50, None)
    found = evaluate_run(run, levels, seeds=seeds, most=most, progress=place.progress)
    others = [load_run(task, run.folder / "seeds" / str(seed)) for seed in range(1, seeds)]
    tested = {name: (part.x, part.y) for name, part in levels.drawn(most).test.items()}
    known = list(batches(levels.train.x, 64))
    trust = judged([run, *others], known, tested, WITHIN, layer="model.head.3")
    return Outcome(
        task.name,
        [record for record in found.records if record["level"] != BEYOND],
        Roles(it3="IT³ paper"),
        same=False,
        unit=unit,
        trust=trust,
        about={
            "data": data,
            "network": f"{preset} preset",
            "training seeds": seeds,
            "|dF/dy|": _heard([run, *others]),
        },
    )


def cifar(place: Place) -> Outcome:
    """CIFAR-10 under the fifteen corruptions; drawn characters where it is not there."""
    from it3_vision.classify.demo import characters
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
    from it3_vision.classify.choosing import BATCHES
    from it3_vision.classify.evaluate import CLEAN, Shifts, evaluate_run
    from it3_vision.classify.runs import Training, train
    from it3_vision.comparing import WITH_GRAPH
    from it3_vision.networks import NetworkSettings

    drawn = data == "drawn characters"
    # Small: many short trainings tell more about a method than one long one.
    seeds = place.of(1, 5, 5)
    most = place.of(64, 256, 2000)
    sizes = place.of((64,), (4, 16, 64) if network == "dla" else (4, 64), (1, 4, 16, 64))
    preset: Any = "tiny" if drawn else place.of("tiny", "small", "paper")
    training: dict[str, Any] = _long(place, 5, 100)
    training |= {"rotation": place.preset == "full"}
    if network != "dla":  # few images, so more steps of fewer, and a second pass that costs little
        training |= {"batch_size": 32, "lr": 0.05, "weight": 0.1}
    if drawn:
        training = {"epochs": 4, "batch_size": 32, "lr": 0.05, "rotation": False, "flip": False}
    records: list[Record] = []
    mild: list[Record] = []
    memories: list[dict[str, float]] = []
    runs = []
    shifts = Shifts(test_set.sample(min(most, len(test_set)), 0))
    roles = Roles(it3="IT³, batch statistics", statistics="batch statistics")
    for seed in range(seeds):
        settings = Training(NetworkSettings(network, preset, size=size), seed=seed, **training)
        run = train(
            train_set,
            place.folder / f"run-{seed}",
            settings,
            about={"data": data},
            vanilla=True,
            tuned={16: 128, 64: 192} if drawn else {size: BATCHES[size] for size in sizes},
            progress=place.progress,
        )
        found = evaluate_run(
            run,
            shifts,
            batch_sizes=sizes,
            slow=place.preset == "full",
            progress=place.progress,
        )
        records += found.records
        memories.append(found.numbers["memory"])
        if network != "dla":  # of these the paper has all severities
            found = evaluate_run(
                run,
                replace(shifts, severities=(1,)),
                out=run.folder / "mild",
                batch_sizes=sizes[-1:],
                only=[roles.it3],
                progress=place.progress,
            )
            mild += found.records
        runs.append(run)
    some = train_set.sample(min(_KNOWN, len(train_set)), 0)
    known = list(batches(runs[0].tensor(some.batch(slice(None), runs[0].prepare.size)), 64))
    trust = judged(
        runs,
        known,
        shifts.levels(runs[0]),
        CLEAN,
        layer="model.pool" if network == "dla" else "model.avgpool",
        labels=torch.from_numpy(some.labels),
    )
    return Outcome(
        task,
        records,
        roles,
        same=True,
        unit="error in per cent",
        trust=trust,
        mild=mild,
        memory=_relative(memories, to=WITH_GRAPH),
        about={
            "data": data,
            "network": f"{network} {preset}",
            "training seeds": seeds,
            "|dF/dy|": _heard(runs),
        },
    )


def _heard(runs: Sequence[Any]) -> str:
    """How much each network listens to its signal: 0 is deaf, 1 a copy."""
    return ", ".join(f"{run.settings['sensitivity']:.2f}" for run in runs)


def _relative(memories: Sequence[Mapping[str, float]], to: str) -> dict[str, float]:
    """What each method takes as a multiple of one of them, the mean over networks."""
    common = set.intersection(*(set(one) for one in memories))
    return {
        name: sum(one[name] / one[to] for one in memories) / len(memories)
        for name in sorted(common - {to})
    }


def _long(place: Place, small: int, full: int) -> dict[str, Any]:
    """Epochs, and bfloat16 where CPUs are to finish within hours: those that have it use it."""
    epochs = place.of(None, small, full)
    return {"epochs": epochs, "bfloat16": True if place.preset == "small" else None}


def age(place: Place) -> Outcome:
    """UTKFace, trained on ages 20 to 60; drawn faces where it is not there."""
    from it3_vision.age.drawing import draw_faces
    from it3_vision.age.evaluate import Levels, evaluate_run
    from it3_vision.age.faces import read_faces
    from it3_vision.age.network import FaceSettings
    from it3_vision.age.runs import Training, train

    given = next(iter(sorted((place.given("utkface") or place.folder).glob("*.tar*"))), None)
    drawn = place.preset == "quick" or given is None
    faces = draw_faces(1500) if drawn or given is None else read_faces(given).images
    # Small: five short trainings of a tiny network tell more about a method than one long one.
    preset: Any = "tiny" if drawn else place.of("tiny", "tiny", "paper")
    network = FaceSettings(preset)
    data = "drawn faces" if drawn else f"UTKFace, {network.pixels} pixels"
    records: list[Record] = []
    runs = []
    seeds = place.of(1, 5, 5)
    fewer: dict[str, Any] = {"epochs": 5} if drawn else _long(place, 10, 60)
    training = Training(network, **fewer)
    for seed in range(seeds):
        run = train(
            faces,
            place.folder / f"run-{seed}",
            replace(training, seed=seed),
            about={"data": data},
            vanilla=True,
            tuned={4: 48, 16: 96} if drawn else None,
            progress=place.progress,
        )
        levels = Levels.of(run, faces, most=place.of(32, 64, 300))
        sizes = place.of((4, 16), (4, 8, 16), (4, 8, 16))
        found = evaluate_run(run, levels, batch_sizes=sizes, progress=place.progress)
        records += found.records
        runs.append(run)
    first, seen = runs[0], training.seen(faces)
    some = seen.sample(min(_KNOWN, len(seen)), 0).load(first.prepare.size)[0]
    known = list(batches(first.tensor(some.batch(slice(None), first.prepare.size)), 64))
    tested = Levels.of(first, faces, most=place.of(32, 64, 300))
    parts = {name: partial(tested.load, first, name) for name in tested.parts}
    trust = judged(runs, known, parts, tested.within, layer="model.avgpool")
    return Outcome(
        "age",
        records,
        Roles(it3="IT³, batch statistics", statistics="batch statistics"),
        same=False,
        unit="MAE in years",
        trust=trust,
        about={
            "data": data,
            "network": f"{preset} preset",
            "training seeds": seeds,
            "|dF/dy|": _heard(runs),
        },
    )


def roads(place: Place) -> Outcome:
    """EPFL's towns to Massachusetts' countryside; drawn ones where they are not there."""
    from it3_vision.roads.drawing import drawn_scenes
    from it3_vision.roads.evaluate import ALL, evaluate_run, views_of
    from it3_vision.roads.network import DRUSettings
    from it3_vision.roads.reading import open_roads
    from it3_vision.roads.runs import Training, train

    towns = place.given("roads", "epfl-400.tar.gz")
    country = place.given("roads", "massachusetts-1500.tar.gz")
    drawn = place.preset == "quick" or towns is None or country is None
    if drawn or towns is None or country is None:
        known, beyond = drawn_scenes("urban", 96, 128), drawn_scenes("rural", 8, 128, seed=500)
        settings = Training(DRUSettings("tiny", steps=2), size=64, epochs=16, lr=2e-2)
    else:
        known, beyond = open_roads(towns, resolution=0.3), open_roads(country, resolution=1.0)
        preset = place.of("tiny", "small", "paper")
        network = DRUSettings(preset, steps=2) if place.preset == "small" else DRUSettings(preset)
        settings = Training(network, **_long(place, 40, 80))
    data = "drawn towns and countryside" if drawn else "EPFL to Massachusetts"
    less: dict[str, Any] = {"tile": 80} if drawn else place.of({}, {"tile": 112}, {})
    seeds = place.of(1, 5, 5)
    records: list[Record] = []
    runs = []
    for seed in range(seeds):
        run = train(
            known,
            place.folder / f"run-{seed}",
            replace(settings, seed=seed),
            about={"data": data},
            vanilla=True,
            progress=place.progress,
        )
        found = evaluate_run(
            run,
            views_of(run, beyond, window=place.of(None, 192, None)),
            batch_sizes=place.of((1, 4), (1, 4, 8), (1, 4, 8)),
            **less,
            progress=place.progress,
        )
        records += [record for record in found.records if record["level"] != ALL]
        runs.append(run)
    trust: list[dict[str, Any]] = []
    for run in runs:  # each held out other scenes
        # Distances are learnt from all scenes, and the ensemble's other networks were trained on
        # most of what this one held out: both in favour of these scores.
        near, far = (views_of(run, scenes, window=settings.size) for scenes in (known, beyond))
        tested = {
            "known": run.held_out,
            "beyond": (torch.stack(far.inputs), torch.from_numpy(np.stack(far.labels)).long()),
        }
        trust += judged(
            [run],
            list(batches(torch.stack(near.inputs), 8)),
            tested,
            "known",
            layer=f"cell.down.{len(run.model.cell.down) - 1}.conv2",
            ensemble=runs,
            batch_size=8,  # more would be run in parts, of which a layer's output shows one
        )
    return Outcome(
        "roads",
        records,
        Roles(it3="IT³, batch statistics", statistics="batch statistics"),
        same=False,
        unit="100 − quality",
        trust=trust,
        about={
            "data": data,
            "network": f"{settings.network.preset} preset",
            "training seeds": seeds,
            "|dF/dy|": _heard(runs),
        },
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
