"""What an experiment gives: records, which of its methods plays which part, and trust."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from it3_core.evaluation import Record
from it3_core.files import write_text
from it3_core.tables import BEYOND, averaged, pooled

__all__ = ["Outcome", "Place", "Preset", "Roles"]

_FILE = "outcome.json"

Preset = Literal["quick", "small", "full"]
"""How much to measure: minutes, hours, or all that the paper has."""


@dataclass(frozen=True)
class Place:
    """Where an experiment finds its data, and where it leaves what it makes.

    Attributes:
        preset: how much to measure.
        data: the folder that IT3_DATA names, or None.
        folder: of this experiment; a killed one goes on from what lies there.
        progress: whether to show bars.
    """

    preset: Preset
    data: Path | None
    folder: Path
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

    it3: str = "IT³"
    source: str = "source"
    second: str | None = "second pass"
    online: str | None = "online IT³"
    actmad: str | None = "ActMAD"
    vanilla: str | None = "vanilla net"
    statistics: str | None = None
    auto: str = "IT³ auto"


@dataclass(frozen=True)
class Outcome:
    """What an experiment measured.

    Attributes:
        task: its name.
        records: of `it3_core.evaluation`.
        roles: which method is which.
        same: whether all levels hold the same instances, shifted more and more.
        unit: of the error.
        trust: lines of `it3_core.judging.judge`, each with its seed.
        about: data, network, sizes and seconds.
        mild: records of the same shifts at their mildest, where `records` has the strongest alone.
        memory: of methods, as multiples of a forward pass that keeps what a gradient needs.
    """

    task: str
    records: Sequence[Record]
    roles: Roles
    same: bool
    unit: str
    trust: Sequence[Mapping[str, Any]] = field(default=())
    about: Mapping[str, Any] = field(default_factory=dict)
    mild: Sequence[Record] = field(default=())
    memory: Mapping[str, float] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Keep it in an experiment's folder, for the pages of later runs."""
        write_text(folder / _FILE, json.dumps(asdict(self), ensure_ascii=False))

    @classmethod
    def read(cls, folder: Path) -> Outcome | None:
        """What `write` kept there; None where it kept nothing, or nothing that can be read."""
        try:
            told = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            return cls(**{**told, "roles": Roles(**told["roles"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def beyond(self) -> list[Record]:
        """The records of all shifted levels together."""
        return (averaged if self.same else pooled)(self.records, BEYOND)

    def within(self) -> list[Record]:
        """The records in distribution."""
        return [record for record in self.records if record["in_distribution"]]

    def levels(self) -> list[str]:
        """The shifted levels, from near to far."""
        return list(dict.fromkeys(r["level"] for r in self.records if not r["in_distribution"]))

    def sizes(self, method: str | None) -> list[int | None]:
        """The batch sizes that a method was measured at."""
        found = {r["batch_size"] for r in self.records if r["method"] == method}
        return sorted(found, key=lambda size: size or 0)
