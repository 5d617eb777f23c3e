"""What a practitioner would do instead: NeuralFoil, and a Gaussian process on shape parameters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from it3_aero.wings.geometry import Airfoil
from it3_aero.wings.shapes import Shapes
from it3_aero.wings.solvers import Solver
from it3_core import IT3Error

__all__ = ["GaussianProcess", "Solved"]


class Solved:
    """Asks a solver about every outline of a batch, as an evaluation's method.

    Args:
        solver: `NeuralFoil()`, say.
        reynolds: at which to solve.
        alpha: angle of attack, in degrees.

    Example:
        >>> import torch
        >>> from it3_aero.wings import NeuralFoil, naca, to_graph
        >>> answers = Solved(NeuralFoil(), 1e6, 0.0)(to_graph(naca("2412")).pos[None])
        >>> 25 < answers.item() < 50
        True
    """

    def __init__(self, solver: Solver, reynolds: float, alpha: float) -> None:
        self.solver = solver
        self.reynolds = reynolds
        self.alpha = alpha

    def __call__(self, x: Tensor) -> Tensor:
        found = [self._one(pos.double().numpy()) for pos in x]
        return torch.tensor(found, dtype=x.dtype).unsqueeze(1)

    def _one(self, points: npt.NDArray[np.float64]) -> float:
        # As it is: nodes lie on the outline already, and normalising would move the nose.
        shape = Airfoil("outline", points)
        return self.solver.solve(shape, self.reynolds, self.alpha).lift_to_drag


class GaussianProcess:
    """A Gaussian process from shape parameters to L/D; it knows its shapes by their outlines.

    Args:
        known: training shapes with parameters.
        others: every other shape that it will be asked about, for their parameters.
        seed: of the choice of training shapes.
        most: training shapes to use, since the cost is cubic.

    Example:
        >>> import torch
        >>> x = torch.rand(30, 8, 2)
        >>> shapes = Shapes(x, 50 * x[:, 0, 0], [str(i) for i in range(30)], x[:, 0])
        >>> bool((GaussianProcess(shapes)(x).flatten() - shapes.y).abs().max() < 1)
        True
    """

    def __init__(
        self, known: Shapes, others: Sequence[Shapes] = (), seed: int = 0, most: int = 500
    ) -> None:
        from sklearn.gaussian_process import (
            GaussianProcessRegressor,
        )
        from sklearn.gaussian_process.kernels import (
            RBF,
            ConstantKernel,
            WhiteKernel,
        )

        self._parameters: dict[bytes, Tensor] = {}
        for shapes in (known, *others):
            if shapes.parameters is None:
                raise IT3Error("these shapes were not made from parameters: nothing to fit to")
            self._parameters |= zip(map(_key, shapes.x), shapes.parameters.double(), strict=True)
        used = known.sample(most, seed)
        inputs = self._inputs(used.x)
        self._mean, self._std = inputs.mean(0), inputs.std(0) + 1e-12
        widths = RBF(np.full(inputs.shape[1], 2.0), (0.05, 100.0))
        kernel = ConstantKernel(10.0, (1e-2, 1e4)) * widths + WhiteKernel(1e-3, (1e-7, 1.0))
        self._model = GaussianProcessRegressor(kernel, normalize_y=True)
        with warnings.catch_warnings():  # a length scale at its bound is no reason to stop
            warnings.simplefilter("ignore")
            self._model.fit((inputs - self._mean) / self._std, used.y.double().numpy())

    def __call__(self, x: Tensor) -> Tensor:
        answers = self._model.predict((self._inputs(x) - self._mean) / self._std)
        return torch.as_tensor(np.asarray(answers), dtype=x.dtype).unsqueeze(1)

    def _inputs(self, x: Tensor) -> npt.NDArray[np.float64]:
        try:
            rows = torch.stack([self._parameters[_key(row)] for row in x])
        except KeyError as problem:
            raise IT3Error("the Gaussian process was not given this shape") from problem
        found: npt.NDArray[np.float64] = rows.numpy()
        return found


def _key(outline: Tensor) -> bytes:
    return outline.contiguous().numpy().tobytes()
