"""What an experiment gives: records, which of its methods plays which part, and trust."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from it3_core import IT3Error
from it3_core.evaluation.records import Record
from it3_core.experiment.tables import pooled
from it3_core.io.files import write_json
from it3_core.io.typed import read_json

_FILE = "outcome.json"

Preset = Literal["quick", "small", "full"]
"""How much to measure: minutes, hours, or all that the paper has."""


@dataclass(frozen=True)
class Place:
    """Where an experiment finds its data, and where it leaves what it makes."""

    preset: Preset  # how much to measure
    data: Path | None  # the folder that IT3_DATA names
    folder: Path  # of this experiment; a killed one goes on from what lies there
    progress: bool = True

    def of(self, quick: Any, small: Any, full: Any) -> Any:
        """The value for this preset."""
        return {"quick": quick, "small": small, "full": full}[self.preset]

    def given(self, *parts: str) -> Path | None:
        """A file or folder of the data, if it is there."""
        path = None if self.data is None else self.data.joinpath(*parts)
        return path if path is not None and path.exists() else None


@dataclass(frozen=True)
class Roles:
    """The names that a task's records have for what every task has; None where it has none."""

    it3: str = "IT³ (paper)"
    source: str = "source"
    online: str | None = "online IT³ (paper)"
    actmad: str | None = "ActMAD"
    vanilla: str | None = "vanilla net"
    statistics: str | None = None
    auto: str = "IT³ auto"


@dataclass(frozen=True)
class Outcome:
    """What an experiment measured."""

    task: str
    records: list[Record]
    roles: Roles  # which method is which
    same: bool  # whether all levels hold the same instances, shifted more and more
    unit: str  # of the error
    # Lines of `it3_core.experiment.statistics.assess_scores`, each with its seed.
    trust: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    # Of the same shifts at their mildest, where `records` has the strongest alone.
    mild: list[Record] = field(default_factory=list)
    # Of methods, as multiples of a forward pass that keeps what a gradient needs.
    memory: dict[str, float] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Keeps it in an experiment's folder, for the pages of later runs."""
        write_json(folder / _FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Outcome | None:
        """What `write` kept there; None where it kept nothing, or nothing that can be read."""
        try:
            return read_json(folder / _FILE, cls)
        except IT3Error:
            return None

    def shifted(self) -> list[Record]:
        """The records of all shifted levels together."""
        return pooled(self.records, same_instances=self.same)

    def in_distribution(self) -> list[Record]:
        """The records in distribution."""
        return [record for record in self.records if record["in_distribution"]]

    def levels(self) -> list[str]:
        """The shifted levels, from near to far."""
        return list(dict.fromkeys(r["level"] for r in self.records if not r["in_distribution"]))

    def sizes(self, method: str | None) -> list[int | None]:
        """The batch sizes that a method was measured at."""
        found = {r["batch_size"] for r in self.records if r["method"] == method}
        return sorted(found, key=lambda size: size or 0)
