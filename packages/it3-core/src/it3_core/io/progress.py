"""How far it is: a bar on a terminal, now and then a line where stderr is a file."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

_BAR = 20
_REDRAW = 0.1  # seconds between two drawings of the bar
_LINE = 30.0  # seconds between two lines in a log


class Progress:
    """What is going on, how much of it is done, and the time that is left, on stderr."""

    def __init__(self, total: int, title: str, shown: bool = True) -> None:
        self._total = max(total, 1)
        self._title = title
        self._shown = shown
        self._live = shown and sys.stderr.isatty()
        self._drawn = False
        self._last = float("-inf")
        self._began: tuple[float, int] | None = None

    def show(self, done: int, text: str | Callable[[], str], *, last: bool = False) -> None:
        """So much is done; a text that takes work is made when it is shown, `last` always is."""
        if not self._shown:
            return
        now = time.monotonic()
        if self._began is None:
            self._began = now, done
        if not last and now - self._last < (_REDRAW if self._live else _LINE):
            return
        self._last = now
        line = self.line(done, text() if callable(text) else text) + self._left(now, done)
        if self._live:
            width = shutil.get_terminal_size().columns
            print(f"\r{line[: width - 1]}\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn = True
        else:
            print(line, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._shown:
            print(f"\r{text}\x1b[K" if self._live else text, file=sys.stderr, flush=True)

    def line(self, done: int, text: str) -> str:
        """The line without the time."""
        full = round(_BAR * min(done, self._total) / self._total)
        return f"{self._title} [{'#' * full}{'-' * (_BAR - full)}] {text}"

    def close(self) -> None:
        """Leaves the last line on the terminal and goes to the next."""
        if self._drawn:
            print(file=sys.stderr, flush=True)
        self._drawn = False

    def _left(self, now: float, done: int) -> str:
        assert self._began is not None
        then, before = self._began
        if done <= before or done >= self._total:
            return ""
        seconds = (now - then) / (done - before) * (self._total - done)
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f", {hours}:{minutes:02}:{seconds:02} left"
