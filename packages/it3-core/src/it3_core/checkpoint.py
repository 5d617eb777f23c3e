"""Checkpoints: a trained network and all that goes with it, in one file that runs no code.

The tensors are safetensors, the rest is JSON: how to rebuild the network, the adapter with its
statistics, what `trust` and `tune` learnt. Nothing is ever pickled or unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from it3_core.adapters import Adapter, adapter_from
from it3_core.errors import IT3Error
from it3_core.tensorfile import FilePath, read_tensors, under, write_tensors
from it3_core.trust import Trust

__all__ = ["Checkpoint", "Described", "load", "misfit", "save"]

_Module = TypeVar("_Module", bound=nn.Module)


class Described(Protocol):
    """Anything that can say in JSON what it is."""

    def describe(self) -> dict[str, Any]:
        """This object as JSON."""


@dataclass(frozen=True)
class Checkpoint:
    """What `load` found in a file.

    Attributes:
        weights: the network's, by name.
        adapter_description: the adapter as JSON; `adapter` is made from it.
        settings: how to rebuild the network, as the domain that saved it wrote it down.
        trust: what `Trust` learnt, as JSON; None where it was not fitted.
        tuning: what `tune` chose and why, as JSON; None where it was not run.
        tensors: what else was saved, such as ActMAD's activations.
        versions: of the packages that wrote the file.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from it3_core import Regression, widen
        >>> from it3_core.checkpoint import load, save
        >>> path, adapter = Path(tempfile.mkdtemp(), "net.safetensors"), Regression(20.0, 5.0)
        >>> net = widen(torch.nn.Linear(3, 1), adapter)
        >>> save(path, net, adapter=adapter, settings={"inputs": 3})
        >>> found = load(path)
        >>> again = found.restore(widen(torch.nn.Linear(found.settings["inputs"], 1), adapter))
        >>> torch.equal(again.model.weight, net.model.weight)
        True
    """

    weights: dict[str, Tensor]
    adapter_description: dict[str, Any]
    settings: dict[str, Any]
    trust: dict[str, Any] | None
    tuning: dict[str, Any] | None
    tensors: dict[str, Tensor]
    versions: dict[str, str]

    @property
    def adapter(self) -> Adapter:
        """The adapter, where it is one of it3-core's; others are made from the description."""
        try:
            return adapter_from(self.adapter_description)
        except TypeError as problem:
            raise IT3Error(
                f"this it3-core can't make the adapter {self.adapter_description}: upgrade it"
            ) from problem

    def restore(self, model: _Module) -> _Module:
        """Puts the weights into `model` and returns it; where they don't fit, nothing changes."""
        wrong = misfit(self.weights, model)
        if wrong:
            raise IT3Error(
                f"the checkpoint is of another network ({wrong}): build the one that its "
                f"settings describe"
            )
        model.load_state_dict(self.weights)
        return model

    def summary(self) -> str:
        """A few lines for people.

        Example:
            >>> import torch
            >>> print(Checkpoint(weights={"w": torch.zeros(2, 3)}, settings={"inputs": 3},
            ...                  adapter_description={"kind": "Regression"}, trust=None,
            ...                  tuning=None, tensors={}, versions={"it3-core": "0.1.0"}).summary())
            IT³ checkpoint, written with it3-core 0.1.0
            network   6 numbers in 1 tensor (24 bytes)
            adapter   {"kind": "Regression"}
            settings  {"inputs": 3}
            trust     not fitted
            tuning    not run
        """
        written = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [f"IT³ checkpoint, written with {written}"]
        lines.append(f"network   {_amount(self.weights)}")
        if self.tensors:
            lines.append(f"tensors   {_amount(self.tensors)}: {_some(list(self.tensors))}")
        lines.append(f"adapter   {_short(self.adapter_description)}")
        lines.append(f"settings  {_short(self.settings)}")
        lines.append(f"trust     {_trusted(self.trust)}")
        tuned = "not run" if self.tuning is None else self.tuning.get("reason", _short(self.tuning))
        lines.append(f"tuning    {tuned}")
        return "\n".join(lines)


def save(
    path: FilePath,
    model: nn.Module,
    *,
    adapter: Described,
    settings: Mapping[str, Any],
    trust: Described | Mapping[str, Any] | None = None,
    tuning: Described | Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Writes a checkpoint, whole or not at all: a file that was there before stays until then.

    Args:
        path: the file to make or to replace; its folder must exist.
        model: the network. Tied weights are stored once.
        adapter: what kind of answer it gives.
        settings: JSON from which its network can be rebuilt; {} where the code alone says it.
        trust: the fitted trust, or its description.
        tuning: what `tune` chose, or its description.
        tensors: anything else to keep, such as ActMAD's activations.
        versions: of the packages that are needed to read it, besides it3-core and torch.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from it3_core import Classification, widen
        >>> path, adapter = Path(tempfile.mkdtemp(), "net.safetensors"), Classification(10)
        >>> net = widen(torch.nn.Linear(4, 10), adapter)
        >>> save(path, net, adapter=adapter, settings={"inputs": 4})
        >>> load(path).adapter
        Classification(10, distance='js')
    """
    stored = {f"weights.{name}": value for name, value in model.state_dict().items()}
    stored |= {f"tensors.{name}": value for name, value in (tensors or {}).items()}
    metadata = {
        "adapter": adapter.describe(),
        "settings": dict(settings),
        "trust": _described(trust),
        "tuning": _described(tuning),
    }
    write_tensors(path, stored, metadata, kind="checkpoint", versions=versions)


def load(path: FilePath) -> Checkpoint:
    """Reads a checkpoint. A file that isn't one, or isn't whole, gets an error that says so.

    Example:
        >>> load("/")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: / is a folder: give the path of a checkpoint file
    """
    stored = read_tensors(path, kind="checkpoint")
    return Checkpoint(
        weights=under("weights.", stored.tensors),
        adapter_description=stored.metadata["adapter"],
        settings=stored.metadata["settings"],
        trust=stored.metadata["trust"],
        tuning=stored.metadata["tuning"],
        tensors=under("tensors.", stored.tensors),
        versions=stored.versions,
    )


def misfit(weights: Mapping[str, Tensor], model: nn.Module) -> str:
    """How `weights` differ from what `model` needs, by name; empty where they fit.

    Example:
        >>> import torch
        >>> misfit({"weight": torch.zeros(1, 2)}, torch.nn.Linear(3, 1))
        "it lacks 'bias'; 'weight' has shape (1, 2), not (1, 3)"
    """
    needed = model.state_dict()
    missing = [name for name in needed if name not in weights]
    unexpected = [name for name in weights if name not in needed]
    misshapen = [
        f"{name!r} has shape {tuple(value.shape)}, not {tuple(needed[name].shape)}"
        for name, value in weights.items()
        if name in needed and value.shape != needed[name].shape
    ]
    found = []
    if missing:
        found.append(f"it lacks {_some(missing)}")
    if unexpected:
        found.append(f"it has {_some(unexpected)}, which the network has not")
    if misshapen:
        found.append(", ".join(misshapen[:3]) + _more(misshapen))
    return "; ".join(found)


def _described(part: Described | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return dict(part) if isinstance(part, Mapping) else part.describe()


def _amount(tensors: Mapping[str, Tensor]) -> str:
    unique = {id(tensor): tensor for tensor in tensors.values()}.values()
    numbers = sum(tensor.numel() for tensor in unique)
    size = float(sum(tensor.nbytes for tensor in unique))
    unit = "bytes"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    many = "" if len(unique) == 1 else "s"
    return f"{numbers} numbers in {len(unique)} tensor{many} ({size:.4g} {unit})"


def _trusted(description: dict[str, Any] | None) -> str:
    if description is None:
        return "not fitted"
    try:
        return repr(Trust.from_description(description))
    except IT3Error:  # a domain's own
        return _short(description)


def _short(part: Mapping[str, Any]) -> str:
    text = json.dumps(part, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:3]) + _more(names)


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 3} more" if len(names) > 3 else ""
