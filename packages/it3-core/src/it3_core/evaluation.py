"""Methods × shift levels × batch sizes × seeds → records: plain dicts, one JSON line each.

A record is one *cell*: what one method did on one level, at one batch size, for one training
seed. It stands alone, so that files can be cut, joined and read by anything:

- `seed`, `level`, `method`, `batch_size` name the cell; `batch_size` is None for methods whose
  answers don't depend on it. `reference` and `in_distribution` say what it is compared with, and
  whether the level is the training data's own distribution. `n` counts instances.
- `error` is the mean error, `difference` the mean of error minus the reference's error on the same
  instance: negative is better. Both are None where an answer was not finite.
- `before` and `after` are mean idempotence errors, None unless asked for.
- `fallbacks` counts the batches whose answer fell back to the source's, wholly or in part.
- `cpu_seconds` is process time; `cost` is its ratio to the reference's on the same batches, taken
  in turn. Compare costs, not seconds. On a GPU neither means much.
- `errors`, `differences`, `befores` and `afters` are the same per instance, to six digits.
- `problem` says why a method could not finish, or is None.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from it3_core.batching import count, take, tensors
from it3_core.errors import IT3Error, IT3Warning
from it3_core.methods.base import Adaptation
from it3_core.progress import Progress

__all__ = ["Level", "Predictor", "Record", "evaluate", "read_records", "write_records"]

Record = dict[str, Any]
"""One cell of an evaluation; this module's docstring lists its keys."""

Predictor = Callable[[Any], Adaptation | Tensor]
"""A method, or anything else that answers a batch: a plain network, gradient boosting …"""

Level = tuple[Any, Tensor] | Callable[[], tuple[Any, Tensor]]
"""Inputs and labels, or a function that loads them when their turn comes."""

Cell = tuple[int, str, str, int | None]


def evaluate(
    methods: Mapping[str, Predictor],
    levels: Mapping[str, Level],
    error: Callable[[Tensor, Tensor], Tensor],
    *,
    batch_sizes: Sequence[int] = (1, 4, 16),
    seed: int = 0,
    reference: str = "source",
    in_distribution: str | None = "clean",
    once: Collection[str] = (),
    streams: Collection[str] = (),
    idempotence: bool = False,
    instances: bool = True,
    path: str | Path | None = None,
    progress: bool = True,
) -> list[Record]:
    """Runs every method on the same batches of every level; call it once for each training seed.

    Batches are cut in the order given, the last one as small as it comes. Before each level a
    method is reset. With a `path`, each cell is written as soon as it is finished, and cells that
    the file already holds are not run again: a killed run continues where it was. One process
    may write to a file at a time.

    A method that raises is dropped from that cell with a warning, and its record says why; the
    others go on, and the next run with the same file tries it again. Only the reference must
    not fail.

    Args:
        methods: methods by name, each an object of its own. Something that is no `Method`, such
            as a plain network, may return its predictions alone.
        levels: `(x, y)` by name, in the order of growing shift, or functions that load them.
        error: one number per instance from outputs and labels; usually the adapter's `error`.
        batch_sizes: how many instances the methods get at a time.
        seed: the training seed that these methods come from.
        reference: the method that the others are compared with.
        in_distribution: the level without a shift, on which harm is measured; None if there is
            none.
        once: names of methods whose answers don't depend on the batch size, such as source or
            per-instance IT³: they run at the largest one only.
        streams: names of methods that go through all levels in order as one stream, without a
            reset in between: what the paper calls online.
        idempotence: whether to record idempotence errors, at up to two more forwards a batch.
        instances: whether to keep the numbers of each instance, for intervals and box plots.
        path: a JSON-lines file to append to and continue from.
        progress: whether to say on standard error how far it is.

    Returns:
        The records of this seed, those that were in the file among them.

    Example:
        >>> import torch
        >>> from it3_core import AnswerStep, Regression, Source, widen
        >>> from it3_core.evaluation import evaluate
        >>> _ = torch.manual_seed(0)
        >>> adapter = Regression()
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> _ = torch.nn.init.normal_(model.model.weight)  # stands in for training
        >>> x, y = torch.randn(10, 3), torch.randn(10)
        >>> records = evaluate(
        ...     {"source": Source(model, adapter), "second pass": AnswerStep(model, adapter)},
        ...     {"clean": (x, y), "noise": (x + torch.randn(10, 3), y)},
        ...     adapter.error, once=["source", "second pass"], progress=False)
        >>> [(record["level"], record["method"], record["n"]) for record in records]
        [('clean', 'source', 10), ('clean', 'second pass', 10),
         ('noise', 'source', 10), ('noise', 'second pass', 10)]
        >>> records[0]["difference"], records[0]["cost"]
        (0.0, 1.0)
    """
    _check_names(methods, levels, reference, in_distribution, once, streams)
    # The largest first: all methods run at it, so that they come in the caller's order.
    sizes = sorted(set(batch_sizes), reverse=True)
    if not sizes or sizes[-1] < 1:
        raise IT3Error(f"batch_sizes must be whole numbers from 1 up, not {list(batch_sizes)}")
    for level, data in levels.items():
        if not callable(data):  # now, and not after an hour
            _check_level(level, *data)
    file = None if path is None else Path(path)
    known = {} if file is None else {_cell(record): record for record in _resumed(file)}
    labels = {size: _labels(methods, once, size, largest=size == sizes[0]) for size in sizes}
    wanted = [
        (seed, level, name, label)
        for size in sizes
        for level in levels
        for name, label in labels[size].items()
    ]
    bar = Progress(len(wanted), "evaluate", progress)
    run = _Run(methods, levels, error, seed, reference, in_distribution, once, streams,
               idempotence, instances, file, known, bar)  # fmt: skip
    run.show(sum(map(run.is_done, wanted)), "begin" if file is None else f"found in {file}")
    # Methods may draw random numbers; the caller's own stay as they were.
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if in_use else ()
    with torch.random.fork_rng(devices):
        for size in sizes:
            run.through_levels(size, labels[size])
    bar.show(len(wanted), "done", last=True)
    bar.close()
    return [known[cell] for cell in wanted]


def read_records(path: str | Path) -> list[Record]:
    """The records in a file; where a cell was tried again, the last try.

    A last line that was cut off in the middle, as a killed run leaves it, is passed over.

    Example:
        >>> import pathlib, tempfile
        >>> from it3_core.evaluation import read_records
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = pathlib.Path(folder.name, "records.jsonl")
        >>> _ = file.write_text("not a record\\n")
        >>> read_records(file)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: line 1 of ...records.jsonl is not a record of it3_core.evaluation
        >>> folder.cleanup()
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror}") from problem
    records: dict[Cell, Record] = {}
    for number, line in enumerate(lines, 1):
        record = _parsed(line)
        if record is not None:
            records[_cell(record)] = record
        elif line.strip() and not (number == len(lines) and _is_torn(line)):
            raise IT3Error(f"line {number} of {path} is not a record of it3_core.evaluation")
    return list(records.values())


def write_records(records: Iterable[Record], path: str | Path) -> None:
    """Appends records to a file, for instance to join what several processes have measured.

    Example:
        >>> import pathlib, tempfile
        >>> from it3_core.evaluation import read_records, write_records
        >>> record = {"seed": 0, "level": "clean", "method": "source", "batch_size": None, "n": 1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_records([record], pathlib.Path(folder, "all.jsonl"))
        ...     read_records(pathlib.Path(folder, "all.jsonl")) == [record]
        True
    """
    lines = [json.dumps(record, allow_nan=False) for record in records]
    data = "".join(f"{line}\n" for line in lines).encode()
    try:
        with Path(path).open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise IT3Error(f"can't write {path}: {problem.strerror}") from problem


@dataclass
class _Tally:
    """What one method did on one level, batch by batch."""

    seconds: float = 0.0
    fallbacks: int = 0
    errors: list[Tensor] = field(default_factory=list)
    befores: list[Tensor] = field(default_factory=list)
    afters: list[Tensor] = field(default_factory=list)
    problem: str | None = None


@dataclass
class _Run:
    """One call of `evaluate`."""

    methods: Mapping[str, Predictor]
    levels: Mapping[str, Level]
    error: Callable[[Tensor, Tensor], Tensor]
    seed: int
    reference: str
    in_distribution: str | None
    once: Collection[str]
    streams: Collection[str]
    idempotence: bool
    instances: bool
    path: Path | None
    known: dict[Cell, Record]
    bar: Progress
    done: int = 0  # cells

    def show(self, cells: int, what: str) -> None:
        """So many more cells are done."""
        self.done += cells
        self.bar.show(self.done, what)

    def is_done(self, cell: Cell) -> bool:
        return cell in self.known and self.known[cell].get("problem") is None

    def through_levels(self, size: int, labels: Mapping[str, int | None]) -> None:
        """All that is missing at one batch size, level after level."""
        missing = {
            level: [n for n, b in labels.items() if not self.is_done((self.seed, level, n, b))]
            for level in self.levels
        }
        last = {name: index for index, names in enumerate(missing.values()) for name in names}
        ready: set[str] = set()
        broken: dict[str, str] = {}
        for index, (level, data) in enumerate(self.levels.items()):
            # A stream that is to be continued has to go through its beginning again.
            again = [name for name in self.streams if index <= last.get(name, -1)]
            running = {self.reference, *missing[level], *again}
            if running == {self.reference} and self.reference not in missing[level]:
                continue
            x, y = data() if callable(data) else data
            _check_level(level, x, y)
            others = running - {self.reference}
            order = [self.reference, *(name for name in self.methods if name in others)]
            for name in order:
                if name not in ready:
                    self._warm_up(name, take(x, slice(0, size)))
                    ready.add(name)
                elif name not in self.streams:
                    _reset(self.methods[name])
            tallies = self._answer(level, x, y, size, order, broken)
            records = [self._record(level, count(x), n, labels[n], tallies) for n in missing[level]]
            self._check_same(level, size, count(x), tallies[self.reference])
            if self.path is not None:
                write_records(records, self.path)
            self.known.update({_cell(record): record for record in records})
            self.show(len(records), f"{level}, batch size {size}")

    def _answer(
        self,
        level: str,
        x: Any,
        y: Tensor,
        size: int,
        names: Sequence[str],
        broken: dict[str, str],
    ) -> dict[str, _Tally]:
        tallies = {name: _Tally(problem=broken.get(name)) for name in names}
        for start in range(0, count(x), size):
            self.show(0, f"{level}, batch size {size}, {start} of {count(x)} instances")
            rows = slice(start, start + size)
            batch, label = take(x, rows), take(y, rows)
            for name in names:
                if tallies[name].problem is not None:
                    continue
                # The same draws whatever else runs beside it, so that a run can be continued.
                torch.manual_seed(zlib.crc32(f"{self.seed} {level} {start}".encode()))
                try:
                    self._answer_batch(name, tallies[name], batch, label)
                except Exception as problem:
                    where = (
                        f"{name!r} on level {level!r}, instances {start} to {start + len(label)}"
                    )
                    reason = _reason(problem)
                    if name == self.reference or isinstance(problem, _UnfairError):
                        raise IT3Error(f"{where}: {reason}") from problem
                    tallies[name].problem = reason
                    if name in self.streams:
                        broken[name] = f"the stream broke on level {level!r}: {reason}"
                    warnings.warn(f"{where}: {reason}", IT3Warning, stacklevel=4)
        return tallies

    def _answer_batch(self, name: str, tally: _Tally, x: Any, y: Tensor) -> None:
        versions = _versions(x)
        start = time.process_time()
        answer = self.methods[name](x)
        seconds = time.process_time() - start
        if _versions(x) != versions:
            raise _UnfairError("it writes into its input, which is the others' too: give it a copy")
        prediction = answer.prediction if isinstance(answer, Adaptation) else answer
        errors = self.error(prediction.detach(), y)
        if errors.shape != (count(x),):
            raise IT3Error(
                f"error() must give one number for each of {count(x)} instances, but gives shape "
                f"{tuple(errors.shape)}"
            )
        tally.seconds += seconds
        tally.errors.append(errors.double().cpu())
        if isinstance(answer, Adaptation):
            tally.fallbacks += answer.fallback is not None
            if self.idempotence:
                tally.befores.append(answer.error_before.detach().double().cpu())
                tally.afters.append(answer.error_after.detach().double().cpu())

    def _record(
        self, level: str, n: int, name: str, batch_size: int | None, tallies: dict[str, _Tally]
    ) -> Record:
        tally, yardstick = tallies[name], tallies[self.reference]
        record: Record = {
            "seed": self.seed,
            "level": level,
            "method": name,
            "batch_size": batch_size,
            "reference": self.reference,
            "in_distribution": level == self.in_distribution,
            "n": n,
            "error": None,
            "difference": None,
            "before": None,
            "after": None,
            "fallbacks": tally.fallbacks,
            "cpu_seconds": None,
            "cost": None,
            "problem": tally.problem,
        }
        if tally.problem is not None:
            return record
        errors = torch.cat(tally.errors)
        differences = errors - torch.cat(yardstick.errors)
        bad = int((~torch.isfinite(differences)).sum())
        if bad:
            record["problem"] = f"the errors of {bad} of {n} instances are not finite"
        record["error"], record["difference"] = _mean(errors), _mean(differences)
        record["cpu_seconds"] = round(tally.seconds, 6)
        # No clock is so coarse that it sees no time at all in a pass; a fake one may be.
        record["cost"] = round(tally.seconds / max(yardstick.seconds, 1e-9), 4)
        lists = {"errors": errors, "differences": differences}
        if tally.befores:
            lists |= {"befores": torch.cat(tally.befores), "afters": torch.cat(tally.afters)}
            record["before"], record["after"] = _mean(lists["befores"]), _mean(lists["afters"])
        if self.instances:
            record |= {key: [_rounded(value) for value in v.tolist()] for key, v in lists.items()}
        return record

    def _warm_up(self, name: str, batch: Any) -> None:
        """A first call costs more than the others: optimisers are imported, memory is mapped."""
        method = self.methods[name]
        _reset(method)
        try:
            method(batch)
        except Exception:
            return  # it is told when it happens in earnest
        finally:
            _reset(method)

    def _check_same(self, level: str, size: int, n: int, tally: _Tally) -> None:
        """Whether what the file holds of this level can come from these methods and data."""
        label = None if self.reference in self.once else size
        known = self.known.get((self.seed, level, self.reference, label))
        if known is None or known["error"] is None:
            return
        errors = torch.cat(tally.errors)
        error = float(errors.mean())
        # Another machine may decide a close call differently: two instances' worth is let pass.
        slack = 2 * float(errors.abs().max()) / n
        if known["n"] != n or not math.isclose(error, known["error"], rel_tol=0.01, abs_tol=slack):
            raise IT3Error(
                f"{self.reference!r} has an error of {error:.4g} on the {n} instances of level "
                f"{level!r}, but {known['error']:.4g} on {known['n']} in {self.path}, which comes "
                f"from another network or other data: give another file"
            )


class _UnfairError(IT3Error):
    """What spoils the comparison for all methods."""


def _check_names(
    methods: Mapping[str, Predictor],
    levels: Mapping[str, Level],
    reference: str,
    in_distribution: str | None,
    once: Collection[str],
    streams: Collection[str],
) -> None:
    if not levels:
        raise IT3Error("there is no level to evaluate on: give (x, y) by name")
    if isinstance(once, str) or isinstance(streams, str):
        raise IT3Error("once and streams are lists of names: put the name in brackets")
    for name in (reference, *once, *streams):
        if name not in methods:
            raise IT3Error(f"there is no method {name!r} among {', '.join(map(repr, methods))}")
    if in_distribution is not None and in_distribution not in levels:
        raise IT3Error(
            f"there is no level {in_distribution!r} among {', '.join(map(repr, levels))}: name the "
            f"one without a shift as in_distribution, or give None"
        )
    owners: dict[int, str] = {}
    for name, method in methods.items():
        if not callable(method):
            raise IT3Error(f"method {name!r} can't be called: it is a {type(method).__name__}")
        if id(method) in owners:
            raise IT3Error(
                f"{owners[id(method)]!r} and {name!r} are the same object, and would share what "
                f"they have learnt: make one for each"
            )
        owners[id(method)] = name


def _labels(
    methods: Iterable[str], once: Collection[str], size: int, largest: bool
) -> dict[str, int | None]:
    """The methods to record at this batch size, and the batch size to record them under."""
    labels = {name: None if name in once else size for name in methods}
    return {name: label for name, label in labels.items() if label is not None or largest}


def _check_level(level: str, x: Any, y: Tensor) -> None:
    if count(x) == 0:
        raise IT3Error(f"level {level!r} is empty")
    if count(x) != len(y):
        raise IT3Error(f"level {level!r} has {count(x)} inputs but {len(y)} labels")


def _resumed(path: Path) -> list[Record]:
    """What a file holds, after mending its end, so that the next record starts on a new line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        records = read_records(path)
        with path.open("r+b") as file:
            data = file.read()
            tail = data.rpartition(b"\n")[2]
            if _parsed(tail) is not None:
                file.write(b"\n")
            elif _is_torn(tail):
                file.truncate(len(data) - len(tail))
    except OSError as problem:
        raise IT3Error(f"can't write {path}: {problem.strerror}") from problem
    return records


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    kinds = {"seed": int, "level": str, "method": str, "batch_size": int | None, "n": int}
    fits = all(key in record and isinstance(record[key], kind) for key, kind in kinds.items())
    return record if fits else None


def _is_torn(line: bytes) -> bool:
    """Whether this is the beginning of a record; what is whole, or no JSON at all, is foreign."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith(b"{")
    return False


def _cell(record: Record) -> Cell:
    return record["seed"], record["level"], record["method"], record["batch_size"]


def _reset(method: Predictor) -> None:
    reset = getattr(method, "reset", None)
    if callable(reset):
        reset()


def _versions(x: Any) -> list[int]:
    """How often each tensor has been written to; views share the count of what they view."""
    return [part._version for part in tensors(x) if not part.is_inference()]


def _reason(problem: Exception) -> str:
    first = (str(problem).splitlines() or [""])[0]
    return first if isinstance(problem, IT3Error) else f"{type(problem).__name__}: {first}"


def _mean(values: Tensor) -> float | None:
    mean = float(values.mean())
    return mean if math.isfinite(mean) else None


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
