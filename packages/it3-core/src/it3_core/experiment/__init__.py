"""The one pipeline: train, evaluate, predict, report as plain functions on values; names no task.

Imports nothing of ours, so that a command's `--help` loads neither torch nor pandas. Its libraries
come with the extra `it3-core[experiment]`.
"""

from typing import Literal

Adapt = Literal["auto", "instance", "batch", "online", "statistics", "none"]
"""The method chosen by tuning; IT³ on each input, on batches, on a stream; statistics; nothing."""
