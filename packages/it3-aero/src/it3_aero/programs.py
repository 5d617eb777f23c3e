"""Solvers are programs, run as programs: argument lists, limits, and a group that ends as a whole.

A program has a private folder and a session of its own. It is killed with all that it started when
its time is over, when someone asks, and, where `run` started it, when this process dies, even from
kill -9.
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
from dataclasses import dataclass
from pathlib import Path

from it3_core import IT3Error

__all__ = ["Ended", "SolverError", "ends", "interruptible", "limit", "meaning", "run"]

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


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        problem: why it isn't to be trusted; None if it ended as it should.
        cpu_seconds: of CPU, with all that it waited for.
        peak_mb: the most memory that one process of it had, in MB.
    """

    problem: str | None
    cpu_seconds: float
    peak_mb: float


def run(
    arguments: Sequence[str],
    folder: Path,
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    cpu_limit: int = 3600,
    silence: float = 600.0,
    largest_file: int = 4_000_000_000,
    watch: Callable[[], str | None] | None = None,
) -> Ended:
    """Run a program in a folder until it ends, or has to be ended.

    Args:
        arguments: its full path, and what it is given.
        folder: where it runs.
        log: file for what it says.
        environment: its variables; this process's if not given.
        cpu_limit: seconds of CPU that it may take.
        silence: seconds of the clock for which it may say nothing: then it hangs.
        largest_file: bytes that it may write into one file.
        watch: asked twice a second; a reason that it returns ends the program.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = Path(folder, "log")
        ...     ended = run(["/bin/echo", "hello"], Path(folder), log)
        ...     ended.problem, log.read_text()
        (None, 'hello\\n')
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run(["/bin/sleep", "9"], Path(folder), Path(folder, "log"), silence=0.1).problem
        'it said nothing for 0.1 s'
    """
    tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *arguments]
    with log.open("wb") as written:
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
        limit(process.pid, cpu_limit, largest_file)
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
    told = reason or meaning(process.returncode, cpu_limit)
    return Ended(told, used.ru_utime + used.ru_stime, peak)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Programs that other threads run meanwhile are ended when the body is left by an exception.

    Example:
        >>> with interruptible():
        ...     pass
    """
    _interrupted.clear()
    try:
        yield
    except BaseException:
        _interrupted.set()
        raise


def _watched(
    pid: int, log: Path, silence: float, watch: Callable[[], str | None] | None
) -> tuple[str | None, float]:
    """Wait for the end of a process; why it has to be ended, if so, and its memory in MB."""
    size, quiet, peak = -1, 0.0, 0.0
    look = min(_LOOK, silence)
    while not ends(pid, look):
        peak = max(peak, _peak(pid))
        if _interrupted.is_set():
            return "interrupted", peak
        if watch is not None and (reason := watch()) is not None:
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


def _peak(pid: int) -> float:
    """The most memory in MB that a process, or one that it started, has had so far.

    What `wait4` says includes this process's own memory, which a child has for a moment.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # gone meanwhile
        return 0.0
    own = [line for line in status.splitlines() if line.startswith("VmHWM")]
    mine = float(own[0].split()[1]) / 1024 if own else 0.0
    return max([mine, *(_peak(int(child)) for child in children)])


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
    """An exit code in words; None if all is well.

    Example:
        >>> meaning(0, 5.0), meaning(None, 5.0), meaning(-9, 5.0)
        (None, 'no answer within 5 s', 'killed by SIGKILL')
    """
    if code is None:
        return f"no answer within {timeout:g} s"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else None
