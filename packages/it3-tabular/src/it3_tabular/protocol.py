"""The paper's protocol: features zeroed, 20 splits, the same masks for every method; its report.

A zeroed feature reads 0 in standardised units, its column's mean, and nothing marks it as missing.
Methods named "gaps known: …" know which values are missing: imputation, boosting. All networks
are of the same size and train on the same rows; every setting is chosen on training rows.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

from it3_core import (
    IT3,
    Activations,
    ActMAD,
    AnswerStep,
    Candidate,
    Conditioned,
    Method,
    OnlineIT3,
    Source,
    StreamGate,
    choose_step,
    paper_it3,
    paper_online_it3,
    supervised_loss,
    zigzag_loss,
)
from it3_core.batching import batches
from it3_core.evaluation.evaluate import evaluate
from it3_core.evaluation.records import Record, read_records
from it3_core.experiment.figures import box_by_level, difference_by_level
from it3_core.experiment.lines import gain_of
from it3_core.experiment.statistics import OUT_OF_DISTRIBUTION, assess_scores, summarise
from it3_core.experiment.tables import compact, markdown, markdown_table
from it3_core.io.output import OutputFolder
from it3_core.io.typed import append_lines, mend, read_lines
from it3_core.scores.uncertainty import Ensemble, Mahalanobis, Score
from it3_core.training.fit import Loss
from it3_tabular.estimators import IT3Regressor
from it3_tabular.fitting import Floats, candidates, seeded, split_rows, train_network
from it3_tabular.uci import UCI

LEVELS = {"clean": 0.0, "5 %": 0.05, "10 %": 0.10, "15 %": 0.15, "20 %": 0.20}
BATCH_SIZES = (1, 4, 8)
_STREAM_SIZE = 8  # rows in a batch of online IT³ and ActMAD
_ENSEMBLE = 5  # networks, the one that is measured among them
_DRAWN = ("source", "ActMAD", "IT³ (paper)")  # in the box plots, as in the paper
_COMPARED = ("source", "second pass", "IT³ (paper)", "online IT³ (paper)", "auto", "vanilla",
             "ActMAD", "gaps known: source, imputed", "gaps known: boosting")  # fmt: skip
_INTRODUCTION = """Made by `{}`.

Mean absolute error over the splits at each level, and the paired difference from *source*, the same
network without adaptation, with its 95 % interval over splits and rows. Negative is better. *clean*
is the in-distribution level. Methods named *gaps known:* know which values are missing."""

View = dict[str, Tensor]  # the same rows as different methods get them


def evaluate_split(data: UCI, number: int, folder: Path, **settings: Any) -> list[Record]:
    """The records of a split, which are measured unless `folder` holds them all.

    The number of the split is the seed of everything; `settings` are the estimator's.
    """
    mend(folder / f"{data.name}-trust.jsonl")
    own = [line for line in read_trust(folder, data.name) if line["seed"] == number]
    scores, finished = (
        {line["score"] for line in own if line["level"] == level}
        for level in ("clean", OUT_OF_DISTRIBUTION)
    )
    if not scores or scores != finished:
        _measure(data, number, folder, settings)
    records = read_records(folder / f"{data.name}.jsonl")
    return [record for record in records if record["seed"] == number]


def _measure(data: UCI, number: int, folder: Path, settings: dict[str, Any]) -> None:
    x, y, x_test, y_test = data.split(number)
    model = IT3Regressor(random_state=number, **settings).fit(x, y)
    vanilla = _network_like(model, x, y, supervised_loss)  # its signal is always neutral
    levels = {
        name: (_views(model, x_test, zeroed(data.name, number, level, x_test.shape)),
               torch.as_tensor(y_test))
        for name, level in LEVELS.items()
    }  # fmt: skip
    steps = _paper_steps(model, x, number)
    single, batched = _methods(model, vanilla, x, y, number, steps)
    common: dict[str, Any] = {"seed": number, "path": folder / f"{data.name}.jsonl"}
    common |= {"levels": levels, "error": model.adapter_.error}
    common |= {"progress": False}
    every_size = {**single, "IT³ (paper)": batched.pop("IT³ (paper)")}
    evaluate(every_size, batch_sizes=BATCH_SIZES, once=list(single), **common)
    # Larger batches only: at one row, a stream's or ActMAD's statistics are noise, and cost most.
    larger = {"source": single["source"], **batched}
    streams = [name for name in larger if name.startswith("online")]
    common |= {"batch_sizes": [_STREAM_SIZE], "once": ["source"], "streams": streams}
    evaluate(larger, **common)
    lines = [{"seed": number, **line} for line in _assess_scores(model, x, y, levels)]
    append_lines(folder / f"{data.name}-paper.jsonl", [{"seed": number, **steps}])
    append_lines(folder / f"{data.name}-trust.jsonl", lines)


def zeroed(name: str, split: int, level: float, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which values are lost; it depends on data set, split and level alone."""
    seed = zlib.crc32(f"{name} {split} {level:.2f}".encode())
    mask: NDArray[np.bool_] = np.random.default_rng(seed).random(shape) < level
    return mask


def _assess_scores(
    model: IT3Regressor, x: Floats, y: Floats, levels: dict[str, tuple[View, Tensor]]
) -> list[dict[str, Any]]:
    """How well each uncertainty score predicts the true error, and tells damaged rows from clean.

    A shifted level is those of its rows that lost a value: the others are as they were. The
    ensemble is the network and others like it, trained on the same rows from other seeds.
    """
    network, adapter = model.network_, model.adapter_
    others = [_network_like(model, x, y, zigzag_loss, other) for other in range(1, _ENSEMBLE)]
    rows = [model.preprocessing_(x)]
    scores: dict[str, Score] = {
        "Mahalanobis, features": Mahalanobis.fit(network, adapter, rows, _hidden(model)[-1]),
        "Mahalanobis, inputs": partial(_mahalanobis, model),
        f"ensemble of {_ENSEMBLE}": Ensemble([network, *others], adapter),
    }
    assessed = {}
    for name, (views, target) in levels.items():
        wanted = views["gaps"].any(1) if name != "clean" else torch.ones(len(target)).bool()
        if bool(wanted.any()):
            assessed[name] = (views["zeroed"][wanted], target[wanted])
    return assess_scores(network, adapter, scores, assessed, "clean")


def _network_like(
    model: IT3Regressor, x: Floats, y: Floats, loss: Loss, other: int = 0
) -> Conditioned:
    """Trained on the same rows; from other weights and in another order where `other` says so."""
    labels = torch.as_tensor(y)
    generator, seed = seeded(model.random_state)
    training, validation = (
        (model.preprocessing_(x[rows]), labels[rows])
        for rows in split_rows(np.zeros(len(y)), model.validation_fraction, generator)
    )
    return train_network(model, training, validation, seed + other, loss)[0]


def _methods(
    model: IT3Regressor,
    vanilla: Conditioned,
    x: Floats,
    y: Floats,
    seed: int,
    steps: dict[str, dict[str, Any]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those that predict each row by itself, and those that depend on the batch."""
    network, adapter = model.network_, model.adapter_
    chosen = _best_gradient_step(model)
    step = {key: value for key, value in chosen.settings.items() if key != "per_instance"}
    source = Activations.collect(network, adapter, [model.preprocessing_(x)], _hidden(model))
    boosting = partial(_boosted, HistGradientBoostingRegressor(random_state=seed).fit(x, y))
    single = {
        "source": _On("zeroed", Source(network, adapter)),
        "second pass": _On("zeroed", AnswerStep(network, adapter)),
        "IT³ per instance": _On("zeroed", chosen.build(network, adapter)),
        "auto": _On("zeroed", model.method()),
        "vanilla": _On("zeroed", Source(vanilla, adapter)),
        "boosting": _On("raw", boosting),
        "gaps known: source, imputed": _On("imputed", Source(network, adapter)),
        "gaps known: auto, imputed": _On("imputed", model.method()),
        "gaps known: vanilla, imputed": _On("imputed", Source(vanilla, adapter)),
        "gaps known: boosting": _On("with gaps", boosting),
    }
    paper, online = steps["source"], steps["online"]
    gate = StreamGate(*model.usual_error_, 0.01)
    batched = {
        "IT³ (paper)": _On("zeroed", paper_it3(network, adapter, **paper)),
        "IT³ (paper, gradient stopped)": _On(
            "zeroed", paper_it3(network, adapter, **paper, stop_gradient=True)
        ),
        "online IT³ (paper)": _On("zeroed", paper_online_it3(network, adapter, **online)),
        "IT³, tuned": _On("zeroed", IT3(network, adapter, **step)),
        "online IT³, tuned": _On("zeroed", OnlineIT3(network, adapter, gate=gate, **step)),
        "ActMAD": _On("zeroed", ActMAD(network, adapter, source, lr=1e-4)),
    }
    return single, batched


def _paper_steps(model: IT3Regressor, x: Floats, seed: int) -> dict[str, dict[str, Any]]:
    """Steps and rates of the paper's IT³, offline and online: by validation rows, no label used."""
    generator, _ = seeded(model.random_state)
    rows = split_rows(np.zeros(len(x)), model.validation_fraction, generator)[1]
    views = [
        _views(model, x[rows], zeroed("validation", seed, level, (len(rows), x.shape[1])))["zeroed"]
        for level in LEVELS.values()
    ]
    clean, *shifted = (list(batches(view, _STREAM_SIZE)) for view in views)
    parts = [part for level in shifted for part in level]
    found = {
        "source": choose_step(model.network_, model.adapter_, parts),
        "online": choose_step(model.network_, model.adapter_, [*clean, *parts], online=True),
    }
    return {kind: {"steps": one.steps, "lr": one.lr} for kind, one in found.items()}


def _best_gradient_step(model: IT3Regressor) -> Candidate:
    """IT³ as it did best on validation rows under shifts, whether it helped or not."""
    assert model.tuning_ is not None
    tries = candidates(model.steps, model.learning_rate_adapt)
    steps = [one for one in tries if one.method == "IT3"]
    gains = {str(one["candidate"]): gain_of(one) for one in reversed(model.tuning_.tried)}
    return max(steps, key=lambda one: gains.get(str(one), -math.inf))


class _On:
    """A method, or a function, on one of the views of the rows."""

    def __init__(self, view: str, method: Method | Callable[[Tensor], Tensor]) -> None:
        self._view = view
        self._method = method
        self.reset = getattr(method, "reset", lambda: None)

    def __call__(self, views: View) -> Any:
        return self._method(views[self._view])


def _views(model: IT3Regressor, x: Floats, lost: NDArray[np.bool_]) -> View:
    preprocessing, mask = model.preprocessing_, torch.as_tensor(lost)
    values, indicators = preprocessing(x).chunk(2, 1)
    with_gaps = np.where(lost, np.nan, x)
    return {
        "zeroed": torch.cat([torch.where(mask, 0.0, values), indicators], 1),
        "imputed": preprocessing(with_gaps),
        "raw": torch.as_tensor(np.where(lost, preprocessing.mean.numpy(), x)),
        "with gaps": torch.as_tensor(with_gaps),
        "gaps": mask,
    }


def _boosted(boosting: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(boosting.predict(x.numpy()))


def _mahalanobis(model: IT3Regressor, x: Tensor) -> Tensor:
    values = x.chunk(2, 1)[0]
    return (values @ model.preprocessing_.precision * values).sum(1)


def _hidden(model: IT3Regressor) -> Sequence[str]:
    """The layers whose outputs ActMAD aligns: every hidden layer's, after its ReLU."""
    return [f"model.{2 * index + 1}" for index in range(len(tuple(model.hidden_layer_sizes)))]


class PaperLine(TypedDict):
    """The paper's steps and rates that were chosen for a split's network."""

    seed: int
    source: dict[str, float]
    online: dict[str, float]


def read_paper_steps(folder: Path, name: str) -> dict[int, PaperLine]:
    """By split; those measured before they were kept are missing."""
    path = folder / f"{name}-paper.jsonl"
    mend(path)
    return {line["seed"]: line for line in read_lines(path, PaperLine)} if path.exists() else {}


class TrustLine(TypedDict):
    """How good an uncertainty score is at a level of a split; see `assess_scores`."""

    seed: int
    level: str
    score: str
    n: int
    spearman: float | None
    pearson: float | None
    auroc: float | None


def read_trust(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines that `evaluate_split` wrote; where a split was measured again, the last ones."""
    lines = [dict(line) for line in read_lines(folder / f"{name}-trust.jsonl", TrustLine)]
    return list({(line["seed"], line["level"], line["score"]): line for line in lines}.values())


def write_report(out: OutputFolder, names: Sequence[str], command: str) -> str:
    """Writes `table.md` and PNGs beside the records of these data sets; returns a summary."""
    summary, details = [_INTRODUCTION.format(command)], []
    for name in names:
        records = read_records(out.path / f"{name}.jsonl")
        rows = summarise(records)
        trust = _trust_table(read_trust(out.path, name))
        summary += [f"## {name}", markdown_table(compact(rows, digits=3)), trust]
        details += [f"## {name}, all levels", markdown(rows)]
        boxes = box_by_level(
            [record for record in records if record["method"] in _DRAWN],
            each="seed",
            error="MAE of a split",
            title=f"{name}: features zeroed",
        )
        differences = difference_by_level(
            [row for row in rows if row["method"] in _COMPARED],
            error="MAE",
            title=f"{name}: against the same network without adaptation",
        )
        out.write_figure(f"{name}-boxes.png", boxes, dpi=200)
        out.write_figure(f"{name}-differences.png", differences, dpi=200)
    out.write_text("table.md", "\n\n".join([*summary, *details]))
    return "\n\n".join(summary)


def _trust_table(lines: Sequence[dict[str, Any]]) -> str:
    """How good each uncertainty score is over all shifted levels: means over splits."""
    frame = pd.DataFrame([line for line in lines if line["level"] == OUT_OF_DISTRIBUTION])
    columns = {"spearman": "Spearman with the true error", "auroc": "AUROC against clean rows"}
    means = frame.groupby("score", sort=False)[list(columns)].mean().astype(float).round(2)
    body = [[str(cell) for cell in row] for row in means.itertuples()]
    return markdown_table([["score", *columns.values()], *body])
