"""How generation is going: a bar on a terminal, now and then a line where stderr is a file."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["SampleProgress"]

_LINE = 30.0  # seconds between two lines in a log


class SampleProgress:
    """Samples done, how many a second, how many of them failed, and the time that is left.

    Args:
        what: they are called, such as "profiles".
        total: how many there will be.
        done: how many there were before.
        shown: False keeps quiet.

    Example:
        >>> with SampleProgress("profiles", total=3, done=1, shown=False) as bar:
        ...     bar.add(failed=False)
        ...     bar.add(failed=True)
        >>> bar.done, bar.failed
        (3, 1)
    """

    def __init__(self, what: str, total: int, done: int = 0, shown: bool = True) -> None:
        self.what, self.total, self.done, self.failed = what, total, done, 0
        self._before = done
        self._shown = shown
        self._console = Console(stderr=True)
        self._began = self._last = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> SampleProgress:
        if self._shown and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                self.what, total=self.total, completed=self.done, note=self.note()
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown:
            self._line()

    def add(self, failed: bool) -> None:
        """One more sample."""
        self.done += 1
        self.failed += failed
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=self.note())
        elif self._shown and time.monotonic() - self._last > _LINE:
            self._last = time.monotonic()
            self._line()

    def note(self) -> str:
        """Rate and failures."""
        seconds = time.monotonic() - self._began
        rate = (self.done - self._before) / seconds if seconds > 0 else 0.0
        return f"{rate:.1f}/s, {self.failed} failed"

    def _line(self) -> None:
        line = f"{self.what}: {self.done}/{self.total}, {self.note()}"
        self._console.print(line, highlight=False, soft_wrap=True)
