"""How an estimator is fitted: preprocessing, validation split, training, what `"auto"` tries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor, nn

from it3_core import (
    Candidate,
    Classification,
    Conditioned,
    History,
    IT3Error,
    Predictor,
    Regression,
    ScoreKind,
    Tuning,
    calibrate,
    fit,
    tune,
    widen,
    zigzag_loss,
)
from it3_core.batching import batches
from it3_core.training.fit import Loss
from it3_core.trust.tune import apart

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

MOST_COLUMNS = 20_000  # whose correlations fill 3 GB
_SHRINKAGE = 0.01  # of the correlations towards zero, so that the matrix can be inverted
_ROUNDS = 10  # of expectation and maximisation, where training rows have gaps themselves
_MOST_NUMBERS = 2**22  # in a block of systems to solve: 32 MB
_FARTHEST = 1e6  # standard deviations, where values are clipped
_FEWEST_ROWS = 8  # of validation: with fewer, a choice would be chance
_SMALLEST_TABLE = 5 * _FEWEST_ROWS
_PATIENCE = 30  # epochs without a new best before training stops
_BANK = 2000  # training rows that scores of features learn from
_DRAWS = 2  # of each shift: what one draw favours, the other need not


def seeded(random_state: int | np.random.RandomState | None) -> tuple[np.random.Generator, int]:
    """A generator for the rows and a seed for the network, as scikit-learn's random states go."""
    try:
        generator = np.random.default_rng(check_random_state(random_state).randint(2**31))
    except ValueError as problem:
        raise IT3Error(f"random_state can't be {random_state!r}: {problem}") from problem
    return generator, int(generator.integers(2**31))


def split_rows(
    classes: NDArray[Any], fraction: float, generator: np.random.Generator
) -> tuple[Rows, Rows]:
    """Training and validation rows: at random, the same `fraction` of each class.

    At least 8 rows are for validation, but none of a table of fewer than 40; each class keeps a row
    to train on.
    """
    order = generator.permutation(len(classes))
    if len(order) < _SMALLEST_TABLE:
        return np.sort(order), order[:0]
    wanted = max(_FEWEST_ROWS, round(fraction * len(order)))
    # A row's quantile within its class: the rows of the lowest quantiles are evenly of all classes.
    quantile = np.empty(len(order))
    sizes = np.unique(classes, return_counts=True)[1]
    by_class = order[np.argsort(classes[order], kind="stable")]
    for rows in np.split(by_class, sizes.cumsum()[:-1]):
        quantile[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
        quantile[rows[-1]] = 2.0
    lowest = order[np.argsort(quantile[order], kind="stable")][:wanted]
    validation = np.sort(lowest[quantile[lowest] < 1])
    return np.setdiff1d(order, validation), validation


def build(
    columns: int, widths: Sequence[int], adapter: Regression | Classification, seed: int = 0
) -> Conditioned:
    """A perceptron with ReLUs, from preprocessed rows and a signal to predictions in user units.

    It is in double precision, so that a prediction is the same alone and among other rows. The
    indicators' weights start at zero: in a column without gaps in training they have no effect.
    """
    outputs = len(adapter.mean) if isinstance(adapter, Regression) else adapter.classes
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([2 * columns, *widths, outputs]):
        layers += [nn.Linear(before, after, dtype=torch.float64), nn.ReLU()]
    layers.pop()
    if isinstance(adapter, Regression):
        layers.append(adapter.rescale().double())
    network = widen(nn.Sequential(*layers), adapter)
    generator = torch.Generator().manual_seed(seed)
    linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    for layer in linear:  # as torch does, but by our own generator
        bound = 1 / math.sqrt(layer.in_features)
        nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    with torch.no_grad():
        linear[0].weight[:, columns : 2 * columns] = 0.0
    return network


def train_network(
    estimator: Any,
    data: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    seed: int,
    loss: Loss = zigzag_loss,
    progress: bool = False,
) -> tuple[Conditioned, History]:
    """A network as the estimator's parameters and `adapter_` say, trained on preprocessed rows."""
    columns, widths = data[0].shape[1] // 2, tuple(estimator.hidden_layer_sizes)
    network = build(columns, widths, estimator.adapter_, seed)
    stops_early = estimator.early_stopping and len(validation[1]) > 0
    history = fit(
        network,
        estimator.adapter_,
        data,
        validation=validation if stops_early else None,
        epochs=estimator.max_iter,
        batch_size=max(64, min(512, len(data[1]) // 32)),
        lr=estimator.learning_rate_init,
        patience=_PATIENCE if stops_early else None,
        optimizer=partial(torch.optim.Adam, fused=True),
        loss=loss,
        seed=seed,
        progress=progress,
    )
    return network, history


def calibrated(
    estimator: Any, train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor],
    rest: tuple[Tensor, Tensor], seed: int,
) -> Predictor:  # fmt: skip
    """What is chosen by validation rows under shifts, or nothing; two thirds of the rest set its
    threshold, and a third its intervals."""
    network, adapter = estimator.network_, estimator.adapter_
    widths = tuple(estimator.hidden_layer_sizes)
    rows = apart(len(rest[1]), [2, 1], seed)
    limits, kept = (rest[0][part] for part in rows)
    doubt = ScoreKind("Idempotence")
    tuning = Tuning(Candidate("Source"), "No adaptation: it was not asked for.", doubt=doubt)
    if estimator.adapt == "auto":
        few = f"No adaptation: {len(validation[1])} validation rows are too few to choose by."
        tuning = replace(tuning, reason=few)
    if estimator.adapt == "auto" and len(validation[1]) >= _FEWEST_ROWS:
        tuning = tune(
            network, adapter, validation, shifts=_shifts(seed), thresholds=limits,
            candidates=candidates(estimator.steps, estimator.learning_rate_adapt),
            train=train[0][:_BANK], layer=f"model.{2 * len(widths) - 1}",
            progress=False,
        )  # fmt: skip
    method = tuning.build(network, adapter)
    if len(kept) > 1:
        return calibrate(method, (kept, rest[1][rows[1]]), batch_size=1024)
    known = validation if len(validation[1]) > 1 else train
    return replace(calibrate(method, known, batch_size=1024), misses=None)


def candidates(steps: int, lr: float) -> list[Candidate]:
    """Steps of the prediction of either sign, and of each row's own weights: rows stay apart."""
    found = [Candidate("AnswerStep", {"alpha": a}) for a in (-0.5, 0.5, 1.0)]
    settings = dict.fromkeys([(3, 0.05), (steps, lr)])
    return found + [Candidate("IT3", {**gradient_step(*s), "per_instance": True}) for s in settings]


def gradient_step(steps: int, lr: float) -> dict[str, Any]:
    """Plain gradient descent on the squared gap, so that a row moves in proportion to its gap.

    Adam's first step, the paper's, has the same size whatever the gap.
    """
    return {"steps": steps, "lr": lr, "optimizer": "SGD", "power": 2.0}


def _shifts(seed: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Feature dropout, noise and offset, each drawn twice, on preprocessed rows."""
    return {
        f"{kind} {draw + 1}": partial(_shifted, kind, seed + draw)
        for draw in range(_DRAWS)
        for kind in ("dropout", "noise", "offset")
    }


def _shifted(kind: str, seed: int, x: Tensor) -> Tensor:
    """The values changed, the indicators as they were: nothing marks a dropped value as missing."""
    values, indicators = x.chunk(2, 1)
    generator = torch.Generator().manual_seed(seed)
    if kind == "dropout":
        values = values * (torch.rand(values.shape, generator=generator) >= 0.15)
    else:
        shape = values.shape if kind == "noise" else values.shape[1:]
        drawn = torch.randn(shape, generator=generator, dtype=values.dtype)
        values = values + (0.3 if kind == "noise" else 0.5) * drawn
    return torch.cat([values, indicators], 1)


@dataclass(frozen=True)
class Preprocessing:
    """From rows with gaps to the network's input: standardised values, then a mask of the gaps.

    A gap (NaN) is filled with the conditional mean of a Gaussian that was fitted to the training
    rows, given the row's other values. Beside each value stands an indicator, 1 where it was
    missing, so that the network knows which are imputed.
    """

    mean: Tensor  # of each column, without its gaps
    scale: Tensor  # its standard deviation; 1 for a constant column
    precision: Tensor  # inverse of the columns' correlation matrix, a little shrunk

    @classmethod
    def fit(cls, x: Floats, names: Sequence[str] | None = None) -> Preprocessing:
        """Learns from training rows; `names` of the columns are for messages."""
        if x.shape[1] > MOST_COLUMNS:
            raise IT3Error(f"{x.shape[1]} columns are more than {MOST_COLUMNS}: choose some first")
        missing = np.isnan(x)
        if missing.all(0).any():
            empty = int(np.argmax(missing.all(0)))
            column = f"column {empty}" if names is None else f"column {names[empty]!r}"
            raise IT3Error(f"{column} has no value in any row: leave it out")
        # Scaled by its largest value first, so that squares of extreme numbers don't overflow.
        largest = np.nanmax(np.abs(x), axis=0)
        largest[largest == 0] = 1.0
        scaled = x / largest
        mean, spread = np.nanmean(scaled, axis=0), np.nanstd(scaled, axis=0)
        scale = np.where(spread <= 1e-12, 1.0, spread * largest)
        scale[scale == 0] = 1.0
        fitted = cls(torch.as_tensor(mean * largest), torch.as_tensor(scale), torch.empty(0))
        precision = _precision(fitted._standardised(x), torch.as_tensor(missing))
        return replace(fitted, precision=precision)

    def __call__(self, x: Floats) -> Tensor:
        """Rows as the network takes them: the values, gaps filled, then the indicators."""
        missing = torch.as_tensor(np.isnan(x))
        values = self._standardised(x)
        gaps = missing.any(1).nonzero().flatten()
        if len(gaps):
            values[gaps] = _imputed(values[gaps], missing[gaps], self.precision)
        return torch.cat([values, missing.to(values)], 1)

    def _standardised(self, x: Floats) -> Tensor:
        """Zero where a value is missing."""
        own = torch.from_numpy(np.array(x, dtype=np.float64))  # a copy: a frame's may be read-only
        values = (own - self.mean) / self.scale
        return values.nan_to_num(nan=0.0).clamp(-_FARTHEST, _FARTHEST)


def _precision(values: Tensor, missing: Tensor) -> Tensor:
    """The inverse correlation matrix; over rows with gaps, by expectation and maximisation."""
    identity = torch.eye(values.shape[1], dtype=values.dtype)
    precision, has_gaps = identity, bool(missing.any())
    for _ in range(_ROUNDS if has_gaps else 1):
        filled = _imputed(values, missing, precision) if has_gaps else values
        covariance = (filled.T @ filled + _uncertainty(missing, precision)) / len(filled)
        covariance = (1 - _SHRINKAGE) * covariance + _SHRINKAGE * identity
        precision = torch.linalg.inv(covariance)
    return precision


def _imputed(values: Tensor, missing: Tensor, precision: Tensor) -> Tensor:
    """Gaps filled with their mean given the rest of the row: −P_mm⁻¹ P_mo x_o, P the precision."""
    parts = []
    for part, gaps in _blocks(values, missing):
        right = torch.where(gaps, -(part @ precision), part)  # part is 0 in the gaps
        parts.append(torch.linalg.solve(_systems(gaps, precision), right))
    return torch.cat(parts)


def _uncertainty(missing: Tensor, precision: Tensor) -> Tensor:
    """Sum over rows of the gaps' covariance given the rest: P_mm⁻¹."""
    total = torch.zeros_like(precision)
    rows = missing[missing.any(1)]
    for _, gaps in _blocks(rows, rows):
        both = gaps[:, :, None] & gaps[:, None, :]
        total += torch.where(both, torch.linalg.inv(_systems(gaps, precision)), 0.0).sum(0)
    return total


def _systems(gaps: Tensor, precision: Tensor) -> Tensor:
    """For each row the precision among its gaps, and the identity elsewhere."""
    both = gaps[:, :, None] & gaps[:, None, :]
    return torch.where(both, precision, torch.eye(len(precision), dtype=precision.dtype))


def _blocks(values: Tensor, missing: Tensor) -> list[tuple[Tensor, Tensor]]:
    size = max(1, _MOST_NUMBERS // values.shape[1] ** 2)
    return list(zip(batches(values, size), batches(missing, size), strict=True))
