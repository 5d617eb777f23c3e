"""The command `it3-vision`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from it3_core.experiment import verbs
from it3_vision import __version__
from it3_vision.age.cli import app as age
from it3_vision.classify.cli import app as classify
from it3_vision.classify.cli import demo
from it3_vision.corrupting import corrupt
from it3_vision.roads.cli import app as roads

app = verbs.application(
    "it3-vision",
    "IT3 (idempotent test-time training) for images: corrupted ones, faces of other ages, roads "
    "from the air.\n\nExample: it3-vision demo",
    f"it3-vision {__version__}",
)
app.command(classify)
app.command(age)
app.command(roads)
app.command(corrupt)
app.command(demo)  # of classify


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for what the user can mend."""
    return verbs.run(app, "it3-vision", arguments)


if __name__ == "__main__":
    sys.exit(main())
