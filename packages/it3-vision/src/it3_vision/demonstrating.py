"""What every demonstration leaves, and what its command says at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from it3_core.tables import markdown_table
from it3_vision.runs import TrainedRun

__all__ = ["Demo"]

R = TypeVar("R", bound=TrainedRun[Any])
E = TypeVar("E")


@dataclass(frozen=True)
class Demo(Generic[R, E]):
    """What a demonstration made: a RUN, its evaluation, and the page about both."""

    run: R
    evaluation: E
    report: Path

    def tell(self, table: Sequence[Sequence[str]]) -> None:
        """Prints a table of the evaluation, and where the page is."""
        print(markdown_table(table))
        print(f"\nreport: {self.report}")
