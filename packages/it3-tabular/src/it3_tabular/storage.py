"""Fitted estimators as it3-core checkpoints: tensors and JSON, nothing that runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch import Tensor

from it3_core import Classification, IT3Error, Regression, Trust, checkpoint
from it3_core.training import History
from it3_core.tuning import Tuning
from it3_tabular.networks import build
from it3_tabular.preparing import Preparation

if TYPE_CHECKING:
    from it3_tabular.estimators import _IT3Estimator

__all__ = ["load", "save"]

_Estimator = TypeVar("_Estimator", bound="_IT3Estimator")
_KINDS = {"str": str, "int": int, "float": float, "bool": bool}
_FORMAT = 1


def save(estimator: _IT3Estimator, path: str | Path) -> None:
    """Writes a fitted estimator; `estimator.save(path)` calls this."""
    from it3_tabular import __version__

    parameters = {name: _plain(value) for name, value in estimator.get_params().items()}
    settings: dict[str, Any] = {
        "package": "it3-tabular",
        "format": _FORMAT,
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "columns": _names(estimator),
        "history": estimator.history_.describe(),
        "validation_error": estimator.validation_error_,
    }
    if hasattr(estimator, "classes_"):
        settings["classes"] = _classes_to_json(estimator.classes_)
    learnt = estimator.preparation_
    checkpoint.save(
        path,
        estimator.network_,
        adapter=estimator.adapter_,
        settings=settings,
        trust=estimator.trust_,
        tuning=estimator.tuning_,
        tensors={"mean": learnt.mean, "scale": learnt.scale, "precision": learnt.precision},
        versions={"it3-tabular": __version__},
    )


def load(path: str | Path, kind: type[_Estimator] | None = None) -> _Estimator:
    """The estimator that a file holds, of whichever kind; with `kind`, of that kind only.

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
    from it3_tabular.estimators import IT3Classifier, IT3Regressor

    found = checkpoint.load(path)
    settings = found.settings
    if settings.get("package") != "it3-tabular":
        raise IT3Error(f"{path} is a checkpoint, but not one of it3-tabular")
    if settings.get("format") != _FORMAT:
        raise IT3Error(f"{path} was written by another version of it3-tabular: upgrade this one")
    kinds: dict[str, Any] = {"IT3Regressor": IT3Regressor, "IT3Classifier": IT3Classifier}
    name = settings.get("estimator")
    if kind is not None and kind.__name__ != name:
        raise IT3Error(f"{path} holds an {name}, not an {kind.__name__}: load it as what it is")
    try:
        estimator: _Estimator = kinds[str(name)](**settings["parameters"])
        _restore(estimator, found)
    except (KeyError, TypeError, ValueError, RuntimeError) as problem:
        raise IT3Error(f"{path} is no whole it3-tabular model: {problem}") from problem
    return estimator


def _restore(estimator: Any, found: checkpoint.Checkpoint) -> None:
    settings, tensors = found.settings, found.tensors
    estimator._check_parameters()
    mean, scale, precision = (tensors[key].double() for key in ("mean", "scale", "precision"))
    columns = len(mean)
    if scale.shape != (columns,) or precision.shape != (columns, columns):
        raise IT3Error("its parts don't fit each other")
    estimator.preparation_ = Preparation(mean, scale, precision)
    adapter = found.adapter
    if "classes" in settings:
        estimator.classes_ = _classes_from_json(settings["classes"])
        wanted = isinstance(adapter, Classification) and adapter.classes == len(estimator.classes_)
    else:
        wanted = isinstance(adapter, Regression) and len(adapter.mean) == 1
    if not wanted or not isinstance(adapter, Regression | Classification):
        raise IT3Error("its answers are of another kind than its estimator's")
    estimator.adapter_ = adapter
    widths = tuple(estimator.hidden_layer_sizes)
    estimator.hidden_layer_sizes = widths
    _check_widths(found.weights, widths)
    network = build(columns, widths, adapter, signal=estimator.signal)
    estimator.network_ = found.restore(network).eval()
    estimator.trust_ = Trust.from_description(found.trust or {})
    estimator.tuning_ = None if found.tuning is None else Tuning.from_description(found.tuning)
    if estimator.adapt == "auto" and estimator.tuning_ is None:
        raise IT3Error("it lacks what was chosen for adapt='auto'")
    estimator.history_ = History(**settings["history"])
    estimator.n_iter_ = len(estimator.history_.train)
    estimator.validation_error_ = settings["validation_error"]
    estimator.n_features_in_ = columns
    if settings["columns"] is not None:
        estimator.feature_names_in_ = np.array(settings["columns"], dtype=object)


def _check_widths(weights: dict[str, Tensor], widths: Sequence[int]) -> None:
    """Before anything is built: a file that lies about widths must not ask for gigabytes."""
    for index, width in enumerate(widths):
        weight = weights.get(f"model.{2 * index}.weight")
        if weight is None or len(weight) != width:
            raise IT3Error("its weights are not of the widths that it names")


def _names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _plain(value: Any) -> Any:
    """A parameter as JSON; a generator can't be told in JSON, and nothing needs it any more."""
    if isinstance(value, np.random.RandomState):
        return None
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return [_plain(part) for part in value]


def _classes_to_json(classes: Any) -> dict[str, Any]:
    values = [value.item() if isinstance(value, np.generic) else value for value in classes]
    names = {type(value).__name__ for value in values}
    if len(names) != 1 or not names <= set(_KINDS):
        raise IT3Error(
            f"class labels must be text or numbers to be saved, not {', '.join(sorted(names))}"
        )
    return {"kind": names.pop(), "dtype": classes.dtype.str, "values": values}


def _classes_from_json(stored: dict[str, Any]) -> Any:
    values = [_KINDS[stored["kind"]](value) for value in stored["values"]]
    dtype = np.dtype(object) if stored["dtype"] == "|O" else np.dtype(stored["dtype"])
    return np.array(values, dtype=dtype)
