"""Where OpenFOAM is, and whether it is a version whose dictionaries these are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from it3_aero.programs import SolverError

__all__ = ["OLDEST", "Install", "find"]

OLDEST = 1806
"""The first version of openfoam.com's that the dictionaries were written for."""

_TESTED = 1912
_BUILD = re.compile(r"OpenFOAM\S*\s+\(?(\d{4})\b|OPENFOAM=v?(\d{4})|OpenFOAM-v(\d{4})")
_OTHER = re.compile(r"OpenFOAM-(\d{1,2}|dev)\b|openfoam\.org", re.IGNORECASE)
_ADVICE = (
    "run apt-get install openfoam (Debian's 1912), or set PATH to where OpenFOAM's programs are"
)


class Install:
    """OpenFOAM as it is installed here.

    Attributes:
        version: such as "1912".
        environment: that its programs need.

    Example:
        >>> Install("1912", {}).program("no-such-foam")
        Traceback (most recent call last):
        ...
        it3_aero.programs.SolverError: there is no program no-such-foam: run apt-get install ...
    """

    def __init__(self, version: str, environment: dict[str, str]) -> None:
        self.version = version
        self.environment = environment

    def program(self, name: str) -> str:
        """The full path of one of its programs, or `SolverError`."""
        return _program(name)


def find() -> Install:
    """OpenFOAM, or a `SolverError` that says how to get it.

    Example:
        >>> from unittest.mock import patch
        >>> with patch.dict("os.environ", PATH="/nowhere"):
        ...     find()
        Traceback (most recent call last):
        ...
        it3_aero.programs.SolverError: there is no program simpleFoam: run apt-get install ...
    """
    environment = _environment()
    return Install(_version(_program("simpleFoam"), tuple(environment.items())), environment)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SolverError(f"there is no program {name}: {_ADVICE}")
    return os.path.abspath(found)  # noqa: PTH100 - links stay links: argv[0] may matter


def _environment() -> dict[str, str]:
    """What a program of OpenFOAM's sees of this process's variables: as little as works."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    foam = {name: value for name, value in os.environ.items() if name.startswith(("WM_", "FOAM_"))}
    environment |= foam
    if "WM_PROJECT_DIR" not in environment and Path("/usr/share/openfoam/etc").is_dir():
        environment["WM_PROJECT_DIR"] = "/usr/share/openfoam"  # Debian's
    environment["OMP_NUM_THREADS"] = "1"
    # A rank of MPI that waits lets others work: on busy cores that halves the CPU it takes.
    environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if os.getuid() == 0:  # mpirun asks root twice
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environment


@cache
def _version(program: str, environment: tuple[tuple[str, str], ...]) -> str:
    try:
        answer = subprocess.run(
            [program, "-help"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise SolverError(f"{program} doesn't answer as OpenFOAM does: {problem}") from None
    return _understood(program, (answer.stdout + answer.stderr).decode(errors="replace"))


def _understood(program: str, text: str) -> str:
    """The version in what `-help` says."""
    found = _BUILD.search(text)
    if found is None:
        other = _OTHER.search(text)
        which = f"is {other.group(0)}" if other else "does not say which OpenFOAM it is"
        raise SolverError(
            f"{program} {which}: it3-aero's cases are written for openfoam.com's, {OLDEST} or "
            f"later (tested with {_TESTED}), not for openfoam.org's; {_ADVICE}"
        )
    version = next(group for group in found.groups() if group)
    if int(version) < OLDEST:
        raise SolverError(
            f"{program} is OpenFOAM {version}, but it has to be {OLDEST} or later: {_ADVICE}"
        )
    return version
