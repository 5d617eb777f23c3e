"""`IT3Regressor` and `IT3Classifier`: scikit-learn estimators that adapt to the rows they get."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from it3_core import (
    IT3,
    Classification,
    IT3Error,
    IT3Warning,
    Method,
    OnlineIT3,
    Regression,
    Source,
    Trust,
)
from it3_core.batching import batches
from it3_tabular import storage
from it3_tabular.choosing import candidates, choose, gradient_step
from it3_tabular.learning import batch_size_for, hold_out, seeded, train
from it3_tabular.networks import Signal, build
from it3_tabular.preparing import Floats, Imputation, Preparation

__all__ = ["ADAPT", "Detailed", "IT3Classifier", "IT3Regressor", "Trusted"]

ADAPT = ("auto", "instance", "batch", "online", None)
_ROWS = 1024  # that are answered together where rows don't influence each other


class Trusted(NamedTuple):
    """How unusual rows are.

    Attributes:
        percentile: a row's idempotence error is larger than that of so many percent of the
            held-out training rows.
        flag: whether that makes it unusual: true of 5 % of rows like the training rows. Where
            fewer than 19 rows were held out, it is true beyond the largest error among them.

    Example:
        >>> import numpy as np
        >>> Trusted(np.array([99.0]), np.array([True])).flag
        array([ True])
    """

    percentile: Floats
    flag: NDArray[np.bool_]


class Detailed(NamedTuple):
    """Answers with all that is known about them.

    Attributes:
        before: what the network answers without adapting.
        after: the prediction.
        error: idempotence error before adapting, in standard deviations of the target for a
            regression, as a Jensen–Shannon divergence for a classification.
        percentile: see `Trusted`.
        flag: see `Trusted`.

    Example:
        >>> Detailed._fields
        ('before', 'after', 'error', 'percentile', 'flag')
    """

    before: NDArray[Any]
    after: NDArray[Any]
    error: Floats
    percentile: Floats
    flag: NDArray[np.bool_]


class Answers(NamedTuple):
    """What a method returned for rows, before it is put into the user's words."""

    initial: Tensor
    prediction: Tensor
    error: Tensor


class _IT3Estimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share; their docstrings say what the parameters mean."""

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (30, 20, 10),
        *,
        adapt: str | None = "auto",
        steps: int = 1,
        learning_rate_adapt: float = 0.01,
        batch_size_adapt: int = 8,
        signal: Signal = "widen",
        imputation: Imputation = "gaussian",
        batch_size: int | str = "auto",
        learning_rate_init: float = 5e-3,
        max_iter: int = 200,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 30,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.adapt = adapt
        self.steps = steps
        self.learning_rate_adapt = learning_rate_adapt
        self.batch_size_adapt = batch_size_adapt
        self.signal = signal
        self.imputation = imputation
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Trains the network with ZigZag, and learns what is usual and whether to adapt.

        Args:
            X: rows of numbers; NaN where one is missing.
            y: their targets.

        Returns:
            The estimator itself.
        """
        self._check_parameters()
        rows, labels, groups = self._checked(X, y)
        generator, seed = seeded(self.random_state)
        kept, held_out = hold_out(groups, self.validation_fraction, generator)
        names = getattr(self, "feature_names_in_", None)
        self.preparation_ = Preparation.fit(rows[kept], self.imputation, names)
        self.adapter_ = self._adapter(labels[kept])
        self.network_ = build(
            rows.shape[1],
            tuple(self.hidden_layer_sizes),
            self.adapter_,
            signal=self.signal,
            seed=seed,
        )
        x, x_held_out = self.preparation_(rows[kept]), self.preparation_(rows[held_out])
        y_held_out = labels[held_out]
        judged = self.early_stopping and len(held_out) > 0
        self.history_ = train(
            self.network_,
            self.adapter_,
            (x, labels[kept]),
            (x_held_out, y_held_out) if judged else None,
            epochs=self.max_iter,
            batch_size=(
                batch_size_for(len(kept)) if isinstance(self.batch_size, str) else self.batch_size
            ),
            lr=self.learning_rate_init,
            patience=self.n_iter_no_change,
            seed=seed,
            progress=bool(self.verbose),
        )
        self.n_iter_ = len(self.history_.train)
        known = x_held_out if len(held_out) else x
        with warnings.catch_warnings():
            # Small tables are usual here, and `Trusted` says what few rows mean for its flag.
            warnings.filterwarnings("ignore", ".*false alarms", IT3Warning)
            self.trust_ = Trust.fit(self.network_, self.adapter_, batches(known, _ROWS))
        self.validation_error_ = self._error(x_held_out, y_held_out)
        self.tuning_ = None
        if self.adapt == "auto":
            tries = candidates(self.steps, self.learning_rate_adapt)
            self.tuning_ = choose(self.network_, self.adapter_, x_held_out, y_held_out, tries, seed)
        return self

    def idempotence_error(self, X: ArrayLike) -> Floats:
        """How far the network's second answer is from its first, for each row, without adapting.

        For a regression in standard deviations of the target; for a classification as a
        Jensen–Shannon divergence of the two probabilities.
        """
        rows = self._rows(X)
        return _array(self.answer(rows, Source(self.network_, self.adapter_)).error)

    def trust(self, X: ArrayLike) -> Trusted:
        """How unusual each row is, compared with held-out training rows."""
        errors = torch.as_tensor(self.idempotence_error(X))
        return Trusted(_array(self.trust_.percentile(errors)), _flags(self.trust_.flag(errors)))

    def predict_detailed(self, X: ArrayLike) -> Detailed:
        """Predictions, what they would be without adapting, and how far to trust them."""
        return self.detailed(self.answer(self._rows(X)))

    def method(self) -> Method:
        """A new core method that answers as this estimator does; online, it starts anew."""
        check_is_fitted(self)
        step = gradient_step(self.steps, self.learning_rate_adapt)
        if self.adapt == "auto":
            assert self.tuning_ is not None
            made: Method = self.tuning_.build(self.network_, self.adapter_)
            return made
        if self.adapt == "instance":
            return IT3(self.network_, self.adapter_, per_instance=True, **step)
        if self.adapt == "batch":
            return IT3(self.network_, self.adapter_, **step)
        if self.adapt == "online":
            return OnlineIT3(self.network_, self.adapter_, **step)
        return Source(self.network_, self.adapter_)

    def answer(self, rows: Floats, method: Method | None = None) -> Answers:
        """What a method, this estimator's own by default, answers to rows that were checked."""
        method = self.method() if method is None else method
        together = isinstance(method, OnlineIT3) or (
            isinstance(method, IT3) and not method.per_instance
        )
        size = self.batch_size_adapt if together else _ROWS
        found = []
        for block in _blocks(rows, size * max(1, _ROWS // size)):
            for part in batches(self.preparation_(block), size):
                given = method(part)
                found.append((given.initial, given.prediction, given.error_before))
        return Answers(*(torch.cat(parts).detach() for parts in zip(*found, strict=True)))

    def detailed(self, answers: Answers) -> Detailed:
        """Answers in the user's words."""
        return Detailed(
            before=self._words(answers.initial),
            after=self._words(answers.prediction),
            error=_array(answers.error),
            percentile=_array(self.trust_.percentile(answers.error)),
            flag=_flags(self.trust_.flag(answers.error)),
        )

    def save(self, path: str | Path) -> None:
        """Writes the fitted estimator to one file that runs no code when it is read."""
        check_is_fitted(self)
        storage.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The estimator that `save` wrote."""
        return storage.load(path, cls)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _rows(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        rows: Floats = validate_data(
            self, X, reset=False, dtype=np.float64, ensure_all_finite="allow-nan"
        )
        return rows

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[Floats, Tensor, NDArray[Any]]:
        """Rows, labels as the network takes them, and the groups that held-out rows come from."""
        raise NotImplementedError

    def _adapter(self, labels: Tensor) -> Regression | Classification:
        raise NotImplementedError

    def _words(self, output: Tensor) -> NDArray[Any]:
        raise NotImplementedError

    def _error(self, x: Tensor, y: Tensor) -> float | None:
        if not len(y):
            return None
        output = Source(self.network_, self.adapter_)(x).prediction
        return float(self.adapter_.error(output, y).mean())

    def _check_parameters(self) -> None:
        if self.adapt not in ADAPT:
            known = ", ".join(map(repr, ADAPT))
            raise IT3Error(f"adapt must be one of {known}, not {self.adapt!r}")
        _whole(1, batch_size_adapt=self.batch_size_adapt, max_iter=self.max_iter)
        _whole(1, n_iter_no_change=self.n_iter_no_change)
        _whole(0, steps=self.steps)
        if self.batch_size != "auto":
            _whole(1, batch_size=self.batch_size)
        widths: Any = self.hidden_layer_sizes
        if isinstance(widths, str) or not hasattr(widths, "__iter__"):
            raise IT3Error(f"hidden_layer_sizes must be several numbers, not {widths!r}")
        for width in widths:
            _whole(1, **{"each of hidden_layer_sizes": width})
        for name in ("learning_rate_init", "learning_rate_adapt"):
            value = getattr(self, name)
            if not (isinstance(value, int | float | np.number) and 0 <= value < math.inf):
                raise IT3Error(f"{name} must be a number from 0 up, not {value!r}")
        if not 0 < self.validation_fraction < 1:
            raise IT3Error(
                f"validation_fraction must lie between 0 and 1, not {self.validation_fraction!r}"
            )


class IT3Regressor(RegressorMixin, _IT3Estimator):  # type: ignore[misc]  # the same
    """A small network for one number per row, which knows how unusual a row is and can adapt.

    Args:
        hidden_layer_sizes: widths of the hidden layers; the paper's by default.
        adapt: what `predict` does. `"auto"`: what did best on held-out training rows under feature
            dropout, noise and offset, which may be nothing; `tuning_.reason` says what and why.
            `"instance"`: IT³ on each row alone. `"batch"`: IT³ on each `batch_size_adapt`
            consecutive rows together. `"online"`: the same without starting anew for each batch,
            from the first row of a call to its last. None: nothing. Under `"batch"` and
            `"online"` a prediction depends on the other rows and their order.
        steps: gradient steps of IT³; `"auto"` tries them with others.
        learning_rate_adapt: their size; the descent is on the squared idempotence error.
        batch_size_adapt: rows that adapt together in `"batch"` and `"online"`.
        signal: where the network's second input enters: `"widen"` puts it beside the features,
            `"inject"` adds an embedding of it after the first layer, which is quicker.
        imputation: what a missing value is taken for: `"gaussian"`, its mean given the row's
            other values, or `"mean"`, its column's. Either way the network is told which values
            were missing.
        batch_size: rows in a training step; `"auto"` is 64, and more for long tables.
        learning_rate_init: Adam's, in training.
        max_iter: epochs at most.
        early_stopping: whether to stop when the held-out error no longer falls, and keep the best
            weights. Rows are held out in any case: trust and `"auto"` need them.
        validation_fraction: share of the rows that is held out (at least 8 rows; none of fewer
            than 40).
        n_iter_no_change: epochs without a new best before stopping.
        random_state: a number makes everything repeatable.
        verbose: whether to show how training goes, on standard error.

    Attributes:
        tuning_: what `"auto"` chose, why, and what it tried; None for other settings.
        trust_: what idempotence errors are usual.
        history_: losses by epoch.
        validation_error_: mean absolute error on the held-out rows, without adapting (for a
            classifier the share of wrong answers); None where none were held out. It is a little
            too good, for the same rows said when to stop.
        n_iter_: epochs that were run.
        network_, adapter_, preparation_: the trained parts, for use with it3_core.

    Example:
        >>> import numpy as np
        >>> from it3_tabular import IT3Regressor, load_energy
        >>> X, y = load_energy()
        >>> model = IT3Regressor(random_state=0, max_iter=30).fit(X[:600], y[:600])
        >>> rows = X[600:603].copy()
        >>> rows[0, 1] = np.nan                      # a value is missing
        >>> model.predict(rows).shape
        (3,)
        >>> model.predict_detailed(rows).flag.dtype  # is this row unusual?
        dtype('bool')
    """

    def predict(self, X: ArrayLike) -> Floats:
        """One number for each row, in the target's units."""
        return self._words(self.answer(self._rows(X)).prediction)

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[Floats, Tensor, NDArray[Any]]:
        rows, targets = validate_data(
            self,
            X,
            y,
            dtype=np.float64,
            y_numeric=True,
            ensure_all_finite="allow-nan",
            ensure_min_samples=2,
        )
        labels = torch.from_numpy(np.array(targets, dtype=np.float64))  # a copy, to be writable
        if bool((labels == labels[0]).all()):
            raise IT3Error(f"the target is {float(labels[0]):g} in every row: nothing to learn")
        return rows, labels, np.zeros(len(labels))

    def _adapter(self, labels: Tensor) -> Regression:
        return Regression.fit(labels)

    def _words(self, output: Tensor) -> Floats:
        return _array(output[:, 0])


class IT3Classifier(ClassifierMixin, _IT3Estimator):  # type: ignore[misc]  # the same
    """A small network for one class per row, which knows how unusual a row is and can adapt.

    Its parameters and attributes are those of `IT3Regressor`, and `classes_`: the labels.

    Example:
        >>> import numpy as np
        >>> from it3_tabular import IT3Classifier, load_energy
        >>> X, load = load_energy()
        >>> y = np.where(load > 20, "high", "low")
        >>> model = IT3Classifier(random_state=0, max_iter=30).fit(X[:600], y[:600])
        >>> model.predict_proba(X[600:603]).shape
        (3, 2)
        >>> model.classes_
        array(['high', 'low'], dtype='<U4')
    """

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each row."""
        return self._words(self.answer(self._rows(X)).prediction)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """The probability of each class, in the order of `classes_`."""
        return _array(self.answer(self._rows(X)).prediction.softmax(1))

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[Floats, Tensor, NDArray[Any]]:
        rows, targets = validate_data(
            self, X, y, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2
        )
        check_classification_targets(targets)
        self.classes_, numbers = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise IT3Error(
                f"the target has one class, {self.classes_[0]!s}, in every row: nothing to learn"
            )
        return rows, torch.as_tensor(numbers.astype(np.int64)), numbers

    def _adapter(self, labels: Tensor) -> Classification:
        return Classification(len(self.classes_))

    def _words(self, output: Tensor) -> NDArray[Any]:
        words: NDArray[Any] = self.classes_[output.argmax(1).numpy()]
        return words


def _blocks(rows: Floats, size: int) -> list[Floats]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _array(values: Tensor) -> Floats:
    return values.detach().numpy().astype(np.float64, copy=False)


def _flags(values: Tensor) -> NDArray[np.bool_]:
    return values.numpy().astype(np.bool_, copy=False)


def _whole(least: int, **values: Any) -> None:
    for name, value in values.items():
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not (whole and value >= least):
            raise IT3Error(f"{name} must be a whole number from {least} up, not {value!r}")
