"""The paper's Figure 1: training with and without the label, then one step at test time."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from it3_core.experiment.figures import INK

_F, _FROZEN, _DATA, _LOSS = "#d8c7f0", "#d6e4f5", "#eef0f3", "#fbe3d0"


def diagram() -> Figure:
    """The method: left how f is trained, right what happens to a shifted input."""
    figure = Figure(figsize=(9.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(0, 184)
    axes.set_ylim(0, 84)
    axes.set_axis_off()
    axes.text(36, 80, "Training", ha="center", fontsize=12, fontweight="bold")
    axes.text(128, 80, "Test time", ha="center", fontsize=12, fontweight="bold")
    axes.plot([74, 74], [2, 82], color="#bbbbbb", linewidth=1)

    # Left: the same network, once with the label as its signal and once without.
    for height, signal, loss in ((56, "y", "‖f(x, y) − y‖"), (20, "0", "‖f(x, 0) − y‖")):
        _box(axes, 8, height + 8, 10, "x", _DATA)
        _box(axes, 8, height - 6, 10, signal, _DATA)
        _box(axes, 33, height + 1, 16, "$f_\\theta$", _F)
        _box(axes, 61, height + 1, 20, loss, _LOSS, 7.5)
        for start in (height + 8, height - 6):
            _arrow(axes, (14, start), (24.5, height + 1))
        _arrow(axes, (41.5, height + 1), (50.5, height + 1))
    axes.text(36, 3, "the label, or a neutral 0, is a second input", ha="center", fontsize=8)

    # Right: f answers, the frozen F is given that answer, and f is moved to close the gap.
    _box(axes, 84, 62, 14, "shifted x", _DATA, 8)
    _box(axes, 84, 44, 12, "0", _DATA)
    _box(axes, 108, 53, 14, "$f_\\theta$", _F)
    _box(axes, 128, 53, 10, "$y_0$", _DATA)
    _box(axes, 148, 62, 14, "$F$", _FROZEN)
    axes.text(148, 71, "frozen; online: an\nEMA of f", ha="center", fontsize=7)
    _box(axes, 170, 62, 10, "$y_1$", _DATA)
    _box(axes, 148, 26, 44, "$\\|F(x, f_\\theta(x, 0)) - f_\\theta(x, 0)\\|$", _LOSS, 9)
    _arrow(axes, (91.5, 62), (100.5, 55))
    _arrow(axes, (90.5, 44), (100.5, 51))
    _arrow(axes, (115.5, 53), (122.5, 53))
    _arrow(axes, (133.5, 54), (140.5, 60))
    _arrow(axes, (155.5, 62), (164.5, 62))
    _arrow(axes, (91.5, 64), (140.5, 64.5), bend=-0.18)
    _arrow(axes, (170, 56), (158, 32))
    _arrow(axes, (128, 47), (138, 32))
    _arrow(axes, (125.5, 26), (108, 46.5), "#b42318", 0.28)
    axes.text(100, 24, "1 to 3 steps\nof Adam on θ", ha="center", fontsize=8, color="#b42318")
    answer = "the answer is $f_\\theta(x, 0)$ after the steps; then θ is reset (not online)"
    axes.text(128, 8, answer, ha="center", fontsize=8)
    return figure


def _box(
    axes: Any, x: float, y: float, width: float, text: str, colour: str, size: float = 11
) -> None:
    style = "round,pad=0.4,rounding_size=1.6"
    axes.add_patch(FancyBboxPatch((x - width / 2, y - 5), width, 10, boxstyle=style,
                                  facecolor=colour, edgecolor=INK, linewidth=0.9))  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", fontsize=size)


def _arrow(axes: Any, start: Any, end: Any, colour: str = INK, bend: float = 0.0) -> None:
    style: dict[str, Any] = {"arrowstyle": "-|>", "connectionstyle": f"arc3,rad={bend}"}
    axes.add_patch(
        FancyArrowPatch(start, end, mutation_scale=10, color=colour, linewidth=1.1, **style)
    )
