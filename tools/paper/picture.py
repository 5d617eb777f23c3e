"""What the default is worth in every task, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from it3_core.contrast import Contrast

__all__ = ["forest"]

Line = tuple[str, Mapping[str, "Contrast | None"]]
"""A task and batch size, and the default's changes in per cent, each by whom it is against."""

_LOOKS = (("o", "#2a0845"), ("s", "#2b90e6"), ("D", "#f7c325"), ("^", "#8fd0b8"))
_INK = "#222222"


def forest(lines: Sequence[Line]) -> Figure:
    """A row a line, a mark for each change with its interval; left of zero is better.

    Example:
        >>> from it3_core.contrast import Contrast
        >>> figure = forest([("cifar, 4", {"source": Contrast(-15.0, -19.0, -10.0, None, 5)})])
        >>> figure.axes[0].get_yticklabels()[0].get_text()
        'cifar, 4'
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.6 + 0.42 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color=_INK, linewidth=1)
    names = list(dict.fromkeys(name for _, changes in lines for name in changes))
    for number, name in enumerate(names):
        marker, colour = _LOOKS[number % len(_LOOKS)]
        found = [(row, changes.get(name)) for row, (_, changes) in enumerate(lines)]
        kept = [(row, change) for row, change in found if change is not None]
        ends = [
            (0.0, 0.0) if one.low is None or one.high is None
            # Rounded values may lie a hair outside of their interval.
            else (max(0.0, one.value - one.low), max(0.0, one.high - one.value))
            for _, one in kept
        ]  # fmt: skip
        axes.errorbar(
            [one.value for _, one in kept],
            [row + 0.17 * (number - (len(names) - 1) / 2) for row, _ in kept],
            xerr=[[low for low, _ in ends], [high for _, high in ends]],
            fmt=marker,
            markersize=5.5,
            markerfacecolor=colour,
            markeredgecolor=_INK,
            markeredgewidth=0.7,
            ecolor="#555555",
            elinewidth=1.0,
            capsize=2,
            label=name,
        )
    axes.set_yticks(range(len(lines)), [label for label, _ in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel(
        "change of the error by the default in per cent, with 95 % intervals; left is better"
    )
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure
