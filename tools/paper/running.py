"""One training seed: trained, evaluated, and what was found kept, with the packages' functions."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from it3_core import IT3Error, Source
from it3_core.batching import batches, take
from it3_core.evaluation.evaluate import peak_memory
from it3_core.experiment.statistics import IDEMPOTENCE
from it3_core.io.files import write_bytes
from paper.numbers import ACTMAD, IT3, ON_BATCH, SHIFTED, SOURCE
from paper.places import Place
from paper.records import MAIN, Measured, measured, path_of, read_file, write

GALLERIES: dict[str, tuple[str, str]] = {
    "face-samples": ("age", "faces"),
    "road-samples": ("roads", "road-samples"),
    "road-iterations": ("roads", "qualitative"),
    "segmentation-comparison": ("roads", "segmentation"),
    "segmentation-comparison-whole": ("roads", "segmentation-whole"),
    "airfoil-samples": ("wings", "samples"),
    "car-samples": ("cars", "samples"),
}
"""Figures that show inputs: their task, and what its evaluation calls the picture."""

DROPPED = {"IT³ cheap", "IT³, cheap", "online IT³", "EATA", "Tent, episodic", "blended statistics",
           "answer step", "mean age", "train mean", "IT³ auto"}  # fmt: skip
"""Lines of the tasks' own comparisons that no item of the paper has."""

MOST_BYTES, _MOST_WIDTH = 250_000, 1250
"""Of a picture in the repository."""


class Task(NamedTuple):
    """How a seed of a task is measured, and how many there are at each size."""

    measure: Callable[[Place, int], Measured]
    seeds: tuple[int, int, int]
    data: tuple[str, ...]  # the folders below IT3_DATA that it reads


def run_seeds(name: str, task: Task, place: Place) -> list[Path]:
    """Measures the seeds that are not there yet; a file for each."""
    found = []
    every = range(place.seeds or place.of(*task.seeds))
    for seed in every if place.seed is None else [place.seed]:
        path = path_of(place.records, name, seed)
        found.append(path)
        asked = {
            "size": place.size,
            "preset": place.preset or "",
            "given": [what for what in task.data if place.given(what)],
        }
        known = _known(path)
        if known.get("asked") == asked:
            if known["commit"] != place.made.get("commit"):
                which = f"{path} was measured by commit {known['commit']}"
                print(f"{which}: delete it to measure it again", file=sys.stderr)
            continue
        began = time.monotonic()
        one = task.measure(place, seed)
        minutes = round((time.monotonic() - began) / 60, 1)
        about = {**one.about[0], **place.made, "asked": asked, "minutes": minutes}
        write(place.records, replace(one, about=[about]))
    return found


def _known(path: Path) -> dict[str, Any]:
    """What a file of records says about itself."""
    try:
        return read_file(path).about[0] if path.exists() else {}
    except IT3Error:  # a damaged file is measured again
        return {}


def trained(place: Place, problem: Any, name: str = "experiment", *, vanilla: bool = True) -> Any:
    """An experiment of one network; those of other seeds lie in the same folder."""
    from it3_core.experiment.train import train

    problem = replace(problem, trials=partial(_untuned, problem.trials), extrapolation=None)
    experiment = train(problem, place.folder / name, vanilla=vanilla, progress=place.progress)
    seed = problem.recipe.seed
    return replace(experiment, networks=[one for one in experiment.networks if one.seed == seed])


def _untuned(trials: Any, model: Any, data: Any) -> Iterator[Any]:
    """The trials that the paper's step is chosen on; what else `tune` would choose has no row."""
    for trial in trials(model, data):
        yield trial._replace(candidates=())


def evaluated(
    place: Place,
    experiment: Any,
    test_set: Any,
    name: str = "evaluation",
    *,
    only: Sequence[str] | None = None,
    ablation: Sequence[str] = (SHIFTED,),
    bare: bool = False,
) -> Any:
    """An evaluation in a folder of its own; `bare` is without pictures."""
    from it3_core.experiment.evaluate import evaluate

    more = () if bare else ablation
    every = [line for line in test_set.lines if not line.ablation or line.name in more]
    kept = [line._replace(ablation=False) for line in every if line.name not in DROPPED]
    wanted = kept if only is None else [line for line in kept if line.name in (SOURCE, *only)]
    test_set = replace(test_set, lines=wanted, memory=False)  # see `memory_of`
    if bare:
        test_set = replace(test_set, pictures=lambda *_: ())
    out = place.folder / f"{name}-{experiment.first.seed}"
    return evaluate(experiment, test_set, out, overwrite=True, progress=place.progress)


def finished(
    place: Place,
    task: str,
    experiment: Any,
    parts: Mapping[str, Any],  # evaluations by name
    *,
    scores: Any = None,  # the evaluation whose scores are kept; the main one's by default
    more: Sequence[pd.DataFrame] = (),  # further rows of scores
    records: Sequence[Mapping[str, Any]] | None = None,  # in place of the main evaluation's
    **about: Any,  # `same`, `unit`, `data`, `network` and what else there is to say
) -> Measured:
    """What there is to keep of one seed, and the pictures of the first."""
    one = experiment.first
    if one.seed == 0:
        _keep_pictures(place, task, parts[MAIN].folder)
    course = {k: [float(f"{v:.4g}") for v in one.history[k]] for k in ("train", "validation")}
    about |= {"task": task, "seed": one.seed, "history": course,
              "settings": dict(experiment.settings),
              "paper": {kind: _plain(step) for kind, step in one.paper.items()},
              "measured": {k: v for k, v in one.measured.items() if isinstance(v, int | float)},
              }  # fmt: skip
    found = {name: part.records for name, part in parts.items()}
    found[MAIN] = records or found[MAIN]
    answers = [(scores or parts[MAIN]).answers, *more]
    return measured(about, found, pd.concat(answers, ignore_index=True))


def _plain(step: Any) -> dict[str, Any]:
    return {k: v for k, v in asdict(step).items() if k != "tried"} | {"ratio": step.ratio}


def training_scores(experiment: Any, x: Any) -> pd.DataFrame:
    """Idempotence errors of training inputs, as a level of their own."""
    one = experiment.first
    source = Source(one.model, one.adapter)
    errors = torch.cat([source(part).error_before.detach() for part in batches(x, 64)])
    return pd.DataFrame({"level": "training", "error": float("nan"), IDEMPOTENCE: errors.tolist()})


def memory_of(experiment: Any, test_set: Any, size: int) -> dict[str, Any]:
    """Peak bytes of tensors, the weights among them, of each method on one batch.

    The base is a pass that keeps what a gradient needs. MEMO holds one image's copies at a time,
    so that a few images of the batch show its peak.
    """
    network = experiment.first
    level = test_set.levels[test_set.in_distribution]
    x = take((level(network) if callable(level) else level).x, slice(0, size))
    weights = sum(p.numel() * p.element_size() for p in network.model.parameters())
    neutral = network.adapter.neutral(x)
    calls: dict[str, Callable[[], object]] = {SOURCE: lambda: network.model(x, neutral)}
    for line in test_set.lines:
        if line.name not in ("Tent", "MEMO", "ETA", ACTMAD, IT3, ON_BATCH):
            continue
        method = line.make(network, len(x))
        if method is not None:
            rows = take(x, slice(0, 2)) if line.name == "MEMO" else x
            calls[line.name] = partial(method, rows)
    found = {}
    for name, call in calls.items():
        call()  # what is made once is made now
        found[name] = weights + peak_memory(call, network.device)
    return {"batch": len(x), "bytes": found}


def _keep_pictures(place: Place, task: str, folder: Path) -> None:
    """The task's pictures of inputs, small enough to be committed."""
    for item, (owner, name) in GALLERIES.items():
        path = folder / f"{name}.png"
        if owner == task and path.exists():
            write_bytes(place.records / f"{item}.png", small_png(path.read_bytes()))


def small_png(content: bytes) -> bytes:
    """A picture of few colours, and of fewer dots where it would be too large."""
    from PIL import Image

    with Image.open(BytesIO(content)) as opened:
        image = opened.convert("RGB")
    width = min(image.width, _MOST_WIDTH)
    while True:
        stream = BytesIO()
        size = (width, round(image.height * width / image.width))
        image.resize(size).quantize(128).save(stream, "png", optimize=True)
        if len(stream.getvalue()) <= MOST_BYTES:
            return stream.getvalue()
        width = int(0.9 * width)
