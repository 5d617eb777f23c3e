"""The paper's figure on faces: every method on younger and older ones, beside doing nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from it3_core import IT3, IT3Error, Source
from it3_core.batching import batches
from it3_core.evaluation import Record, read_records, write_records
from it3_core.files import make_folder, write_json, write_text
from it3_core.metrics import correlation
from it3_core.summary import Row, markdown, summarise
from it3_core.tables import BEYOND, markdown_table, pooled
from it3_core.tensorfile import digest
from it3_vision.age.faces import Interval, set_apart
from it3_vision.age.lineup import ONCE, STREAMS, lineup
from it3_vision.age.runs import Run
from it3_vision.comparing import against, compare, finite, memories, read_summary, separation
from it3_vision.data import ImageSet
from it3_vision.lineup import paper_step

__all__ = ["OLDER", "YOUNGER", "Evaluation", "Levels", "evaluate_run", "load_evaluation"]

YOUNGER, OLDER = "all younger", "all older"
"""The levels that join all levels of a side."""

SHOWN = 8
"""Faces of a level that are answered for by name."""


@dataclass(frozen=True)
class Levels:
    """The faces to test on, by level, the ages that were trained on first.

    Attributes:
        parts: the faces of each level, in memory.
        bad: what could not be read.
    """

    parts: Mapping[str, ImageSet]
    bad: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        run: Run,
        faces: ImageSet,
        edges: tuple[int, ...] = (10, 20),
        *,
        most: int = 300,
        seed: int = 0,
        everything: bool = False,
    ) -> Levels:
        """The levels of some faces, for this RUN.

        Args:
            run: says which ages it was trained on, and which faces it set apart.
            faces: of all ages.
            edges: the distances from the interval, in years, where levels end.
            most: faces of a level at most, drawn with `seed`.
            seed: of the draw.
            everything: whether to test on all faces of the trained ages. By default these are
                only the ones that training set apart.
        """
        interval = Interval(run.interval.low, run.interval.high, edges)
        usable = ~interval.inside(faces.labels)
        usable |= everything or set_apart(faces.names, run.tested)
        faces = faces.take(usable)
        parts, bad = {}, []
        for name, rows in interval.levels(faces.labels).items():
            some = faces.take(rows).sample(min(most, len(rows)), seed)
            parts[name], problems = some.load(run.prepare.size)
            bad += [str(problem) for problem in problems]
        found = cls({name: part for name, part in parts.items() if len(part)}, tuple(bad))
        if interval.name not in found.parts or len(found.parts) < 2:
            there = ", ".join(f"{len(part)} of {name}" for name, part in found.parts.items())
            raise IT3Error(
                f"testing needs faces of {interval.name} years that training did not see, and "
                f"younger or older ones; there are {there or 'none'}"
            )
        return found

    @property
    def within(self) -> str:
        """The name of the level without a shift."""
        return next(iter(self.parts))

    def load(self, run: Run, name: str) -> tuple[Tensor, Tensor]:
        """The faces of a level, ready for the network, and their ages."""
        part = self.parts[name]
        ages = torch.from_numpy(part.labels).float()
        return run.tensor(part.batch(slice(None), run.prepare.size)), ages.to(run.device)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, as it lies in its folder.

    Attributes:
        folder: where `records.jsonl`, `table.md`, `summary.json` and the pictures are.
        records: of `it3_core.evaluation`; errors are in years.
        rows: the summary of the records, with joined levels for younger, older and all of them.
        numbers: trust, memory, settings and data, as JSON.
        samples: a line for some faces: level, name, age, answers, percentile.
    """

    folder: Path
    records: Sequence[Record]
    rows: Sequence[Row]
    numbers: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def levels(self) -> list[str]:
        """The levels' names, the trained ages first."""
        return list(dict.fromkeys(record["level"] for record in self.records))

    def summary(self) -> list[list[str]]:
        """A line a method: mean error, and against the source on either side, with intervals."""
        within = self.levels[0]
        sides = [side for side in (YOUNGER, OLDER) if any(r["level"] == side for r in self.rows)]
        header = ["method", "batch", within, *(side.split()[1] for side in sides)]
        header += [f"{side.split()[1]}, against source" for side in sides]
        lines = [[*header, f"{within}, against source", "cost"]]
        cells = self._cells()
        for method, size in self._series():
            found = [cells.get((level, method, size)) for level in (within, *sides)]
            changes = [against(row, 2) for row in (*found[1:], found[0])]
            cost = None if found[0] is None else found[0]["cost"]
            lines.append(
                [method, _size(size), *map(_error, found), *changes, f"{cost:.1f}" if cost else ""]
            )
        return lines

    def by_level(self) -> list[list[str]]:
        """A line a method, a column a level: mean error in years."""
        cells, levels = self._cells(), [*self.levels, BEYOND]
        return [["method", "batch", *levels]] + [
            [method, _size(size), *(_error(cells.get((level, method, size))) for level in levels)]
            for method, size in self._series()
        ]

    def _cells(self) -> dict[tuple[str, str, int | None], Row]:
        return {(row["level"], row["method"], row["batch_size"]): row for row in self.rows}

    def _series(self) -> list[tuple[str, int | None]]:
        series = dict.fromkeys((row["method"], row["batch_size"]) for row in self.rows)
        return sorted(series, key=lambda one: one[1] or 0)


def evaluate_run(
    run: Run,
    levels: Levels,
    *,
    out: str | Path | None = None,
    batch_sizes: Sequence[int] = (4, 8, 16),
    only: Sequence[str] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Runs all methods on all levels and writes records, tables and pictures.

    Args:
        run: the trained network.
        levels: the faces to test on.
        out: the folder to write to; `evaluation` in the RUN by default. A killed evaluation
            goes on where it was.
        batch_sizes: how many faces the methods get at a time.
        only: names of methods; all by default. The source is always there.
        progress: whether to show how far it is.
    """
    folder = make_folder(out if out is not None else run.folder / "evaluation")
    compared = compare(
        run,
        partial(lineup, run),
        {name: partial(levels.load, run, name) for name in levels.parts},
        run.adapter.error,
        batch_sizes=batch_sizes,
        in_distribution=levels.within,
        once=ONCE,
        streams=STREAMS,
        path=make_folder(folder / "parts") / f"{_identity(run, levels)}.jsonl",
        only=only,
        progress=progress,
    )
    answers = {name: _answers(run, levels, name, max(batch_sizes)) for name in levels.parts}
    x = levels.load(run, levels.within)[0][: max(batch_sizes)]
    numbers = {
        "settings": compared.settings,
        "memory": memories(run, x, compared.largest),
        "trust": _trust(run, levels, answers),
        "about": run.settings["about"],
        "faces": {name: len(part) for name, part in levels.parts.items()},
        "errors": {
            name: {key: _rounded(found[key]) for key in ("error", "error_after")}
            for name, found in answers.items()
        },
    }
    samples = [line for name in levels.parts for line in _samples(levels, name, answers[name])]
    return _written(Evaluation(folder, compared.records, [], numbers, samples))


def load_evaluation(folder: str | Path) -> Evaluation:
    """Reads what `evaluate_run` wrote.

    Example:
        >>> load_evaluation("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no evaluation: make one with 'it3-vision age ...'
    """
    numbers, samples = read_summary(folder, "age", "numbers", "samples")
    records = read_records(Path(folder) / "records.jsonl")
    return Evaluation(Path(folder), records, _rows(records), numbers, samples)


def _identity(run: Run, levels: Levels) -> str:
    """What records belong to: a file of its own for each network, tuning and test set."""
    tensors = dict(run.model.state_dict())
    for number, part in enumerate(levels.parts.values()):
        tensors[f"labels.{number}"] = torch.from_numpy(part.labels)
        tensors[f"pixels.{number}"] = torch.tensor(part.batch(slice(64), run.prepare.size))
    names = {name: list(part.names) for name, part in levels.parts.items()}
    body = {"tunings": run.settings["tunings"], "names": names}
    if run.vanilla is not None:
        tensors |= {f"vanilla.{name}": v for name, v in run.vanilla.state_dict().items()}
    return digest(tensors, body)[:12]


def _answers(run: Run, levels: Levels, name: str, size: int) -> dict[str, Tensor]:
    """What the network says about each face of a level, before and after."""
    x, age = levels.load(run, name)
    source, method = Source(run.model, run.adapter), run.method(size)
    step = IT3(run.model, run.adapter, **paper_step(run, size, "source"))
    plain = [source(part) for part in batches(x, size)]
    error = torch.cat([one.error_before for one in plain])
    return {
        "age": age,
        "before": torch.cat([one.initial for one in plain]).flatten(),
        "after": torch.cat([method(part).prediction for part in batches(x, size)]).flatten(),
        "error": error,
        "error_after": torch.cat([step(part).error_after for part in batches(x, size)]),
        "percentile": run.trust.percentile(error),
    }


def _trust(run: Run, levels: Levels, answers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    """Does the idempotence error foretell the mistake, and tell the unknown apart?"""
    inside = answers[levels.within]
    beyond = [found for name, found in answers.items() if name != levels.within]
    away = torch.cat([found["error"] for found in beyond])
    error = torch.cat([inside["error"], away])
    mistake = torch.cat([(one["before"] - one["age"]).abs() for one in (inside, *beyond)])
    numbers = {
        "spearman": correlation(error, mistake, "spearman"),
        "spearman_within": correlation(
            inside["error"], (inside["before"] - inside["age"]).abs(), "spearman"
        ),
        "auroc": separation(away, inside["error"]),
        "flagged_within": float(run.trust.flag(inside["error"]).float().mean()),
        "flagged_beyond": float(run.trust.flag(away).float().mean()),
        "bias": {n: float((one["before"] - one["age"]).mean()) for n, one in answers.items()},
    }
    plain: dict[str, Any] = finite(numbers)
    return plain


def _samples(levels: Levels, name: str, found: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    part = levels.parts[name]
    return [
        {
            "level": name,
            "row": row,
            "name": part.names[row],
            **{key: round(float(values[row]), 4) for key, values in found.items()},
        }
        for row in range(min(SHOWN, len(part)))
    ]


def _rows(records: Sequence[Record]) -> list[Row]:
    """The summary, with joined levels for each side and for both."""
    joined = list(pooled(records))
    for side in (YOUNGER, OLDER):
        word = side.split()[1]
        joined += pooled([r for r in records if str(r["level"]).startswith(word)], side)
    return summarise([*records, *joined])


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


def _size(size: int | None) -> str:
    return "" if size is None else str(size)


def _error(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return "failed" if row["error"] is None else f"{row['error']:.2f}"


def _written(found: Evaluation) -> Evaluation:
    from it3_vision.age.pictures import figures

    folder, rows = found.folder, _rows(found.records)
    whole = Evaluation(folder, found.records, rows, found.numbers, found.samples)
    tables = [markdown_table(whole.summary()), markdown_table(whole.by_level()), markdown(rows)]
    write_text(folder / "table.md", "\n\n".join(tables))
    body = {"numbers": dict(found.numbers), "samples": list(found.samples)}
    write_json(folder / "summary.json", body)
    (folder / "records.jsonl").unlink(missing_ok=True)
    write_records(found.records, folder / "records.jsonl")
    for name, figure in figures(whole).items():
        figure.savefig(folder / f"{name}.png", dpi=160)
    return whole
