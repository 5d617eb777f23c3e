"""Any network: its layers and weights, how it is called, what it returns."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from it3_core.errors import IT3Error


def call(model: nn.Module, x: Any) -> Any:
    """`model(x)`, or `model(**x)` where x is a mapping to the names that its forward takes."""
    if not isinstance(x, Tensor) and isinstance(x, Mapping):
        try:
            inspect.signature(type(model).forward).bind(model, **x)
        except TypeError:  # it takes the mapping itself
            return model(x)
        return model(**x)
    return model(x)


def parts(output: Any) -> dict[Any, Any]:
    """What a network or layer returns that is no tensor, by name or number."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        named = output._asdict() if hasattr(output, "_asdict") else {}
        return {**dict(enumerate(output)), **named}
    return dict(getattr(output, "__dict__", {}))


def pick(output: Any, wanted: str | int) -> Any:
    """The part of that name or number."""
    found = parts(output)
    if isinstance(wanted, int) and isinstance(output, Mapping):  # as a ModelOutput is numbered
        found = dict(enumerate(found.values()))
    if wanted not in found:
        raise IT3Error(f"output={wanted!r} is not in what the network returns: {described(output)}")
    return found[wanted]


def described(output: Any) -> str:
    """What a network returned, for an error that says which part to pick."""
    if isinstance(output, Tensor):
        return f"one tensor of shape {tuple(output.shape)}"
    names = ", ".join(repr(name) for name, part in parts(output).items() if part is not None)
    return f"a {type(output).__name__}" + (f" of {names}" if names else "")


def find_layer(model: nn.Module, name: str) -> nn.Module:
    """The layer of that name; where there is none, an error that lists near matches."""
    layers: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    if name in layers:
        return layers[name]
    known = [layer for layer in layers if layer]
    # "conv" should find "stem.conv" too.
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    near += [layer for layer in known if layer.rpartition(".")[2] == name and layer not in near]
    if near:
        hint = f"did you mean {' or '.join(map(repr, near[:5]))}?"
    else:
        hint = f"it has {', '.join(map(repr, known[:8]))} …"
    raise IT3Error(f"the network has no layer {name!r}; {hint}")


def is_called(module: nn.Module) -> bool:
    """Whether it has a forward of its own; a plain ModuleList or ModuleDict only holds layers."""
    return getattr(module.forward, "__func__", module.forward) is not nn.Module.forward


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Its `state_dict`, without the settings that some networks, such as neuralop's, add to it."""
    state = model.state_dict()
    return {k: v for k, v in state.items() if isinstance(v, Tensor) or k.endswith("_extra_state")}


def put_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Puts back what `weights_of` gave. A network's own `load_state_dict` may ask for more."""
    nn.Module.load_state_dict(model, weights, strict=False)


def misfit(weights: Mapping[str, Tensor], model: nn.Module) -> str:
    """How `weights` differ from what `model` needs, by name; empty where they fit."""
    needed = weights_of(model)
    missing = [repr(name) for name in needed if name not in weights]
    unexpected = [repr(name) for name in weights if name not in needed]
    both = [(name, value, needed[name]) for name, value in weights.items() if name in needed]
    misshapen = [
        f"{name!r} has shape {tuple(value.shape)}, not {tuple(wanted.shape)}"
        for name, value, wanted in both
        if value.shape != wanted.shape
    ]
    misshapen += [  # another precision will do
        f"{name!r} is {value.dtype}, not {wanted.dtype}"
        for name, value, wanted in both
        if value.is_floating_point() != wanted.is_floating_point()
    ]
    found = []
    if missing:
        found.append(f"it lacks {_some(missing)}")
    if unexpected:
        found.append(f"it has {_some(unexpected)}, which the network has not")
    if misshapen:
        found.append(_some(misshapen))
    return "; ".join(found)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def unwrapped(module: nn.Module) -> nn.Module:
    """The network inside torch.compile's, DataParallel's or DDP's wrapper."""
    while True:
        if isinstance(getattr(module, "_orig_mod", None), nn.Module):
            module = module._orig_mod  # type: ignore[assignment]
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def takes_signal(module: nn.Module) -> bool:
    """Whether forward has a second input that it can't do without, or that is called signal."""
    try:
        _, second = [*inspect.signature(module.forward).parameters.values()][:2]
    except ValueError:  # fewer than two
        return False
    positional = second.kind in (second.POSITIONAL_ONLY, second.POSITIONAL_OR_KEYWORD)
    return positional and (second.default is second.empty or second.name == "signal")
