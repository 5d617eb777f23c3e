"""A second input for a network that has none, on a copy of it.

`widen` gives a Linear or convolution layer more input channels for the signal, the paper's way.
`condition` adds an embedding of the signal to what a named layer returns; what lies below that
layer never sees the signal, so it is computed once and shared between `f` and `F`. Both start with
zeros where the signal enters: until it is trained, the network answers exactly as the original did.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core.batching import count, is_graph, rebuilt
from it3_core.errors import IT3Error
from it3_core.model.adapters import Adapter
from it3_core.model.networks import call, find_layer, is_called, parts, pick

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CHANNELS_SECOND = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.GroupNorm,
)
_CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.MultiheadAttention, nn.Embedding)


@dataclass
class _Passing:
    """A signal on its way to the layer where it enters."""

    x: Any
    signal: Tensor
    times: int  # how many signals each row gets
    arrived: bool = False


# A context variable, because a forward pass has no other way past the code of a network that knows
# nothing of signals, and because two threads may run the same network at once.
_passing: ContextVar[_Passing] = ContextVar("it3_signal")


class _SeparatelyError(Exception):
    """The signal enters where instances can't be repeated: nodes of graphs, several tensors."""


class Conditioned(nn.Module):
    """A network `f(x, signal)`, made by `widen` or `condition` from one that took `x` alone.

    `embed` is the signal's embedding, or None where the layer itself was widened.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str,
        embed: nn.Module | None,
        channel_dim: int | None = None,
        output: str | int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.layer = layer
        self.embed = embed
        self.channel_dim = channel_dim
        self.output = output
        self.training = model.training  # its layers keep the modes that they have
        if embed is not None:
            embed.train(model.training)
        # Bound methods, not closures: copy.deepcopy then binds the copy's hook to the copy.
        entrance = find_layer(model, layer)
        if embed is None:
            entrance.register_forward_pre_hook(self._concatenate)
        else:
            entrance.register_forward_hook(self._add)

    def forward(self, x: Any, signal: Tensor) -> Tensor:
        return self._run(x, signal, 1)

    def several(self, x: Any, *signals: Tensor) -> tuple[Tensor, ...]:
        """`f(x, s)` for several signals; what lies below the layer where they enter runs once.

        Every path through the network must go through that layer: one that leads past it would
        meet more rows than it brings. In training, batch norms take their statistics from the
        first signal's rows and use them for all. So what they remember is what the first signal
        (the neutral one, in `zigzag_loss`) makes, and a batch's own statistics at test time are
        of the same kind.
        """
        if self.embed is None:  # nothing to share
            return tuple(self(x, signal) for signal in signals)
        try:
            with _statistics_of_the_first(self.model, count(x)):
                return self._run(x, torch.cat(signals), len(signals)).chunk(len(signals))
        except _SeparatelyError:
            return tuple(self(x, signal) for signal in signals)

    def _run(self, x: Any, signal: Tensor, times: int) -> Tensor:
        passing = _Passing(x, signal, times)
        token = _passing.set(passing)
        try:
            output = call(self.model, x)
        finally:
            _passing.reset(token)
        if not (passing.arrived or self.training):  # in training, some layers are left out at times
            raise IT3Error(f"layer {self.layer!r} does not run for this input: name one that does")
        found: Tensor = output if self.output is None else pick(output, self.output)
        return found

    def _concatenate(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not inputs:
            raise IT3Error(f"layer {self.layer!r} is called by keyword: use condition()")
        features, *rest = inputs
        passing = self._arriving()
        x, signal = passing.x, passing.signal
        channel = _channel_dimension(layer, features, self.channel_dim, self.layer)
        signal = _spread(signal, features, channel, x, self.layer)
        if features.is_floating_point():
            signal = signal.to(features.dtype)
        shape = [*features.shape]
        shape[channel] = signal.shape[channel]
        return (torch.cat([features, signal.expand(shape)], channel), *rest)

    def _add(self, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        """What the layer returned, with the embedding added to it or to its first tensor."""
        passing = self._arriving()
        if isinstance(output, Tensor):
            return self._added(layer, output, passing)
        first = next((part for part in parts(output).values() if isinstance(part, Tensor)), None)
        if first is None:
            raise IT3Error(f"layer {self.layer!r} returns no tensor: name one after it")
        if passing.times > 1:
            raise _SeparatelyError
        with_signal = self._added(layer, first, passing)
        return rebuilt(output, lambda part: with_signal if part is first else part)

    def _added(self, layer: nn.Module, features: Tensor, passing: _Passing) -> Tensor:
        assert self.embed is not None
        x, signal, times = passing.x, passing.signal, passing.times
        if times > 1:
            if is_graph(x) and features.shape[0] != count(x):
                raise _SeparatelyError
            features = features.repeat(times, *[1] * (features.dim() - 1))
        channel = _channel_dimension(layer, features, self.channel_dim, self.layer)
        if signal.dtype != features.dtype:  # for token ids, the adapter knew nothing of the weights
            signal = signal.to(next(self.embed.parameters()).dtype)
        embedding = _spread(self.embed(signal), features, channel, x, self.layer)
        if embedding.shape[channel] != features.shape[channel]:
            raise IT3Error(
                f"layer {self.layer!r} returns {features.shape[channel]} channels, but its "
                f"signal was embedded in {embedding.shape[channel]}: give condition() "
                f"channels={features.shape[channel]}"
            )
        alike = embedding.dtype == features.dtype
        return features + (embedding if alike else embedding.to(features.dtype))

    def _arriving(self) -> _Passing:
        try:
            passing = _passing.get()
            passing.arrived = True
            return passing
        except LookupError:
            raise IT3Error(
                "the network runs without its signal: call the conditioned one, as f(x, signal); "
                "gradient checkpointing and DataParallel inside it can't carry a signal"
            ) from None


@contextmanager
def _statistics_of_the_first(model: nn.Module, rows: int) -> Iterator[None]:
    """Makes batch norms that are being trained look at the first `rows` rows of a batch only."""
    # Not SyncBatchNorm: its statistics are those of all processes.
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    layers = [layer for layer in model.modules() if isinstance(layer, kinds) and layer.training]
    changed = [(layer, vars(layer).get("forward")) for layer in layers]
    try:
        for layer in layers:
            forward = partial(_as_the_first, layer, layer.forward, rows)
            layer.forward = forward  # type: ignore[method-assign]
        yield
    finally:
        for layer, own in changed:
            del layer.forward
            if own is not None:  # somebody else's
                layer.forward = own  # type: ignore[method-assign]


def _as_the_first(
    layer: nn.modules.batchnorm._BatchNorm,
    forward: Callable[[Tensor], Tensor],
    rows: int,
    input: Tensor,  # by torch's own name: some networks call a norm with `input=`
) -> Tensor:
    first = forward(input[:rows])
    if input.shape[0] == rows:
        return first
    with torch.no_grad():
        over = [dimension for dimension in range(input.dim()) if dimension != 1]
        # In single precision under autocast too: the layer's weights are, and must match.
        known = input[:rows] if layer.weight is None else input[:rows].to(layer.weight.dtype)
        var, mean = torch.var_mean(known, over, correction=0)
    rest = nnf.batch_norm(input[rows:], mean, var, layer.weight, layer.bias, eps=layer.eps)
    return torch.cat([first, rest])


def condition(
    model: nn.Module,
    adapter: Adapter,
    layer: str,
    *,
    channels: int | None = None,
    channel_dim: int | None = None,
    hidden: int | None = None,
    output: str | int | None = None,
) -> Conditioned:
    """Adds an embedding of the signal to what a named layer of a copy of `model` returns.

    Works on vectors `(batch, channels)`, feature maps `(batch, channels, *size)`, tokens
    `(batch, tokens, channels)` and node features `(nodes, channels)` of a graph batch (an input
    with a `batch` vector that says which graph a node belongs to). A dense signal is resized to
    the layer's maps. Of a layer that returns several tensors, the first gets the signal.

    Args:
        model: any network that is called as `model(x)`; or as `model(**x)`, where x is a mapping
            to the names of its arguments, as a tokenizer of Hugging Face makes it.
        adapter: its `channels` is the width of a signal.
        layer: name of the layer, as in `model.named_modules()`.
        channels: channels that the layer returns, where they can't be read off the layer.
        channel_dim: the dimension of what the layer returns that holds them: 1 for maps, -1 for
            tokens, where the kind of layer doesn't tell. The batch is always first.
        hidden: units of a hidden layer in the embedding, for a signal that enters late: what
            follows then does little with it. None embeds it by one Linear.
        output: which tensor is the answer, where the network returns a tuple, a dict or an object
            of several: its name or its number.

    Example:
        >>> import torch
        >>> from it3_core import Classification, condition
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(),
        ...                           torch.nn.Flatten(), torch.nn.LazyLinear(10))
        >>> x = torch.randn(2, 3, 16, 16)
        >>> before = net(x)
        >>> adapter = Classification(10)
        >>> conditioned = condition(net, adapter, layer="0")
        >>> torch.equal(conditioned(x, adapter.neutral(x)), before)
        True
    """
    entrance = find_layer(model, layer)
    if not is_called(entrance):
        raise IT3Error(
            f"layer {layer!r} is a {type(entrance).__name__}, which only holds layers and is never "
            f"called: name one of them, such as {f'{layer}.{next(iter(entrance._modules), 0)}'!r}"
        )
    width = channels or _returned_channels(entrance, layer)
    embed: nn.Module = _Embedding(adapter.channels if hidden is None else hidden, width)
    if hidden is not None:
        embed = nn.Sequential(_OverChannels(adapter.channels, hidden), nn.LeakyReLU(), embed)
    reference = next((p for p in model.parameters() if p.is_floating_point()), None)
    if reference is not None:
        embed = embed.to(reference.device, reference.dtype)
    return Conditioned(copy.deepcopy(model), layer, embed, channel_dim, output)


def widen(model: nn.Module, adapter: Adapter, layer: str | None = None) -> Conditioned:
    """Feeds the signal to a Linear or convolution layer of a copy of `model`, the paper's way.

    The layer's weights are kept, and get zeros for the signal's channels.

    Args:
        model: any network that is called as `model(x)`.
        adapter: its `channels` is the width of a signal.
        layer: name of the layer; by default the first Linear or convolution there is.

    Example:
        >>> import torch
        >>> from it3_core import Regression, widen
        >>> widen(torch.nn.Sequential(torch.nn.Linear(13, 30)), Regression()).model[0]
        Linear(in_features=15, out_features=30, bias=True)
    """
    if layer is None:
        kinds = (nn.Linear, *_CONVOLUTIONS)
        found = [
            name
            for name, module in model.named_modules()
            # Attention has a Linear that is never called, only its weights are used.
            if isinstance(module, kinds) and "NonDynamically" not in type(module).__name__
        ]
        if not found:
            raise IT3Error("the network has no Linear or convolution layer: use condition()")
        layer = found[0]
    old = find_layer(model, layer)
    wide = _widened(old, layer, adapter.channels)
    places = [p for _, p in model.named_parameters(remove_duplicate=False) if p is old.weight]
    if len(places) > 1:
        raise IT3Error(f"the weight of layer {layer!r} is used more than once: use condition()")
    model = copy.deepcopy(model)
    if layer:
        parent, _, leaf = layer.rpartition(".")
        setattr(model.get_submodule(parent), leaf, wide)
    else:  # the network is that one layer
        model = wide
    return Conditioned(model, layer, None)


class _OverChannels(nn.Linear):
    """A Linear over the channels of a vector or a map."""

    def forward(self, signal: Tensor) -> Tensor:
        if signal.dim() == 2:
            return super().forward(signal)
        # On a map, a Linear over the channels is a 1×1 convolution of any dimension.
        return super().forward(signal.movedim(1, -1)).movedim(-1, 1)


class _Embedding(_OverChannels):
    """What is added to the features, zero at first.

    Linear is enough, but for a signal that enters late: what follows the layer is not, and mixes
    the signal with the features.
    """

    def __init__(self, signal: int, channels: int) -> None:
        super().__init__(signal, channels, bias=False)
        nn.init.zeros_(self.weight)


def _widened(layer: nn.Module, name: str, extra: int) -> nn.Module:
    """A copy of a Linear or convolution with `extra` input channels whose weights are zero."""
    if not isinstance(layer, (nn.Linear, *_CONVOLUTIONS)):
        raise IT3Error(
            f"layer {name!r} is a {type(layer).__name__}, which can't be widened: use condition()"
        )
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        raise IT3Error(f"layer {name!r} is lazy: run the network once before widening it")
    if type(layer.weight) is not nn.Parameter:
        raise IT3Error(f"the weight of layer {name!r} is computed (weight norm …): use condition()")
    if getattr(layer, "groups", 1) != 1:
        raise IT3Error(f"layer {name!r} has groups={layer.groups}: widen a layer without groups")
    wide = copy.deepcopy(layer)
    if isinstance(wide, nn.Linear):
        wide.in_features += extra
    else:
        wide.in_channels += extra
    weight = layer.weight.detach()
    zeros = weight.new_zeros(weight.shape[0], extra, *weight.shape[2:])
    wide.weight = nn.Parameter(torch.cat([weight, zeros], 1), layer.weight.requires_grad)
    return wide


def _returned_channels(layer: nn.Module, name: str) -> int:
    """How many channels a layer returns, read off its last sub-layer."""
    for module in reversed(list(layer.modules())):
        for attribute in ("out_features", "out_channels", "num_features", "num_channels"):
            width = getattr(module, attribute, None)
            if isinstance(width, int) and width > 0:
                return width
        shape = getattr(module, "normalized_shape", None)
        if shape:
            return int(shape[-1])
    raise IT3Error(f"give condition() channels=: they can't be read off layer {name!r}")


def _channel_dimension(layer: nn.Module, features: Tensor, given: int | None, name: str) -> int:
    """Channels are last for vectors, nodes and tokens, second for maps."""
    if given is not None:
        return given % features.dim()
    if features.dim() == 2:
        return 1
    kinds = [type(module) for module in layer.modules()]
    second = any(issubclass(kind, _CHANNELS_SECOND) for kind in kinds)
    last = any(issubclass(kind, _CHANNELS_LAST) for kind in kinds)
    if last and not second:
        return features.dim() - 1
    if (second and not last) or features.dim() > 3:
        return 1
    raise IT3Error(
        f"can't tell which dimension of what layer {name!r} returns holds the channels: give "
        f"channel_dim=1 (batch, channels, length) or channel_dim=-1 (batch, tokens, channels)"
    )


def _spread(signal: Tensor, features: Tensor, channel: int, x: Any, name: str) -> Tensor:
    """A signal per instance, shaped to be added to (or put beside) the features of each."""
    nodes = is_graph(x) and features.dim() == 2 and features.shape[0] == x.batch.shape[0]
    if nodes and signal.shape[0] != features.shape[0]:  # else each node has its own
        return signal[x.batch]
    if signal.shape[0] != features.shape[0]:
        raise IT3Error(
            f"layer {name!r} has {len(features)} rows for a batch of {len(signal)}: name another"
        )
    if signal.dim() > 2:  # a map, or one for each token
        if channel > 1 and signal.shape[2:] == features.shape[1:-1]:
            return signal.movedim(1, -1)
        if channel == 1 and features.dim() == signal.dim():
            if signal.shape[2:] == features.shape[2:]:
                return signal
            return nnf.interpolate(signal, size=features.shape[2:], mode="area")
        signal = signal.flatten(2).mean(2)  # for what has no places, what is left of it
    if features.dim() == 2:
        return signal
    ones = [1] * (features.dim() - 2)
    if channel == 1:
        return signal.view(*signal.shape, *ones)
    return signal.view(signal.shape[0], *ones, signal.shape[1])
