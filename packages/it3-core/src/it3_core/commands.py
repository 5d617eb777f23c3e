"""What the packages' commands have in common: how they end, and how they say their version.

Nothing here imports typer, which this package does not need.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from it3_core.errors import IT3Error, IT3Warning

__all__ = ["exit_code", "saying"]


def exit_code(app: Callable[..., object], name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 2, and one sentence, for what a user can mend.

    Args:
        app: an app of typer's, or all that takes `args` and `prog_name` as those do.
        name: of the command.
        arguments: this process's if not given.

    Example:
        >>> exit_code(lambda args, prog_name: sys.exit(len(args)), "it3", ["one", "two", "three"])
        3
    """
    try:
        with _plain_warnings(name):
            app(args=None if arguments is None else list(arguments), prog_name=name)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except IT3Error as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        return 2
    return 0


@contextmanager
def _plain_warnings(name: str) -> Iterator[None]:
    """Our own warnings are a line of text for as long, without the place in the source code."""
    usual = warnings.formatwarning

    def plain(
        message: Warning | str, category: type[Warning], file: str, number: int, line: str | None
    ) -> str:
        if issubclass(category, IT3Warning):
            return f"{name}: {message}\n"
        return usual(message, category, file, number, line)

    warnings.formatwarning = plain  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.formatwarning = usual


def saying(line: str) -> Callable[[bool], None]:
    """What an option such as `--version` calls: it says a line and ends the command.

    Example:
        >>> saying("it3-core 1.0")(False)
        >>> saying("it3-core 1.0")(True)
        Traceback (most recent call last):
        ...
        SystemExit
    """

    def say(asked: bool) -> None:
        if asked:
            print(line)
            raise SystemExit

    return say
