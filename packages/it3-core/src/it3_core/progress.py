"""How training is going: a bar on a terminal, now and then a line where stderr is a file."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

__all__ = ["Progress"]

_BAR = 20
_REDRAW = 0.1  # seconds between two drawings of the bar
_LINE = 30.0  # seconds between two lines in a log


class Progress:
    """Epoch, losses and the time that is left, on stderr.

    Args:
        epochs: how many there will be, unless training stops early.
        steps: steps in an epoch.
        shown: False keeps quiet.

    Example:
        >>> bar = Progress(epochs=3, steps=10, shown=False)
        >>> bar.show(1, 5, lambda: "train 0.25")
        >>> bar.line(1, 5, "train 0.25")
        'epoch 2/3 [##########----------] train 0.25'
        >>> bar.close()
    """

    def __init__(self, epochs: int, steps: int, shown: bool = True) -> None:
        self._epochs = epochs
        self._steps = steps
        self._shown = shown
        self._live = shown and sys.stderr.isatty()
        self._drawn = False
        self._last = float("-inf")
        self._began: tuple[float, int] | None = None

    def show(self, epoch: int, step: int, losses: Callable[[], str], last: bool = False) -> None:
        """Where training is: `step` steps into `epoch`, both counted from 0."""
        if not self._shown:
            return
        now = time.monotonic()
        if self._began is None:
            self._began = now, epoch * self._steps + step
        due = now - self._last >= (_REDRAW if self._live else _LINE)
        if not (due or last):
            return
        self._last = now
        text = self.line(epoch, step, losses()) + self._left(now, epoch * self._steps + step)
        if self._live:
            width = shutil.get_terminal_size().columns
            print(f"\r{text[: width - 1]}\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn = True
        else:
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._shown:
            print(f"\r{text}\x1b[K" if self._live else text, file=sys.stderr, flush=True)

    def line(self, epoch: int, step: int, losses: str) -> str:
        """The line without the time."""
        number = f"{min(epoch + 1, self._epochs):{len(str(self._epochs))}}/{self._epochs}"
        full = round(_BAR * step / self._steps) if epoch < self._epochs else _BAR
        return f"epoch {number} [{'#' * full}{'-' * (_BAR - full)}] {losses}"

    def close(self) -> None:
        """Leaves the last line on the terminal and goes to the next."""
        if self._drawn:
            print(file=sys.stderr, flush=True)
        self._drawn = False

    def _left(self, now: float, done: int) -> str:
        assert self._began is not None
        then, before = self._began
        if done <= before:
            return ""
        seconds = (now - then) / (done - before) * (self._epochs * self._steps - done)
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f", {hours}:{minutes:02}:{seconds:02} left"
