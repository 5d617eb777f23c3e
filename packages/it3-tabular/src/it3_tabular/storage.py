"""Fitted estimators as it3-core checkpoints: tensors and JSON, nothing that runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from it3_core import Classification, History, IT3Error, Regression
from it3_core.io.tensors import Checkpoint
from it3_core.io.tensors import load as load_checkpoint
from it3_core.io.tensors import save as save_checkpoint
from it3_core.io.typed import as_kind
from it3_core.trust.storing import parts_of, predictors_from
from it3_tabular.fitting import Preprocessing, build

if TYPE_CHECKING:
    from it3_tabular.estimators import IT3Classifier, IT3Regressor


@dataclass(frozen=True)
class _Settings:
    """What stands in a model file besides its tensors, trust and tuning."""

    package: Literal["it3-tabular"]
    estimator: Literal["IT3Regressor", "IT3Classifier"]
    parameters: dict[str, Any]
    columns: list[str] | None
    history: History
    validation_error: float | None
    usual_error: tuple[float, float]
    classes: list[bool | int | float | str] | None


def save(estimator: Any, path: str | Path) -> None:
    """Writes a fitted estimator; `estimator.save(path)` calls this."""
    from it3_tabular import __version__

    names = getattr(estimator, "feature_names_in_", None)
    classes = getattr(estimator, "classes_", None)
    labels = None if classes is None else classes.tolist()
    if not {type(label) for label in labels or ()} <= {str, int, float, bool}:
        raise IT3Error(f"class labels must be text or numbers to be saved, not {labels}")
    settings: dict[str, Any] = {
        "package": "it3-tabular",
        "estimator": type(estimator).__name__,
        "parameters": {name: _plain(value) for name, value in estimator.get_params().items()},
        "columns": None if names is None else [str(name) for name in names],
        "history": estimator.history_.describe(),
        "validation_error": estimator.validation_error_,
        "usual_error": list(estimator.usual_error_),
        "classes": labels,
    }
    trust, tuning, tensors = parts_of({"row": estimator.predictor_})
    save_checkpoint(
        path,
        estimator.network_,
        adapter=estimator.adapter_,
        settings=settings,
        trust=trust,
        tuning=tuning,
        tensors={**vars(estimator.preprocessing_), **tensors},
        versions={"it3-tabular": __version__},
    )


def load(path: str | Path) -> IT3Regressor | IT3Classifier:
    """The estimator that a file holds.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from it3_tabular import IT3Regressor, load, load_energy
        >>> X, y = load_energy()
        >>> model = IT3Regressor(random_state=0, max_iter=5).fit(X, y)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(Path(folder, "energy.safetensors"))
        ...     again = load(Path(folder, "energy.safetensors"))
        >>> bool((again.predict(X) == model.predict(X)).all())
        True
    """
    from it3_tabular import estimators

    stored = load_checkpoint(path)
    if stored.settings.get("package") != "it3-tabular":
        raise IT3Error(f"{path} is a checkpoint, but not one of it3-tabular")
    settings = as_kind(stored.settings, _Settings, str(path), "train it again")
    try:
        kind = getattr(estimators, settings.estimator)
        estimator: IT3Regressor | IT3Classifier = kind(**settings.parameters)
        _restore(estimator, stored, settings)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as problem:
        raise IT3Error(f"{path} is no whole it3-tabular model: {problem}") from problem
    return estimator


def _restore(estimator: Any, stored: Checkpoint, settings: _Settings) -> None:
    estimator._check_parameters()
    tensors = {key: stored.tensors[key].double() for key in ("mean", "scale", "precision")}
    estimator.preprocessing_ = Preprocessing(**tensors)
    columns, names, labels = len(tensors["mean"]), settings.columns, settings.classes
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if shapes != [(columns,), (columns,), (columns, columns)]:
        raise IT3Error("its parts don't fit each other")
    adapter = stored.adapter
    if settings.estimator == "IT3Regressor" and labels is None:
        fits = isinstance(adapter, Regression) and len(adapter.mean) == 1
    else:
        fits = isinstance(adapter, Classification) and adapter.classes == len(labels or ())
        estimator.classes_ = np.array(labels)
    if not fits or (settings.estimator == "IT3Regressor") != (labels is None):
        raise IT3Error("its adapter is of another kind than its estimator's")
    assert isinstance(adapter, Regression | Classification)
    estimator.adapter_ = adapter
    widths = estimator.hidden_layer_sizes = tuple(estimator.hidden_layer_sizes)
    # Before anything is built: a file with wrong widths must not allocate gigabytes.
    weights = [stored.weights.get(f"model.{2 * index}.weight") for index in range(len(widths))]
    if widths != tuple(None if weight is None else len(weight) for weight in weights):
        raise IT3Error("its weights are not of the widths that it names")
    estimator.network_ = stored.restore(build(columns, widths, adapter)).eval()
    parts = (stored.trust, stored.tuning, stored.tensors)
    estimator.predictor_ = predictors_from(*parts, estimator.network_, adapter)["row"]
    estimator.usual_error_ = settings.usual_error
    estimator.method()  # that there is one
    estimator.history_ = settings.history
    estimator.n_iter_ = len(settings.history.train)
    estimator.validation_error_ = settings.validation_error
    estimator.n_features_in_ = columns
    if names is not None:
        if len(names) != columns:
            raise IT3Error(f"it names {len(names)} columns instead of {columns}")
        estimator.feature_names_in_ = np.array(names, dtype=object)


def _plain(value: Any) -> Any:
    """A parameter as JSON; a generator can't be written as JSON, and is not needed any more."""
    if isinstance(value, np.random.RandomState):
        return None
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value
