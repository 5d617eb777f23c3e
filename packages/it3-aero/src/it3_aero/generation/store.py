"""Samples made by a slow program, many at a time: append-only, resumable, on any executor.

A folder's marker holds the settings, `raw/samples.jsonl` a line for each finished sample, and
`card.json` a summary. Killed at any moment, a run loses the samples that were under way and nothing
else; started again, it makes those that are missing. What a sample is, the caller's `work` says.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from filelock import FileLock, Timeout

import it3_aero
from it3_aero.generation.programs import interruptible
from it3_core import IT3Error
from it3_core.io.files import figure_bytes
from it3_core.io.output import MARKER, open_output, read_marker
from it3_core.io.progress import Progress
from it3_core.io.typed import append_lines, as_kind, mend, printable, read_lines

_PATIENCE = 10.0  # seconds that a scheduler may take to answer


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def pool(workers: int | None = None, dask: str | None = None) -> Iterator[tuple[Executor, int]]:
    """An executor, and how many samples to keep under way on it: threads, or a Dask cluster."""
    if dask is not None:
        if workers is not None:
            raise IT3Error("give either --workers or --dask: a cluster has its own workers")
        with _cluster(dask) as found:
            yield found
        return
    if workers is not None and workers < 1:
        raise IT3Error(f"workers must be 1 or more, but is {workers}")
    # One more than there are cores: none is idle while a result is read and put down.
    number = workers or cores() + 1
    executor = ThreadPoolExecutor(number, thread_name_prefix="it3-aero")
    try:
        yield executor, 2 * number
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[tuple[Executor, int]]:
    try:
        # Without its types, which are there only where it is installed.
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise IT3Error('--dask needs an extra: pip install "it3-aero[dask]"') from None
    try:
        client = distributed.Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise IT3Error(f"can't reach a Dask scheduler at {address}: {reason}") from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise IT3Error(f"the Dask cluster at {address} has no workers: start some first")
        try:
            # A worker that dies takes its tasks along; the scheduler gives them to the others.
            yield client.get_executor(), 2 * threads
        except (distributed.KilledWorker, OSError) as problem:
            raise IT3Error(
                f"the Dask cluster at {address} broke down ({type(problem).__name__}): nothing "
                "that was finished is lost, run the same command again"
            ) from None


Record = dict[str, Any]
"""A sample as JSON: `sample` is its number, and `problem` says why it has no solution, if so."""

Card = dict[str, Any]
"""What `card.json` says of all samples."""

_SAMPLES = "raw/samples.jsonl"
FILES = ("card.json", "histogram.png")  # beside the samples
_ADVICE = "generate the data again"


class Failed(TypedDict):
    """A sample without a solution."""

    sample: int
    problem: str


@dataclass
class Store:
    """The samples in a folder, open for more of them; one process at a time.

    `task` is the command that makes them, `settings` all that decides what sample i is, of which a
    folder takes only one set, and `kind` what a sample must hold, as `read_json` takes it.
    """

    folder: Path
    task: str
    settings: Mapping[str, Any]
    kind: Any = Record
    samples: dict[int, Record] = field(default_factory=dict)

    def __enter__(self) -> Store:
        self.output = open_output(self.folder, self.task, self.settings, files=FILES)
        with contextlib.ExitStack() as stack:
            stack.enter_context(only_one(self.output.reserve("raw/.lock"), self.folder))
            self._path = self.output.reserve(_SAMPLES)
            mend(self._path)  # what a full disk or a power cut left of a line
            self.samples = _read(self._path, self.kind)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def append(self, record: Record) -> None:
        """Put a sample down for good. A number that is there already is left as it was."""
        if record["sample"] not in self.samples:
            append_lines(self._path, [record])
            self.samples[record["sample"]] = record

    def solved(self) -> list[Record]:
        """The samples that have a solution."""
        return [record for record in self.samples.values() if "problem" not in record]

    def card(self, n: int) -> Card:
        """Who made the samples, how, how many are solved, and why the others are not."""
        problems = Counter(r["problem"] for r in self.samples.values() if "problem" in r)
        failed = problems.total()
        return {
            "made_by": f"it3-aero {it3_aero.__version__}",
            "settings": self.settings,
            "counts": {"requested": n, "solved": len(self.samples) - failed, "failed": failed},
            "problems": dict(problems.most_common()),
        }


@contextlib.contextmanager
def only_one(lock: Path, folder: Path) -> Iterator[None]:
    """One process at a time works in a folder; another one is refused."""
    held = FileLock(lock, blocking=False)
    try:
        held.acquire()
    except Timeout:
        raise IT3Error(f"another run is writing into {folder}: wait for it") from None
    except OSError as problem:
        raise IT3Error(f"can't write {lock}: {problem.strerror}") from None
    try:
        yield
    finally:
        held.release()


def fan_out(
    store: Store,
    work: Callable[[int], Record],
    numbers: Iterable[int],
    executor: Executor,
    under_way: int,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Make the samples with the given numbers that a store doesn't hold yet.

    `work` makes a sample from its number alone; for a cluster it is a function at the top of a
    module, or an instance of a class that is. It returns a failure as a record with `problem`; an
    exception from it ends the run, after what was under way, at most so many, has been put down.
    """
    missing = [number for number in numbers if number not in store.samples][::-1]
    running: list[Future[Record]] = []
    problem: BaseException | None = None
    try:
        while running or (missing and problem is None):
            while missing and problem is None and len(running) < under_way:
                running.append(executor.submit(work, missing.pop()))
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            # Of those that are finished by now, in the order in which they were begun.
            ended = [future for future in running if future in finished]
            running = [future for future in running if future not in finished]
            for future in ended:
                if (reason := future.exception()) is None:
                    store.append(future.result())
                    done()
                else:
                    problem = problem or reason
    finally:
        for future in running:
            future.cancel()
    if problem is not None:
        raise problem


def make_samples(
    store: Store,
    work: Callable[[int], Record],
    n: int,
    what: str,
    *,
    workers: int | None = None,
    dask: str | None = None,
    progress: bool = True,
) -> None:
    """Make the first n samples that a store doesn't hold yet, with a bar; see `fan_out`, `pool`."""
    if store.samples and max(store.samples) >= n:
        held = max(store.samples) + 1
        raise IT3Error(f"{store.folder} holds {held} {what} already, more than {n}")
    if len(store.samples) == n:
        return
    bar = Progress(n, what, progress)

    def show() -> None:
        made = len(store.samples)
        bar.show(made, f"{made}/{n}, {made - len(store.solved())} failed", last=made == n)

    try:
        with pool(workers, dask) as (executor, under_way), interruptible():
            fan_out(store, work, range(n), executor, under_way, done=show)
    finally:
        bar.close()


def read_data(
    folder: str | os.PathLike[str], task: str, settings: Any, kind: Any
) -> tuple[dict[str, Any], list[Any]]:
    """The settings and the samples in a folder by number, also while a run is adding to them.

    `settings` and `kind` are what the settings and a sample must hold, as `read_json` takes it.
    """
    path = Path(folder)
    if not (path / MARKER).is_file():
        raise IT3Error(f"{folder} holds no generated data: make some with it3-aero {task}")
    marker = read_marker(path)
    if marker.task != task:
        raise IT3Error(f"{folder} is the output of {printable(marker.task)!r}, not of {task!r}")
    as_kind(marker.settings, settings, f"the settings in {path / MARKER}", _ADVICE)
    samples = _read(path / _SAMPLES, kind)
    return marker.settings, [samples[number] for number in sorted(samples)]


def _read(path: Path, kind: Any) -> dict[int, Any]:
    samples: dict[int, Any] = {}
    for record in read_lines(path, kind, _ADVICE):
        number = record.get("sample")
        if type(number) is not int or not 0 <= number < 2**31:
            raise IT3Error(f"{path} is damaged: a sample has no number: {_ADVICE}")
        samples.setdefault(number, record)
    return samples


def spread(values: Sequence[float], width: float) -> Card:
    """The range, quantiles and a histogram of numbers, with bins of a width."""
    ordered = np.sort(values)
    low = np.floor(ordered[0] / width) * width
    high = np.ceil((ordered[-1] + 1e-9) / width) * width
    counts, edges = np.histogram(ordered, np.arange(low, high + width / 2, width))
    return {
        "lowest": round(float(ordered[0]), 3),
        "quantiles": {
            f"{q}%": round(float(np.percentile(ordered, q)), 3) for q in (5, 25, 50, 75, 95)
        },
        "highest": round(float(ordered[-1]), 3),
        "histogram": {"edges": edges.round(9).tolist(), "counts": counts.tolist()},
    }


def histogram(
    values: Sequence[float],
    edges: Sequence[float],
    title: str,
    labels: tuple[str, str],
    line: float | None = None,
) -> bytes:
    """A histogram as a PNG, with a line across it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.hist(values, edges, color="#4fae90", edgecolor="w")
    if line is not None:
        axes.axvline(line, color="#d0590a", linestyle="--", linewidth=1.4)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.spines[["top", "right"]].set_visible(False)
    return figure_bytes(figure, dpi=150, metadata={"Software": None})
