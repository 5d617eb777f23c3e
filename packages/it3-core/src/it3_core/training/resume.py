"""The file of a training run: whose it is, and all that it takes to go on with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from it3_core.errors import IT3Error
from it3_core.io.tensors import Stored, read_tensors, under, write_tensors
from it3_core.io.typed import as_json, printable
from it3_core.model.networks import misfit, weights_of


class Stateful(Protocol):
    """An optimiser, or a scheduler."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@dataclass
class History:
    """How training went."""

    train: list[float] = field(default_factory=list)  # mean loss of each epoch
    validation: list[float] = field(default_factory=list)  # loss after each epoch, if there is any
    best_epoch: int = 0  # counted from 1: the network has its weights now
    seconds: float = 0.0  # without the time it lay still
    stopped_early: bool = False  # by `patience`

    def describe(self) -> dict[str, Any]:
        """This history as JSON; `History(**description)` makes it again."""
        return asdict(self)


@dataclass(frozen=True)
class TrainerState:
    """What a run's file says beside its tensors; a finished run has no more than a history."""

    identity: dict[str, Any]
    finished: bool
    history: History
    epoch: int = 0
    step: int = 0
    running: float = 0.0
    optimizer: Any = None
    schedule: Any = None


@dataclass(frozen=True)
class ResumeFile:
    """A training run on the disk."""

    path: Path
    identity: Mapping[str, Any]  # the arguments of the run, as JSON: another run's file is refused

    def write(
        self,
        model: nn.Module,
        state: Mapping[str, Any],
        best: Mapping[str, Tensor] | None = None,
        **parts: Stateful,
    ) -> None:
        """The weights now, the best so far, JSON, and what `restore` gives back to each part."""
        tensors = {f"model.{name}": value for name, value in weights_of(model).items()}
        tensors |= {f"best.{name}": value for name, value in (best or {}).items()}
        packed = {name: _pack(part.state_dict(), name, tensors) for name, part in parts.items()}
        metadata = {"identity": self.identity, **state, **packed}
        write_tensors(self.path, tensors, metadata, kind="training")

    def read(self, model: nn.Module) -> Stored[TrainerState]:
        """What was written, where it is of this network and of this run."""
        stored = read_tensors(self.path, kind="training", metadata=TrainerState)
        wrong = misfit(under("model.", stored.tensors), model)
        if best := under("best.", stored.tensors):
            wrong = wrong or misfit(best, model)
        if wrong:
            raise IT3Error(f"{self.path} is of another network ({wrong}): name another file")
        before, now = stored.metadata.identity, as_json(self.identity)
        changed = [
            f"{name} was {printable(before.get(name), 60)} and is {value}"
            for name, value in now.items()
            if before.get(name) != value
        ]
        if changed:
            raise IT3Error(
                f"{self.path} is of another run ({'; '.join(changed)}): give the arguments of "
                f"that run to go on with it, or name another checkpoint file"
            )
        return stored


def restore(stored: Stored[TrainerState], **parts: Stateful) -> None:
    """Gives each part back the state with which `ResumeFile.write` stored it under this name."""
    for name, part in parts.items():
        try:
            part.load_state_dict(_unpack(getattr(stored.metadata, name), stored.tensors))
        except (TypeError, ValueError, LookupError, AttributeError) as problem:
            raise IT3Error(f"the state of the {name} is damaged: train from the start") from problem


def name_of(value: Any) -> str:
    """What can be told of an argument in a file: names and numbers, no code."""
    if isinstance(value, partial):
        options = [name_of(part) for part in value.args]
        options += [f"{name}={name_of(part)}" for name, part in value.keywords.items()]
        return f"{name_of(value.func)}({', '.join(options)})"
    if value is None or isinstance(value, bool | int | float | str):
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Nested state as JSON; its tensors go into `tensors`, under names that begin with `name`."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):  # as pairs: JSON would turn an optimiser's numbers into strings
        return {"dict": [[k, _pack(v, f"{name}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_pack(v, f"{name}.{i}", tensors) for i, v in enumerate(value)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise IT3Error(f"{name} is a {type(value).__name__}, which a checkpoint can't hold")


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {k: _unpack(v, tensors) for k, v in content}
    if kind == "list":
        return [_unpack(v, tensors) for v in content]
    return float(content)
