"""What a practitioner would do instead: NeuralFoil, and a Gaussian process on shape parameters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from it3_aero.learning.baselines import FromParameters
from it3_aero.learning.shapes import Shapes
from it3_aero.wings.geometry import Airfoil
from it3_aero.wings.solvers import Solver
from it3_core import IT3Error

__all__ = ["Solved", "gaussian_process"]


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


def gaussian_process(
    known: Shapes, others: Sequence[Shapes] = (), seed: int = 0, most: int = 500
) -> FromParameters:
    """A Gaussian process from shape parameters to L/D.

    Args:
        known: training shapes with parameters.
        others: every other shape that it will be asked about, for their parameters.
        seed: of the choice of training shapes.
        most: training shapes to use, since the cost is cubic.

    Example:
        >>> import torch
        >>> x = torch.rand(30, 8, 2)
        >>> shapes = Shapes(x, 50 * x[:, 0, 0], [str(i) for i in range(30)], x[:, 0])
        >>> bool((gaussian_process(shapes)(x).flatten() - shapes.y).abs().max() < 1)
        True
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if known.parameters is None:
        raise IT3Error("these shapes were not made from parameters: nothing to fit to")
    widths = RBF(np.full(known.parameters.shape[1], 2.0), (0.05, 100.0))
    kernel = ConstantKernel(10.0, (1e-2, 1e4)) * widths + WhiteKernel(1e-3, (1e-7, 1.0))
    process = GaussianProcessRegressor(kernel, normalize_y=True)
    regressor = make_pipeline(StandardScaler(), process)
    with warnings.catch_warnings():  # a length scale at its bound is no reason to stop
        warnings.simplefilter("ignore")
        return FromParameters(regressor, known.sample(most, seed), others)
