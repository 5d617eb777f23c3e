#!/usr/bin/env python3
"""Which of our files a command really passes through, in the order in which they are entered.

    python tools/trace.py wings predict EXPERIMENT FILE...
    python tools/trace.py classify evaluate EXPERIMENT --data DATA

Calls the command in this process and lists each file of the packages in which a function was
called, not those that were only imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from traceback import walk_stack
from types import FrameType
from typing import Any


def trace(call: Callable[[], Any]) -> list[str]:
    """The files of the packages in which functions were called, in the order of the first call."""
    found: dict[str, None] = {}

    def seen(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        ours = "/src/it3_" in name and name.endswith(".py")  # and no template
        if event == "call" and ours and not importing(frame):
            found.setdefault(name.partition("/src/")[2])

    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def importing(frame: FrameType) -> bool:
    """Whether this is run because one of our modules is being imported."""
    codes = [one.f_code for one, _ in walk_stack(frame)]
    return any(one.co_name == "<module>" and "/src/it3_" in one.co_filename for one in codes)


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__)
        return 2
    package = "it3_aero" if arguments[0] in ("wings", "cars") else "it3_vision"
    command = import_module(f"{package}.__main__").main
    files = trace(lambda: command(arguments))
    print(f"\n{len(files)} files:", *files, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
