"""Roads from the air: a problem, a test set and a reader from aerial images and their masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from it3_core import Activations, DenseMap, IT3Error, Source, paper_it3
from it3_core.batching import Ragged, batches
from it3_core.engine.inner_optimizer import Norm, has_batch_norm
from it3_core.evaluation.evaluate import Predictor
from it3_core.experiment import types
from it3_core.experiment.evaluate import joined
from it3_core.experiment.lines import actmad
from it3_core.experiment.train import hold_out
from it3_core.experiment.types import Experiment, Json, Network
from it3_core.experiment.verbs import batch_sizes
from it3_core.io.tensors import digest
from it3_core.io.typed import as_kind
from it3_core.model.adapters import adapter_from
from it3_core.training.fit import Loss
from it3_core.trust.candidates import Candidate
from it3_core.trust.tune import apart
from it3_vision.data import Preprocessing
from it3_vision.image_options import Size
from it3_vision.methods import joint_loss
from it3_vision.roads import adapter as losses
from it3_vision.roads import outputs
from it3_vision.roads import scenes as aerial
from it3_vision.roads.adapter import SLACK, RoadMap, Score, score
from it3_vision.roads.cli import DemoOptions, Evaluate, Predict, Train
from it3_vision.roads.drawn import drawn_scenes
from it3_vision.roads.further import Further, further_line
from it3_vision.roads.lines import CHEAP, lines, ttt
from it3_vision.roads.network import DRUSettings, Pixels, build
from it3_vision.roads.reading import open_roads
from it3_vision.roads.scenes import Images, Scene, Scenes, as_input, images_of
from it3_vision.roads.tiling import TILE, Tiled

ALL, VALIDATION = "all", "validation crops"
_SEEN = 200  # training crops, as they are, that statistics are taken from
_CROPS = 4  # how many are tuned for at once: a whole image makes more
_MOST = 128  # scenes that are not trained on
_FURTHER = 96  # scenes that a demonstration draws for thresholds and intervals
_QUARTERS = 4
_COLUMNS = {"error (100 − quality)": 1, "correctness": 1, "completeness": 1, "iou": 1, "mse": 2}
_ITERATIONS = (5, 15)  # of the paper's qualitative figure


Wrap = Callable[[Predictor], Any]
Compared = dict[str, Predictor | None]
Measure = Callable[[Any, Any], Mapping[str, Tensor]]


def _road(maps: Ragged) -> Tensor:
    """The road's per cent of what has data: of maps of probabilities and of labels alike."""
    found = [100 * (one >= 0.5).sum() / (one >= 0).sum().clamp_min(1) for one in maps]
    return torch.stack(found)[:, None]


ANSWERS = types.Answers([types.Quantity("road", "%", 1)], values=_road)


def problem(data: Path, options: Train) -> types.Problem:
    """Training on the scenes in a folder."""
    scenes = open_roads(data, resolution=options.resolution, split=options.split)
    return problem_of(scenes, options, {"data": str(data.resolve()), "split": options.split})


def problem_of(scenes: Scenes, options: Train, provenance: Json) -> types.Problem:
    """Training on any scenes with masks."""
    paper = options.preset is not None
    size: Size = options.size or ("full" if paper else "small")
    network = DRUSettings(size, options.steps, options.norm)
    signal = options.second_signal or ("label" if paper else "noisy")
    second = {"second_signal": signal, "noisy_fraction": options.noisy_fraction}
    rotation = paper if options.rotation is None else options.rotation
    return types.Problem(
        settings={
            "task": "roads",
            "network": asdict(network),
            "resolution": options.at,
            "crop": options.crop,
            "rotation": rotation,
            **second,
            "data_resolution": scenes.resolution,
            "scenes": digest({}, {"names": list(scenes.names)})[:16],
        },
        data=partial(_read, scenes, options),
        make=lambda adapter: build(network, rotation=rotation),
        recipe=types.Recipe(
            options.epochs,
            options.batch_size,
            options.lr,
            options.seed,
            optimizer="AdamW",
            optimizer_options={"weight_decay": 1e-2},
            schedule="onecycle",
            clip=5.0,
            bfloat16=options.bfloat16,
            channels_last=True,
            refresh=32,
        ),
        answers=ANSWERS,
        loss=_loss(partial(losses.recurrent_zigzag, **cast(Any, second)), rotation),
        vanilla_loss=_loss(losses.recurrent_supervised, rotation),
        trials=_trials,
        statistics=_statistics,
        restore=restore,
        provenance=provenance,
    )


def _loss(loss: Loss, rotation: bool) -> Loss:
    return partial(joint_loss, base=loss, weight=0.5) if rotation else loss


def restore(settings: Json, adapter_json: Json) -> types.Restored:
    """The network without its weights."""
    adapter = adapter_from(dict(adapter_json))
    if not isinstance(adapter, DenseMap):
        raise IT3Error("this is no network of roads: train it again")
    network = as_kind(settings.get("network"), DRUSettings, "the network's settings")
    rotation = _kept(settings).rotation
    return types.Restored(build(network, rotation=rotation), RoadMap(), ANSWERS)


@dataclass(frozen=True)
class _Kept:
    """What evaluating and predicting need of the settings."""

    prepare: Preprocessing
    resolution: float
    crop: int
    rotation: bool
    second_signal: losses.SecondSignal
    noisy_fraction: float


def _kept(settings: Json) -> _Kept:
    return as_kind(dict(settings), _Kept, "the experiment's settings")


def _read(scenes: Scenes, options: Train) -> types.TrainingData:
    found, skipped = aerial.gathered(scenes, options.at, not options.quiet)
    rows, held = hold_out(len(found), options.held_out, options.seed, least=8, most=_MOST)
    # Of few scenes, all choose, and there is nothing to set a threshold by.
    parts = apart(len(held), [1, 3], options.seed) if len(held) >= 32 else [range(len(held))]
    validation, *others = ([held[row] for row in part] for part in parts)
    prepare = aerial.fitted([found[row] for row in rows], options.crop)
    return types.TrainingData(
        adapter=RoadMap(),
        rows=rows,
        validation=validation,
        calibration=[row for part in others for row in part],
        plain=lambda some: aerial.middle_crops([found[row] for row in some], prepare, options.crop),
        augmented=lambda some: aerial.Crops([found[row] for row in some], prepare, options.crop),
        seen=rows[:_SEEN],
        settings={"prepare": prepare.describe()},
        skipped=skipped,
    )


def _statistics(model: nn.Module, data: types.TrainingData) -> Mapping[str, Tensor]:
    """ActMAD's, and the validation crops, on which every evaluation measures harm."""
    layers = [name for name, layer in model.named_modules() if isinstance(layer, Pixels)]
    seen, (x, y) = data.plain(data.seen)[0], data.plain(data.validation)
    known = Activations.collect(model, data.adapter, batches(seen, 8), layers)
    return {**known.tensors(), "validation.x": x, "validation.y": y.to(torch.int8)}


def _trials(model: nn.Module, data: types.TrainingData) -> Iterator[types.Trial]:
    x, y = data.plain(data.validation)
    yield types.Trial(_CROPS, x, y, aerial.SHIFTS, _candidates(model), rows=True)


def _candidates(model: nn.Module) -> list[Candidate]:
    """What tuning tries, the cheapest first."""
    norms: list[Norm] = ["source", 0.5, "batch"] if has_batch_norm(model) else ["source"]
    found = [Candidate("Source", {"norm": norm}) for norm in norms[1:]]
    found += [Candidate("AnswerStep", {"alpha": alpha}) for alpha in (0.5, 1.0)]
    for norm in norms[:2]:
        found.append(Candidate("IT3", {"parameters": CHEAP, "norm": norm, "lr": 1e-3}))
    return found


def test_set(experiment: Experiment, options: Evaluate) -> types.TestSet:
    """The scenes in a folder."""
    scenes = open_roads(options.data, resolution=options.resolution, split=options.split)
    at, sizes = _kept(experiment.settings).resolution, batch_sizes(options.batch_sizes)
    images = images_of(scenes, at, window=options.window, most=options.most)
    names = ("order", "tile", "slack", "further")
    how: dict[str, Any] = {name: getattr(options, name) for name in names}
    return comparison(experiment, images, sizes, **how)


def comparison(
    experiment: Experiment,
    images: Images,
    sizes: Sequence[int],
    *,
    order: str = "mse",
    tile: int = TILE,
    slack: float = SLACK,
    further: int = 0,
) -> types.TestSet:
    """Every method on these images, in batches of these sizes, and on the validation crops."""
    wrap, measure = partial(Tiled, tile=tile), partial(_measure, slack=slack)
    for network in experiment.networks:  # now, and not after an hour
        validation_of(network)
    mse = _source_mse(experiment, images.scenes, wrap, measure)
    scenes, rank = list(images.scenes), np.argsort(mse, kind="stable").tolist()
    if order == "mse":
        scenes, rank = [scenes[row] for row in rank], list(range(len(scenes)))
    quarters = np.array_split(rank, min(_QUARTERS, len(scenes)))
    parts = {f"MSE quartile {n}": part.tolist() for n, part in enumerate(quarters, 1)}
    halves = [[scenes[row] for row in rank[start::2]] for start in (0, 1)]
    compared = [_wrapped(line, wrap) for line in lines()]
    if further:
        compared.append(further_line(lambda one: _further(one, halves, further, wrap)))
    labels = {str(n): torch.from_numpy(np.array(s.label)) for n, s in enumerate(images.scenes)}
    return types.TestSet(
        title="Roads from the air",
        noun="image",
        levels={VALIDATION: validation_of, ALL: partial(inputs_of, scenes)},
        in_distribution=VALIDATION,
        lines=compared,
        batch_sizes=sizes,
        measure=measure,
        columns=[types.Quantity(name, "%", digits) for name, digits in _COLUMNS.items()],
        headline=[ALL],
        groups=[types.Group(name, [ALL], part=part) for name, part in parts.items()],
        pictures=partial(_pictures, scenes, rank, wrap, slack),
        notes=[
            f"{len(scenes)} images, of {' + '.join(str(len(part)) for part in quarters)} a "
            f"quartile; the paper has 450 in its quartiles and 890 in its stream.",
            f"Correctness is the fraction of predicted road pixels at most {slack:g} pixels from a "
            f"true road, completeness the fraction of true road pixels as near a predicted one, "
            f"quality 1 / (1/correctness + 1/completeness − 1). Quartiles are by the source's MSE.",
            *(f"Left out: {one}." for one in images.skipped[:10]),
        ],
        wrap=wrap,
        identity={
            "images": digest(labels, {"names": [scene.name for scene in images.scenes]})[:16],
            "order": order,
            "tile": tile,
            "slack": slack,
            "further": further,
        },
    )


def _further(
    network: Network, halves: Sequence[Sequence[Scene]], epochs: int, wrap: Wrap
) -> Further:
    kept = _kept(network.settings)
    loss = partial(
        losses.recurrent_zigzag,
        second_signal=kept.second_signal,
        noisy_fraction=kept.noisy_fraction,
    )
    given, settings = partial(_input, network), (kept.prepare, kept.crop, loss)
    return Further(network, halves, given, settings, epochs, wrap)


def _wrapped(line: types.Line, wrap: Wrap) -> types.Line:
    """The same line for whole images."""

    def make(network: Network, size: int) -> Predictor | None:
        method = line.make(network, size)
        return None if method is None else wrap(method)

    return line._replace(make=make)


def _input(network: Network, scene: Scene) -> Tensor:
    prepare = _kept(network.settings).prepare
    return as_input(prepare, scene.image, scene.known).to(network.device)


def inputs_of(scenes: Sequence[Scene], network: Network) -> types.Instances:
    """Scenes as a network sees them, with their labels."""
    x = Ragged([_input(network, scene) for scene in scenes])
    y = Ragged([torch.from_numpy(np.array(scene.label)) for scene in scenes])
    return types.Instances(x, y, [scene.name for scene in scenes])


def validation_of(network: Network) -> types.Instances:
    """The crops that training kept: each is an image of one tile, or of several smaller ones."""
    x, y = (network.statistics.get(f"validation.{name}", torch.empty(0)) for name in "xy")
    if not len(x) or x.dim() != 4 or x.shape[1] != 4 or y.shape != (len(x), *x.shape[2:]):
        raise IT3Error("the experiment has no validation crops: train it again")
    return types.Instances(Ragged(list(x.to(network.device))), Ragged(list(y)))


def _source_mse(
    experiment: Experiment, scenes: Sequence[Scene], wrap: Wrap, measure: Measure
) -> list[float]:
    """Of each image, the mean over the training seeds, so that row i is one image for all."""
    found = []
    for network in experiment.networks:
        x, y, _ = inputs_of(scenes, network)
        source = wrap(Source(network.model, network.adapter))
        predicted = [source(x.take([n])).prediction.rows[0] for n in range(len(x))]
        found.append(measure(Ragged(predicted), y)["mse"].tolist())
    return list(np.mean(found, axis=0))


def _measure(prediction: Any, y: Any, slack: float) -> dict[str, Tensor]:
    """In per cent, to four digits after the point."""
    scores = [score(p.numpy(), t.numpy(), slack) for p, t in zip(prediction, y, strict=True)]
    table = 100 * torch.tensor(scores, dtype=torch.float64).round(decimals=6)
    columns = dict(zip(Score._fields, table.unbind(1), strict=True))
    return {"error": 100 - columns.pop("quality"), **columns}


def _pictures(
    scenes: Sequence[Scene],
    rank: Sequence[int],
    wrap: Wrap,
    slack: float,
    found: types.Evaluation,
    experiment: Experiment,
) -> Iterator[types.Picture]:
    """Quality by quartile, and four images from easy to hard: iterations, and methods."""
    section, shown, network = "What adaptation does", min(4, len(scenes)), experiment.first
    groups = [types.Group(*one) for one in found.summary["groups"]]
    drawn = outputs.boxes(joined([dict(one) for one in found.records], groups))
    caption = "100 − quality by quartile of the source's MSE; all on the training's statistics."
    yield types.Picture("boxes", drawn, section, "error by quartile of the MSE", caption)
    if (quartiles := outputs.by_quartile(found.rows)) is not None:
        yield types.Picture("quartiles", quartiles, section, "difference by quartile of the MSE")
    pair, rate = (network.model, network.adapter), network.paper_step().lr
    iterated: Compared = {"before": Source(*pair)}
    for n in _ITERATIONS:
        iterated[f"after {n} iterations"] = paper_it3(*pair, steps=n, lr=rate)
    rows = {rank[round((n + 0.5) * len(scenes) / shown - 0.5)]: None for n in range(shown)}
    some = [scenes[row] for row in rows]
    for name, columns, what in (
        ("qualitative", iterated, f"The paper's IT³, learning rate {rate:g}"),
        ("segmentation", compared_methods(network), "Methods on the training's statistics"),
    ):
        yield types.Picture(
            name,
            segmented(network, some, columns, wrap, slack),
            section,
            "images, predictions and truth",
            f"{what}, each image alone. Below: correctness / completeness / quality, in per cent. "
            f"Grey: no data.",
        )


def compared_methods(network: Network) -> Compared:
    """The methods of the paper's road figures, by name."""
    step, pair = network.paper_step(), (network.model, network.adapter)
    found: Compared = {"source": Source(*pair), "TTT": ttt(network, 1)}
    found["ActMAD"] = actmad(network, 1)
    return found | {"IT³ (paper)": paper_it3(*pair, steps=step.steps, lr=step.lr)}


def segmented(
    network: Network, scenes: Sequence[Scene], methods: Compared, wrap: Wrap, slack: float = SLACK
) -> Figure:
    """Scenes, each method's map of them, and the truth; every scene is answered alone."""
    made = {name: wrap(one) for name, one in methods.items() if one is not None}
    predictions = []
    for scene in scenes:
        x = Ragged([_input(network, scene)])
        maps = {name: method(x).prediction for name, method in made.items()}
        predictions.append({name: one.rows[0].numpy() for name, one in maps.items()})
    return outputs.qualitative(scenes, predictions, slack)


def reader(experiment: Experiment, options: Predict) -> types.Reader:
    """Aerial images, each by itself: all its tiles at once."""
    return types.Reader(
        noun="image",
        read=partial(outputs.read_items, options, _kept(experiment.settings).resolution),
        batch=_batch,
        words=outputs.words,
        batch_size=1,
        wrap=partial(Tiled, tile=options.tile),
        write=partial(outputs.write_files, options),
    )


def _batch(network: Network, values: Sequence[Any]) -> Ragged:
    at = _kept(network.settings).resolution
    return Ragged([_input(network, scene.at(at)) for scene, _ in values])


def demo(out: Path, options: DemoOptions) -> types.Demo:
    """Trains on drawn towns, tests on the drawn countryside."""
    size, seed = 128, 1000 * options.seed
    whole = options.n + _FURTHER
    towns = drawn_scenes("urban", whole, size, seed=seed)
    common = {"out": out / "experiment", "seed": options.seed, "quiet": options.quiet}
    # Four crops of a scene: more steps, which is what so short a training lacks.
    small = {"size": "tiny", "steps": 2, "crop": size // 2, "epochs": options.epochs, "lr": 2e-2}
    small |= {"rotation": True, "held_out": round((_FURTHER + 0.2 * options.n) / whole, 3)}
    train = Train(**cast(Any, common | small))

    def tested(experiment: Experiment) -> types.TestSet:
        country = drawn_scenes("rural", options.tested, size, seed=seed + 500)
        four_tiles = size // 2 + 16
        return comparison(experiment, images_of(country, train.at), (1, 4), tile=four_tiles)

    data = f"{whole} drawn towns of {size} × {size} pixels"
    return types.Demo(problem_of(towns, train, {"data": data}), tested)


TASK = types.Task("roads", problem, restore, test_set, reader, demo)
