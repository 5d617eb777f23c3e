"""The paper's tables on images: every method under every corruption, beside doing nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from it3_core import IT3Error, Source
from it3_core.batching import batches
from it3_core.evaluation import Record, read_records, write_records
from it3_core.files import make_folder, write_json, write_text
from it3_core.metrics import correlation
from it3_core.progress import Progress
from it3_core.summary import Row, markdown, summarise
from it3_core.tables import averaged, markdown_table
from it3_core.tensorfile import digest
from it3_vision.classify.lineup import ONCE, lineup
from it3_vision.classify.runs import Run
from it3_vision.comparing import against, compare, finite, memories, read_summary, separation
from it3_vision.corruptions import CORRUPTIONS, benchmark_for, corrupt_all
from it3_vision.data import ImageSet, open_images
from it3_vision.methods.base import entropy

__all__ = ["CLEAN", "Evaluation", "Shifts", "evaluate_run", "load_evaluation"]

CLEAN = "clean"
"""The name of the level without a corruption."""

MEAN = "mean"
"""Of the level that stands for all corruptions of a severity, image by image."""

Level = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Shifts:
    """Test images, and what happens to them.

    Attributes:
        images: the clean ones, labelled by the network's classes.
        corruptions: which.
        severities: from 1 to 5.
        folder: a folder with the corrupted images in CIFAR-10-C's or ImageNet-C's layout; without
            it, they are made here, with `seed`.
        seed: of the corruptions.

    Example:
        >>> import numpy as np
        >>> images = ImageSet.from_array(np.zeros((2, 8, 8, 3), np.uint8), [0, 1])
        >>> Shifts(images, ("fog",), (1, 5)).names()
        ['clean', 'fog 1', 'fog 5']
    """

    images: ImageSet
    corruptions: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = (5,)
    folder: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.corruptions or not self.severities:
            raise IT3Error("name at least one corruption and one severity")

    def names(self) -> list[str]:
        """The levels' names: severity by severity, in the benchmark's order."""
        pairs = [f"{name} {severity}" for severity in self.severities for name in self.corruptions]
        return [CLEAN, *pairs]

    def levels(self, run: Run) -> dict[str, Callable[[], Level]]:
        """What `it3_core.evaluation` wants: each level is made when its turn comes."""
        return {name: partial(self.load, run, name) for name in self.names()}

    def load(self, run: Run, name: str) -> Level:
        """The images of a level, ready for the network, and their labels."""
        pixels = self.pixels(run.prepare.size, name)
        return run.tensor(pixels), torch.from_numpy(self.images.labels).to(run.device)

    def pixels(self, size: int, name: str, most: int | None = None) -> Any:
        """The images of a level, as arrays."""
        if self.folder is not None and name != CLEAN:
            return self._read(name).batch(slice(most), size)
        clean = self.images.batch(slice(most), size)
        if name == CLEAN:
            return clean
        kind, severity = name.split()
        return corrupt_all(
            clean, kind, int(severity), benchmark=benchmark_for(size), seed=self.seed
        )

    def check(self) -> None:
        """Whether the folder holds all that is asked for: now, and not after an hour."""
        if self.folder is not None:
            for name in self.names()[1:]:
                self._read(name)

    def _read(self, name: str) -> ImageSet:
        """Our images in a folder of corrupted ones: the same names, or the same numbers."""
        kind, severity = name.split()
        found = open_images(
            Path(self.folder or ""),
            corruption=kind,
            severity=int(severity),
            classes=self.images.classes,
        )
        places = {text: row for row, text in enumerate(_bare(found))}
        if len(places) < len(found):
            raise IT3Error(
                f"{self.folder}: two images of {name!r} have the same name but for their suffix: "
                f"rename one of them"
            )
        try:
            rows = [places[text] for text in _bare(self.images)]
        except KeyError as problem:
            raise IT3Error(
                f"{self.folder}: the images of {name!r} are not those of the clean set (there is "
                f"no {problem}): corrupt the same images"
            ) from problem
        if list(found.labels[rows]) != list(self.images.labels):
            raise IT3Error(f"{self.folder}: the labels of {name!r} are not those of the clean set")
        return found.take(rows)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, as it lies in its folder.

    Attributes:
        folder: where `records.jsonl`, `table.md`, `summary.json` and the pictures are.
        shifts: corruptions and severities, by name.
        records: of `it3_core.evaluation`; errors are percentages.
        rows: the summary of the records, with a level `mean N` for each severity N.
        numbers: trust, memory, settings and data, as JSON.
        samples: a line for some images: level, name, truth, answers, percentile.
    """

    folder: Path
    shifts: Mapping[str, Any]
    records: Sequence[Record]
    rows: Sequence[Row]
    numbers: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def severities(self) -> list[int]:
        """From mild to strong."""
        return [int(severity) for severity in self.shifts["severities"]]

    def summary(self, severity: int) -> list[list[str]]:
        """A line a method: clean, mean over the corruptions, the change with its interval."""
        return _summary(self.rows, severity, self.numbers["memory"])

    def by_corruption(self, severity: int, batch_size: int) -> list[list[str]]:
        """A line a method, a column a corruption: error in per cent."""
        names = self.shifts["corruptions"]
        header = ["method", CLEAN, *(name.replace("_", " ") for name in names), MEAN]
        levels = [CLEAN, *(f"{name} {severity}" for name in names), f"{MEAN} {severity}"]
        cells = {
            (row["method"], row["level"]): row
            for row in self.rows
            if row["batch_size"] in (None, batch_size)
        }
        methods = dict.fromkeys(method for method, _ in cells)
        lines = [
            [method, *(_percent(cells.get((method, level))) for level in levels)]
            for method in methods
        ]
        return [header, *lines]


def evaluate_run(
    run: Run,
    shifts: Shifts,
    *,
    out: str | Path | None = None,
    batch_sizes: Sequence[int] = (1, 16, 64),
    slow: bool = True,
    only: Sequence[str] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Runs all methods on all levels and writes records, tables and pictures.

    Args:
        run: the trained network.
        shifts: test images and corruptions.
        out: the folder to write to; `evaluation` in the RUN by default. A killed evaluation
            goes on where it was.
        batch_sizes: how many images the methods get at a time.
        slow: whether to have MEMO and TTT, which take many passes for each image.
        only: names of methods; all by default. The source is always there.
        progress: whether to show how far it is.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise IT3Error(f"batch sizes are whole numbers from 1 on, not {list(batch_sizes)}")
    shifts.check()
    folder = make_folder(out if out is not None else run.folder / "evaluation")
    largest = max(batch_sizes)
    compared = compare(
        run,
        lambda size: lineup(run, size, slow=slow and size == largest),
        shifts.levels(run),
        partial(_percent_wrong, run),
        batch_sizes=batch_sizes,
        in_distribution=CLEAN,
        once=ONCE,
        path=make_folder(folder / "parts") / f"{_identity(run, shifts)}.jsonl",
        only=only,
        progress=progress,
    )
    x = run.tensor(shifts.pixels(run.prepare.size, CLEAN, largest))
    trust = _trust(run, shifts, progress)
    numbers = {
        "settings": compared.settings,
        "memory": memories(run, x, compared.largest, alone=("MEMO", "TTT")),
        "trust": trust["numbers"],
        "points": trust["points"],
        "about": run.settings["about"],
        "images": len(shifts.images),
    }
    described = {"corruptions": list(shifts.corruptions), "severities": list(shifts.severities)}
    samples = _samples(run, shifts, largest)
    return _written(Evaluation(folder, described, compared.records, [], numbers, samples))


def load_evaluation(folder: str | Path) -> Evaluation:
    """Reads what `evaluate_run` wrote.

    Example:
        >>> load_evaluation("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no evaluation: make one with 'it3-vision ...'
    """
    shifts, numbers, samples = read_summary(folder, "classify", "shifts", "numbers", "samples")
    place = Path(folder)
    records = read_records(place / "records.jsonl")
    return Evaluation(place, shifts, records, _rows(records, shifts), numbers, samples)


def _percent_wrong(run: Run, output: Tensor, y: Tensor) -> Tensor:
    return 100 * run.adapter.error(output, y)


def _identity(run: Run, shifts: Shifts) -> str:
    """What records belong to: a file of its own for each network, tuning and test set."""
    tensors = dict(run.model.state_dict())
    tensors["labels"] = torch.from_numpy(shifts.images.labels)
    # Other images may have the same names; the first ones give them away.
    tensors["pixels"] = torch.tensor(shifts.pixels(run.prepare.size, CLEAN, 64))
    body = {
        "tunings": run.settings["tunings"],
        "names": list(shifts.images.names),
        "seed": shifts.seed,
        "folder": str(shifts.folder),
    }
    return digest(tensors, body)[:12]


def _trust(run: Run, shifts: Shifts, progress: bool) -> dict[str, Any]:
    """Does the idempotence error foretell accuracy, over batches of 64; and does entropy?"""
    method = Source(run.model, run.adapter)
    found: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    points: list[dict[str, Any]] = []
    names = shifts.names()
    bar = Progress(len(names), "trust", progress)
    for done, name in enumerate(names):
        x, y = shifts.load(run, name)
        parts = []
        for part, labels in zip(batches(x, 64), torch.split(y, 64), strict=True):
            answer = method(part)
            right = 1 - run.adapter.error(answer.initial, labels)
            parts.append((answer.error_before, entropy(answer.initial), right))
            if len(labels) == 64:
                means = [round(float(value.mean()), 6) for value in parts[-1]]
                keys = ("error", "entropy", "accuracy")
                points.append({"level": name, **dict(zip(keys, means, strict=True))})
        columns = list(zip(*parts, strict=True))
        found[name] = (torch.cat(columns[0]), torch.cat(columns[1]), torch.cat(columns[2]))
        bar.show(done + 1, name)
    bar.close()
    error, unsure, right = (torch.cat([one[i] for one in found.values()]) for i in range(3))
    beyond = [one for name, one in found.items() if name != CLEAN]
    numbers: dict[str, Any] = {"batches": len(points)}
    for index, (key, values) in enumerate((("error", error), ("entropy", unsure))):
        over = [point[key] for point in points]
        accuracy = [point["accuracy"] for point in points]
        numbers[key] = {
            "pearson": correlation(over, accuracy) if len(over) > 2 else None,
            "spearman": correlation(values, 1 - right, "spearman"),
            "auroc_wrong": separation(values[right == 0], values[right == 1]),
            "auroc_corrupted": separation(torch.cat([one[index] for one in beyond]),
                                           found[CLEAN][index]),
        }  # fmt: skip
    flagged = run.trust.flag(found[CLEAN][0]).float().mean()
    numbers["flagged_clean"] = float(flagged)
    numbers["flagged_corrupted"] = float(
        run.trust.flag(torch.cat([one[0] for one in beyond])).float().mean()
    )
    return {"numbers": finite(numbers), "points": points}


def _samples(run: Run, shifts: Shifts, size: int) -> list[dict[str, Any]]:
    """What the network says about the first images of each level, before and after."""
    lines = []
    source = Source(run.model, run.adapter)
    for name in shifts.names():
        method = run.method(size)
        x = run.tensor(shifts.pixels(run.prepare.size, name, size))
        plain = source(x)  # as the network is, whatever statistics the method is on
        errors = plain.error_before
        columns = zip(
            plain.initial.softmax(1),
            method(x).prediction.softmax(1),
            errors,
            run.trust.percentile(errors),
            strict=True,
        )
        for row, (before, after, error, percentile) in enumerate(columns):
            if row == 4:
                break
            lines.append(
                {
                    "level": name,
                    "row": row,
                    "truth": int(shifts.images.labels[row]),
                    "before": int(before.argmax()),
                    "sure_before": round(float(before.max()), 4),
                    "after": int(after.argmax()),
                    "sure_after": round(float(after.max()), 4),
                    "error": round(float(error), 6),
                    "percentile": round(float(percentile), 2),
                }
            )
    return lines


def _rows(records: Sequence[Record], shifts: Mapping[str, Any]) -> list[Row]:
    """The summary, with the mean over the corruptions of each severity."""
    means: list[Record] = []
    for severity in shifts["severities"]:
        wanted = {f"{name} {severity}" for name in shifts["corruptions"]}
        group = [record for record in records if record["level"] in wanted]
        means += averaged(group, f"{MEAN} {severity}")
    return summarise([*records, *means])


def _summary(rows: Iterable[Row], severity: int, memory: Mapping[str, float]) -> list[list[str]]:
    wanted = [row for row in rows if row["level"] == f"{MEAN} {severity}"]
    clean = {(r["method"], r["batch_size"]): r for r in rows if r["level"] == CLEAN}
    header = ["method", "batch", "clean", "corrupted", "against source", "clean against source",
              "cost", "memory"]  # fmt: skip
    lines = [header]
    largest = max((row["batch_size"] or 0 for row in wanted), default=0)
    for row in sorted(wanted, key=lambda row: row["batch_size"] or 0):
        plain = clean.get((row["method"], row["batch_size"]))
        lines.append(
            [
                row["method"],
                "" if row["batch_size"] is None else str(row["batch_size"]),
                _percent(plain),
                _percent(row),
                against(row, 1),
                "" if plain is None else against(plain, 1),
                "" if row["cost"] is None else f"{row['cost']:.1f}",
                # Measured at the largest batch size, where it matters.
                _ratio(memory.get(row["method"])) if row["batch_size"] in (None, largest) else "",
            ]
        )
    return lines


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _percent(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return "failed" if row["error"] is None else f"{row['error']:.1f}"


def _bare(images: ImageSet) -> list[str]:
    """What corrupted images and the clean ones have in common.

    Of files it is the class and what follows it, without the suffix, since bitmaps become PNGs;
    of rows of an array their numbers.
    """
    found = []
    for text, label in zip(images.names, images.labels, strict=True):
        path, folder = PurePosixPath(text), images.classes[label]
        above = path.parts[:-1]
        if not path.suffix:
            found.append(path.name)
            continue
        # The last of that name: in fog/5/5 the first is a severity.
        inside = above[len(above) - above[::-1].index(folder) :] if folder in above else ()
        found.append(str(PurePosixPath(folder, *inside, path.stem)))
    return found


def _written(found: Evaluation) -> Evaluation:
    from it3_vision.classify.pictures import figures

    folder, rows = found.folder, _rows(found.records, found.shifts)
    whole = Evaluation(folder, found.shifts, found.records, rows, found.numbers, found.samples)
    sizes = sorted({r["batch_size"] for r in found.records if r["batch_size"] is not None})
    parts = []
    for severity in whole.severities:
        parts.append(f"## Severity {severity}\n\n{markdown_table(whole.summary(severity))}\n")
        for size in sizes or [1]:
            table = markdown_table(whole.by_corruption(severity, size))
            parts.append(f"### Error in per cent, batches of {size}\n\n{table}\n")
    write_text(folder / "table.md", "\n".join(parts))
    write_text(folder / "rows.md", markdown(rows))
    summary = {"shifts": dict(found.shifts), "numbers": dict(found.numbers)}
    write_json(folder / "summary.json", {**summary, "samples": list(found.samples)})
    (folder / "records.jsonl").unlink(missing_ok=True)
    write_records(found.records, folder / "records.jsonl")
    for name, figure in figures(whole).items():
        figure.savefig(folder / f"{name}.png", dpi=160)
    return whole
