"""Solvers of the flow about an airfoil: XFoil, the program, and NeuralFoil, trained on it.

Each attempt of XFoil's has a private folder, an argument list, a time limit and a process group of
its own that is killed as a whole. The outline goes in as a file with a fixed name and header,
numbers as numbers: nothing that a user wrote reaches its command line. Whether a point converged is
what the polar file says, never the exit code or the screen.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from it3_aero.generation.programs import SolverError, ends, limit, meaning
from it3_aero.wings.geometry import Airfoil, Points, between, naca, resample
from it3_core import IT3Error
from it3_core.io.files import write_text


@dataclass(frozen=True, eq=False)
class PolarPoint:
    """One airfoil at one angle: the flow, or why there is none."""

    cl: float  # lift coefficient; NaN if not converged, as the next two
    cd: float  # drag coefficient
    cm: float  # pitching moment coefficient about a quarter of the chord
    converged: bool
    solver: str  # whose, such as "XFoil 6.99"
    # x and Cp, `(2, k)`, from the trailing edge over the upper side and back
    cp: Points = field(default_factory=lambda: np.empty((2, 0)))
    panels: int = 0  # XFoil's, of the attempt that counted
    reason: str | None = None  # why there is no solution

    @property
    def lift_to_drag(self) -> float:
        """L/D, the ratio of lift to drag."""
        return self.cl / self.cd

    @classmethod
    def failed(cls, solver: str, reason: str) -> PolarPoint:
        """No solution, and why."""
        return cls(math.nan, math.nan, math.nan, False, solver, reason=reason)


class Solver(Protocol):
    """Anything that solves for the flow about an airfoil."""

    @property
    def name(self) -> str:
        """Such as "XFoil"."""

    def version(self) -> str:
        """Such as "6.99"; raises `SolverError` where the solver doesn't work."""

    def settings(self) -> dict[str, Any]:
        """What decides its results besides the flow, as JSON."""

    def solve(
        self, airfoil: Airfoil, reynolds: float, alpha: float, mach: float = 0.0
    ) -> PolarPoint:
        """The flow about an airfoil; what doesn't converge is a result too, see `PolarPoint`."""


def check_flow(reynolds: float, alpha: float, mach: float) -> None:
    """Refuse conditions that no solver here is made for."""
    between("reynolds", reynolds, 1e3, 1e9)
    between("alpha", alpha, -30, 30)
    between("mach", mach, 0, 0.7)


_STATIONS = 32  # of the boundary layer, on each side


@dataclass(frozen=True)
class NeuralFoil:
    """The network NeuralFoil, of a size from "xxsmall" to "xxxlarge"; `ncrit` is as XFoil's."""

    name: ClassVar[str] = "NeuralFoil"
    size: str = "xlarge"
    ncrit: float = 9.0

    def version(self) -> str:
        """Its version and the network's size."""
        return f"{installed('neuralfoil')} {self.size}"

    def settings(self) -> dict[str, Any]:
        """What decides its results besides the flow."""
        return {"size": self.size, "ncrit": self.ncrit}

    def solve(
        self, airfoil: Airfoil, reynolds: float, alpha: float, mach: float = 0.0
    ) -> PolarPoint:
        """The flow as the network believes XFoil would give it, for Mach 0 only."""
        check_flow(reynolds, alpha, mach)
        solver = f"{self.name} {self.version()}"
        if mach:
            return PolarPoint.failed(solver, f"it is for Mach 0 only, and not {mach:g}")
        # Imported here: it brings aerosandbox, which takes seconds.
        import neuralfoil

        found: dict[str, Any] = neuralfoil.get_aero_from_coordinates(
            airfoil.points, alpha, reynolds, n_crit=self.ncrit, model_size=self.size
        )
        cl, cd, cm = (float(np.asarray(found[key]).item()) for key in ("CL", "CD", "CM"))
        if not all(map(math.isfinite, (cl, cd, cm))) or cd <= 0:
            return PolarPoint.failed(solver, "its result is not a number")
        return PolarPoint(cl, cd, cm, True, solver, _stations(found))


def _stations(found: dict[str, Any]) -> Points:
    """Cp = 1 − (u/V)² at the stations of the boundary layer, once around."""
    x = (np.arange(_STATIONS) + 0.5) / _STATIONS
    upper, lower = (
        1 - np.array([found[f"{side}_bl_ue/vinf_{i}"] for i in range(_STATIONS)]).ravel() ** 2
        for side in ("upper", "lower")
    )
    return np.array([[*x[::-1], *x], [*upper[::-1], *lower]])


_SHIM = b"void _gfortran_set_fpe(int e) { (void)e; }\n"
_COMPILERS = ("cc", "gcc", "clang")


@cache
def build_shim() -> Path:
    """A library that disarms the trap in Debian's build, kept as long as this process."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise SolverError(
            "this XFoil stops on a floating-point trap, and going around it takes a C compiler: "
            "run apt-get install gcc libc6-dev, or use --solver neuralfoil"
        )
    folder = tempfile.mkdtemp(prefix="it3-aero-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "no-fpe.so")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(path), "-x", "c", "-"]
    try:
        subprocess.run(command, input=_SHIM, capture_output=True, timeout=60, check=True)
    except (subprocess.SubprocessError, OSError) as problem:
        said = getattr(problem, "stderr", None) or str(problem).encode()
        line = said.decode(errors="replace").strip().splitlines()[-1][:200]
        raise SolverError(f"{compiler} can't build what XFoil needs: {line}") from None
    return path


_MOST_POINTS = 300  # that XFoil's buffer is sure to hold
_VERSION = re.compile(r"XFOIL\s+Version\s+([\w.]+)")


@dataclass(frozen=True)
class XFoil:
    """The program `xfoil`.

    Args:
        program: its path or name; without one, $IT3_XFOIL, else `xfoil` where $PATH finds it.
        timeout: seconds that one attempt may take.
        panellings: numbers of panels to try, until one converges. Another panelling rescues most
            failures; more iterations hardly ever do.
        iterations: most that the viscous solution may take.
        ncrit: amplification factor that makes the flow turbulent: 9 is an average wind tunnel.

    Example:
        >>> from it3_aero.wings import naca
        >>> XFoil("/nowhere/xfoil").solve(naca("0012"), reynolds=1e6, alpha=2.0)
        Traceback (most recent call last):
        ...
        it3_aero.generation.programs.SolverError: there is no program /nowhere/xfoil: ...
    """

    name: ClassVar[str] = "XFoil"
    program: str | None = None
    timeout: float = 20.0
    panellings: tuple[int, ...] = (160, 120, 200)
    iterations: int = 100
    ncrit: float = 9.0

    def version(self) -> str:
        """Its version, from what it says when it starts."""
        return _version(self._found(), self.timeout)

    def settings(self) -> dict[str, Any]:
        """What decides its results besides the flow."""
        panellings = list(self.panellings)
        return {"panellings": panellings, "iterations": self.iterations, "ncrit": self.ncrit}

    def check(self) -> None:
        """Raise `SolverError` unless XFoil solves a NACA 0012, as it must."""
        point = self.solve(naca("0012"), reynolds=1e6, alpha=0.0)
        if not point.converged:
            raise SolverError(f"{self._found()} can't solve a NACA 0012: {point.reason}")

    def solve(
        self, airfoil: Airfoil, reynolds: float, alpha: float, mach: float = 0.0
    ) -> PolarPoint:
        """The flow about an airfoil, by the first panelling that converges."""
        check_flow(reynolds, alpha, mach)
        program = self._found()
        solver = f"{self.name} {self.version()}"
        reasons: dict[str, None] = {}
        for panels in self.panellings:
            commands = self._commands(panels, reynolds, alpha, mach)
            with _private_folder() as folder:
                write_text(folder / "a.dat", _coordinates(airfoil))
                ended = _run(program, commands, folder, self.timeout)
                polar = _polar(folder / "p.txt", alpha)
                pressures = _pressures(folder / "cp.txt")
            if polar is not None and pressures is not None:
                return PolarPoint(*polar, True, solver, pressures, panels)
            reasons[ended or "not converged"] = None
        tried = ", ".join(map(str, self.panellings))
        return PolarPoint.failed(solver, f"{'; '.join(reasons)} (with {tried} panels)")

    def _found(self) -> str:
        wanted = self.program or os.environ.get("IT3_XFOIL") or "xfoil"
        found = shutil.which(wanted)
        if found is None:
            raise SolverError(
                f"there is no program {wanted}: run apt-get install xfoil, set IT3_XFOIL to where "
                "it is, or use --solver neuralfoil"
            )
        return os.path.abspath(found)  # noqa: PTH100 - links stay links: argv[0] may matter

    def _commands(self, panels: int, reynolds: float, alpha: float, mach: float) -> str:
        lines = ["PLOP", "G F", "", "LOAD a.dat", "PPAR", f"N {panels}", "", "", "PANE", "OPER"]
        lines += [f"VISC {reynolds:.9g}", f"MACH {mach:.6f}", "VPAR", f"N {self.ncrit:.6f}", ""]
        lines += [f"ITER {self.iterations}", "PACC", "p.txt", "", f"ALFA {alpha:.6f}", "PACC"]
        return "\n".join([*lines, "CPWR cp.txt", "", "QUIT", ""])


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="it3-xfoil-")
    except OSError as problem:
        where = tempfile.gettempdir()
        raise SolverError(f"can't work in {where}: {problem.strerror} (set TMPDIR)") from None
    with folder:
        yield Path(folder.name)


def _coordinates(airfoil: Airfoil) -> str:
    """The outline as XFoil reads it, under a header that is always the same."""
    points = airfoil.points
    if len(points) > _MOST_POINTS:
        even = np.linspace(0.0, np.pi, _MOST_POINTS // 2)
        points = resample(airfoil, 0.5 - 0.5 * np.cos(even))
        points = np.delete(points, len(points) // 2, axis=0)  # the nose is there twice
    return "airfoil\n" + "".join(f"{x:.8f} {y:.8f}\n" for x, y in points.tolist())


_trapping: set[str] = set()  # programs that were seen to stop on a floating-point trap


def _run(program: str, commands: str, folder: Path, timeout: float) -> str | None:
    """Run XFoil in a folder, with the shim if it needs that; what went wrong, if something did."""
    if program not in _trapping:
        code = _once(program, commands, folder, timeout, os.environ)
        if code != -signal.SIGFPE:
            return meaning(code, timeout)
        _trapping.add(program)
    (folder / "shim.so").symlink_to(build_shim())
    for left in ("p.txt", "cp.txt"):
        (folder / left).unlink(missing_ok=True)
    # Relative to the folder, because LD_PRELOAD is split at spaces.
    code = _once(program, commands, folder, timeout, os.environ | {"LD_PRELOAD": "./shim.so"})
    if code == -signal.SIGFPE:
        raise SolverError(
            f"{program} stops on a floating-point trap that can't be disarmed: use another build "
            "of XFoil, or --solver neuralfoil"
        )
    return meaning(code, timeout)


def _once(
    program: str, commands: str, folder: Path, timeout: float, environment: Mapping[str, str]
) -> int | None:
    """Run a program with commands on its standard input; its exit code, None if out of time."""
    given = write_text(folder / "in.txt", commands).open("rb")
    with given, write_text(folder / "log.txt", "").open("r+b") as log:
        try:
            process = subprocess.Popen(
                [program],
                cwd=folder,
                env=environment,
                stdin=given,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as problem:
            raise SolverError(f"can't run {program}: {problem.strerror}") from None
    try:
        limit(process.pid, math.ceil(timeout) + 1)
        return process.wait() if ends(process.pid, timeout) else None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _polar(path: Path, alpha: float) -> tuple[float, float, float] | None:
    """Lift, drag and moment from the polar file, which holds converged points only."""
    for line in _text(path).splitlines():
        try:
            angle, cl, cd, _, cm = map(float, line.split()[:5])
        except ValueError:
            continue  # the head
        sound = all(map(math.isfinite, (cl, cd, cm))) and cd > 0
        if sound and abs(angle - alpha) < 0.006:
            return cl, cd, cm
    return None


def _pressures(path: Path) -> Points | None:
    """x and Cp once around, (2, k)."""
    rows = []
    for line in _text(path).splitlines():
        try:
            # Version 6.99 writes x and Cp, later ones x, y and Cp.
            numbers = [float(field) for field in line.split()]
            rows.append((numbers[0], numbers[-1]))
        except (ValueError, IndexError):
            continue  # the head
    if len(rows) < 10 or not np.isfinite(rows).all():
        return None
    return np.array(rows).T


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


@cache
def _version(program: str, timeout: float) -> str:
    with _private_folder() as folder:
        ended = _run(program, "PLOP\nG F\n\nNACA 0012\n\nQUIT\n", folder, timeout)
        found = _VERSION.search(_text(folder / "log.txt"))
    if found is None:
        raise SolverError(f"{program} doesn't answer as XFoil does: {ended or 'no version'}")
    return found.group(1)


SOLVERS = ("auto", "xfoil", "neuralfoil")


def choose(name: str = "auto") -> Solver:
    """A solver that works here; "auto" is XFoil where that runs, and NeuralFoil elsewhere."""
    if name not in SOLVERS:
        raise IT3Error(f"there is no solver {name!r}; there are {', '.join(SOLVERS)}")
    if name == "neuralfoil":
        return NeuralFoil()
    xfoil = XFoil()
    try:
        xfoil.check()
    except SolverError:
        if name == "xfoil":
            raise
        return NeuralFoil()
    return xfoil
