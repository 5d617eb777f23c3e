"""The paper's experiments on images: CIFAR-10-C, ImageNet-C, ages and roads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from it3_core.io.files import write_figure
from paper.numbers import ACTMAD, BASELINES, BATCHES, IT3, ON_BATCH, SHIFTED, STATISTICS, VANILLA
from paper.places import NotHereError, Place
from paper.records import MAIN, STEM, Measured
from paper.running import evaluated, finished, memory_of, trained

_DRAWN = "drawn characters"
SEVERITIES = (1, 2, 3, 4, 5)
_POINTS = 1024  # images of each corrupted set in the figure of accuracy against idempotence error
_MEMORY_BATCH = 128
_COMPARED = (IT3, ON_BATCH, STATISTICS, ACTMAD, f"{ACTMAD}, source statistics", VANILLA[0])
"""Where there are many images to answer by a large network: what the paper's figures have."""


def cifar(place: Place, seed: int) -> Measured:
    """CIFAR-10 under the fifteen corruptions at severity 5; drawn characters without it."""
    from it3_vision.networks import NetworkSettings

    opened = None if place.size == "quick" else _opened(place, "cifar", "test")
    if opened is None:
        return _on_characters(place, seed, "cifar", NetworkSettings("dla", "tiny"))
    train, test = opened
    weights = place.given("weights", "cifar10-resnet56.safetensors")
    how: dict[str, Any] = {"bfloat16": True if place.size == "small" else None}
    if place.preset or weights is None:
        network = NetworkSettings("dla", place.of(None, None, "full"))
        how["epochs"] = None if place.preset else place.of(0, 5, 100)
        return _corrupted(place, seed, "cifar", "CIFAR-10", opened, network, how)
    # These weights have seen every training image: one half of the others is for choosing.
    how |= {"epochs": 3, "weights": weights, "validation": weights.parent, "validation_half": 0}
    sets, network = (train, test.half(1), test), NetworkSettings("resnet56", "full")
    return _corrupted(place, seed, "cifar", "CIFAR-10", sets, network, how)


def imagenet(place: Place, seed: int) -> Measured:
    """ImageNet, or a part of it, at all five severities; drawn characters for `quick`."""
    from it3_vision.networks import NetworkSettings

    if place.size == "quick":
        return _on_characters(place, seed, "imagenet", NetworkSettings("resnet18", "tiny"))
    if (opened := _opened(place, "imagenet", "val")) is None:
        raise NotHereError("IT3_DATA has no imagenet or tiny-imagenet-50 with train and val")
    folder = place.given("imagenet")
    official = folder is not None and folder.name == "imagenet"
    data = "ImageNet" if official else "tiny-imagenet-50"
    pixels: Any = {"pixels": 224 if official else 64}
    how: dict[str, Any] = {"epochs": None if place.preset else place.of(0, 40, 90)}
    network = NetworkSettings("resnet18", **pixels)
    if not (place.preset or official):
        # Held-out training images, two epochs: a loss of 0.87; of 96 pixels 1.05, up to head 1.07.
        how, pixels = {"epochs": place.of(0, 4, 8), "freeze_until": "stage6"}, {"pixels": 128}
        network = NetworkSettings(pretrained="efficientnet_lite0", **pixels)
    return _corrupted(place, seed, "imagenet", data, opened, network, how)


def _on_characters(place: Place, seed: int, task: str, network: Any) -> Measured:
    from it3_vision.classify.drawn import characters

    how = {"epochs": 3, "batch_size": 32, "lr": 0.05, "flip": False, "tuned": "16:128"}
    sets = characters(1200), characters(64, 1)
    return _corrupted(place, seed, task, _DRAWN, sets, network, how)


def _opened(place: Place, what: str, tested: str) -> tuple[Any, Any] | None:
    """Training and test images, in folders, in tars or in CIFAR's binary files."""
    from it3_vision.data import open_images

    found: list[Any] = []
    for split in ("train", tested):
        if path := place.given(what, f"{split}.tar.gz") or place.given(what, split):
            found.append(open_images(path, classes=found[0].classes if found else None))
        elif (folder := place.given(what)) and any(folder.rglob("*.bin")):
            found.append(open_images(folder, split=split))
        else:
            return None
    return found[0], found[1]


def _corrupted(
    place: Place, seed: int, task: str, data: str, sets: Any, network: Any, training: dict[str, Any]
) -> Measured:
    """`sets` are training images, test images and, if there are some, images to choose by."""
    from it3_vision.classify.cli import Train
    from it3_vision.classify.levels import Shifts
    from it3_vision.classify.task import comparison_of, problem_of

    train_set, test_set, *apart = sets
    every = task == "imagenet"  # of these the paper has all severities
    quick, drawn = place.size == "quick", data == _DRAWN
    sizes = BATCHES[task] if not quick else (4, 16) if task == "cifar" else (8,)
    if not drawn:
        training = {"tuned": f"{sizes[-1]}:1024", **training}  # the paper's step is chosen at it
    folder = None if drawn else place.given("imagenet-c" if every else "cifar-c")
    own = not quick and not every  # whether TTT has a network of its own, trained with rotations

    def problem(folder: str = "experiment", **changed: Any) -> Any:
        options: Any = {"out": place.folder / folder, "seed": seed, "network": network}
        options |= {"rotation": quick and not every} | changed
        options = place.options(Train, **options, **training)
        return problem_of(train_set, options, {"data": data}, *apart)

    def shifts(most: int, severities: tuple[int, ...]) -> Any:
        some = test_set.sample(min(most, len(test_set)), 0)
        return Shifts(some, severities=severities, folder=folder)

    first, every_severity = seed == 0, SEVERITIES if not quick else (1, 3, 5)
    experiment = trained(place, problem(), vanilla=_with_baselines(place, seed))
    slow_severities = every_severity if every and not quick else (5,)
    most = place.of(32, 128 if every else 256, 5000)
    tested = shifts(most, every_severity if every and first else (5,))
    compared = comparison_of(experiment, tested, sizes, slow=False)
    # The other readings and the streams of CIFAR-10 are the first seed's.
    only = None if quick or (first and not every) else [*_COMPARED, *BASELINES["imagenet"]]
    parts = {MAIN: evaluated(place, experiment, compared, only=only)}
    further: dict[str, Any] = {"images": most}
    scores = None
    if not quick or every:
        many = shifts(place.of(64, _POINTS, _POINTS), every_severity)
        clean = comparison_of(experiment, many, (64,))
        scores = evaluated(place, experiment, clean, "scores", only=[], bare=True)
    if first:
        few = shifts(place.of(8, 32 if every else 64, 10**6), slow_severities)
        fewer = comparison_of(experiment, few, sizes[-1:])
        slow = (IT3, "MEMO", "TTT")
        parts["slow"] = evaluated(place, experiment, fewer, "slow", only=slow, bare=True)
        if every:
            batch = shifts(place.of(64, _MEMORY_BATCH, _MEMORY_BATCH), (5,))
            again = comparison_of(experiment, batch, (_MEMORY_BATCH,))
            further["memory"] = memory_of(experiment, again, _MEMORY_BATCH)
        if own:
            turned = trained(place, problem("rotation", rotation=True), "rotation", vanilla=False)
            lines = comparison_of(turned, few, sizes[-1:])
            parts["rotation"] = evaluated(place, turned, lines, "rotated", only=slow, bare=True)
    if seed == 1 and network.name == "resnet56":  # TTT's network is the first seed's
        early = replace(network, layer="conv1")
        turned = trained(place, problem(STEM, network=early), STEM, vanilla=False)
        lines = comparison_of(turned, tested, sizes[-1:], slow=False)
        parts[STEM] = evaluated(place, turned, lines, STEM, only=[IT3], bare=True)
    used = experiment.settings["network"]
    further |= {"data": data, "network": f"{used['pretrained'] or used['name']}, {used['size']}"}
    further |= {"same": True, "unit": "error in per cent"}
    return finished(place, task, experiment, parts, scores=scores, **further)


def _with_baselines(place: Place, seed: int) -> bool:
    """Whether a seed has the networks without a signal too, which cost as much as its own."""
    return seed == 0 or place.size == "full"


def age(place: Place, seed: int) -> Measured:
    """UTKFace, trained on ages 20 to 60; drawn faces where it is not there."""
    from it3_vision.age.cli import FaceSettings, Train
    from it3_vision.age.faces import draw_faces, read_faces
    from it3_vision.age.task import comparison_of, problem_of

    given = None if place.size == "quick" else place.given("faces")
    if given is None:
        faces, network, data = draw_faces(1200), FaceSettings("tiny"), "drawn faces"
        training: dict[str, Any] = {"epochs": 4, "tuned": "4:48,16:96"}
    else:
        tars = sorted(given.glob("*.tar*")) if given.is_dir() else []
        faces = read_faces(tars[0] if tars else given).images
        training = {"epochs": None if place.preset else place.of(0, 10, 60)}
        training["coral"] = _with_baselines(place, seed)
        how: Any = {} if place.preset else {"pretrained": "efficientnet_lite0", "pixels": 112}
        network = FaceSettings(**how)
        data = f"UTKFace, {network.side} pixels"
    options: Any = {"out": place.folder / "experiment", "seed": seed, "network": network}
    problem = problem_of(faces, place.options(Train, **options, **training), {"data": data})
    experiment = trained(place, problem, vanilla=_with_baselines(place, seed))
    most, sizes = place.of(24, 10**6, 10**6), BATCHES["age"] if given else (4, 16)
    compared = comparison_of(experiment, faces, sizes, most=most)
    only = (*_COMPARED, "CORAL") if given else None
    found = evaluated(place, experiment, compared, only=only)
    used = f"{network.pretrained or 'ResNet'}, {network.width}"
    about: dict[str, Any] = {"same": False, "unit": "MAE in years", "data": data, "network": used}
    return finished(place, "age", experiment, {MAIN: found}, **about)


def roads(place: Place, seed: int) -> Measured:
    """Towns to Massachusetts' countryside, in quarters by the network's MSE; drawn ones without."""
    from it3_core.experiment.evaluate import joined
    from it3_vision.roads.cli import Train
    from it3_vision.roads.drawn import drawn_scenes
    from it3_vision.roads.reading import open_roads
    from it3_vision.roads.scenes import images_of
    from it3_vision.roads.task import (
        VALIDATION,
        compared_methods,
        comparison,
        problem_of,
        segmented,
    )
    from it3_vision.roads.tiling import TILE, Tiled

    towns, country = place.given("towns"), place.given("country")
    window: int | None = None
    sizes: tuple[int, ...] = (4, 8)
    how: dict[str, Any] = {}
    if place.size == "quick" or towns is None or country is None:
        known, shifted = drawn_scenes("urban", 96, 128), drawn_scenes("rural", 8, 128, seed=500)
        training: dict[str, Any] = {"crop": 64, "epochs": 16, "lr": 2e-2, "size": "tiny"}
        data, how = "drawn towns and countryside", {"tile": 80}
    else:
        official = towns.is_dir()
        known = open_roads(towns) if official else open_roads(towns, resolution=0.3)
        split = "test" if (country / "test").is_dir() else None
        metres = None if country.is_dir() else 1.0
        shifted = open_roads(country, resolution=metres, split=split)
        training = {} if place.preset else {"epochs": place.of(0, 40, 80)}
        how = {"further": place.of(0, 10, 40)}
        sizes, data = BATCHES["roads"], f"{towns.name} to {country.name}"
        if not (place.preset or place.size == "full"):
            window, how = 192, how | {"tile": 112}
    training |= {"rotation": True, "steps": 3 if place.preset else 2}
    options = place.options(Train, out=place.folder / "experiment", seed=seed, **training)
    problem = problem_of(known, options, {"data": data})
    experiment = trained(place, problem, vanilla=_with_baselines(place, seed))
    images = images_of(shifted, options.at, window=window)
    test_set = comparison(experiment, images, sizes, **how)
    found = evaluated(place, experiment, test_set, ablation=(f"{IT3}, steps: 1", SHIFTED))
    if seed == 0:
        pairs = images_of(known, options.at, most=4).scenes, images.scenes[:4]
        write_figure(found.folder / "road-samples.png", _side_by_side(*pairs), dpi=100)
        if window is not None:  # one image as it is, beside the windows: the one with most data
            some = images_of(shifted, options.at, most=8).scenes
            whole = [max(some, key=lambda scene: scene.known.mean())]
            one = experiment.first
            drawn = segmented(one, whole, compared_methods(one), partial(Tiled, tile=TILE))
            write_figure(found.folder / "segmentation-whole.png", drawn, dpi=150)
    records = [dict(record) for record in found.records]
    quarters = joined(records, test_set.groups)
    inside = [record for record in records if record["level"] == VALIDATION]
    return finished(
        *(place, "roads", experiment, {MAIN: found}),
        same=False,
        unit="100 − quality",
        data=data,
        network="recurrent U-Net",
        records=[*inside, *_with_columns(quarters, records, test_set.groups)],
        images=len(images.scenes),
        window=window,
    )


def _side_by_side(*sides: Any) -> Figure:
    """The paper's Figure 7: four scenes of the training on the left, four shifted ones beside."""
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    parts: Any = figure.subfigures(1, 2)
    for side, scenes, title in zip(parts, sides, ("training", "shifted"), strict=True):
        side.suptitle(title, fontsize=10)
        for number, scene in enumerate(scenes, 1):
            axes = side.add_subplot(2, 2, number)
            axes.imshow(scene.image)
            axes.set_axis_off()
    return figure


def _with_columns(quarters: Any, records: Any, groups: Any) -> list[dict[str, Any]]:
    """The quarters' records with correctness and completeness, which joining leaves out."""
    whole = {(r["method"], r["batch_size"], r["level"]): r for r in records}
    rows = {group.name: (group.levels[0], group.part) for group in groups}
    found = []
    for one in quarters:
        level, part = rows[one["level"]]
        own = whole.get((one["method"], one["batch_size"], level), {})
        names = [name for name in ("correctness", "completeness") if own.get(name)]
        found.append({**one, **{name: [own[name][row] for row in part] for name in names}})
    return found
