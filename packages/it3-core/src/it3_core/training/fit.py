"""Training a network, with ZigZag by default: early stopping, resuming, `torchrun`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from it3_core.batching import Data
from it3_core.engine.functional import FunctionalModel, prepared
from it3_core.engine.inner_optimizer import OptimizerFactory, make_optimizer
from it3_core.errors import IT3Error
from it3_core.io.files import FilePath
from it3_core.io.progress import Progress
from it3_core.model.adapters import Adapter
from it3_core.model.losses import first_pass, zigzag_loss
from it3_core.training.data import Batches, Collate, Rows, cut, own_randomness
from it3_core.training.frozen import frozen, layers_before
from it3_core.training.resume import History, ResumeFile, name_of
from it3_core.training.trainer import (
    ProcessGroup,
    Trainer,
    ctrl_c_after_the_step,
    device_of,
    make_schedule,
    processes,
)

Validation = Data | float | Callable[[nn.Module], float] | None
"""Validation data, the fraction of the data to take for it, a measure to minimise, or nothing."""

Loss = Callable[[nn.Module, Adapter, Any, Tensor], Tensor]
"""Called as `loss(model, adapter, x, y)`; a mean over the batch."""


def fit(
    model: nn.Module,
    adapter: Adapter,
    data: Data,
    *,
    validation: Validation = 0.1,
    epochs: int = 100,
    batch_size: int | None = None,
    lr: float = 1e-3,
    optimizer: OptimizerFactory = "Adam",
    schedule: str = "constant",
    clip: float | None = None,
    patience: int | None = None,
    freeze_until: str | None = None,
    loss: Loss = zigzag_loss,
    collate: Collate | None = None,
    workers: int = 0,
    checkpoint: FilePath | None = None,
    every: float = 60.0,
    seed: int = 0,
    progress: bool = True,
    device: torch.device | str | None = None,
) -> History:
    """Trains `model` in place; leaves it in evaluation mode, with its best weights.

    The validation loss is that of the first answer: the mean of `adapter.loss(f(x, neutral), y)`.
    The best weights are those after the epoch where it was lowest; without validation, the last.

    The first batch is tried before it is trained on: what a method would refuse later, such as an
    answer that doesn't fit the adapter or a layer that never runs, is refused then.

    Under `torchrun` each process takes its part of every batch. The result is that of one process,
    up to rounding, where network and loss draw no random numbers and have no batch norm (its
    statistics are those of the first process's parts; `SyncBatchNorm` takes all).

    Args:
        model: the conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        data: a pair `(x, y)`, with x of any make that a method takes; or a Dataset of `(x, y)`,
            where augmentation belongs; or a DataLoader of one, for its collate and batch size. Rows
            are drawn with `seed` whatever its order; an IterableDataset is read once, and kept.
        validation: data in the same forms; or the fraction of `data` to take for it, drawn with
            `seed` (a Dataset that augments will augment these too); or a function of the model that
            returns a number to minimise (the first process's counts); or None.
        epochs: how often to go through the data at most.
        batch_size: rows in a step, over all processes; by default a DataLoader's, or 64. An epoch
            is cut into batches of nearly equal size, this at most: none is a left-over of one row.
        lr: the learning rate.
        optimizer: a class of torch.optim by name, or a factory called as `(parameters, lr=…)`.
        schedule: of the learning rate: `"constant"`, `"cosine"` (from `lr` towards 0, epoch by
            epoch), `"onecycle"` (step by step up to `lr` in the first fifth, then down in a
            straight line to 0, which short trainings gain from), `"step"` (`lr` for the first
            half of the epochs, a tenth of it for the second) or `"step30"` (a tenth after every
            30 epochs, as networks for ImageNet are trained).
        clip: the largest norm of a gradient; longer ones are shortened to it.
        patience: stop after so many epochs in a row without a new best.
        freeze_until: a layer, by the name that `condition` takes. What the network defines before
            it stays as it is, batch norms' statistics too: it runs as at test time, and costs no
            backward pass.
        loss: for a variant give a partial, such as `partial(zigzag_loss, second_weight=0.1)`.
        collate: makes a batch of a list of the Dataset's items; torch's own by default.
        workers: processes that prepare the batches; 0 prepares them here.
        checkpoint: a file to resume from where there is one, and to write to. A run that was killed
            and is called again with the same arguments ends with the same weights, bit for bit (on
            the CPU, with as many threads; augmentation must draw from torch's or Python's own
            generator). A finished one returns at once. Processes on several machines need it in a
            shared folder.
        every: seconds between two checkpoints; 0 writes one after each step. Ctrl-C writes one too.
        seed: of all that is random here. The caller's generators are left as they are.
        progress: show a bar on stderr, or a line now and then where that is no terminal.
        device: where to train; by default where the model is.

    Example:
        >>> import torch
        >>> from it3_core import Regression, condition, fit
        >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> y = x.sum(1)
        >>> adapter = Regression.fit(y)
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> model = condition(net, adapter, layer="0")
        >>> history = fit(model, adapter, (x, y), epochs=20, lr=0.01, progress=False)
        >>> history.validation[-1] < history.validation[0]
        True
    """
    if batch_size is None:
        batch_size = getattr(data, "batch_size", None) or 64
    _whole(1, epochs=epochs, batch_size=batch_size, patience=patience)
    _whole(0, workers=workers)
    _positive(lr=lr, clip=clip)
    if not every >= 0:
        raise IT3Error(f"every is a number of seconds from 0 on, not {every}")
    if patience is not None and validation is None:
        raise IT3Error("patience needs a validation loss: give validation=0.1, say")
    still = layers_before(model, freeze_until)
    with frozen(still):
        parameters = _trainable(model)
    dtype = next((p.dtype for p in parameters if p.is_floating_point()), None)
    rows = Rows.of(data, collate, dtype)
    held: Rows | None = None
    if isinstance(validation, float | int):
        rows, held = rows.split(validation, seed)
    elif validation is not None and not _is_measure(validation):
        its = None if isinstance(validation, tuple) else collate
        held = Rows.of(cast(Data, validation), its, dtype)
    where = device_of(model, device)
    model.to(where)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        own_randomness(where),
        frozen(still),
        processes(where) as group,
        ctrl_c_after_the_step() as interrupted,
    ):
        validate: Callable[[], float] | None = None
        if held is not None:
            data_and_way = (held, batch_size, workers, seed, group, where)
            validate = partial(_validation_loss, model, adapter, *data_and_way)
        elif _is_measure(validation):
            validate = partial(validation, model)
        stepper = make_optimizer(optimizer, parameters, lr)
        if isinstance(stepper, torch.optim.LBFGS):
            raise IT3Error("LBFGS takes several losses for a step: name another optimiser")
        steps = math.ceil(len(rows.numbers) / batch_size)
        shown = progress and group.rank == 0
        how: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "clip": clip}
        how |= {"patience": patience, "seed": seed}
        file: ResumeFile | None = None
        if checkpoint is not None:
            identity = how | {
                "lr": lr,
                "optimizer": name_of(optimizer),
                "schedule": schedule,
                "loss": name_of(loss),
                "the layer before which all is frozen": freeze_until,
                "adapter": adapter.describe(),
                "the weights' type": str(dtype),
                "the number of trained parameters": sum(p.numel() for p in parameters),
                "the number of rows": len(rows.numbers),
                "the number of validation rows": held and len(held.numbers),
                "the data's fingerprint": rows.fingerprint(),
                "the validation data's fingerprint": held and held.fingerprint(),
                "the measure to minimise": name_of(validation) if _is_measure(validation) else None,
            }
            file = ResumeFile(Path(checkpoint), identity)
        run = Trainer(
            model=model,
            objective=_Objective(model, adapter, loss),
            rows=rows,
            check=partial(_dry_pass, model, adapter, held is not None),
            validate=validate,
            parameters=parameters,
            frozen=still,
            optimizer=stepper,
            scheduler=make_schedule(schedule, stepper, epochs, steps),
            every_step=schedule == "onecycle",
            **how,
            workers=workers,
            file=file,
            every=every,
            group=group,
            device=where,
            interrupted=interrupted,
            steps=steps,
            bar=Progress(epochs * steps, "train", shown),
        )
        try:
            return run.go()
        finally:
            model.eval()
            run.bar.close()
            del run  # and with it DDP, before the process group that it uses


class _Objective(nn.Module):
    """The loss as a module: ZigZag's two passes are then one forward pass of DDP's."""

    def __init__(self, model: nn.Module, adapter: Adapter, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.adapter = adapter
        self.loss = loss

    def forward(self, x: Any, y: Tensor) -> Tensor:
        value = self.loss(self.model, self.adapter, x, y)
        if value.dim():
            raise IT3Error(f"the loss must be one number, but has shape {tuple(value.shape)}")
        return value


def _dry_pass(model: nn.Module, adapter: Adapter, labelled: bool, x: Any, y: Tensor) -> None:
    """Both passes as methods make them, on a copy: what they refuse is not to be trained."""
    functional = FunctionalModel(model)
    x, _ = prepared(x, functional)
    with functional.session() as run, torch.no_grad():
        y0 = first_pass(run, adapter, x)
        signal = adapter.encode(y0)
        if signal.shape[1] != adapter.channels:
            raise IT3Error(
                f"the network's answer has shape {tuple(y0.shape)}, which is not what {adapter!r} "
                f"takes: give the network's last layer, or the adapter, as many outputs"
            )
        adapter.distance(run(x, signal), y0)
        if labelled:  # else what becomes of them is the loss's own business
            if len(y) != len(y0):  # of graphs, an answer for each node perhaps
                raise IT3Error(f"a batch has {len(y0)} answers, but {len(y)} labels")
            adapter.loss(y0, y)


def _validation_loss(
    model: nn.Module, adapter: Adapter, rows: Rows, size: int, workers: int, seed: int,
    group: ProcessGroup, device: torch.device,
) -> float:  # fmt: skip
    """The mean loss of f(x, neutral), each process with its part of the rows."""
    own = rows.numbers[group.rank :: group.size]
    made = Batches(rows, cut(own, size) if len(own) else (), ("held out", seed, group.rank))
    total, number = 0.0, 0  # of losses: graphs have one for each node
    for x, y in made.starting_at(0, workers, device):
        losses = adapter.loss(model(x, adapter.neutral(x)), y)
        total, number = total + float(losses.double().sum()), number + len(losses)
    total, every = group.sum(total, number)
    return total / every


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise IT3Error("some of the network's parameters have no values yet: run it once first")
    found = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(parameter.is_inference() for parameter in found):
        raise IT3Error("the network was made under inference_mode: train a copy.deepcopy of it")
    if not found:
        raise IT3Error("no parameter of the network requires a gradient: there is nothing to train")
    return found


def _is_measure(validation: Validation) -> TypeGuard[Callable[[nn.Module], float]]:
    return callable(validation) and not hasattr(validation, "__getitem__")


def _whole(least: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and not (isinstance(value, int) and value >= least):
            raise IT3Error(f"{name} must be a whole number from {least} on, not {value!r}")


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not (isinstance(value, float | int) and 0 < value < math.inf):
            raise IT3Error(f"{name} must be a positive number, not {value!r}")
