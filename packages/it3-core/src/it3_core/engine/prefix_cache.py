"""What a conditioned network computes before the signal enters: kept once, given back often.

A network's own code can't be started in the middle, but the modules that it calls before the signal
enters can return what they returned the last time. Where the code does nothing between them, all
but the last output is only handed on, and is not kept: the first stages of a network for images
return the largest maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from it3_core.batching import map_tensors, tensors
from it3_core.model.conditioning import Conditioned
from it3_core.model.networks import is_called

Doing = Literal["nothing", "recording", "replaying"]

_GONE = object()  # not None, which a network may take for "no skip connection"


class PrefixCache:
    """Keeps and gives back what runs before the signal enters `shell`, which it modifies."""

    # `names` has the name of each weight by its place: tied weights have several places.
    def __init__(self, shell: Conditioned, names: Mapping[str, str]) -> None:
        self.above: frozenset[str] = frozenset()
        self.told_apart = False
        self.proven = False
        self._lean = False  # nothing is kept but what the entrance returned
        self._broken = False
        self._doing: Doing = "nothing"
        self._entered = False
        self._weights = names
        # The largest modules that the entrance is not inside of: each runs wholly before it or
        # wholly after it. The embedding runs inside the entrance's hook, so it belongs above.
        entrance = f"model.{shell.layer}" if shell.layer else "model"
        parts = entrance.split(".")
        opened = ["", *(".".join(parts[:depth]) for depth in range(1, len(parts)))]
        self._modules: list[str] = []
        self._own: list[tuple[nn.Module, Callable[..., Any]]] = []
        for owner in opened:
            for leaf, child in shell.get_submodule(owner).named_children():
                name = f"{owner}.{leaf}" if owner else leaf
                if name in opened or name == "embed":
                    continue
                if not is_called(child):
                    opened.append(name)  # what it holds is
                    continue
                self._own.append((child, child.forward))
                child.forward = partial(self._through, len(self._modules), child.forward)
                self._modules.append(name)
        # By identity: a layer that is used twice is among the children under its first name.
        layer = shell.get_submodule(entrance)
        self._entrance = next(i for i, (child, _) in enumerate(self._own) if child is layer)
        self._kept: list[list[Any]] = []
        self._copies: list[Tensor] = []
        self._calls: list[int] = []

    def start(self, doing: Doing) -> None:
        """What the next pass does: keeps what runs before the signal enters, or starts from it."""
        self._doing = doing
        self._entered = False
        self._calls = [0] * len(self._modules)
        if doing == "recording":
            self._kept = [[] for _ in self._modules]

    def stop(self) -> None:
        """That pass is over, and came to its end."""
        if self._doing == "recording" and not (self.above or self.told_apart):
            self.above = self._find_above()
        self._doing = "nothing"

    def tell_apart(self, again: Callable[[], Tensor]) -> None:
        """Looks once whether what was kept stays the same when the weights above are others.

        A network may use a late layer's weight as a function below the signal, which no call shows.
        """
        kept, self.told_apart = self._kept, True
        self.start("recording")
        with torch.no_grad():
            again()
        self.stop()
        pairs = zip(tensors(kept), tensors(self._kept), strict=False)
        if not all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs):
            self.above = frozenset()
        self._kept = kept

    def usable(self) -> bool:
        """Whether there is something to replay."""
        return bool(self._kept) and not self._broken

    def prove(self, again: Callable[[], Tensor], whole: Tensor) -> None:
        """Replays a pass whose outcome is known: sharing is right from now on, or never.

        A network that writes into what it was given back would spoil it for the next pass, and
        for the gradients of the last: until the proof it is given copies, to see whether it does.
        """
        for self._lean in (True, False):
            if self._agrees(again, whole):
                self.proven = True
                return
        self._broken = True

    def _agrees(self, again: Callable[[], Tensor], whole: Tensor) -> bool:
        self._copies = []
        self.start("replaying")
        try:
            with torch.no_grad():
                output = again()
        except Exception:  # whatever a network says that looks for what is gone
            if not self._lean:
                raise
            return False
        finally:
            self.stop()
        if any(copy._version for copy in self._copies):
            return False
        return torch.allclose(output, whole, rtol=1e-4, atol=1e-5, equal_nan=True)

    def replay(self, again: Callable[[], Tensor]) -> Tensor:
        """A pass that starts from what was kept."""
        self.start("replaying")
        try:
            return again()
        except Exception:
            if not self._lean:
                raise
            self._broken = True  # it looks for what is gone, as it did not for the proof's input
        finally:
            self.stop()
        return again()

    def clear(self) -> None:
        """Lets the activations go."""
        self._kept = []

    # Its own arguments by place alone: torch-geometric's layers are called with `index=`.
    def _through(
        self, index: int, forward: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Stands in for the forward of module `index`."""
        if self._doing == "nothing":
            return forward(*args, **kwargs)
        call = self._calls[index]
        self._calls[index] += 1
        gone = self._lean and index != self._entrance
        if self._doing == "replaying" and call < len(self._kept[index]):
            kept = self._kept[index][call]
            return kept if self.proven else map_tensors(kept, _forget if gone else self._copy)
        output = forward(*args, **kwargs)
        if self._doing == "recording" and not self._entered:
            # Detached: a gradient into the prefix belongs to the pass that recorded it. Containers
            # of other libraries' making are not taken apart: then nothing is shared.
            self._broken |= not _is_plain(output)
            keep = _forget if gone else Tensor.detach
            self._kept[index].append(None if self._broken else map_tensors(output, keep))
            self._entered = index == self._entrance
        return output

    def _copy(self, tensor: Tensor) -> Tensor:
        self._copies.append(tensor.clone())
        return self._copies[-1]

    def _find_above(self) -> frozenset[str]:
        """The weights of modules that only ran after the signal had entered."""
        late = ["embed"]
        for index, (module, forward) in enumerate(self._own):
            if self._calls[index] and not self._kept[index]:
                late.append(self._modules[index])
                module.forward = forward  # nothing of it is ever kept: out of its way
        above: set[str] = set()
        below: set[str] = set()
        for place, name in self._weights.items():
            inside = any(place.startswith(f"{module}.") for module in late)
            (above if inside else below).add(name)
        return frozenset(above - below)


def _forget(tensor: Tensor) -> Any:
    return _GONE


def _is_plain(output: Any) -> bool:
    if type(output) is dict:
        return all(map(_is_plain, output.values()))
    if type(output) in (tuple, list):
        return all(map(_is_plain, output))
    return isinstance(output, Tensor) or output is None
