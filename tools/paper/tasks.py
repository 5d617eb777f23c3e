"""The paper's experiments, each by the functions of its package: one training seed of one task.

A task gets a `Place` and a seed and gives what was `Measured`, or raises `NotHereError` with what
it would need. Those on images are in `images`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from it3_core.experiment.lines import ABLATION_LINES
from paper.images import age, cifar, imagenet, roads
from paper.numbers import BATCHES, IT3, SHIFTED
from paper.places import NotHereError, Place
from paper.records import MAIN, Measured, measured
from paper.running import Task, evaluated, finished, trained, training_scores

_MOST_SEEN = 500  # training inputs whose idempotence errors are kept


def tabular(place: Place, seed: int) -> Measured:
    """Boston Housing with features zeroed; Energy, which comes with the package, without it."""
    from it3_core.io.files import make_folder
    from it3_tabular.protocol import evaluate_split, read_paper_steps
    from it3_tabular.uci import UCI, load_energy, load_uci

    if (boston := place.given("boston")) is not None:
        data = load_uci(boston)
    else:
        x, y = load_energy()
        rows = [np.random.default_rng(split).permutation(len(y)) for split in range(20)]
        data = UCI("energy", x, y, [(part[77:], part[:77]) for part in rows])
    split = seed % len(data.splits)
    records = evaluate_split(data, split, make_folder(place.folder))
    about: dict[str, Any] = {"task": "tabular", "seed": seed, "same": True, "unit": "MAE"}
    about |= {"data": data.name, "network": "multi-layer perceptron", "split": split}
    if split in (steps := read_paper_steps(place.folder, data.name)):
        about["paper"] = {kind: steps[split][kind] for kind in ("source", "online")}
    return measured(about, {MAIN: records})


def wings(place: Place, seed: int) -> Measured:
    """NACA profiles by XFoil; those above a lift-to-drag ratio of 60 are shifted."""
    from it3_aero.wings.cli import Evaluate, Train
    from it3_aero.wings.generating import generate
    from it3_aero.wings.task import TASK

    n, data = place.of(240, 2000, 2000), place.folder / "data"
    # With so little camber the paper's two limits, the top 5 % and a ratio of 60, are one.
    ranges = {"camber": (0.0, 0.023)} if place.preset else {}
    card = generate(data, n, seed=0, ranges=ranges, progress=place.progress)
    source = f"{n} profiles, {card['settings']['solver']}"
    return _shapes(place, seed, TASK, data, source, "MAE of L/D", Train, Evaluate)


def cars(place: Place, seed: int) -> Measured:
    """Cars by OpenFOAM, of a user's meshes or the package's; streamlined ones are shifted."""
    from it3_aero.cars.cli import Evaluate, Train
    from it3_aero.cars.dataset import SAMPLE, CarDataset
    from it3_aero.cars.generating import generate
    from it3_aero.cars.task import TASK

    data = SAMPLE
    if place.size != "quick" and (meshes := place.given("cars")) is not None:
        data = place.folder / "data"
        generate(data, meshes=meshes, progress=place.progress)
    if not data.exists():
        raise NotHereError("the package holds no solved cars, and IT3_DATA no shapenet-cars")
    dataset = CarDataset(data)
    source = f"{len(dataset)} cars, {dataset.solver}"
    return _shapes(place, seed, TASK, data, source, "MAE of Cd", Train, Evaluate)


def _shapes(
    place: Place, seed: int, task: Any, data: Any, source: str, unit: str, train: Any, tested: Any
) -> Measured:
    """A seed of wings or cars; `train` and `tested` are the options of the task's commands."""
    out = place.folder / "experiment"
    options = place.options(train, out=out, seed=seed, epochs=place.of(10, None, None))
    problem = task.problem(data, options)
    experiment = trained(place, problem)
    sizes = ",".join(map(str, BATCHES[task.name]))
    compared = place.options(tested, most=place.of(12, 100, 10**6), batch_sizes=sizes)
    tests = task.test_set(experiment, compared)
    few = [f"{IT3}, steps: 1", SHIFTED]
    every = [line.name for line in ABLATION_LINES]
    found = evaluated(place, experiment, tests, ablation=place.of(few, every, every))
    rows = problem.data if not callable(problem.data) else problem.data()
    seen = training_scores(experiment, rows.plain(list(rows.rows)[:_MOST_SEEN])[0])
    network = f"graph network, {experiment.settings['network']['layers']} layers"
    about: dict[str, Any] = {"same": False, "unit": unit, "data": source, "network": network}
    return finished(place, task.name, experiment, {MAIN: found}, more=[seen], **about)


TASKS: dict[str, Task] = {
    "tabular": Task(tabular, (3, 20, 20), ("boston",)),
    "cifar": Task(cifar, (1, 3, 5), ("cifar", "cifar-c", "weights")),
    "imagenet": Task(imagenet, (1, 3, 3), ("imagenet", "imagenet-c")),
    "age": Task(age, (1, 3, 5), ("faces",)),
    "roads": Task(roads, (1, 5, 5), ("towns", "country")),
    "wings": Task(wings, (2, 10, 40), ()),
    "cars": Task(cars, (1, 5, 5), ("cars",)),
}
"""By name, as the paper orders them."""
