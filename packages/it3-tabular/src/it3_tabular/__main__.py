"""The command `it3-tabular`; what it needs besides the estimators comes with `it3-tabular[cli]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

_LIBRARIES = ("cyclopts", "jinja2", "matplotlib", "pandas", "pyarrow", "rich", "scipy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        advice = 'pip install "it3-tabular[cli]"'
        print(f"it3-tabular: the command needs {', '.join(missing)}: {advice}", file=sys.stderr)
        return 2
    from it3_core.experiment.verbs import run
    from it3_tabular.cli import app

    return run(app, "it3-tabular", arguments)


if __name__ == "__main__":
    sys.exit(main())
