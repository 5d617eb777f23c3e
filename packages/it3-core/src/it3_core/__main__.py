"""The command line: `it3-core demo`, `it3-core inspect FILE`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from it3_core.errors import IT3Error

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, or 2 for what the user can mend.

    Example:
        >>> main(["inspect", "missing.safetensors"])
        2
    """
    parser = argparse.ArgumentParser(
        prog="it3-core",
        description="IT³, idempotent test-time training: see it work, or look into a checkpoint.",
        epilog="The library is used from Python: see the README's example.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train, tune and evaluate on a toy problem, in about half a minute",
        description="Trains a small network on a toy problem, asks it about inputs beyond its "
        "training data, and compares what each method answers.",
    )
    demo.add_argument("--seed", type=int, default=0, help="of data and training (default 0)")
    demo.add_argument("--out", type=Path, help="folder for the trained network and a picture")
    demo.add_argument("--quiet", action="store_true", help="no progress bars")
    inspect = commands.add_parser(
        "inspect",
        help="say what a checkpoint holds",
        description="Prints what is in a checkpoint: versions, adapter, trust, what was tuned.",
    )
    inspect.add_argument("file", type=Path, help="a .safetensors file written by an it3 package")
    options = parser.parse_args(arguments)
    if options.version:
        from it3_core import __version__

        print(f"it3-core {__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    try:
        # Imported here, so that --help does not wait for torch.
        if options.command == "demo":
            import torch

            from it3_core.demo import run_demo

            torch.set_num_threads(1)  # the network is small: threads would wait for each other
            print(run_demo(options.seed, options.out, progress=not options.quiet))
        else:
            from it3_core.checkpoint import load

            print(load(options.file).summary())
    except (IT3Error, OSError) as problem:
        print(f"it3-core: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("it3-core: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
