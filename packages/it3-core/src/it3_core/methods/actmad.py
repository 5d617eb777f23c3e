"""ActMAD: aligns the activations' means and variances with those of the training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.batching import Data, labelled
from it3_core.engine.functional import FunctionalModel, Parameters, prepared
from it3_core.engine.inner_optimizer import Norm, OptimizerFactory
from it3_core.errors import IT3Error
from it3_core.methods.base import Adaptation, check_settings, outcome, shown
from it3_core.model.adapters import Adapter


@dataclass(frozen=True)
class Activations:
    """Mean and variance of what named layers return on the training data, per location."""

    layers: tuple[str, ...]
    means: tuple[Tensor, ...] = field(repr=False)
    variances: tuple[Tensor, ...] = field(repr=False)
    rows: int

    @classmethod
    def collect(
        cls, model: nn.Module, adapter: Adapter, data: Data, layers: Sequence[str]
    ) -> Activations:
        """One pass over training data (no labels needed); memory holds one batch at a time."""
        fast = FunctionalModel(model, watch=layers)
        rows = 0
        counts = [0] * len(layers)  # of each layer: nodes and graphs are not equally many
        means, squares = [torch.zeros(())] * len(layers), [torch.zeros(())] * len(layers)
        for batch, _ in labelled(data):
            x, size = prepared(batch, fast)
            rows += size
            with fast.session() as run, torch.no_grad():
                run(x, adapter.neutral(x))
                seen = [(output, *_moments(output)) for output in run.seen]
            for index, (output, mean, spread) in enumerate(seen):
                count, total = counts[index], counts[index] + len(output)
                if count and output.shape[1:] != means[index].shape:
                    raise IT3Error(
                        f"layer {layers[index]!r} returns maps of different sizes: ActMAD compares "
                        f"them location by location, so resize the inputs or name another layer"
                    )
                # Chan's merge of two sets of moments: stable, and blind to the order of batches.
                delta = mean.double() - means[index]
                means[index] = means[index] + delta * (len(output) / total)
                apart = delta**2 * (count * len(output) / total)
                squares[index] = squares[index] + spread.double() * len(output) + apart
                counts[index] = total
        if rows < 2:
            raise IT3Error("ActMAD needs the activations of at least two training instances")
        dtype = fast.dtype or torch.get_default_dtype()
        return cls(
            tuple(layers),
            tuple(mean.to(dtype) for mean in means),
            tuple((q / n).to(dtype) for q, n in zip(squares, counts, strict=True)),
            rows,
        )

    def tensors(self) -> dict[str, Tensor]:
        """As tensors by name, for a checkpoint; `from_tensors` makes them again."""
        named = {f"mean.{k}": mean for k, mean in zip(self.layers, self.means, strict=True)}
        named |= {f"var.{k}": value for k, value in zip(self.layers, self.variances, strict=True)}
        return named | {"rows": torch.tensor(self.rows)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Activations:
        """The activations that `tensors` named, among whatever else is there."""
        layers = tuple(n.removeprefix("mean.") for n in tensors if n.startswith("mean."))
        try:
            means = tuple(tensors[f"mean.{name}"] for name in layers)
            variances = tuple(tensors[f"var.{name}"] for name in layers)
            return cls(layers, means, variances, int(tensors["rows"]))
        except KeyError as problem:
            raise IT3Error(f"{problem} is missing among the activations: train again") from problem


@dataclass(eq=False, repr=False)
class ActMAD:
    """Minimises Σ |μ − μ_train| + |σ² − σ²_train| over named layers, for this batch alone.

    At batch 1 there is no variance to compare (on node features and tokens there is): the term is
    left out and the means alone are aligned, so that the answer stays finite. There is no trust
    region: y1 has no part in this method.

    Args:
        model: any network, called as `model(x)`; as `model(x, signal)` where it takes a signal.
        adapter: what kind of answer it gives.
        activations: the training data's, from `Activations.collect`.
        steps, lr, optimizer, parameters, norm: as for `IT3`.

    Example:
        >>> import torch
        >>> from it3_core import ActMAD, Activations, Regression, condition
        >>> adapter, net = Regression(), torch.nn.Sequential(torch.nn.Linear(3, 4),
        ...                                                  torch.nn.Linear(4, 1))
        >>> model = condition(net, adapter, layer="0")
        >>> known = Activations.collect(model, adapter, torch.randn(64, 3), ["model.0"])
        >>> ActMAD(model, adapter, known)(torch.randn(1, 3) + 5).steps
        1
    """

    model: nn.Module
    adapter: Adapter
    activations: Activations
    _: KW_ONLY
    steps: int = 1
    lr: float = 2e-4
    optimizer: OptimizerFactory = "Adam"
    parameters: Parameters = None
    norm: Norm = "source"

    __repr__ = shown

    def __post_init__(self) -> None:
        check_settings(self.steps, self.lr)
        self._functional = FunctionalModel(
            self.model, self.parameters, self.norm, watch=self.activations.layers
        )

    def __call__(self, x: Any) -> Adaptation:
        x, _ = prepared(x, self._functional)
        with self._functional.session() as run:
            neutral = self.adapter.neutral(x)
            descent = run.descent(x, neutral, self.optimizer, self.lr)
            theta = descent.weights
            y = run(x, neutral, theta)
            y0 = y.detach()
            steps = self.steps if self.lr else 0
            for left in reversed(range(steps)):
                descent.step(self._misalignment(run.seen))
                with torch.set_grad_enabled(left > 0):
                    y = run(x, neutral, theta)
        sound = bool(torch.isfinite(y).all())
        return outcome(self._functional, self.adapter, x, y.detach(), y0, steps, sound)

    def reset(self) -> None:
        """Nothing to forget: every batch starts from the network as it was trained."""

    def _misalignment(self, seen: Sequence[Tensor]) -> Tensor:
        trained = self.activations
        total = seen[0].new_zeros(())
        for layer, output, mean, variance in zip(
            trained.layers, seen, trained.means, trained.variances, strict=True
        ):
            if output.shape[1:] != mean.shape:
                raise IT3Error(
                    f"layer {layer!r} returns {tuple(output.shape[1:])}, but returned "
                    f"{tuple(mean.shape)} on the training data: give inputs of the same size"
                )
            own, spread = _moments(output)
            total = total + (own - mean.to(output)).abs().mean()
            if len(output) > 1:
                total = total + (spread - variance.to(output)).abs().mean()
        return total


def _moments(output: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance over the first dimension; var(), with its gradient, takes far longer."""
    mean = output.mean(0)
    return mean, (output - mean).square().mean(0)
