"""Samples made by a slow program, many at a time: append-only, resumable, on any executor.

A folder holds `raw/settings.json`, written once, and `raw/samples.jsonl`, to which each finished
sample is appended as one line, the moment that it is finished. Killed at any moment, a run loses
the samples that were under way and nothing else; started again, it makes those that are missing.
Wings and cars share this engine: what a sample is, the caller's `work` says.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from pathlib import Path
from typing import Any

from it3_aero.executors import Where
from it3_aero.programs import interruptible
from it3_aero.progress import SampleProgress
from it3_core import IT3Error

__all__ = [
    "Record",
    "Store",
    "fan_out",
    "make_samples",
    "read_samples",
    "read_settings",
    "write_whole",
]

Record = dict[str, Any]
"""A sample as JSON: `sample` is its number, and `problem` says why there is no answer, if so."""


class Store:
    """The samples in a folder, open for more of them; one process at a time.

    Args:
        folder: made if it isn't there.
        settings: all that decides what sample i is. A folder takes only one set of them.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Store(folder, {"seed": 0}) as store:
        ...         store.append({"sample": 7, "y": 1.5})
        ...     with Store(folder, {"seed": 0}) as store:
        ...         store.samples
        {7: {'sample': 7, 'y': 1.5}}
    """

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.settings = dict(settings)
        self.samples: dict[int, Record] = {}
        self._file = -1

    def __enter__(self) -> Store:
        raw = self.folder / "raw"
        try:
            raw.mkdir(parents=True, exist_ok=True)
            path = raw / "samples.jsonl"
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._lock()
            self._settle(raw / "settings.json")
            self.samples, whole = _read(path)
            os.ftruncate(self._file, whole)  # what a full disk or a power cut left of a line
        except OSError as problem:
            self.__exit__()
            raise _cannot_write(self.folder, problem) from None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def append(self, record: Record) -> None:
        """Put a sample down for good. A number that is there already is left as it was."""
        if record["sample"] in self.samples:
            return
        line = (json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n").encode()
        end = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            if written < len(line):
                os.write(self._file, line[written:])  # says why: no space, or a limit
                raise OSError(errno.EIO, "written in part only")
        except OSError as problem:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, end)
            raise _cannot_write(self.folder, problem) from None
        self.samples[record["sample"]] = record

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise IT3Error(f"another run is writing into {self.folder}: wait for it") from None

    def _settle(self, path: Path) -> None:
        """Write the settings of a new folder; compare them with those of one that has some."""
        mine = json.loads(json.dumps(self.settings))
        if not path.exists():
            if os.fstat(self._file).st_size:
                raise IT3Error(f"{self.folder} has samples but no raw/settings.json: take another")
            write_whole(path, (json.dumps(mine, indent=2) + "\n").encode())
            return
        there = read_settings(self.folder)
        different = [key for key in {**there, **mine} if there.get(key) != mine.get(key)]
        if different:
            key = different[0]
            raise IT3Error(
                f"{self.folder} was made with {key} = {_short(there.get(key))}, and not with "
                f"{_short(mine.get(key))}: give the same settings, or another folder"
            )


def fan_out(
    store: Store,
    work: Callable[[int], Record],
    numbers: Iterable[int],
    executor: Executor,
    under_way: int,
    done: Callable[[Record], None] | None = None,
) -> None:
    """Make the samples with the given numbers that a store doesn't hold yet.

    `work` has to be what the executor can send: for processes and clusters, a function at the top
    of a module, or an instance of a class that is. It returns a failure as a record with `problem`;
    an exception from it ends the run, after what was under way has been put down.

    Args:
        store: where samples go, each as soon as it is there.
        work: makes a sample from its number alone, so that it doesn't matter where and when.
        numbers: of all samples that should be there in the end.
        executor: any of `concurrent.futures`, or `Client.get_executor()` of Dask.
        under_way: most samples that are handed out at a time.
        done: called with each new record.

    Example:
        >>> import tempfile
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> work = lambda number: {"sample": number, "square": number**2}
        >>> with (
        ...     tempfile.TemporaryDirectory() as folder,
        ...     Store(folder, {}) as store,
        ...     ThreadPoolExecutor(2) as executor,
        ... ):
        ...     fan_out(store, work, range(4), executor, under_way=4)
        ...     [store.samples[i]["square"] for i in range(4)]
        [0, 1, 4, 9]
    """
    missing = iter([number for number in numbers if number not in store.samples])
    running: set[Future[Record]] = set()
    problem: BaseException | None = None
    try:
        while True:
            while problem is None and len(running) < under_way:
                number = next(missing, None)
                if number is None:
                    break
                running.add(executor.submit(work, number))
            if not running:
                break
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                reason = future.exception()
                if reason is None:
                    store.append(future.result())
                    if done is not None:
                        done(future.result())
                elif problem is None:
                    problem = reason
    except BrokenExecutor as reason:
        problem = reason
    finally:
        for future in running:
            future.cancel()
    if isinstance(problem, BrokenExecutor):
        raise IT3Error(
            "a worker process ended unexpectedly (out of memory?): nothing that was finished is "
            "lost, run the same command again"
        ) from problem
    if problem is not None:
        raise problem


def make_samples(
    store: Store,
    work: Callable[[int], Record],
    n: int,
    what: str,
    where: Where,
    progress: bool = True,
) -> None:
    """Make the first n samples that a store doesn't hold yet, with a bar.

    Args:
        store: where samples go.
        work: makes a sample from its number, as for `fan_out`.
        n: how many there should be in the end.
        what: they are called.
        where: it runs.
        progress: show a bar.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Store(folder, {}) as store:
        ...     work = lambda number: {"sample": number}
        ...     make_samples(store, work, 2, "numbers", Where(workers=1), progress=False)
        ...     sorted(store.samples)
        [0, 1]
    """
    if store.samples and max(store.samples) >= n:
        held = max(store.samples) + 1
        raise IT3Error(f"{store.folder} holds {held} {what} already, more than {n}")
    if len(store.samples) == n:
        return
    bar = SampleProgress(what, n, len(store.samples), progress)
    with where.opened() as (executor, under_way), bar, interruptible():
        fan_out(
            *(store, work, range(n), executor, under_way),
            done=lambda record: bar.add("problem" in record),
        )


def read_settings(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings that a folder's samples were made with.

    Example:
        >>> read_settings("/nowhere")
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: /nowhere holds no generated data: there is no raw/settings.json
    """
    path = Path(folder, "raw", "settings.json")
    try:
        settings = json.loads(path.read_bytes())
    except FileNotFoundError:
        message = f"{folder} holds no generated data: there is no raw/settings.json"
        raise IT3Error(message) from None
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror}") from None
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise IT3Error(f"{path} is damaged: it is not a JSON object")
    return settings


def read_samples(folder: str | os.PathLike[str]) -> list[Record]:
    """The samples in a folder by number, also while a run is adding to them.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Store(folder, {}) as store:
        ...         store.append({"sample": 1})
        ...         store.append({"sample": 0})
        ...     read_samples(folder)
        [{'sample': 0}, {'sample': 1}]
    """
    path = Path(folder, "raw", "samples.jsonl")
    try:
        samples, _ = _read(path)
    except FileNotFoundError:
        raise IT3Error(f"{folder} holds no generated data: there is no raw/samples.jsonl") from None
    except OSError as problem:
        raise IT3Error(f"can't read {path}: {problem.strerror}") from None
    return [samples[number] for number in sorted(samples)]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is either there as a whole or as it was before.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_whole(Path(folder, "card.json"), b"{}")
        ...     os.listdir(folder)
        ['card.json']
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as problem:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise _cannot_write(path.parent, problem) from None


def _read(path: Path) -> tuple[dict[int, Record], int]:
    """Samples by number, and how many bytes of the file are whole lines."""
    samples: dict[int, Record] = {}
    whole = 0
    for count, (line, end) in enumerate(_lines(path.read_bytes()), 1):
        try:
            record = json.loads(line)
            number = record["sample"]
        except (ValueError, KeyError, TypeError):
            raise IT3Error(f"{path} is damaged: line {count} is not a sample") from None
        samples.setdefault(number, record)
        whole = end
    return samples, whole


def _lines(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Lines that end, each with the place after it."""
    start = 0
    while (end := content.find(b"\n", start)) >= 0:
        yield content[start:end], end + 1
        start = end + 1


def _cannot_write(folder: Path, problem: OSError) -> IT3Error:
    reason = "the disk is full" if problem.errno == errno.ENOSPC else problem.strerror
    if problem.errno == errno.EFBIG:
        reason = "a file may not grow that large here (ulimit -f)"
    return IT3Error(f"can't write into {folder}: {reason}; nothing that was finished is lost")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
