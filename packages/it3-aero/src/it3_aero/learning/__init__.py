"""What wings and cars share, from shapes with labels to a network that knows its limits.

A `Task` says what is special about either; training, evaluation, the report, predictions and the
commands live here once.
"""

from it3_aero.learning.task import NetworkSettings, Task

__all__ = ["NetworkSettings", "Task"]
