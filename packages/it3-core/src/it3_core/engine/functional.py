"""Fast weights: running a network with weights other than its own, while it stays untouched.

The user's module is only ever read. A shell is a private copy of its structure without weights;
any set of weights can be put into it, run, and forgotten. It is what `torch.func.functional_call`
does, less the swapping back: that would happen on the user's module, where a second thread could
see it, and it costs more than a forward pass of a small network.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.batching import ON_META, check_input, map_tensors, refused, tensors
from it3_core.engine.fast_path import no_fast_path
from it3_core.engine.inner_optimizer import (
    Blend,
    InnerOptimizer,
    Norm,
    OptimizerFactory,
    Weights,
    batch_fraction,
    has_batch_norm,
    select,
    use_batch_statistics,
)
from it3_core.engine.inner_optimizer import Parameters as Parameters  # noqa: PLC0414
from it3_core.engine.prefix_cache import PrefixCache
from it3_core.errors import IT3Error, IT3Warning
from it3_core.model.conditioning import Conditioned
from it3_core.model.networks import call, described, find_layer, takes_signal, unwrapped

Keep = Callable[[nn.Module, Tensor], Tensor]
"""Makes of a watched layer and its output what is kept."""

_Place = dict[str, Any]  # a module's dictionary of parameters or of buffers


class FunctionalModel:
    """A module to run, in evaluation mode, with weights other than its own; it is only read."""

    def __init__(
        self,
        module: nn.Module,
        parameters: Parameters = None,
        norm: Norm | Blend = "source",
        watch: Sequence[str] = (),  # layers whose outputs `Session.seen` keeps
        keep: Keep | None = None,  # of each output what to keep; all by default
    ) -> None:
        module = unwrapped(module)
        if (isinstance(norm, Blend) or batch_fraction(norm)) and not has_batch_norm(module):
            warnings.warn(
                f"norm={norm!r} changes nothing: the network has no batch norm",
                IT3Warning,
                stacklevel=5,
            )
        self.module = module
        self.takes_signal = takes_signal(module)
        self.checked_sensitivity = False  # see warn_if_insensitive
        self._arguments = (parameters, norm, tuple(watch), keep)
        self._written: frozenset[str] | None = None
        self._idle: list[_Shell] = []  # pop and append are atomic: threads never share a shell
        # Where each tensor lives in the user's module. Its value is read anew at every call, so
        # that training on, loading weights or moving to another device in between all work.
        self._homes: dict[str, tuple[_Place, str]] = {}
        for name, tensor in _named_tensors(module, unique=True):
            owner, _, leaf = name.rpartition(".")
            home = module.get_submodule(owner)
            place: _Place = home._parameters if isinstance(tensor, nn.Parameter) else home._buffers
            self._homes[name] = (place, leaf)
        # Layers are copied once, here: one that is put in another's place later must be noticed.
        self._layers = [(part._modules, dict(part._modules)) for part in module.modules()]
        # The parameters that adapt; None before a pass has shown what lies "above".
        self.selected: tuple[str, ...] | None = None
        if parameters != "above":
            self.selected = select(module, parameters)
        elif not (isinstance(module, Conditioned) and module.embed is not None):
            raise IT3Error(
                'parameters="above" means above the layer where condition() adds the signal: '
                "make the network with condition(), or name the parameters"
            )
        self._idle.append(self._new_shell())  # now, so that what can't be copied fails here

    def require_signal(self, what: str) -> None:
        """Refuses a network of `x` alone for what can't do without a signal."""
        if not self.takes_signal:
            raise IT3Error(
                f"{what} needs a second input, and this network takes x alone: "
                f"condition(net, adapter, layer=…), then train, or forward(x, signal) of your own"
            )

    @property
    def dtype(self) -> torch.dtype | None:
        """The floating type of the weights; None for a network that has none."""
        for place, leaf in self._homes.values():
            tensor: Tensor | None = place[leaf]
            if tensor is not None and tensor.is_floating_point():
                return tensor.dtype
        return None

    def session(self) -> Session:
        """One call's worth of passes, in a `with` block."""
        return Session(self)

    def _borrow(self) -> _Shell:
        try:
            return self._idle.pop()
        except IndexError:
            return self._new_shell()

    def _read(self) -> Weights:
        """The module's tensors: themselves, or copies of those that its forward writes into.

        Some networks do (counters, quantisation observers, weights that are clamped). Which ones
        is seen in the first session, which therefore works on copies of all.
        """
        if any(now != then for now, then in self._layers):
            raise IT3Error("a layer of the network was replaced: make the method anew")
        copied = self._homes if self._written is None else self._written
        try:
            values: Weights = {name: p[leaf].detach() for name, (p, leaf) in self._homes.items()}
        except (KeyError, AttributeError) as problem:
            raise IT3Error(
                f"the network has lost weights ({problem}): make the method anew"
            ) from problem
        if any(value.is_meta for value in values.values()):
            raise IT3Error(ON_META.format("network"))
        for name in copied:
            values[name] = values[name].clone()
        return values

    def _learn(self, used: Weights, written: set[str]) -> None:
        """What a first session on copies has shown: batch norms write without being seen to."""
        if self._written is None:
            for name, (place, leaf) in self._homes.items():
                # Made under inference_mode, a tensor can't take part in autograd; a copy can.
                if place[leaf].is_inference() or not torch.equal(used[name], place[leaf]):
                    written.add(name)
            self._written = frozenset(written)

    def _new_shell(self) -> _Shell:
        _, norm, watch, keep = self._arguments
        fraction = norm if isinstance(norm, Blend) else batch_fraction(norm)
        return _Shell(self.module, self.takes_signal, fraction, watch, keep)

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "arguments": self._arguments}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FunctionalModel.__init__(self, state["module"], *state["arguments"])


class Session:
    """Forward passes with chosen weights, within `FunctionalModel.session()`.

    What a network made by `condition()` does before the signal enters depends on `x` alone. A
    pass with `record=True` keeps it; a pass with `shared=True` starts from what was kept, which
    is right as long as its weights equal the recorded ones there.
    """

    def __init__(self, fast: FunctionalModel) -> None:
        self.model = fast
        self._inference: torch.inference_mode | None = None
        self._written: set[str] = set()

    def __enter__(self) -> Session:
        """From here on gradients are on, whatever mode the caller is in."""
        self._shell = self.model._borrow()
        if torch.is_inference_mode_enabled():
            self._inference = torch.inference_mode(False)
            self._inference.__enter__()
        try:
            self.source = self.model._read()
        except BaseException:
            self._leave_inference_mode()
            raise
        self._grad = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        torch.set_grad_enabled(self._grad)
        self._leave_inference_mode()
        if kind is None:  # a shell that was interrupted is dropped, not reused
            self.model._learn(self.source, self._written)
            self._shell.forget()
            self.model._idle.append(self._shell)

    def _leave_inference_mode(self) -> None:
        if self._inference is not None:
            self._inference.__exit__(None, None, None)
            self._inference = None

    def __call__(
        self,
        x: Any,
        signal: Tensor,
        weights: Weights | None = None,
        *,
        record: bool = False,
        shared: bool = False,
    ) -> Tensor:
        """`f(x, signal)` with `weights` in place of the module's own."""
        merged = self.source if weights is None else {**self.source, **weights}
        versions: dict[str, int] = {}
        if self.model._written is None:
            versions = {name: tensor._version for name, tensor in merged.items()}
        try:
            output = self._shell.run(merged, x, signal, record, shared)
        except (torch.OutOfMemoryError, IT3Error):
            raise
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as problem:
            raise refused(x, problem) from problem
        self._written |= {
            name for name, version in versions.items() if merged[name]._version > version
        }
        return output

    def each(self, x: Any, signal: Tensor, weights: Weights) -> Tensor:
        """A pass in which every row of the batch has weights of its own, stacked in `weights`."""

        def one(own: Weights, row: Any, its_signal: Tensor) -> Tensor:
            batch = map_tensors(row, lambda part: part.unsqueeze(0))
            merged = {**self.source, **own}
            output = self._shell.run(merged, batch, its_signal.unsqueeze(0), False, False)
            return output.squeeze(0)

        mapped: Callable[..., Tensor] = torch.func.vmap(one, randomness="different")
        with no_fast_path:
            return mapped(weights, x, signal)

    def names(self, x: Any, signal: Tensor) -> tuple[str, ...]:
        """The parameters that adapt. What lies "above" is seen in a pass, made once."""
        if self.model.selected is None:
            with torch.no_grad():
                self(x, signal, record=True)
            above = self._shell.above()
            if not above:
                raise IT3Error(
                    'no weight is used above the signal alone, so "above" is none: name parameters'
                )
            trainable = frozenset(select(self.model.module, None))
            self.model.selected = select(
                self.model.module, lambda name, _: name in above and name in trainable
            )
        return self.model.selected

    def chosen(self, x: Any, signal: Tensor) -> Weights:
        """The weights that adapt, as they are in the module."""
        names = self.names(x, signal)
        if not names:
            raise IT3Error("the network has no parameter that could adapt")
        return {name: self.source[name] for name in names}

    def descent(
        self, x: Any, signal: Tensor, optimizer: OptimizerFactory, lr: float,
        rows: int | None = None,
    ) -> InnerOptimizer:  # fmt: skip
        """The adapting weights and their optimiser, from the start, for this session only."""
        chosen = self.chosen(x, signal)
        like = next(iter(chosen.values()))
        key = (rows, like.dtype, like.device)
        kept = self._shell.descents.get(key)
        if kept is None:
            kept = InnerOptimizer(chosen, optimizer, lr, rows)
            self._shell.descents = {key: kept}  # one: the next batch is mostly like this one
        else:
            kept.restart(chosen)
        return kept

    def only_above(self, names: Iterable[str]) -> bool:
        """Whether all of these run after the signal has entered (known after a recorded pass)."""
        above = self._shell.above()
        return bool(above) and above.issuperset(names)

    @property
    def seen(self) -> list[Tensor]:
        """What the watched layers returned in the last pass, in the order of `watch`."""
        for name, output in zip(self.model._arguments[2], self._shell.seen, strict=True):
            if output.dim() == 0:
                raise IT3Error(f"layer {name!r} did not run: name one that does")
        return self._shell.seen

    @property
    def ran(self) -> list[Tensor]:
        """The same, of those watched layers that ran: some wait for a signal."""
        return [output for output in self._shell.seen if output.dim()]


class _Shell:
    """A private copy of a module's structure, to be filled with weights and run."""

    def __init__(
        self, module: nn.Module, takes_signal: bool, fraction: float | Blend,
        watch: Sequence[str], keep: Keep | None,
    ) -> None:  # fmt: skip
        # A deep copy that finds every weight "already copied" leaves the weights out.
        hole = torch.empty(0)
        memo: dict[int, Any] = {id(t): hole for _, t in _named_tensors(module, unique=True)}
        try:
            self._module: nn.Module = copy.deepcopy(module, memo).eval()
        except (RuntimeError, TypeError) as problem:
            raise IT3Error(f"the network can't be copied: {problem}") from problem
        use_batch_statistics(self._module, fraction)
        self._takes_signal = takes_signal
        # Every place a weight goes, and that weight's name: tied weights have several places.
        names = {id(tensor): name for name, tensor in _named_tensors(module, unique=True)}
        self._slots: list[tuple[_Place, str, str]] = []
        for place, tensor in _named_tensors(module, unique=False):
            owner, _, leaf = place.rpartition(".")
            home = self._module.get_submodule(owner)
            values: _Place = home._parameters if leaf in home._parameters else home._buffers
            if values.get(leaf) is not None:
                self._slots.append((values, leaf, names[id(tensor)]))
        self._prefix: PrefixCache | None = None
        if isinstance(self._module, Conditioned) and self._module.embed is not None:
            places = {p: names[id(t)] for p, t in _named_tensors(module, unique=False)}
            self._prefix = PrefixCache(self._module, places)
        self.descents: dict[tuple[Any, ...], InnerOptimizer] = {}
        self.seen: list[Tensor] = [torch.empty(())] * len(watch)
        for index, name in enumerate(watch):
            hook = partial(_watch, self.seen, index, keep)
            find_layer(self._module, name).register_forward_hook(hook)

    def run(self, weights: Weights, x: Any, signal: Tensor, record: bool, shared: bool) -> Tensor:
        for values, leaf, name in self._slots:
            values[leaf] = weights[name]
        prefix = self._prefix
        if prefix is None or not (record or shared):
            return self._forward(x, signal)
        if record or not prefix.usable():
            if record:
                prefix.start("recording")
            output = self._forward(x, signal)
            prefix.stop()
            if record and not prefix.told_apart:
                for values, leaf, name in self._slots:
                    if name in prefix.above and weights[name].is_floating_point():
                        values[leaf] = weights[name] * 1.1 + 0.1
                prefix.tell_apart(partial(self._forward, x, signal))
            return output
        if prefix.proven:
            return prefix.replay(partial(self._forward, x, signal))
        whole = self._forward(x, signal)
        prefix.prove(partial(self._forward, x, signal), whole)
        return whole

    def _forward(self, x: Any, signal: Tensor) -> Tensor:
        takes_signal = self._takes_signal
        output: Any = self._module(x, signal) if takes_signal else call(self._module, x)
        if not isinstance(output, Tensor):
            raise IT3Error(
                f"the network returns {described(output)}, and not one tensor: name the answer "
                f"among them, by condition(…, output=…)"
            )
        if output.shape[:1] != signal.shape[:1]:
            raise IT3Error(
                f"the network must return one tensor whose first dimension is the batch of "
                f"{signal.shape[0]}, but returned {described(output)}"
            )
        return output

    def above(self) -> frozenset[str]:
        return frozenset() if self._prefix is None else self._prefix.above

    def forget(self) -> None:
        """Drops weights and activations, so that an idle shell holds no memory."""
        hole = torch.empty(0)
        for values, leaf, _ in self._slots:
            values[leaf] = hole
        self.seen[:] = [torch.empty(())] * len(self.seen)
        if self._prefix is not None:
            self._prefix.clear()


def _watch(
    seen: list[Tensor], index: int, keep: Keep | None, layer: nn.Module, _: Any, returned: Any
) -> None:
    """A forward hook that puts what its layer returns, or the first tensor of it, into a list."""
    output = next(tensors(returned), None)
    if output is None:
        raise IT3Error(f"a watched {type(layer).__name__} layer returns no tensor")
    seen[index] = output if keep is None else keep(layer, output)


def _named_tensors(module: nn.Module, unique: bool) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=unique)
    yield from module.named_buffers(remove_duplicate=unique)


def prepared(x: Any, fast: FunctionalModel) -> tuple[Any, int]:
    """The checked input, ready for autograd though made in `inference_mode`, and its batch size."""
    if not isinstance(x, Tensor | dict) and isinstance(x, Mapping):  # vmap knows dicts alone
        x = dict(x)
    size = check_input(x, fast.dtype)
    if torch.is_inference_mode_enabled() or any(part.is_inference() for part in tensors(x)):
        with torch.inference_mode(False):
            x = map_tensors(x, lambda part: part.clone() if part.is_inference() else part)
    return x, size
