"""A way around Debian's XFoil, which stops at the first floating-point exception of any run.

Its Fortran run time arms the exceptions in `_gfortran_set_fpe`. A shared object with an empty
function of that name, loaded before, leaves them disarmed. It is built with the system's C compiler
and kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from it3_aero.programs import SolverError

__all__ = ["build_shim", "cache_folder"]

_SOURCE = b"void _gfortran_set_fpe(int e) { (void)e; }\n"
_NAME = f"no-fpe-1-{os.uname().machine}.so"
_COMPILERS = ("cc", "gcc", "clang")


def cache_folder() -> Path:
    """Where files that can be made again are kept.

    Example:
        >>> cache_folder().name
        'it3-aero'
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else Path.home() / ".cache") / "it3-aero"  # noqa: PTH117


@cache
def build_shim() -> Path:
    """The shared object, built if it isn't there yet; `SolverError` where there is no compiler."""
    folder = cache_folder()
    path = folder / _NAME
    if path.is_file() and path.stat().st_uid == os.getuid():
        return path
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise SolverError(
            "this XFoil stops on a floating-point trap, and going around it takes a C compiler "
            "once: run apt-get install gcc libc6-dev, or use --solver neuralfoil"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _compiled(compiler, folder)
    except OSError:  # no home, or one that can't be written into: kept as long as this process
        return _compiled(compiler, _own_folder())


def _compiled(compiler: str, folder: Path) -> Path:
    number, made = tempfile.mkstemp(dir=folder, suffix=".so")
    os.close(number)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", made, "-x", "c", "-"]
    try:
        subprocess.run(command, input=_SOURCE, capture_output=True, timeout=60, check=True)
        return Path(made).replace(folder / _NAME)
    except (subprocess.SubprocessError, OSError) as problem:
        with contextlib.suppress(OSError):
            Path(made).unlink()
        if isinstance(problem, OSError):
            raise
        told = getattr(problem, "stderr", None) or b"no answer"
        line = told.decode(errors="replace").strip().splitlines()[-1][:200]
        raise SolverError(f"{compiler} can't build what XFoil needs: {line}") from None


@cache
def _own_folder() -> Path:
    import atexit

    folder = tempfile.mkdtemp(prefix="it3-aero-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
