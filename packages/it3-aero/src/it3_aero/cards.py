"""Data cards: what a folder of generated samples holds, in numbers and as a histogram."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import it3_aero
from it3_aero.generation import Store

__all__ = ["Card", "card_head", "histogram", "spread"]

Card = dict[str, Any]
"""What a data card says, as JSON."""


def card_head(store: Store, n: int) -> Card:
    """Who made the samples, how, how many have an answer, and why the others have none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Store(folder, {"seed": 0}) as store:
        ...     store.append({"sample": 0, "problem": "not converged"})
        ...     card_head(store, 1)["counts"]
        {'asked': 1, 'answered': 0, 'failed': 1}
    """
    problems = Counter(r["problem"] for r in store.samples.values() if "problem" in r)
    failed = sum(problems.values())
    return {
        "made_by": f"it3-aero {it3_aero.__version__}",
        "settings": store.settings,
        "counts": {"asked": n, "answered": len(store.samples) - failed, "failed": failed},
        "problems": dict(problems.most_common()),
    }


def spread(values: Sequence[float], width: float) -> Card:
    """Where numbers lie, with a histogram of bins of a width.

    Example:
        >>> spread([1.0, 2.0, 7.0], width=5.0)["histogram"]
        {'edges': [0.0, 5.0, 10.0], 'counts': [2, 1]}
    """
    ordered = np.sort(values)
    low = np.floor(ordered[0] / width) * width
    high = np.ceil((ordered[-1] + 1e-9) / width) * width
    counts, edges = np.histogram(ordered, np.arange(low, high + width / 2, width))
    quantiles = {q: round(float(np.percentile(ordered, q)), 3) for q in (5, 25, 50, 75, 95)}
    return {
        "lowest": round(float(ordered[0]), 3),
        "quantiles": {f"{q}%": value for q, value in quantiles.items()},
        "highest": round(float(ordered[-1]), 3),
        "histogram": {"edges": edges.round(9).tolist(), "counts": counts.tolist()},
    }


def histogram(
    values: Sequence[float],
    edges: Sequence[float],
    title: str,
    labels: tuple[str, str],
    line: float | None = None,
) -> bytes:
    """A histogram as a PNG, with a line across it.

    Example:
        >>> histogram([1.0, 2.0], [0.0, 5.0], "two", ("L/D", "profiles"))[:4]
        b'\\x89PNG'
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.hist(values, edges, color="#4fae90", edgecolor="w")
    if line is not None:
        axes.axvline(line, color="#d0590a", linestyle="--", linewidth=1.4)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.spines[["top", "right"]].set_visible(False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
    return content.getvalue()
