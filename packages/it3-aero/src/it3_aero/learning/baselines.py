"""What a practitioner would do instead: a regressor on the numbers that shapes were made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from it3_aero.learning.shapes import Shapes
from it3_core import IT3Error
from it3_core.batching import is_graph

__all__ = ["FromParameters"]


class FromParameters:
    """A scikit-learn regressor from shape parameters to labels, as an evaluation's method.

    An evaluation hands it what the network gets; it knows its shapes by that.

    Args:
        regressor: anything with `fit` and `predict`, as in scikit-learn.
        known: training shapes with parameters.
        others: every other shape that it will be asked about, for their parameters.

    Example:
        >>> import torch
        >>> from sklearn.linear_model import LinearRegression
        >>> x = torch.rand(30, 8, 2)
        >>> shapes = Shapes(x, 50 * x[:, 0, 0], [str(i) for i in range(30)], x[:, 0])
        >>> answers = FromParameters(LinearRegression(), shapes)(x)
        >>> bool((answers.flatten() - shapes.y).abs().max() < 1)
        True
    """

    def __init__(self, regressor: Any, known: Shapes, others: Sequence[Shapes] = ()) -> None:
        self._parameters: dict[bytes, Tensor] = {}
        for shapes in (known, *others):
            if shapes.parameters is None:
                raise IT3Error("these shapes were not made from parameters: nothing to fit to")
            self._parameters |= zip(_keys(shapes.x), shapes.parameters.double(), strict=True)
        self._regressor = regressor
        self._regressor.fit(self._inputs(known.x), known.y.double().numpy())

    def __call__(self, x: Any) -> Tensor:
        answers = self._regressor.predict(self._inputs(x))
        return torch.as_tensor(np.asarray(answers), dtype=torch.float32).unsqueeze(1)

    def _inputs(self, x: Any) -> npt.NDArray[np.float64]:
        try:
            rows = torch.stack([self._parameters[key] for key in _keys(x)])
        except KeyError as problem:
            raise IT3Error("the regressor was not given the parameters of this shape") from problem
        found: npt.NDArray[np.float64] = rows.numpy()
        return found


def _keys(x: Any) -> list[bytes]:
    rows = x.pos.split(x.ptr.diff().tolist()) if is_graph(x) else x
    return [row.contiguous().numpy().tobytes() for row in rows]
