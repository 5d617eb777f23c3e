"""The paper's protocol made honest: features zeroed, 20 splits, the same masks for every method.

A zeroed feature reads 0 in standardised units, its column's mean, and nothing says so. Methods
that are told which values are missing (imputation, boosting with gaps) are named so: what a
practitioner can do who notices. All nets are of the same size and train on the same rows; every
setting is chosen on training rows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor, nn

from it3_core import (
    IT3,
    Activations,
    ActMAD,
    Adapter,
    AnswerStep,
    Conditioned,
    Method,
    OnlineIT3,
    Source,
)
from it3_core.candidates import Candidate
from it3_core.evaluation import Record, evaluate, read_records
from it3_core.judging import judge
from it3_core.rivals import Dropout, Ensemble, Mahalanobis, Score
from it3_core.tables import BEYOND
from it3_core.training import Loss
from it3_tabular.choosing import candidates
from it3_tabular.estimators import IT3Regressor
from it3_tabular.learning import batch_size_for, hold_out, seeded, train, zigzag
from it3_tabular.networks import build
from it3_tabular.preparing import Floats
from it3_tabular.report import read_trust
from it3_tabular.uci import UCI

__all__ = ["BATCH_SIZES", "LEVELS", "evaluate_split", "trust_quality", "vanilla_network", "zeroed"]

LEVELS = (0.0, 0.05, 0.10, 0.15, 0.20)
BATCH_SIZES = (1, 4, 8)
_STREAM_SIZE = 8  # rows that come together for online IT³ and ActMAD
_ENSEMBLE = 5  # networks, the one that is measured among them

View = dict[str, Tensor]
"""The same rows as different methods get them: what `_views` makes of them."""


def evaluate_split(
    data: UCI, number: int, folder: Path, settings: dict[str, Any] | None = None
) -> list[Record]:
    """Trains on a split and measures every method on it; records also go into `folder`.

    A split that `folder` holds whole is not measured again.

    Args:
        data: the data set.
        number: of the split; it is the seed of everything too.
        folder: for `NAME.jsonl`, records of it3_core.evaluation, and `NAME-trust.jsonl`.
        settings: of the estimator, where they differ from its defaults.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from pathlib import Path
        >>> from it3_tabular import UCI, load_energy
        >>> x, y = load_energy()
        >>> data = UCI("energy", x, y, [(np.arange(0, 768, 4), np.arange(1, 60, 4))])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     records = evaluate_split(data, 0, Path(folder), {"max_iter": 3})
        >>> sorted({record["level"] for record in records})
        ['10 %', '15 %', '20 %', '5 %', 'clean']
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, trusted = folder / f"{data.name}.jsonl", folder / f"{data.name}-trust.jsonl"
    if trusted.exists() and _is_whole(read_trust(trusted), number):
        return [record for record in read_records(path) if record["seed"] == number]
    x, y, x_test, y_test = data.split(number)
    model = IT3Regressor(random_state=number, **(settings or {})).fit(x, y)
    vanilla = vanilla_network(model, x, y)
    levels = {
        _level_name(level): (_views(model, x_test, zeroed(data.name, number, level, x_test.shape)),
                             torch.as_tensor(y_test))
        for level in LEVELS
    }  # fmt: skip
    single, batched = _methods(model, vanilla, x, y, number)
    common: dict[str, Any] = {"seed": number, "path": path, "progress": False, "idempotence": True}
    evaluate(
        {**single, "IT³": batched.pop("IT³")},
        levels,
        model.adapter_.error,
        batch_sizes=BATCH_SIZES,
        once=list(single),
        **common,
    )
    # Larger batches only: at one row, a stream's or ActMAD's statistics are noise, and cost most.
    evaluate(
        {"source": single["source"], **batched},
        levels,
        model.adapter_.error,
        batch_sizes=[_STREAM_SIZE],
        once=["source"],
        streams=["online IT³"],
        **common,
    )
    found = trust_quality(model, x, y, levels)
    lines = [json.dumps({"seed": number, **line}) + "\n" for line in found]
    with trusted.open("a", encoding="utf-8") as file:
        file.writelines(["\n", *lines])  # what a killed run left unfinished ends here
    return [record for record in read_records(path) if record["seed"] == number]


def _is_whole(trust: Sequence[dict[str, Any]], number: int) -> bool:
    """Whether a split's last lines are there: of all levels together, for every score."""
    first, last = (
        {line["score"] for line in trust if line["seed"] == number and line["level"] == level}
        for level in (_level_name(0.0), BEYOND)
    )
    return bool(first) and first == last


def zeroed(name: str, split: int, level: float, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which values are lost: a matter of data set, split and level alone.

    Example:
        >>> zeroed("energy", 0, 0.2, (77, 8)).mean().round(2)
        np.float64(0.17)
    """
    seed = zlib.crc32(f"{name} {split} {level:.2f}".encode())
    mask: NDArray[np.bool_] = np.random.default_rng(seed).random(shape) < level
    return mask


def trust_quality(
    model: IT3Regressor, x: Floats, y: Floats, levels: dict[str, tuple[View, Tensor]]
) -> list[dict[str, Any]]:
    """How well the idempotence error and its rivals foretell the true error: lines of `judge`.

    A shifted level is those of its rows that lost a value: the others are as they were. The
    ensemble is the network and others like it, trained on the same rows from other seeds.

    Args:
        model: the fitted estimator.
        x: its training rows.
        y: their targets.
        levels: the views of the test rows, and their targets.
    """
    network, adapter, known = model.network_, model.adapter_, model.preparation_(x)
    others = [_network_like(model, x, y, zigzag, other) for other in range(1, _ENSEMBLE)]
    rivals: dict[str, Score] = {
        "Mahalanobis, inputs": partial(_mahalanobis, model),
        f"ensemble of {_ENSEMBLE}": Ensemble([network, *others], adapter),
        "dropout": Dropout(network, adapter),
    }
    if hidden := _hidden(model):
        features = Mahalanobis.fit(network, adapter, [known], hidden[-1])
        rivals = {"Mahalanobis, features": features, **rivals}
    clean, rows = _level_name(0.0), {}
    for name, (views, target) in levels.items():
        wanted = views["gaps"].any(1) if name != clean else torch.ones(len(target)).bool()
        if bool(wanted.any()):
            rows[name] = (views["zeroed"][wanted], target[wanted])
    return judge(network, adapter, rivals, rows, clean)


def vanilla_network(model: IT3Regressor, x: Floats, y: Floats) -> Conditioned:
    """The same network, trained on the same rows without ZigZag: its signal is always neutral."""
    return _network_like(model, x, y, _plain_loss)


def _network_like(
    model: IT3Regressor, x: Floats, y: Floats, loss: Loss, other: int = 0
) -> Conditioned:
    """Trained on the same rows; from other weights and in another order where `other` says so."""
    labels = torch.as_tensor(y)
    generator, seed = seeded(model.random_state)
    kept, held_out = hold_out(np.zeros(len(y)), model.validation_fraction, generator)
    network = build(x.shape[1], tuple(model.hidden_layer_sizes), model.adapter_, seed=seed + other)
    train(
        network,
        model.adapter_,
        (model.preparation_(x[kept]), labels[kept]),
        (model.preparation_(x[held_out]), labels[held_out]) if len(held_out) else None,
        epochs=model.max_iter,
        batch_size=batch_size_for(len(kept)),
        lr=model.learning_rate_init,
        patience=model.n_iter_no_change,
        seed=seed + other,
        progress=False,
        loss=loss,
    )
    return network


def _methods(
    model: IT3Regressor, vanilla: Conditioned, x: Floats, y: Floats, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those whose answer to a row is its own, and those that depend on the batch."""
    network, adapter = model.network_, model.adapter_
    chosen = _best_gradient_step(model)
    step = {key: value for key, value in chosen.settings.items() if key != "per_instance"}
    known = Activations.collect(network, adapter, [model.preparation_(x)], _hidden(model))
    boosting = HistGradientBoostingRegressor(random_state=seed).fit(x, y)
    single = {
        "source": _On("zeroed", Source(network, adapter)),
        "second pass": _On("zeroed", AnswerStep(network, adapter)),
        "IT³ per instance": _On("zeroed", chosen.build(network, adapter)),
        "auto": _On("zeroed", model.method()),
        "vanilla": _On("zeroed", Source(vanilla, adapter)),
        "boosting": _On("raw", partial(_boosted, boosting)),
        "told: source, imputed": _On("imputed", Source(network, adapter)),
        "told: auto, imputed": _On("imputed", model.method()),
        "told: vanilla, imputed": _On("imputed", Source(vanilla, adapter)),
        "told: boosting": _On("with gaps", partial(_boosted, boosting)),
    }
    batched = {
        "IT³": _On("zeroed", IT3(network, adapter, **step)),
        "online IT³": _On("zeroed", OnlineIT3(network, adapter, **step)),
        "ActMAD": _On("zeroed", ActMAD(network, adapter, known, lr=1e-4)),
    }
    return single, batched


def _best_gradient_step(model: IT3Regressor) -> Candidate:
    """IT³ as it did best on held-out training rows under shifts, whether it helped or not."""
    assert model.tuning_ is not None
    tries = candidates(model.steps, model.learning_rate_adapt)
    gains = [tried["gain"] for tried in model.tuning_.tried]
    steps = [index for index, tried in enumerate(tries) if tried.method == "IT3"]
    return tries[max(steps, key=lambda index: gains[index] if gains else 0.0)]


class _On:
    """A method, or a function, on one of the views of the rows."""

    def __init__(self, view: str, method: Method | Callable[[Tensor], Tensor]) -> None:
        self._view = view
        self._method = method

    def __call__(self, views: View) -> Any:
        return self._method(views[self._view])

    def reset(self) -> None:
        reset = getattr(self._method, "reset", None)
        if reset is not None:
            reset()


def _views(model: IT3Regressor, x: Floats, lost: NDArray[np.bool_]) -> View:
    learnt = model.preparation_
    mask = torch.as_tensor(lost)
    clean = learnt(x)
    columns = x.shape[1]
    values = torch.where(mask, 0.0, clean[:, :columns])
    with_gaps = np.where(lost, np.nan, x)
    return {
        "zeroed": torch.cat([values, clean[:, columns:]], 1),
        "imputed": learnt(with_gaps),
        "raw": torch.as_tensor(np.where(lost, learnt.mean.numpy(), x)),
        "with gaps": torch.as_tensor(with_gaps),
        "gaps": mask,
    }


def _boosted(boosting: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(boosting.predict(x.numpy()))


def _plain_loss(network: nn.Module, adapter: Adapter, x: Tensor, y: Tensor) -> Tensor:
    return adapter.loss(network(x, adapter.neutral(x)), y).mean()


def _mahalanobis(model: IT3Regressor, x: Tensor) -> Tensor:
    values = x[:, : x.shape[1] // 2]
    return (values @ model.preparation_.precision * values).sum(1)


def _hidden(model: IT3Regressor) -> Sequence[str]:
    """The layers whose outputs ActMAD aligns: every hidden layer's, after its ReLU."""
    return [f"model.{2 * index + 1}" for index in range(len(tuple(model.hidden_layer_sizes)))]


def _level_name(level: float) -> str:
    return f"{100 * level:g} %" if level else "clean"
