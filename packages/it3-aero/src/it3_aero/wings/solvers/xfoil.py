"""XFoil, Drela's panel and boundary-layer program, run as a program.

Each attempt has a private folder, an argument list, a time limit and a process group of its own
that is killed as a whole. The outline goes in as a file with a fixed name and header, numbers as
numbers: nothing that a user wrote reaches XFoil's command line. Whether a point converged is what
the polar file says, never the exit code or the screen.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from it3_aero.programs import SolverError, ends, limit, meaning
from it3_aero.wings.geometry import Airfoil, Points, cosine_spacing, naca, resample
from it3_aero.wings.solvers.base import PolarPoint, check_flow
from it3_aero.wings.solvers.shim import build_shim

__all__ = ["XFoil"]

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
        it3_aero.programs.SolverError: there is no program /nowhere/xfoil: ...
    """

    program: str | None = None
    timeout: float = 20.0
    panellings: tuple[int, ...] = (160, 120, 200)
    iterations: int = 100
    ncrit: float = 9.0

    @property
    def name(self) -> str:
        """The program's name."""
        return "XFoil"

    def version(self) -> str:
        """Its version, from what it says when it starts."""
        return _version(self._found(), self.timeout)

    def settings(self) -> dict[str, Any]:
        """What decides its answers besides the flow."""
        panellings = list(self.panellings)
        return {"panellings": panellings, "iterations": self.iterations, "ncrit": self.ncrit}

    def check(self) -> None:
        """Raise `SolverError` unless XFoil answers for a NACA 0012, as it must."""
        point = self.solve(naca("0012"), reynolds=1e6, alpha=0.0)
        if not point.converged:
            raise SolverError(f"{self._found()} has no answer for a NACA 0012: {point.reason}")

    def solve(
        self, airfoil: Airfoil, reynolds: float, alpha: float, mach: float = 0.0
    ) -> PolarPoint:
        """The flow about an airfoil, by the first panelling that converges.

        Args:
            airfoil: the outline.
            reynolds: Reynolds number by the chord.
            alpha: angle of attack in degrees.
            mach: Mach number.
        """
        check_flow(reynolds, alpha, mach)
        program = self._found()
        solver = f"{self.name} {self.version()}"
        reasons: dict[str, None] = {}
        for panels in self.panellings:
            commands = self._commands(panels, reynolds, alpha, mach)
            with _private_folder() as folder:
                (folder / "a.dat").write_text(_coordinates(airfoil), encoding="ascii")
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
        with tempfile.TemporaryDirectory(prefix="it3-xfoil-") as folder:
            yield Path(folder)
    except OSError as problem:
        place = tempfile.gettempdir()
        raise SolverError(f"can't work in {place}: {problem.strerror} (set TMPDIR)") from None


def _coordinates(airfoil: Airfoil) -> str:
    """The outline as XFoil reads it, under a header that is always the same."""
    points = airfoil.points
    if len(points) > _MOST_POINTS:
        points = resample(airfoil, cosine_spacing(_MOST_POINTS // 2))
        points = np.delete(points, len(points) // 2, axis=0)  # the nose is there twice
    return "airfoil\n" + "".join(f"{x:.8f} {y:.8f}\n" for x, y in points.tolist())


_trapping: set[str] = set()
"""Programs that were seen to stop on a floating-point trap."""


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
    (folder / "in.txt").write_text(commands, encoding="ascii")
    with (folder / "in.txt").open("rb") as given, (folder / "log.txt").open("wb") as log:
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
