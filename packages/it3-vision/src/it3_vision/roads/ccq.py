"""Correctness, completeness and quality (Wiedemann et al. 1998), with IoU and MSE beside them.

Road maps are compared with a slack: a predicted road pixel is right if there is a true one no
further than so many pixels away, and a true one is found if there is a predicted one that near.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from it3_core import IT3Error

__all__ = ["SLACK", "Score", "ccq", "score"]

SLACK = 5.0
"""Pixels, as in the paper."""


@dataclass(frozen=True)
class Score:
    """How good a predicted map is.

    Attributes:
        correctness: the share of the predicted road that is near a true one.
        completeness: the share of the true road that is near a predicted one.
        quality: both in one, 1 / (1/correctness + 1/completeness − 1).
        iou: intersection over union, without any slack.
        mse: mean squared error of the probabilities.
    """

    correctness: float
    completeness: float
    quality: float
    iou: float
    mse: float


def ccq(
    predicted: NDArray[Any],
    true: NDArray[Any],
    known: NDArray[Any] | None = None,
    slack: float = SLACK,
) -> tuple[float, float, float]:
    """Correctness, completeness and quality of a binary map, exact by Euclidean distances.

    Nothing predicted is correct (1), nothing to find is complete (1): a map without roads that is
    answered by one without roads has quality 1, and quality 0 as soon as a road is predicted.

    Args:
        predicted: (H, W), true where a road is predicted.
        true: (H, W), true where there is one.
        known: (H, W), false where there are no data; what is there is left out of both.
        slack: in pixels; a distance of just this is near enough.

    Example:
        >>> import numpy as np
        >>> true, predicted = np.zeros((2, 20, 20), bool)
        >>> true[10], predicted[13] = True, True  # a line, and one three pixels below
        >>> ccq(predicted, true, slack=3), ccq(predicted, true, slack=2)
        ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    """
    p, t = np.asarray(predicted, bool), np.asarray(true, bool)
    if p.ndim != 2 or p.shape != t.shape or (known is not None and np.shape(known) != p.shape):
        raise IT3Error(f"maps of {p.shape} and {t.shape} can't be compared: they are (H, W)")
    if known is not None:
        p, t = p & np.asarray(known, bool), t & np.asarray(known, bool)
    correctness, completeness = _near(p, t, slack), _near(t, p, slack)
    if correctness == 0 or completeness == 0:
        return correctness, completeness, 0.0
    return correctness, completeness, 1 / (1 / correctness + 1 / completeness - 1)


def _near(these: NDArray[np.bool_], those: NDArray[np.bool_], slack: float) -> float:
    """The share of these pixels that have one of those within the slack."""
    if not these.any():
        return 1.0
    if not those.any():
        return 0.0
    return float((distance_transform_edt(~those)[these] <= slack + 1e-9).mean())


def score(
    probability: NDArray[Any], label: NDArray[Any], slack: float = SLACK, threshold: float = 0.5
) -> Score:
    """All five numbers for one image.

    Args:
        probability: (H, W) of a road, from 0 to 1.
        label: (H, W), 1 for a road, 0 for none, below 0 for unknown, which is left out.
        slack: in pixels.
        threshold: from where on a probability is a road.

    Example:
        >>> import numpy as np
        >>> label = np.array([[0, 1, 1, -1]])
        >>> score(np.array([[0.0, 1.0, 0.0, 1.0]]), label, slack=0)
        Score(correctness=1.0, completeness=0.5, quality=0.5, iou=0.5, mse=0.3333...)
    """
    p, t = np.asarray(probability, np.float64), np.asarray(label)
    known = t >= 0
    found, true = (p >= threshold) & known, t > 0
    three = ccq(found, true, known, slack)
    union = int((found | true).sum())
    iou = int((found & true).sum()) / union if union else 1.0
    mse = float(np.square(p - true)[known].mean()) if known.any() else 0.0
    return Score(*three, iou, mse)
