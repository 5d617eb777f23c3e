"""Methods × shift levels × batch sizes × seeds → records, as `evaluation.records` lists them;
and the peak memory of a call.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from it3_core.batching import Data, count, take, tensors, whole
from it3_core.errors import IT3Error, IT3Warning
from it3_core.evaluation.records import Cell, Record, Tally, cell_of, continue_records
from it3_core.io.progress import Progress
from it3_core.io.typed import append_lines
from it3_core.methods.base import Adaptation

Predictor = Callable[[Any], Adaptation | Tensor]
"""A method, or anything else that answers a batch: a plain network, gradient boosting …"""

Measure = Callable[[Any, Any], Tensor | Mapping[str, Tensor]]
"""From outputs and labels to each instance's error, or to columns, "error" among them."""

Level = Data | Callable[[], Data]
"""Inputs and labels, or a function that loads them when their turn comes."""


def evaluate(
    methods: Mapping[str, Predictor],
    levels: Mapping[str, Level],
    error: Measure,
    *,
    batch_sizes: Sequence[int] = (1, 4, 16),
    seed: int = 0,
    reference: str = "source",
    in_distribution: str | None = "clean",
    once: Collection[str] = (),
    streams: Collection[str] = (),
    shifted: Collection[str] = (),
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
        levels: data by name, in the order of growing shift, or functions that load them.
        error: one number per instance from outputs and labels, usually the adapter's `error`; or
            several columns by name, "error" among them, of which the others go into the records.
        batch_sizes: how many instances the methods get at a time.
        seed: the training seed that these methods come from.
        reference: the method that the others are compared with.
        in_distribution: the level without a shift, on which harm is measured; None if there is
            none.
        once: names of methods whose answers don't depend on the batch size, such as source or
            per-instance IT³: they run at the largest one only.
        streams: names of methods that go through all levels in order as one stream, without a
            reset in between: what the paper calls online.
        shifted: those of them that start anew after the in-distribution level.
        path: a JSON-lines file to append to and continue from.
        progress: whether to say on standard error how far it is.

    Returns:
        The records of this seed, those that were in the file among them.

    Example:
        >>> import torch
        >>> from it3_core import AnswerStep, Regression, Source, evaluate, widen
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
    _check_names(methods, levels, reference, in_distribution, once, [*streams, *shifted])
    # The largest first: all methods run at it, so that they come in the caller's order.
    sizes = sorted(set(batch_sizes), reverse=True)
    if not sizes or sizes[-1] < 1:
        raise IT3Error(f"batch_sizes must be whole numbers from 1 up, not {list(batch_sizes)}")
    for level, data in levels.items():
        if isinstance(data, tuple):  # now, and not after an hour
            _check_level(level, *whole(data))
    file = None if path is None else Path(path)
    finished = {} if file is None else {cell_of(one): one for one in continue_records(file)}
    labels = {size: _labels(methods, once, size, largest=size == sizes[0]) for size in sizes}
    wanted = [
        (seed, level, name, label)
        for size in sizes
        for level in levels
        for name, label in labels[size].items()
    ]
    bar = Progress(len(wanted), "evaluate", progress)
    run = _Run(methods, levels, error, seed, reference, in_distribution, once, streams, shifted,
               file, finished, bar)  # fmt: skip
    run.show(sum(map(run.is_done, wanted)), "begin" if file is None else f"found in {file}")
    # Methods may draw random numbers; the caller's own stay as they were.
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if in_use else ()
    with contextlib.closing(bar), torch.random.fork_rng(devices):
        for size in sizes:
            run.through_levels(size, labels[size])
        bar.show(len(wanted), "done", last=True)
    return [finished[cell] for cell in wanted]


@dataclass
class _Run:
    """One call of `evaluate`."""

    methods: Mapping[str, Predictor]
    levels: Mapping[str, Level]
    error: Measure
    seed: int
    reference: str
    in_distribution: str | None
    once: Collection[str]
    streams: Collection[str]
    shifted: Collection[str]
    path: Path | None
    finished: dict[Cell, Record]
    bar: Progress
    done: int = 0  # cells

    def show(self, cells: int, what: str) -> None:
        """So many more cells are done."""
        self.done += cells
        self.bar.show(self.done, what)

    def is_done(self, cell: Cell) -> bool:
        return cell in self.finished and self.finished[cell].get("problem") is None

    def through_levels(self, size: int, labels: Mapping[str, int | None]) -> None:
        """All that is missing at one batch size, level after level."""
        missing = {
            level: [n for n, b in labels.items() if not self.is_done((self.seed, level, n, b))]
            for level in self.levels
        }
        last = {name: index for index, names in enumerate(missing.values()) for name in names}
        ready: set[str] = set()
        broken: dict[str, str] = {}
        previous: str | None = None
        for index, (level, data) in enumerate(self.levels.items()):
            # A stream that is to be continued has to go through its beginning again.
            again = [name for name in self.streams if index <= last.get(name, -1)]
            running = {self.reference, *missing[level], *again}
            if running == {self.reference} and self.reference not in missing[level]:
                continue
            x, y = whole(data() if callable(data) else data)
            _check_level(level, x, y)
            others = running - {self.reference}
            order = [self.reference, *(name for name in self.methods if name in others)]
            for name in order:
                if name not in ready:
                    self._warm_up(name, take(x, slice(0, size)))
                    ready.add(name)
                elif name not in self.streams or (
                    name in self.shifted and previous == self.in_distribution
                ):
                    _reset(self.methods[name])
            previous = level
            tallies = self._answer(level, x, y, size, order, broken)
            records = [self._record(level, count(x), n, labels[n], tallies) for n in missing[level]]
            self._check_same(level, size, count(x), tallies[self.reference])
            if self.path is not None:
                append_lines(self.path, records)
            self.finished.update({cell_of(record): record for record in records})
            self.show(len(records), f"{level}, batch size {size}")

    def _answer(
        self, level: str, x: Any, y: Tensor, size: int, names: Sequence[str], broken: dict[str, str]
    ) -> dict[str, Tally]:
        tallies = {name: Tally(problem=broken.get(name)) for name in names}
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
                    where = f"{name!r} on level {level!r}, from instance {start} on"
                    reason = _reason(problem)
                    if name == self.reference or isinstance(problem, _UnfairError):
                        raise IT3Error(f"{where}: {reason}") from problem
                    tallies[name].problem = reason
                    if name in self.streams:
                        broken[name] = f"the stream broke on level {level!r}: {reason}"
                    warnings.warn(f"{where}: {reason}", IT3Warning, stacklevel=4)
        return tallies

    def _answer_batch(self, name: str, tally: Tally, x: Any, y: Tensor) -> None:
        versions = _versions(x)
        start = time.process_time()
        answer = self.methods[name](x)
        seconds = time.process_time() - start
        if _versions(x) != versions:
            raise _UnfairError("it writes into its input, which is the others' too: give it a copy")
        prediction = answer.prediction if isinstance(answer, Adaptation) else answer
        found = self.error(prediction.detach(), y)
        columns = {"error": found} if isinstance(found, Tensor) else dict(found)
        for values in columns.values():
            if values.shape != (count(x),):
                raise IT3Error(
                    f"error() must give {count(x)} numbers, but gives shape {tuple(values.shape)}"
                )
        tally.add(answer, columns.pop("error"), seconds, columns)

    def _record(
        self, level: str, n: int, name: str, batch_size: int | None, tallies: dict[str, Tally]
    ) -> Record:
        return {
            "seed": self.seed,
            "level": level,
            "method": name,
            "batch_size": batch_size,
            "reference": self.reference,
            "in_distribution": level == self.in_distribution,
            "n": n,
        } | tallies[name].measured(tallies[self.reference])

    def _warm_up(self, name: str, batch: Any) -> None:
        """A first call costs more than the others: optimisers are imported, memory is mapped."""
        method = self.methods[name]
        _reset(method)
        with contextlib.suppress(Exception):  # it is reported when it happens in earnest
            method(batch)
        _reset(method)

    def _check_same(self, level: str, size: int, n: int, tally: Tally) -> None:
        """Whether what the file holds of this level can come from these methods and data."""
        label = None if self.reference in self.once else size
        kept = self.finished.get((self.seed, level, self.reference, label))
        if kept is None or kept.get("error") is None:
            return
        errors = torch.cat(tally.errors)
        error = float(errors.mean())
        # Another machine may decide a close call differently: two instances' worth is let pass.
        slack = 2 * float(errors.abs().max()) / n
        if kept["n"] != n or not math.isclose(error, kept["error"], rel_tol=0.01, abs_tol=slack):
            raise IT3Error(
                f"{self.reference!r} has an error of {error:.4g} on the {n} instances of level "
                f"{level!r}, but {kept['error']:.4g} on {kept['n']} in {self.path}, which comes "
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
    for name in (reference, *once, *streams):
        if name not in methods:
            raise IT3Error(f"there is no method {name!r} among {', '.join(map(repr, methods))}")
    if in_distribution is not None and in_distribution not in levels:
        raise IT3Error(
            f"there is no level {in_distribution!r} among {', '.join(map(repr, levels))}, or None"
        )
    owners: dict[int, str] = {}
    for name, method in methods.items():
        if id(method) in owners:
            raise IT3Error(
                f"{owners[id(method)]!r} and {name!r} are the same object: make one for each"
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


def _reset(method: Predictor) -> None:
    getattr(method, "reset", lambda: None)()


def _versions(x: Any) -> list[int]:
    """How often each tensor has been written to; views share the count of what they view."""
    return [part._version for part in tensors(x) if not part.is_inference()]


def _reason(problem: Exception) -> str:
    first = (str(problem).splitlines() or [""])[0]
    return first if isinstance(problem, IT3Error) else f"{type(problem).__name__}: {first}"


def peak_memory(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """The most bytes of tensors that a call had allocated at once, above what there was before.

    Every allocation and release of torch's own allocator is counted, so that the number is
    exact and the same on every run; what Python and the libraries take is not in it. Call it once
    before, so that what is made once is there.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with _no_chatter(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None
    # The profiler takes the release of what was there before, or what is left over from an earlier
    # profile, for one of this call's: only what this call allocated is taken off again.
    held: dict[int, int] = {}
    now = most = 0
    for _, place, size in sorted(_allocations(seen.profiler.kineto_results)):
        if size > 0:
            held[place] = size
            now += size
            most = max(most, now)
        else:
            now -= held.pop(place, 0)
    return most


def _allocations(results: Any) -> Iterator[tuple[tuple[int, int], int, int]]:
    """When, where and how many bytes; fewer than none for a release."""
    waiting = list(results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.name == "[memory]":
            found = event.extra_fields
            yield (event.start_time_ns, event.id), found.ptr, found.alloc_size


@contextmanager
def _no_chatter() -> Iterator[None]:
    """Sends what the profiler's own C++ code says, of no use to anyone here, nowhere."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
