"""The command `it3-aero`."""

import argparse
import sys
from collections.abc import Sequence

from it3_aero import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="it3-aero",
        description=(
            "IT3 (idempotent test-time training) for aerodynamics: shapes such as wings and cars."
        ),
        epilog=(
            "This version has no sub-commands yet. The methods themselves, and a demonstration, "
            "are in it3-core: try 'it3-core --help'."
        ),
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.parse_args(argv)
    parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
