"""The file of a training run: whose it is, and all that it takes to go on with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from it3_core.checkpoint import misfit
from it3_core.errors import IT3Error
from it3_core.tensorfile import Stored, read_tensors, under, write_tensors

__all__ = ["RunFile", "Stateful", "name_of", "restore"]


class Stateful(Protocol):
    """An optimiser, or a scheduler."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@dataclass(frozen=True)
class RunFile:
    """A training run on the disk.

    Attributes:
        path: of the file.
        identity: what the run was asked for, as JSON: another run's file is refused.

    Example:
        >>> import pathlib, tempfile, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "run.safetensors")
        ...     RunFile(path, {"lr": 0.1}).write(net, {"epoch": 3})
        ...     RunFile(path, {"lr": 0.1}).read(net).metadata["epoch"]
        ...     RunFile(path, {"lr": 0.2}).read(net)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: ... is of another run (lr was 0.1 and is 0.2): give the ...
    """

    path: Path
    identity: Mapping[str, Any]

    def write(
        self,
        model: nn.Module,
        state: Mapping[str, Any],
        best: Mapping[str, Tensor] | None = None,
        **parts: Stateful,
    ) -> None:
        """The weights now, the best so far, JSON, and what `restore` gives back to each part."""
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in (best or {}).items()}
        packed = {name: _pack(part.state_dict(), name, tensors) for name, part in parts.items()}
        metadata = {"identity": self.identity, **state, **packed}
        write_tensors(self.path, tensors, metadata, kind="training")

    def read(self, model: nn.Module) -> Stored:
        """What was written, where it is of this network and of this run."""
        stored = read_tensors(self.path, kind="training")
        wrong = misfit(under("model.", stored.tensors), model)
        if wrong:
            raise IT3Error(
                f"{self.path} is of another network ({wrong}): name another checkpoint file"
            )
        before, now = stored.metadata["identity"], json.loads(json.dumps(self.identity))
        # A file of an older version says nothing of what was not asked for then.
        changed = [
            f"{name} was {before[name]} and is {value}"
            for name, value in now.items()
            if name in before and before[name] != value
        ]
        if changed:
            raise IT3Error(
                f"{self.path} is of another run ({'; '.join(changed)}): give the arguments of "
                f"that run to go on with it, or name another checkpoint file"
            )
        return stored


def restore(stored: Stored, **parts: Stateful) -> None:
    """Gives each part back the state that it had when `RunFile.write` was given it by this name.

    Example:
        >>> import pathlib, tempfile, torch
        >>> net = torch.nn.Linear(2, 1)
        >>> slow, fast = (torch.optim.SGD(net.parameters(), lr=lr) for lr in (0.1, 0.5))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = RunFile(pathlib.Path(folder, "run.safetensors"), {})
        ...     file.write(net, {}, optimizer=slow)
        ...     restore(file.read(net), optimizer=fast)
        >>> fast.param_groups[0]["lr"]
        0.1
    """
    for name, part in parts.items():
        part.load_state_dict(_unpack(stored.metadata[name], stored.tensors))


def name_of(value: Any) -> str:
    """What can be told of an argument in a file: names and numbers, no code.

    Example:
        >>> from it3_core import zigzag_loss
        >>> name_of(partial(zigzag_loss, given=0.25))
        'zigzag_loss(given=0.25)'
    """
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
    raise IT3Error(
        f"{name} is a {type(value).__name__}, which a checkpoint can't hold: train without one, "
        f"or with another {name.partition('.')[0]}"
    )


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
