"""The command `it3-aero`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from it3_aero import __version__
from it3_aero.cars.cli import app as cars
from it3_aero.wings.cli import app as wings
from it3_core.experiment.verbs import application, run

app = application(
    "it3-aero",
    "IT3 (idempotent test-time training) for aerodynamics: shapes such as wings and cars.\n\n"
    "Example: it3-aero wings demo",
    f"it3-aero {__version__}",
)
app.command(wings)
app.command(cars)


@app.command
def doctor() -> int:
    """Say what is installed, try it on a NACA 0012, and say how to get the rest.

    Exits with 1 if no solver works.

    Example: it3-aero doctor
    """
    from it3_aero.doctor import examine

    works = False
    for finding in examine():
        print(finding)
        works |= finding.solver and finding.works
    return 0 if works else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for what the user can mend."""
    return run(app, "it3-aero", argv)


if __name__ == "__main__":
    sys.exit(main())
