"""One training run, from wherever it is to its end: steps, epochs, early stopping, resuming.

Whatever is random in a step (the order of the rows, augmentation, dropout, noise) is drawn from a
seed of its own, made of `seed`, epoch and step. So a run that goes on in the middle of an epoch
needs no generator's state to end, bit for bit, where it would have ended uninterrupted.
"""

from __future__ import annotations

import copy
import gc
import itertools
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from it3_core.batching import ON_META
from it3_core.errors import IT3Error, IT3Warning
from it3_core.io.files import remove_leftovers
from it3_core.io.progress import Progress
from it3_core.io.tensors import under
from it3_core.model.networks import put_weights, weights_of
from it3_core.training.data import Batches, Rows, cut, reseed
from it3_core.training.resume import History, ResumeFile, Stateful, restore

_groups = itertools.count()
_failed: list[Any] = []


@dataclass
class Trainer:
    """A run: its arguments, as `fit` describes them, and how far it has come."""

    model: nn.Module
    objective: nn.Module
    rows: Rows
    check: Callable[[Any, Tensor], None] | None  # of the first batch, before it is trained on
    validate: Callable[[], float] | None
    parameters: list[nn.Parameter]
    frozen: list[nn.Module]  # layers that run as at test time
    optimizer: Optimizer
    scheduler: LRScheduler
    every_step: bool  # the learning rate moves with every step, and not once an epoch
    epochs: int
    batch_size: int
    clip: float | None
    patience: int | None
    workers: int
    seed: int
    file: ResumeFile | None
    every: float
    group: ProcessGroup
    device: torch.device
    interrupted: Callable[[], bool]
    steps: int  # in an epoch
    bar: Progress

    history: History = field(default_factory=History)
    epoch: int = 0
    step: int = 0  # within the epoch
    running: float = 0.0  # sum of the losses of this epoch's rows so far
    best: dict[str, Any] = field(default_factory=dict)

    def go(self) -> History:
        """From wherever the run is to its end."""
        file = self.file
        finished = file is not None and file.path.exists() and self._resume(file)
        self.group.check_alike(
            -1 if finished else self.epoch * self.steps + self.step,
            f"not all processes see the same checkpoint {file and file.path}: put it in a shared "
            f"folder",
        )
        if finished:
            return self.history
        self._clock = self._written = time.monotonic()
        if file is not None and self.group.rank == 0:
            remove_leftovers(file.path)
        self._write()  # now, so that a path that can't be written fails before any work is done
        self.objective = self.group.wrap(self.objective)
        while self.epoch < self.epochs and not self.history.stopped_early:
            interrupted = self._train()
            self._end_epoch()
            if interrupted:
                self._interrupt()
            self._write_if_due()
        if self.best:
            put_weights(self.model, self.best)
        try:
            self._write(finished=True)
        except IT3Error as problem:  # days of work are not lost for a full disk at their end
            warnings.warn(
                f"the network is trained, but its checkpoint can't be finished, so save() it "
                f"yourself: {problem}",
                IT3Warning,
                stacklevel=3,
            )
        self._show(last=True)
        return self.history

    def _train(self) -> bool:
        """The rest of this epoch; whether somebody pressed ctrl-C in its last step."""
        batches = cut(self.rows.shuffled("order", self.seed, self.epoch), self.batch_size)
        parts = [self.group.part(batch) for batch in batches]
        key = ("batch", self.seed, self.epoch, self.group.rank)
        made = Batches(self.rows, [part for part, _ in parts], key)
        interrupted = False
        self.model.train()
        for layer in self.frozen:
            layer.eval()
        for x, y in made.starting_at(self.step, self.workers, self.device):
            if self.check is not None:
                self.check(x, y)
                self.check = None
            reseed("step", self.seed, self.epoch, self.step, self.group.rank)
            value, interrupted = self._step(x, y, parts[self.step][1])
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
            what = "loss" if not math.isfinite(value) else "gradient"
            self._give_up(what, f"in epoch {self.epoch + 1}, step {self.step + 1}")
        if self.clip is not None:
            clip_grads_with_norm_(self.parameters, self.clip, norm)
        self.optimizer.step()
        if self.every_step:
            self.scheduler.step()
        return value, bool(interrupted)

    def _end_epoch(self) -> None:
        """Validation loss, best weights, early stopping, learning rate."""
        self.group.align(self.model)
        history, loss = self.history, self.running / len(self.rows.numbers)
        value = loss
        if self.validate is not None:
            self.model.eval()
            reseed("judge", self.seed)
            with torch.no_grad():
                value = self.group.first(float(self.validate()))
            if not math.isfinite(value):
                self._give_up("validation loss", f"after epoch {self.epoch + 1}")
            history.validation.append(value)
        history.train.append(loss)
        self.epoch, self.step, self.running = self.epoch + 1, 0, 0.0
        if self.validate is None:
            history.best_epoch = self.epoch
        elif not self.best or value < history.validation[history.best_epoch - 1]:
            history.best_epoch = self.epoch
            self.best = copy.deepcopy(weights_of(self.model))
        elif self.patience is not None and self.epoch - history.best_epoch >= self.patience:
            history.stopped_early = True
        if not self.every_step and self.epoch < self.epochs:
            self.scheduler.step()
        self._show()

    def _give_up(self, what: str, when: str) -> NoReturn:
        kept = "" if self.file is None else f"; {self.file.path} holds an earlier, good state"
        raise IT3Error(
            f"the {what} is not finite {when}: lower lr (it is "
            f"{float(self.optimizer.param_groups[0]['lr']):g}), set clip=1.0, or look for extreme "
            f"values in the data{kept}"
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
            shown.append(f"validation {history.validation[-1]:.4g}")
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
        if self.file is None or self.group.rank != 0:
            return
        state = {"finished": finished, "history": self.history.describe()}
        if finished:
            self.file.write(self.model, state)
        else:
            state |= {"epoch": self.epoch, "step": self.step, "running": self.running}
            self.file.write(self.model, state, self.best, **self._parts())
        self._written = time.monotonic()  # after the writing: a slow disk must not stop the work

    def _resume(self, file: ResumeFile) -> bool:
        """Goes back to where the file is; whether the run is finished."""
        stored = file.read(self.model)
        state = stored.metadata
        put_weights(self.model, under("model.", stored.tensors))
        self.history = state.history
        if state.finished:
            self.bar.say(f"{file.path} is finished: nothing to do")
            return True
        self.epoch, self.step, self.running = state.epoch, state.step, state.running
        self.best = under("best.", stored.tensors)
        restore(stored, **self._parts())
        self.bar.say(f"resuming {file.path} after {self.epoch} epochs and {self.step} steps")
        return False

    def _parts(self) -> dict[str, Stateful]:
        return {"optimizer": self.optimizer, "schedule": self.scheduler}


@contextmanager
def ctrl_c_after_the_step() -> Iterator[Callable[[], bool]]:
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


def make_schedule(name: str, optimizer: Optimizer, epochs: int, steps: int) -> LRScheduler:
    """The learning rate's schedule, with so many steps in an epoch."""
    if name == "constant":
        return LambdaLR(optimizer, lambda epoch: 1.0)
    if name == "cosine":
        return CosineAnnealingLR(optimizer, epochs)
    if name == "onecycle":
        return LambdaLR(optimizer, partial(_one_cycle, total=epochs * steps))
    if name == "step":
        return LambdaLR(optimizer, lambda epoch: 1.0 if 2 * epoch < epochs else 0.1)
    if name == "step30":
        return LambdaLR(optimizer, lambda epoch: 0.1 ** (epoch // 30))
    known = '"constant", "cosine", "onecycle", "step" or "step30"'
    raise IT3Error(f"schedule must be {known}, not {name!r}")


def _one_cycle(step: int, total: int) -> float:
    """The fraction of the largest rate in a step: up in the first fifth, then down to nothing."""
    rise = max(1.0, total / 5)
    return min((step + 1) / rise, max(0.0, (total - step) / max(1.0, total - rise)))


class ProcessGroup:
    """The processes of one training: one, or as many as `torchrun` started."""

    def __init__(self, device: torch.device) -> None:
        several = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if several else 0
        self.size = dist.get_world_size() if several else 1
        self._device = device

    def part(self, rows: Tensor) -> tuple[Tensor, float]:
        """This process's part of a batch, and its weight in a mean over the processes.

        With these weights that mean is the mean over the batch, though parts differ in size. Where
        there are fewer rows than processes, some get a row that counts for nothing.
        """
        part = rows.tensor_split(self.size)[self.rank]
        weight = len(part) * self.size / len(rows)
        return (part if len(part) else rows[:1]), weight

    def sum(self, *values: float) -> list[float]:
        """Each value, added up over the processes."""
        if self.size == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(shared)
        return [float(value) for value in shared]

    def first(self, value: float) -> float:
        """The first process's value, so that all decide alike."""
        return self.sum(value if self.rank == 0 else 0.0)[0]

    def check_alike(self, value: int, problem: str) -> None:
        """Raises in all processes where `value` isn't the same in all. Waits for everyone."""
        mean = self.sum(float(value))[0] / self.size
        if self.sum(float(value != mean))[0]:
            raise IT3Error(problem)

    def align(self, model: nn.Module) -> None:
        """Gives all the first one's buffers: batch norm's statistics differ, weights don't."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, with gradients that are means over the processes."""
        if self.size == 1:
            return module
        return nn.parallel.DistributedDataParallel(module)


@contextmanager
def processes(device: torch.device) -> Iterator[ProcessGroup]:
    """Joins the processes that `torchrun` started; a process group that exists is used as it is."""
    started = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    ours = started and dist.is_available() and not dist.is_initialized()
    if ours:
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        store, rank, size = _meeting_point()
        # A second group would find the first one's addresses under the same names, and hang.
        named = PrefixStore(f"it3-{next(_groups)}", store)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=named, rank=rank, world_size=size)
    group = ProcessGroup(device)
    try:
        yield group
    except BaseException:
        # The traceback holds DDP, so what is done below comes too early.
        if group.size > 1:
            _failed.append(dist.group.WORLD)
        raise
    finally:
        if group.size > 1:
            # DDP is part of a cycle. Were it the last to let go of the process group, then that
            # one's destructor would wait, holding Python's lock, for a thread that needs the lock.
            gc.collect()
        if ours:
            dist.destroy_process_group()


def device_of(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Where to train: the model's device, or the one asked for; "cuda" is each process's own."""
    if any(weight.is_meta for weight in model.parameters()):
        raise IT3Error(ON_META.format("network"))
    if device is None:
        return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    device = torch.device(device)
    if device == torch.device("cuda") and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


@cache
def _meeting_point() -> tuple[Any, int, int]:
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(rendezvous("env://"))
    return store, rank, size
