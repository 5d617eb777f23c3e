"""Numbers that were published, or that must never change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from it3_aero.doctor import try_solver
from it3_aero.wings import Airfoil, NeuralFoil, XFoil, naca, naca5, resample
from it3_aero.wings.families import draw
from it3_aero.wings.solvers.shim import build_shim

# Abbott and von Doenhoff, Theory of Wing Sections, appendix III, in % of the chord:
# station, upper, lower.
ORDINATES = {
    "2412": [(2.5, 2.99, -2.27), (10, 5.63, -3.75), (30, 7.88, -4.12), (60, 6.36, -2.76)],
    "23012": [(5, 4.91, -2.26), (15, 7.19, -3.50), (30, 7.55, -4.46), (70, 4.36, -3.00)],
}


@pytest.mark.parametrize("digits", ORDINATES)
def test_ordinates_are_naca_s(digits: str) -> None:
    stations, upper, lower = np.array(ORDINATES[digits]).T
    found = 100 * resample(naca(digits), stations / 100)[:, 1]
    assert found[len(stations) :] == pytest.approx(lower, abs=0.03)
    assert found[: len(stations)][::-1] == pytest.approx(upper, abs=0.03)


@pytest.mark.parametrize(("digits", "reflex"), [("23012", False), ("23112", True)])
def test_five_digits_are_the_continuous_family_s(digits: str, reflex: bool) -> None:
    points = naca5(0.3, 0.15, 0.12, reflex).points
    assert np.array_equal(naca(digits).points, points)


# XFoil's own answers as others published them, at Re 1e6, Ncrit 9 and Mach 0: angle, CL, CD.
# airfoiltools.com, polars xf-n0012-il-1000000 and xf-naca2412-il-1000000: XFoil 6.96 on the UIUC
# collection's coordinates, which are rounded, hence the tolerance. A table of the NACA 4415 and one
# at Re 3e6 could not be had; those cases are compared with XFoil run by hand, below.
PUBLISHED = {
    "0012": [
        *[(0, 0.0000, 0.00540), (2, 0.2144, 0.00581), (4, 0.4276, 0.00728)],
        *[(6, 0.6940, 0.00972), (8, 0.9103, 0.01208), (10, 1.0808, 0.01499)],
    ],
    "2412": [
        *[(-2, 0.0272, 0.00653), (0, 0.2442, 0.00568), (2, 0.4549, 0.00581)],
        *[(4, 0.7153, 0.00711), (6, 0.9016, 0.00945), (8, 1.0885, 0.01270)],
    ],
}


@pytest.mark.parametrize(
    ("digits", "lift", "drag"), [("0012", 0.001, 0.003), ("2412", 0.004, 0.02)]
)
def test_xfoil_says_what_was_published(xfoil: XFoil, digits: str, lift: float, drag: float) -> None:
    for alpha, cl, cd in PUBLISHED[digits]:
        point = xfoil.solve(naca(digits), 1e6, alpha)
        assert point.cl == pytest.approx(cl, abs=lift), alpha
        assert point.cd == pytest.approx(cd, rel=drag), alpha


@pytest.mark.parametrize("reynolds", [1e6, 3e6])
@pytest.mark.parametrize("digits", ["0012", "2412", "4415"])
def test_xfoil_by_hand_says_the_same(
    xfoil: XFoil, digits: str, reynolds: float, tmp_path: Path
) -> None:
    polar = by_hand(tmp_path, digits, reynolds)
    assert len(polar) >= 3
    for alpha, cl, cd in polar:
        point = xfoil.solve(straight_up(digits), reynolds, alpha)
        assert point.cl == pytest.approx(cl, abs=0.001), alpha
        assert point.cd == pytest.approx(cd, rel=0.005), alpha


def straight_up(digits: str) -> Airfoil:
    """A profile as XFoil's NACA command makes it: the thickness is added to the mean line straight
    up, and not along its normal, as NACA did. On a 4415 that makes 2 % of the lift."""
    m, p = max(int(digits[0]) / 100, 1e-12), max(int(digits[1]) / 10, 0.1)
    x = 0.5 + 0.5 * np.cos(np.linspace(0, 2 * np.pi, 301))
    t = 5 * int(digits[2:]) / 100
    half = t * (0.2969 * x**0.5 - 0.126 * x - 0.3516 * x**2 + 0.2843 * x**3 - 0.1015 * x**4)
    back = m / (1 - p) ** 2 * (1 - 2 * p + 2 * p * x - x**2)
    line = np.where(x < p, m / p**2 * (2 * p * x - x**2), back)
    return Airfoil(digits, np.stack([x, line + np.where(np.arange(301) < 150, half, -half)], 1))


def by_hand(folder: Path, digits: str, reynolds: float) -> list[tuple[float, float, float]]:
    """XFoil's polar of a profile, with what a person would type: angle, CL, CD."""
    lines = ["PLOP", "G F", "", f"NACA {digits}", "PANE", "OPER", f"VISC {reynolds:.0f}"]
    angles = [f"ALFA {alpha}" for alpha in (-2, 0, 2, 4, 7)]
    lines += ["ITER 100", "PACC", "p.txt", "", *angles, "PACC", "", "QUIT", ""]
    subprocess.run(
        ["xfoil"],
        input="\n".join(lines).encode(),
        cwd=folder,
        env=os.environ | {"LD_PRELOAD": str(build_shim())},
        capture_output=True,
        timeout=60,
        check=False,
    )
    rows = [line.split() for line in (folder / "p.txt").read_text().splitlines()[12:]]
    return [(float(row[0]), float(row[1]), float(row[2])) for row in rows]


def test_all_digits_of_version_6_99_elsewhere(xfoil: XFoil) -> None:
    # A NACA 2412 at Re 1e6 by XFoil's NACA command, from a polar file that the project aerobo keeps
    # in its tests. Its fourth row, at 4 degrees, has CL 0.6635, where this XFoil has 0.7146 for any
    # panelling and from any angle before, NeuralFoil 0.710, and airfoiltools 0.7153.
    for alpha, *wanted in [(-2, 0.0220, 0.00659), (0, 0.2371, 0.00564), (2, 0.4496, 0.00578)]:
        point = xfoil.solve(straight_up("2412"), 1e6, alpha)
        assert [point.cl, point.cd] == pytest.approx(wanted, abs=1e-4), alpha


def test_xfoil_s_answers_repeat_bit_by_bit(xfoil: XFoil) -> None:
    first, *others = [xfoil.solve(naca("4415"), 3e6, 5.0) for _ in range(3)]
    for other in others:
        assert (other.cl, other.cd, other.cm) == (first.cl, first.cd, first.cm)
        assert other.cp.tobytes() == first.cp.tobytes()


def test_pressures_are_an_airfoil_s(xfoil: XFoil) -> None:
    point = xfoil.solve(naca("0012"), 1e6, 4.0)
    x, cp = point.cp
    assert point.panels == x.shape[0] == 160
    assert cp.max() == pytest.approx(1.0, abs=0.01)  # the stagnation point
    nose = int(np.argmin(x))
    # Lift, from the pressure on both sides.
    upper = np.trapezoid(cp[nose::-1], x[nose::-1])
    lower = np.trapezoid(cp[nose:], x[nose:])
    assert lower - upper == pytest.approx(point.cl, abs=0.01)


@pytest.mark.parametrize("solver", [XFoil(), NeuralFoil()], ids=lambda solver: solver.name)
def test_the_doctor_is_content(xfoil: XFoil, solver: XFoil | NeuralFoil) -> None:
    finding = try_solver(solver)
    assert finding.works, finding.told


def test_neuralfoil_is_near_xfoil(xfoil: XFoil) -> None:
    for digits in ("0012", "2412", "4415"):
        real = xfoil.solve(naca(digits), 1e6, 2.0)
        guess = NeuralFoil().solve(naca(digits), 1e6, 2.0)
        assert guess.cl == pytest.approx(real.cl, abs=0.02)
        assert guess.cd == pytest.approx(real.cd, rel=0.05)
        assert guess.solver.startswith("NeuralFoil")


def test_sample_five_is_the_same_for_ever() -> None:
    wanted = {"camber": 0.010318, "position": 0.473875, "thickness": 0.117601}
    assert draw("naca4", seed=0, sample=5) == wanted
