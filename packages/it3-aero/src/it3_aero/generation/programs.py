"""Solvers run as programs: argument lists, limits, and a process group that ends as a whole.

It is killed with all that it started when its time is over, on an interrupt and, where `run`
started it, when this process dies, even from kill -9.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from it3_core import IT3Error
from it3_core.io.files import write_bytes

_LARGEST_FILE = 50_000_000  # bytes that a program may write into one, as into its log
_DYING = 2.0  # seconds that a killed program may take to be gone
_LOOK = 0.5  # seconds between two looks at a running program

# Dies with its parent (PR_SET_PDEATHSIG), then becomes the program.
_TIED = (
    "import ctypes,os,sys\n"
    "ctypes.CDLL(None).prctl(1,9,0,0,0)\n"
    "os.getppid()==int(sys.argv[1]) or os._exit(1)\n"
    "os.execv(sys.argv[2],sys.argv[2:])"
)

_interrupted = threading.Event()


class SolverError(IT3Error):
    """The solver itself can't be used here: it is missing, broken or hangs on everything."""


class Ended(NamedTuple):
    """How a program ended."""

    problem: str | None  # why it isn't to be trusted; None if it ended as it should
    cpu_seconds: float  # of CPU, with all that it waited for
    peak_mb: float  # the most memory that one process of it was seen to have, in MB


def run(
    arguments: Sequence[str],  # its full path, and what it is given
    folder: Path,  # where it runs
    log: Path,  # file for what it says
    *,
    environment: Mapping[str, str] | None = None,  # its variables; this process's if not given
    cpu_limit: int = 3600,  # seconds of CPU that it may take
    silence: float = 600.0,  # seconds of the clock for which it may say nothing: then it hangs
    # asked twice a second; a reason that it returns ends the program
    watch: Callable[[], str | None] = lambda: None,
) -> Ended:
    """Run a program in a folder until it ends, or has to be ended."""
    tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *arguments]
    with write_bytes(log, b"").open("r+b") as written:
        try:
            process = subprocess.Popen(
                tied,
                cwd=folder,
                env={**(os.environ if environment is None else environment), "PWD": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as problem:
            raise SolverError(f"can't run {arguments[0]}: {problem.strerror}") from None
    used = None
    try:
        limit(process.pid, cpu_limit, 4_000_000_000)
        reason, peak = _watched(process.pid, log, silence, watch)
        if reason is not None:
            os.killpg(process.pid, signal.SIGKILL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if used is None:
            process.wait()
        _end(process.pid)  # what it left behind
    wrong = reason or meaning(process.returncode, cpu_limit)
    return Ended(wrong, used.ru_utime + used.ru_stime, peak)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Programs that other threads run meanwhile are ended when the body is left by an exception."""
    _interrupted.clear()
    try:
        yield
    except BaseException:
        _interrupted.set()
        raise


def _watched(
    pid: int, log: Path, silence: float, watch: Callable[[], str | None]
) -> tuple[str | None, float]:
    """Wait for the end of a process; why it has to be ended, if so, and its memory in MB."""
    size, quiet, peak = -1, 0.0, 0.0
    look = min(_LOOK, silence)
    while not ends(pid, look):
        peak = max(peak, _memory(pid))
        if _interrupted.is_set():
            return "interrupted", peak
        if (reason := watch()) is not None:
            return reason, peak
        now = log.stat().st_size
        size, quiet = now, quiet + look if now == size else 0.0
        if quiet >= silence:
            return f"it said nothing for {silence:g} s", peak
    return None, peak


def _end(group: int) -> None:
    """Kill what is left of a group, and wait for it: until it is gone, it may write into files."""
    limit = time.monotonic() + _DYING
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < limit:
            os.killpg(group, signal.SIGKILL)
            time.sleep(0.002)


def _memory(pid: int) -> float:
    """The memory in MB of the largest of a process and those that it started."""
    with contextlib.suppress(psutil.Error):  # gone meanwhile
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return max(float(one.memory_info().rss) for one in family) / 1e6
    return 0.0


def ends(pid: int, timeout: float) -> bool:
    """Whether a child process ends in time, known at once: `Popen.wait` would look every 50 ms."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(1000 * timeout))
    finally:
        os.close(descriptor)


def limit(pid: int, seconds: int, largest_file: int = _LARGEST_FILE) -> None:
    """Limits of the kernel's: they hold a program that loops even if this process was killed."""
    for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, largest_file)):
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.prlimit(pid, kind)
            if hard == resource.RLIM_INFINITY or most < hard:
                resource.prlimit(pid, kind, (most, most))


def meaning(code: int | None, timeout: float) -> str | None:
    """An exit code in words; None if all is well."""
    if code is None:
        return f"no result within {timeout:g} s"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else None
