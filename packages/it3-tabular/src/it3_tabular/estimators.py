"""`IT3Regressor` and `IT3Classifier`: scikit-learn estimators that adapt to the rows they get."""

from __future__ import annotations

import math
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
    Adaptation,
    Classification,
    IT3Error,
    Method,
    OnlineIT3,
    Regression,
    Source,
    StreamGate,
    Tuning,
)
from it3_core.batching import batches
from it3_tabular import storage
from it3_tabular.fitting import (
    Floats,
    Preprocessing,
    calibrated,
    gradient_step,
    seeded,
    split_rows,
    train_network,
)

ADAPT = ("auto", "instance", "batch", "online", None)
_TAKEN: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
_ROWS = 1024  # that are predicted at once where rows don't influence each other


class Full(NamedTuple):
    """Predictions and what they are worth; one entry a row. None is what there is not.

    Attributes:
        prediction: what `predict` returns.
        initial: the prediction without adaptation.
        lower, upper: of numbers, the interval at the coverage that was asked for.
        prediction_set: of classes, which are in: one column for each of `classes_`.
        probability: calibrated, of the most probable class.
        percentile: more doubtful, by the score that was chosen, than this percentage of rows.
        flagged: whether the row is unusual. Of rows like the training rows, 5 % are flagged. With
            fewer than 19 calibration rows, those above the largest of their scores are flagged.
        adapted: whether the gate opened for the row; without a gate, whether the answer changed.
    """

    prediction: NDArray[Any]
    initial: NDArray[Any]
    lower: Floats | None
    upper: Floats | None
    prediction_set: NDArray[np.bool_] | None
    probability: Floats | None
    percentile: Floats
    flagged: NDArray[np.bool_]
    adapted: NDArray[np.bool_]


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
        learning_rate_init: float = 5e-3,
        max_iter: int = 200,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        calibration_fraction: float = 0.15,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.adapt = adapt
        self.steps = steps
        self.learning_rate_adapt = learning_rate_adapt
        self.batch_size_adapt = batch_size_adapt
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.calibration_fraction = calibration_fraction
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Trains with ZigZag, fits trust, chooses whether to adapt; NaN in `X` is a gap."""
        self._check_parameters()
        rows, labels, classes = self._checked(X, y)
        generator, seed = seeded(self.random_state)
        parts = split_rows(classes, self.validation_fraction, generator)
        apart = split_rows(classes[parts[0]], self.calibration_fraction, generator)
        kept = parts[0][apart[1]]
        parts = (parts[0][apart[0]], parts[1])
        names = getattr(self, "feature_names_in_", None)
        self.preprocessing_ = Preprocessing.fit(rows[parts[0]], names)
        self.adapter_ = (
            Classification(len(self.classes_))
            if hasattr(self, "classes_")
            else Regression.fit(labels[parts[0]])
        )
        data, validation, rest = (
            (self.preprocessing_(rows[part]), labels[part]) for part in (*parts, kept)
        )
        self.network_, self.history_ = train_network(
            self, data, validation, seed, progress=bool(self.verbose)
        )
        self.n_iter_ = len(self.history_.train)
        x, y_true = validation
        self.validation_error_ = None
        first = Source(self.network_, self.adapter_)(x if len(x) else data[0])
        if len(x):
            self.validation_error_ = float(self.adapter_.error(first.prediction, y_true).mean())
        errors = first.error_before
        self.usual_error_ = (float(errors.mean()), float(errors.std()))
        self.predictor_ = calibrated(self, data, validation, rest, seed)
        return self

    @property
    def tuning_(self) -> Tuning:
        """What was chosen, and why."""
        return self.predictor_.method.tuning  # type: ignore[attr-defined,no-any-return]

    @property
    def report_(self) -> str:
        """What was chosen, bounded and measured, on one screen."""
        return str(self.predictor_)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """For each row a number in the target's units, or the most probable class."""
        predicted: NDArray[Any] = self._decoded(self._outputs(self._rows(X), self.method())[0])
        return predicted

    def predict_full(self, X: ArrayLike, coverage: float = 0.9) -> Full:
        """Predictions, intervals or sets, how doubtful each is, and which were adapted."""
        return self.full(self._rows(X), self.method(), coverage)

    def score_samples(self, X: ArrayLike) -> Floats:
        """How usual each row is: higher is more, as in scikit-learn's outlier detectors."""
        return _array(-self._outputs(self._rows(X), self.method())[2])

    def full(self, rows: Floats, method: Method, coverage: float = 0.9) -> Full:
        """`predict_full` of rows that were checked, by a method that may go on afterwards."""
        output, first, doubt, adapted = self._outputs(rows, method)
        predictor, trust = self.predictor_, self.predictor_.trust
        assert trust is not None
        lower = upper = inside = likely = None
        least = math.ceil(coverage / (1 - coverage)) if 0 < coverage < 1 else 0
        if self._is_calibrated() and len(predictor.misses) >= least:  # type: ignore[arg-type]
            found = Adaptation(output, first, 0, before=doubt)
            said = predictor.of(found, doubt, coverage)
            if said.lower is not None and said.upper is not None:
                lower, upper = _array(said.lower[:, 0]), _array(said.upper[:, 0])
            if said.prediction_set is not None and said.probability is not None:
                inside = said.prediction_set.numpy()
                likely = _array(said.probability.amax(1))
        return Full(
            self._decoded(output), self._decoded(first), lower, upper, inside, likely,
            _array(trust.percentile(doubt)), trust.flag(doubt).numpy(), adapted.numpy(),
        )  # fmt: skip

    def _is_calibrated(self) -> bool:
        """Whether intervals are of what `adapt` does now."""
        same = self.adapt == "auto" or (self.adapt is None and self.predictor_.gate is None)
        return same and self.predictor_.misses is not None

    def _calibrated(self, X: ArrayLike, coverage: float) -> Full:
        check_is_fitted(self)
        if not self._is_calibrated():
            raise IT3Error(
                "there are no intervals: they need at least 40 rows in fit, and what predict did "
                'when it was fitted, which is adapt="auto" or None'
            )
        self.predictor_._limit(coverage)
        return self.predict_full(X, coverage)

    def method(self) -> Method:
        """A new it3_core method that adapts as `adapt` says; `"online"` starts at the beginning."""
        check_is_fitted(self)
        step = gradient_step(self.steps, self.learning_rate_adapt)
        if self.adapt == "auto":
            return self.predictor_.method
        if self.adapt == "online":
            gate = StreamGate(*self.usual_error_, 0.01)
            return OnlineIT3(self.network_, self.adapter_, gate=gate, **step)
        if self.adapt is None:
            return Source(self.network_, self.adapter_)
        return IT3(self.network_, self.adapter_, per_instance=self.adapt == "instance", **step)

    def save(self, path: str | Path) -> None:
        """Writes the fitted estimator to one file, for `it3_tabular.load`; no code is stored."""
        check_is_fitted(self)
        storage.save(self, path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _rows(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, **_TAKEN)  # type: ignore[no-any-return]

    def _outputs(self, rows: Floats, method: Method) -> tuple[Tensor, ...]:
        """Predictions, initial ones, how doubtful these are, and which rows were adapted."""
        own = getattr(method, "per_instance", not isinstance(method, OnlineIT3))
        size = _ROWS if own else self.batch_size_adapt
        block = size * max(1, _ROWS // size)  # rows that are preprocessed at once
        parts = []
        for start in range(0, len(rows), block):
            for x in batches(self.preprocessing_(rows[start : start + block]), size):
                adapted = method(x)
                doubt = self.predictor_.scores(x, adapted) if own else self.predictor_.score(x)  # type: ignore[misc]
                parts.append((adapted.prediction, adapted.initial, doubt, adapted.adapted))
        return tuple(torch.cat(column).detach() for column in zip(*parts, strict=True))

    def _check_parameters(self) -> None:
        widths: Any = self.hidden_layer_sizes
        widths_fit = hasattr(widths, "__iter__") and all(_is_whole(width, 1) for width in widths)
        rate = self.learning_rate_adapt  # of 0: no step
        checks = {
            "adapt": (self.adapt in ADAPT, f"one of {', '.join(map(repr, ADAPT))}"),
            "hidden_layer_sizes": (widths_fit, "whole numbers from 1"),
            "batch_size_adapt": (_is_whole(self.batch_size_adapt, 1), "a whole number from 1"),
            "max_iter": (_is_whole(self.max_iter, 1), "a whole number from 1"),
            "steps": (_is_whole(self.steps, 0), "a whole number from 0"),
            "learning_rate_init": (_is_number(self.learning_rate_init), "a number above 0"),
            "learning_rate_adapt": (rate == 0 or _is_number(rate), "a number from 0"),
        }
        for name in ("validation_fraction", "calibration_fraction"):
            fraction = getattr(self, name)
            checks[name] = (_is_number(fraction) and fraction < 1, "between 0 and 1")
        for name, (right, expected) in checks.items():
            if not right:
                raise IT3Error(f"{name} must be {expected}, not {getattr(self, name)!r}")


class IT3Regressor(RegressorMixin, _IT3Estimator):  # type: ignore[misc]  # the same
    """A small network that predicts one number a row, says how unusual the row is, and can adapt.

    Args:
        hidden_layer_sizes: widths of the hidden layers; the paper's by default.
        adapt: what `predict` does. `"auto"`: what did best on validation rows under feature
            dropout, noise and offset, behind a gate that bounds its harm, which may be nothing;
            `report_` says what and why. A prediction is a row's own.
            `"instance"`: IT³ on each row alone. `"batch"`: IT³ on each `batch_size_adapt`
            consecutive rows. `"online"`: the same without a reset between batches, from the first
            row of a call to its last. None: nothing. Under `"batch"` and `"online"` a prediction
            depends on the other rows and their order.
        steps: gradient steps of IT³; `"auto"` tries them with others.
        learning_rate_adapt: their size; the descent is on the squared idempotence error.
        batch_size_adapt: rows in a batch of `"batch"` and `"online"`.
        learning_rate_init: Adam's, in training.
        max_iter: epochs at most.
        early_stopping: whether to stop after 30 epochs without a lower validation error, and keep
            the best weights. There are validation rows in any case: `"auto"` needs them.
        validation_fraction: fraction of the rows that choose and stop early (at least 8 rows; none
            of fewer than 40).
        calibration_fraction: fraction of the others that set the gate's threshold and intervals
            (likewise), and are not trained on either.
        random_state: a number makes everything repeatable.
        verbose: whether to show the progress of training, on standard error.

    Attributes:
        predictor_: what it3_core's `calibrate` made: gate, score, intervals; `report_` in words.
        tuning_: what `"auto"` chose, why, and what it tried.
        history_: losses by epoch.
        validation_error_: mean absolute error on validation rows, without adaptation (for a
            classifier the fraction of wrong predictions); None where there were none. A little too
            low, since early stopping uses the same rows.
        n_iter_: epochs that were run.
        network_, adapter_, preprocessing_: the parts, for use with it3_core.

    Example:
        >>> import numpy as np
        >>> from it3_tabular import IT3Regressor, load_energy
        >>> X, y = load_energy()
        >>> model = IT3Regressor(random_state=0, max_iter=30).fit(X[:600], y[:600])
        >>> rows = X[600:603].copy()
        >>> rows[0, 1] = np.nan                      # a value is missing
        >>> model.predict(rows).shape
        (3,)
        >>> model.predict_full(rows).flagged.dtype  # is this row unusual?
        dtype('bool')
    """

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[Floats, Tensor, NDArray[Any]]:
        rows, targets = validate_data(self, X, y, y_numeric=True, ensure_min_samples=2, **_TAKEN)
        labels = torch.from_numpy(np.array(targets, dtype=np.float64))  # a copy, to be writable
        if bool((labels == labels[0]).all()):
            raise IT3Error(f"the target is {float(labels[0]):g} in every row: nothing to learn")
        return rows, labels, np.zeros(len(labels))

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> Floats:
        """`(n, 2)`: the ends of intervals; so many of rows like those in fit are inside."""
        found = self._calibrated(X, coverage)
        assert found.lower is not None
        assert found.upper is not None
        return np.stack([found.lower, found.upper], 1)

    def _decoded(self, output: Tensor) -> Floats:
        return _array(output[:, 0])


class IT3Classifier(ClassifierMixin, _IT3Estimator):  # type: ignore[misc]  # the same
    """A small network that predicts one class a row, says how unusual the row is, and can adapt.

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

    def predict_proba(self, X: ArrayLike) -> Floats:
        """The probability of each class, in the order of `classes_`."""
        return _array(self._outputs(self._rows(X), self.method())[0].softmax(1))

    def predict_set(self, X: ArrayLike, coverage: float = 0.9) -> NDArray[np.bool_]:
        """`(n, classes)`: sets of classes that hold the true one of so many rows like those in
        fit."""
        found = self._calibrated(X, coverage).prediction_set
        assert found is not None
        return found

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[Floats, Tensor, NDArray[Any]]:
        rows, targets = validate_data(self, X, y, ensure_min_samples=2, **_TAKEN)
        check_classification_targets(targets)
        self.classes_, numbers = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise IT3Error(f"the target has one class, {self.classes_[0]!s}: nothing to learn")
        return rows, torch.as_tensor(numbers.astype(np.int64)), numbers

    def _decoded(self, output: Tensor) -> NDArray[Any]:
        labels: NDArray[Any] = self.classes_[output.argmax(1).numpy()]
        return labels


def _array(values: Tensor) -> Floats:
    return values.detach().numpy().astype(np.float64, copy=False)


def _is_number(value: Any, above: float = 0) -> bool:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return is_number and bool(above < value < math.inf)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int | np.integer) and _is_number(value, least - 1)
