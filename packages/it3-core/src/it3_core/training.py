"""Training a network, with ZigZag by default: early stopping, resuming, `torchrun`.

Whatever is random in a step (the order of the rows, augmentation, dropout, noise) is drawn from a
seed of its own, made of `seed`, epoch and step. So a run that goes on in the middle of an epoch
needs no generator's state to end, bit for bit, where it would have ended uninterrupted.
"""

from __future__ import annotations

import copy
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, ReduceLROnPlateau

from it3_core.adapters import Adapter
from it3_core.checkpoint import misfit
from it3_core.descent import OptimizerFactory, make_optimizer
from it3_core.errors import IT3Error
from it3_core.feeding import Batches, Collate, Data, Rows, cut, own_randomness, reseed
from it3_core.losses import zigzag_loss
from it3_core.processes import Group, place, processes
from it3_core.progress import Progress
from it3_core.tensorfile import FilePath, read_tensors, remove_leftovers, under, write_tensors

__all__ = ["Data", "History", "Loss", "Schedule", "Validation", "fit"]

Validation = Data | float | Callable[[nn.Module], float] | None
"""Held-out data, the share of the data to hold out, a measure to minimise, or nothing."""

Loss = Callable[[nn.Module, Adapter, Any, Tensor], Tensor]
"""Called as `loss(model, adapter, x, y)`; a mean over the batch."""

Schedule = str | Callable[[Optimizer], LRScheduler]
"""`"constant"`, `"cosine"`, `"onecycle"` (stepped every step), or a factory of a torch scheduler,
which is stepped once an epoch."""


@dataclass
class History:
    """How training went.

    Attributes:
        train: mean loss of each epoch.
        validation: held-out loss after each epoch; empty where nothing was held out.
        best_epoch: the epoch, counted from 1, whose weights the network has now.
        seconds: time it took, without the time it lay still.
        stopped_early: whether `patience` ended it.

    Example:
        >>> History(train=[0.5, 0.2], validation=[0.6, 0.4], best_epoch=2).describe()["train"]
        [0.5, 0.2]
    """

    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = 0
    seconds: float = 0.0
    stopped_early: bool = False

    def describe(self) -> dict[str, Any]:
        """This history as JSON; `History(**description)` makes it again."""
        return asdict(self)


def fit(
    model: nn.Module,
    adapter: Adapter,
    data: Data,
    *,
    validation: Validation = 0.1,
    epochs: int = 100,
    batch_size: int = 64,
    lr: float = 1e-3,
    optimizer: OptimizerFactory = "Adam",
    schedule: Schedule = "constant",
    clip: float | None = None,
    patience: int | None = None,
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

    Held-out data judge what users get first: the mean of `adapter.loss(f(x, neutral), y)`. The
    best weights are those after the epoch where it was lowest; with nothing held out, the last.

    Under `torchrun` each process takes its part of every batch. The result is that of one process,
    up to rounding, where network and loss draw no random numbers and have no batch norm (its
    statistics are those of the first process's parts; `SyncBatchNorm` takes all).

    Args:
        model: the conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        data: a pair `(x, y)`, with x of any make that a method takes; or a Dataset of `(x, y)`.
        validation: a pair or Dataset to judge by; or the share of `data` to hold out, drawn with
            `seed` (a Dataset that augments will augment these too); or a function of the model
            that returns a number to minimise (all processes call it, the first one's counts); or
            None.
        epochs: how often to go through the data at most.
        batch_size: rows in a step, over all processes. An epoch is cut into batches of nearly equal
            size, this at most, so that none is a left-over of one row.
        lr: the learning rate.
        optimizer: a class of torch.optim by name, or a factory called as `(parameters, lr=…)`.
        schedule: the learning rate's course: `"constant"`, `"cosine"` (from `lr` towards 0, epoch
            by epoch), `"onecycle"` (step by step up to `lr` in the first fifth, then down in a
            straight line to 0, which short trainings gain from), or a factory `optimizer →
            scheduler`, stepped once an epoch.
        clip: the largest norm of a gradient; longer ones are shortened to it.
        patience: stop after so many epochs in a row without a new best.
        loss: for a variant give a partial, such as `partial(zigzag_loss, given=0.25)`.
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
        >>> from it3_core import Regression, condition
        >>> from it3_core.training import fit
        >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> y = x.sum(1)
        >>> adapter = Regression.fit(y)
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> model = condition(net, adapter, layer="0")
        >>> history = fit(model, adapter, (x, y), epochs=20, lr=0.01, progress=False)
        >>> history.validation[-1] < history.validation[0]
        True
    """
    _whole(1, epochs=epochs, batch_size=batch_size, patience=patience)
    _whole(0, workers=workers)
    _positive(lr=lr, clip=clip)
    if not every >= 0:
        raise IT3Error(f"every is a number of seconds from 0 on, not {every}")
    if patience is not None and validation is None:
        raise IT3Error("patience needs something to judge by: give validation=0.1, say")
    parameters = _trainable(model)
    dtype = next((p.dtype for p in parameters if p.is_floating_point()), None)
    rows = Rows.of(data, collate, dtype)
    held_out: Rows | None = None
    if isinstance(validation, float | int):
        rows, held_out = rows.split(validation, seed)
    elif validation is not None and not _is_measure(validation):
        its = None if isinstance(validation, tuple) else collate
        held_out = Rows.of(cast(Data, validation), its, dtype)
    where = place(model, device)
    model.to(where)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        own_randomness(where),
        processes(where) as group,
        _ctrl_c_after_the_step() as interrupted,
    ):
        judge: Callable[[], float] | None = None
        if held_out is not None:
            judge = _HeldOut(model, adapter, held_out, batch_size, workers, seed, group, where)
        elif _is_measure(validation):
            judge = partial(validation, model)
        stepper = make_optimizer(optimizer, parameters, lr)
        if isinstance(stepper, torch.optim.LBFGS):
            raise IT3Error("LBFGS takes several losses for a step: name another optimiser")
        steps = math.ceil(len(rows.numbers) / batch_size)
        shown = progress and group.rank == 0
        run = _Run(
            model=model,
            objective=_Objective(model, adapter, loss),
            rows=rows,
            judge=judge,
            parameters=parameters,
            optimizer=stepper,
            schedule=_make_schedule(schedule, stepper, epochs, steps),
            every_step=schedule == "onecycle",
            epochs=epochs,
            batch_size=batch_size,
            clip=clip,
            patience=patience,
            workers=workers,
            seed=seed,
            path=None if checkpoint is None else Path(checkpoint),
            every=every,
            group=group,
            device=where,
            interrupted=interrupted,
            steps=steps,
            bar=Progress(epochs * steps, "train", shown),
        )
        if checkpoint is not None:
            run.identity = {
                "epochs": epochs,
                "batch_size": batch_size,
                "lr": lr,
                "optimizer": _name(optimizer),
                "schedule": _name(schedule),
                "clip": clip,
                "patience": patience,
                "loss": _name(loss),
                "seed": seed,
                "adapter": adapter.describe(),
                "the weights' type": str(dtype),
                "the number of trained parameters": sum(p.numel() for p in parameters),
                "the number of rows": len(rows.numbers),
                "the number of held-out rows": held_out and len(held_out.numbers),
                "the data's fingerprint": rows.fingerprint(),
                "the held-out data's fingerprint": held_out and held_out.fingerprint(),
            }
        try:
            return run.go()
        finally:
            model.eval()
            run.bar.close()
            del run  # and with it DDP, before the process group that it uses


@dataclass
class _Run:
    """A run: what it was asked for, how far it has come, and the way to the disk and back."""

    model: nn.Module
    objective: nn.Module
    rows: Rows
    judge: Callable[[], float] | None
    parameters: list[nn.Parameter]
    optimizer: Optimizer
    schedule: LRScheduler
    every_step: bool  # whether the schedule moves with every step
    epochs: int
    batch_size: int
    clip: float | None
    patience: int | None
    workers: int
    seed: int
    path: Path | None
    every: float
    group: Group
    device: torch.device
    interrupted: Callable[[], bool]
    steps: int  # in an epoch
    bar: Progress
    identity: dict[str, Any] = field(default_factory=dict)

    history: History = field(default_factory=History)
    epoch: int = 0
    step: int = 0  # within the epoch
    running: float = 0.0  # sum of the losses of this epoch's rows so far
    best: dict[str, Any] = field(default_factory=dict)

    def go(self) -> History:
        """From wherever the run is to its end."""
        finished = self.path is not None and self.path.exists() and self._resume(self.path)
        self.group.check_alike(
            -1 if finished else self.epoch * self.steps + self.step,
            f"not all processes see the same checkpoint {self.path}: put it in a shared folder",
        )
        if finished:
            return self.history
        self._clock = self._written = time.monotonic()
        if self.path is not None and self.group.rank == 0:
            remove_leftovers(self.path)
        self._write()  # now, so that a path that can't be written fails before any work is done
        self.objective = self.group.wrap(self.objective)
        while self.epoch < self.epochs and not self.history.stopped_early:
            interrupted = self._train()
            self._judge()
            if interrupted:
                self._interrupt()
            self._write_if_due()
        if self.best:
            self.model.load_state_dict(self.best)
        self._write(finished=True)
        self._show(last=True)
        return self.history

    def _train(self) -> bool:
        """The rest of this epoch; whether somebody pressed ctrl-C in its last step."""
        batches = cut(self.rows.shuffled("order", self.seed, self.epoch), self.batch_size)
        shares = [self.group.share(batch) for batch in batches]
        key = ("batch", self.seed, self.epoch, self.group.rank)
        feed = Batches(self.rows, [share for share, _ in shares], key)
        interrupted = False
        self.model.train()
        for x, y in feed.starting_at(self.step, self.workers, self.device):
            reseed("step", self.seed, self.epoch, self.step, self.group.rank)
            value, interrupted = self._step(x, y, shares[self.step][1])
            self.running += value * len(batches[self.step])
            self.step += 1
            if self.step < self.steps:  # else what happens here happens after the epoch
                if interrupted:
                    self._interrupt()
                self._write_if_due()
                self._show()
        return interrupted

    def _step(self, x: Any, y: Tensor, weight: float) -> tuple[float, bool]:
        """One step: the loss over all processes, and whether ctrl-C was pressed in any."""
        self.optimizer.zero_grad()
        loss = self.objective(x, y) * weight
        loss.backward()
        norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        total, interrupted = self.group.sum(float(loss.detach()), float(self.interrupted()))
        value = total / self.group.size
        if not (math.isfinite(value) and math.isfinite(float(norm))):
            self._give_up("loss" if not math.isfinite(value) else "gradient")
        if self.clip is not None:
            clip_grads_with_norm_(self.parameters, self.clip, norm)
        self.optimizer.step()
        if self.every_step:
            self.schedule.step()
        return value, bool(interrupted)

    def _judge(self) -> None:
        """The end of an epoch: held-out loss, best weights, early stopping, learning rate."""
        self.group.align(self.model)
        history, loss = self.history, self.running / len(self.rows.numbers)
        value = loss
        if self.judge is not None:
            self.model.eval()
            reseed("judge", self.seed)
            with torch.no_grad():
                value = self.group.first(float(self.judge()))
            if not math.isfinite(value):
                self._give_up("held-out loss")
            history.validation.append(value)
        history.train.append(loss)
        self.epoch, self.step, self.running = self.epoch + 1, 0, 0.0
        if self.judge is None:
            history.best_epoch = self.epoch
        elif not self.best or value < history.validation[history.best_epoch - 1]:
            history.best_epoch = self.epoch
            self.best = copy.deepcopy(self.model.state_dict())
        elif self.patience is not None and self.epoch - history.best_epoch >= self.patience:
            history.stopped_early = True
        if isinstance(self.schedule, ReduceLROnPlateau):
            self.schedule.step(value)
        elif (
            not self.every_step and self.epoch < self.epochs
        ):  # some schedules refuse one step too many
            self.schedule.step()
        self._show()

    def _give_up(self, what: str) -> NoReturn:
        kept = "" if self.path is None else f"; {self.path} holds an earlier, good state"
        raise IT3Error(
            f"the {what} is not finite in epoch {self.epoch + 1}, step {self.step + 1}: lower lr "
            f"(it is {float(self.optimizer.param_groups[0]['lr']):g}), set clip=1.0, or look for "
            f"extreme values in the data{kept}"
        )

    def _interrupt(self) -> NoReturn:
        self._write()
        raise KeyboardInterrupt

    def _show(self, last: bool = False) -> None:
        self.bar.show(self.epoch * self.steps + self.step, self._losses, last=last)

    def _losses(self) -> str:
        begun = max(self.epoch + (self.step > 0), 1)
        history, shown = self.history, [f"epoch {begun:{len(str(self.epochs))}}/{self.epochs}"]
        if history.train:
            shown.append(f"train {history.train[-1]:.4g}")
        if history.validation:
            best = history.validation[history.best_epoch - 1]
            shown.append(f"held out {history.validation[-1]:.4g}")
            shown.append(f"best {best:.4g} in epoch {history.best_epoch}")
        if history.stopped_early:
            shown.append("stopped early")
        return ", ".join(shown)

    def _write_if_due(self) -> None:
        if time.monotonic() - self._written >= self.every:
            self._write()

    def _write(self, finished: bool = False) -> None:
        """All that the run is, to its file; of a finished one just the result."""
        now = time.monotonic()
        self.history.seconds += now - self._clock
        self._clock = now
        if self.path is None or self.group.rank != 0:
            return
        stored = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        state: dict[str, Any] = {
            "identity": self.identity,
            "finished": finished,
            "history": self.history.describe(),
        }
        if not finished:
            stored |= {f"best.{name}": value for name, value in self.best.items()}
            state |= {"epoch": self.epoch, "step": self.step, "running": self.running}
            state["optimizer"] = _pack(self.optimizer.state_dict(), "optimizer", stored)
            state["schedule"] = _pack(self.schedule.state_dict(), "schedule", stored)
        write_tensors(self.path, stored, state, kind="training")
        self._written = time.monotonic()  # after the writing: a slow disk must not stop the work

    def _resume(self, path: Path) -> bool:
        """Goes back to where the file is; whether the run is finished."""
        stored = read_tensors(path, kind="training")
        state, weights = stored.metadata, under("model.", stored.tensors)
        wrong = misfit(weights, self.model)
        if wrong:
            raise IT3Error(f"{path} is of another network ({wrong}): name another checkpoint file")
        before, now = state["identity"], json.loads(json.dumps(self.identity))
        changed = [
            f"{k} was {before.get(k)} and is {v}" for k, v in now.items() if before.get(k) != v
        ]
        if changed:
            raise IT3Error(
                f"{path} is of another run ({'; '.join(changed)}): give the arguments of that run "
                f"to go on with it, or name another checkpoint file"
            )
        self.model.load_state_dict(weights)
        self.history = History(**state["history"])
        if state["finished"]:
            self.bar.say(f"{path} is finished: nothing to do")
            return True
        self.epoch, self.step, self.running = state["epoch"], state["step"], state["running"]
        self.best = dict(under("best.", stored.tensors))
        self.optimizer.load_state_dict(_unpack(state["optimizer"], stored.tensors))
        self.schedule.load_state_dict(_unpack(state["schedule"], stored.tensors))
        self.bar.say(f"resuming {path} after {self.epoch} epochs and {self.step} steps")
        return False


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
            raise IT3Error(
                f"the loss must be one number, the mean over the batch, but has shape "
                f"{tuple(value.shape)}"
            )
        return value


@dataclass(frozen=True)
class _HeldOut:
    """The mean loss of f(x, neutral) over held-out rows, each process with its part of them."""

    model: nn.Module
    adapter: Adapter
    rows: Rows
    batch_size: int
    workers: int
    seed: int
    group: Group
    device: torch.device

    def __call__(self) -> float:
        own = self.rows.numbers[self.group.rank :: self.group.size]
        numbers = cut(own, self.batch_size) if len(own) else ()
        feed = Batches(self.rows, numbers, ("held out", self.seed, self.group.rank))
        total = 0.0
        for x, y in feed.starting_at(0, self.workers, self.device):
            losses = self.adapter.loss(self.model(x, self.adapter.neutral(x)), y)
            total += float(losses.double().sum())
        return self.group.sum(total)[0] / len(self.rows.numbers)


@contextmanager
def _ctrl_c_after_the_step() -> Iterator[Callable[[], bool]]:
    """Puts ctrl-C off and says whether it was pressed: half a step is nothing to resume from."""
    usual = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if not here or usual is not signal.default_int_handler:  # somebody else's business
        yield lambda: False
        return
    pressed = []

    def note(number: int, frame: object) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, usual)  # the second time it doesn't wait

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, usual)
    if pressed:  # after the last step
        raise KeyboardInterrupt


def _make_schedule(
    schedule: Schedule, optimizer: Optimizer, epochs: int, steps: int
) -> LRScheduler:
    if callable(schedule):
        return schedule(optimizer)
    if schedule == "constant":
        return LambdaLR(optimizer, lambda epoch: 1.0)
    if schedule == "cosine":
        return CosineAnnealingLR(optimizer, epochs)
    if schedule == "onecycle":
        return LambdaLR(optimizer, partial(_one_cycle, total=epochs * steps))
    raise IT3Error(
        f'schedule must be "constant", "cosine", "onecycle" or a factory optimizer → scheduler, '
        f"not {schedule!r}"
    )


def _one_cycle(step: int, total: int) -> float:
    """The share of the largest rate in a step: up in the first fifth, then down to nothing."""
    rise = max(1.0, total / 5)
    return min((step + 1) / rise, max(0.0, (total - step) / max(1.0, total - rise)))


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


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise IT3Error("some of the network's parameters have no values yet: run it once first")
    found = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not found:
        raise IT3Error("no parameter of the network requires a gradient: there is nothing to train")
    return found


def _is_measure(validation: Validation) -> TypeGuard[Callable[[nn.Module], float]]:
    return callable(validation) and not hasattr(validation, "__getitem__")


def _name(value: Any) -> str:
    """What can be told of an argument in a file: names and numbers, no code."""
    if isinstance(value, partial):
        options = [_name(part) for part in value.args]
        options += [f"{name}={_name(part)}" for name, part in value.keywords.items()]
        return f"{_name(value.func)}({', '.join(options)})"
    if value is None or isinstance(value, bool | int | float | str):
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _whole(least: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and not (isinstance(value, int) and value >= least):
            raise IT3Error(f"{name} must be a whole number from {least} on, not {value!r}")


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not (isinstance(value, float | int) and 0 < value < math.inf):
            raise IT3Error(f"{name} must be a positive number, not {value!r}")
