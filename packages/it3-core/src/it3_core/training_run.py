"""One training run, from wherever it is to its end: steps, epochs, early stopping, resuming.

Whatever is random in a step (the order of the rows, augmentation, dropout, noise) is drawn from a
seed of its own, made of `seed`, epoch and step. So a run that goes on in the middle of an epoch
needs no generator's state to end, bit for bit, where it would have ended uninterrupted.
"""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from it3_core.errors import IT3Error
from it3_core.feeding import Batches, Rows, cut, reseed
from it3_core.processes import Group
from it3_core.progress import Progress
from it3_core.resuming import RunFile, Stateful, restore
from it3_core.schedules import Course
from it3_core.tensorfile import remove_leftovers, under

__all__ = ["History", "Run", "ctrl_c_after_the_step"]


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


@dataclass
class Run:
    """A run: what it was asked for, and how far it has come. `fit` makes it, and tells of these."""

    model: nn.Module
    objective: nn.Module
    rows: Rows
    judge: Callable[[], float] | None
    parameters: list[nn.Parameter]
    optimizer: Optimizer
    course: Course
    epochs: int
    batch_size: int
    clip: float | None
    patience: int | None
    workers: int
    seed: int
    file: RunFile | None
    every: float
    group: Group
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
            what = "loss" if not math.isfinite(value) else "gradient"
            self._give_up(what, f"in epoch {self.epoch + 1}, step {self.step + 1}")
        if self.clip is not None:
            clip_grads_with_norm_(self.parameters, self.clip, norm)
        self.optimizer.step()
        self.course.after_step()
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
                self._give_up("held-out loss", f"after epoch {self.epoch + 1}")
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
        self.course.after_epoch(self.epoch, value)
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
        if self.file is None or self.group.rank != 0:
            return
        state = {"finished": finished, "history": self.history.describe()}
        if finished:
            self.file.write(self.model, state)
        else:
            state |= {"epoch": self.epoch, "step": self.step, "running": self.running}
            self.file.write(self.model, state, self.best, **self._parts())
        self._written = time.monotonic()  # after the writing: a slow disk must not stop the work

    def _resume(self, file: RunFile) -> bool:
        """Goes back to where the file is; whether the run is finished."""
        stored = file.read(self.model)
        state = stored.metadata
        self.model.load_state_dict(under("model.", stored.tensors))
        self.history = History(**state["history"])
        if state["finished"]:
            self.bar.say(f"{file.path} is finished: nothing to do")
            return True
        self.epoch, self.step, self.running = state["epoch"], state["step"], state["running"]
        self.best = under("best.", stored.tensors)
        restore(stored, **self._parts())
        self.bar.say(f"resuming {file.path} after {self.epoch} epochs and {self.step} steps")
        return False

    def _parts(self) -> dict[str, Stateful]:
        return {"optimizer": self.optimizer, "schedule": self.course.scheduler}


@contextmanager
def ctrl_c_after_the_step() -> Iterator[Callable[[], bool]]:
    """Puts ctrl-C off and says whether it was pressed: half a step is nothing to resume from.

    Example:
        >>> with ctrl_c_after_the_step() as pressed:
        ...     pressed()
        False
    """
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
