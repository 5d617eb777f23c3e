"""Predictors in files: `save(predictor, path)`, `load(path, net)`, and what both are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, overload

from torch import Tensor, nn

from it3_core.errors import IT3Error
from it3_core.io import tensors as files
from it3_core.io.files import FilePath
from it3_core.io.tensors import Checkpoint, under
from it3_core.io.typed import as_kind
from it3_core.model.adapters import Adapter
from it3_core.trust.calibration import Trust
from it3_core.trust.candidates import Tuned, Tuning, Width
from it3_core.trust.conformal import Predictor


@dataclass(frozen=True)
class _Stored:
    """A predictor as JSON, but for its tuning and its tensors."""

    penalty: float
    temperature: float
    set_temperature: float
    widths: list[Width]
    trust: dict[str, Any] | None


Parts = tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]
"""Of predictors by name: their JSON, that of their tunings, and their tensors."""


def parts_of(predictors: Mapping[str, Predictor]) -> Parts:
    """What has to be stored of predictors of one network."""
    described: dict[str, Any] = {}
    tuned: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for name, one in predictors.items():
        if not isinstance(one.method, Tuned) or one.number is not None:
            what = "number" if one.number is not None else type(one.method).__name__
            raise IT3Error(
                f"a predictor of what tune chose, or of Source, can be stored: {what} is code"
            )
        stored = _Stored(one.penalty, one.temperature, one.set_temperature, list(one.widths), None)
        trust = None if one.trust is None else one.trust.describe()
        described[name] = {**asdict(stored), "trust": trust}
        tuned[name] = one.method.tuning.describe()
        own = {f"tuning.{key}": value for key, value in one.method.tuning.tensors.items()}
        if one.misses is not None:
            own["misses"] = one.misses
        tensors |= {f"predictor.{name}.{key}": value for key, value in own.items()}
    return described, tuned, tensors


def predictors_from(
    described: Any, tuned: Any, tensors: Mapping[str, Tensor], model: nn.Module, adapter: Adapter,
    source: str = "the file",
) -> dict[str, Predictor]:  # fmt: skip
    """The predictors that `parts_of` took apart, for this network."""
    kind, advice = dict[str, dict[str, Any]], "train it again"
    found: dict[str, Predictor] = {}
    tunings = as_kind(tuned, kind, f"the tuning of {source}", advice)
    for name, one in as_kind(described, kind, f"the trust of {source}", advice).items():
        stored = as_kind(one, _Stored, f"the trust of {source}", advice)
        own = under(f"predictor.{name}.", tensors)
        tuning = Tuning.from_description(tunings.get(name, {}), under("tuning.", own))
        method = tuning.build(model, adapter)
        trust = None if stored.trust is None else Trust.from_description(stored.trust)
        settings = (stored.temperature, stored.set_temperature, stored.widths)
        found[name] = Predictor(
            method, adapter, method.score, None, stored.penalty, own.get("misses"), *settings, trust
        )
    return found


@overload
def save(what: Predictor, where: FilePath) -> None: ...
@overload
def save(what: FilePath, where: nn.Module, **more: Any) -> None: ...
def save(what: Any, where: Any, **more: Any) -> None:
    """Writes a predictor, `save(predictor, path)`, or a checkpoint, `save(path, model, …)`.

    See `it3_core.io.tensors.save` for the arguments of a checkpoint.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from it3_core import Regression, Source, calibrate, load, save
        >>> net, x = torch.nn.Linear(3, 1), torch.randn(40, 3)
        >>> predictor = calibrate(Source(net, Regression()), (x, x[:, 0]))
        >>> path = Path(tempfile.mkdtemp(), "model.safetensors")
        >>> save(predictor, path)
        >>> again = load(path, torch.nn.Linear(3, 1))
        >>> torch.equal(again(x).lower, predictor(x).lower)
        True
    """
    if not isinstance(what, Predictor):
        files.save(what, where, **more)
        return
    trust, tuning, tensors = parts_of({"row": what})
    model = what.method.model  # type: ignore[attr-defined]
    files.save(
        where, model, adapter=what.adapter, settings={}, trust=trust, tuning=tuning, tensors=tensors
    )


@overload
def load(path: FilePath) -> Checkpoint: ...
@overload
def load(path: FilePath, net: nn.Module) -> Predictor: ...
def load(path: FilePath, net: nn.Module | None = None) -> Checkpoint | Predictor:
    """What `save` wrote: a checkpoint, or with the network that its weights go into a predictor.

    Example:
        >>> load("/")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: / is a folder: give the path of a checkpoint file
    """
    found = files.load(path)
    if net is None:
        return found
    if found.trust is None or found.tuning is None:
        raise IT3Error(f"{path} holds no predictor: calibrate(method, (x, y)), then save it")
    model = found.restore(net).eval()
    made = predictors_from(
        found.trust, found.tuning, found.tensors, model, found.adapter, str(path)
    )
    if "row" not in made:
        raise IT3Error(f"{path} holds no predictor of single networks: load its experiment folder")
    return made["row"]
