"""Layers that a training leaves as they are: those before a named one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from it3_core.model.conditioning import Conditioned
from it3_core.model.networks import find_layer


def layers_before(model: nn.Module, layer: str | None) -> list[nn.Module]:
    """The modules that a network defines, and so runs, before the layer of that name.

    Of a conditioned network the name is the network's own, as `condition` takes it; what embeds
    the signal is not among the modules. Of None there are none.
    """
    if layer is None:
        return []
    owner = model.model if isinstance(model, Conditioned) else model
    find_layer(owner, layer)
    found = []
    for part in layer.split("."):
        children = dict(owner.named_children())
        found += list(children.values())[: list(children).index(part)]
        owner = children[part]
    return found


def freeze(model: nn.Module, layer: str | None) -> None:
    """What training left as it was, adaptation leaves too: these parameters take no gradient."""
    for one in layers_before(model, layer):
        one.requires_grad_(False)


@contextmanager
def frozen(layers: Sequence[nn.Module]) -> Iterator[None]:
    """These layers get no gradient, so that autograd keeps nothing of a pass through them."""
    parameters = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
