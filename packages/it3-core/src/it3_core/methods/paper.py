"""The paper's IT³, frozen: whatever is called "paper" in this project is made here, and only here.

What the paper states: L_IT³ (6) with the gradient through F's second input too, since nothing in
(6) stops it; Adam; all weights; each batch from the trained weights; an answer goes as far as the
steps take it. Online (7): no new start, a moving average of f in F's place. Its appendix C.4 can be
read as stopping the gradient before F; `stop_gradient=True` is that reading.

What the paper leaves open is chosen without labels by `choose_step`: the learning rate, and how
many of "1–3" steps. The moving average's decay, 0.99, is ours, and so is the reading of ‖·‖ for
classes: the sum of absolute differences of their probabilities, as for numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from it3_core.batching import Data, labelled
from it3_core.engine.functional import FunctionalModel
from it3_core.engine.inner_optimizer import Norm
from it3_core.methods.base import idempotence_error
from it3_core.methods.it3 import IT3
from it3_core.methods.online_it3 import OnlineIT3
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter
from it3_core.model.classes import Classification, DenseMap

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
"""Learning rates that `choose_step` tries, half a decade apart."""

MOST_STEPS = 3


@dataclass(frozen=True)
class PaperStep:
    """How many steps of which learning rate, and the idempotence errors that decided it.

    `tried` holds (steps, learning rate, error after / error before). Without it: the authors' own.
    """

    steps: int = 1
    lr: float = 2e-4
    tried: tuple[tuple[int, float, float | None], ...] = ()

    @property
    def ratio(self) -> float | None:
        """The idempotence error after adaptation, as a fraction of the one before."""
        found = [ratio for steps, lr, ratio in self.tried if (steps, lr) == (self.steps, self.lr)]
        return found[0] if found else None

    def of(self, steps: int) -> PaperStep:
        """The best rate for this number of steps."""
        ratios = {(n, lr): r for n, lr, r in self.tried if n == steps and r is not None}
        if not ratios:
            return PaperStep(steps, self.lr, self.tried)
        return PaperStep(*min(ratios, key=lambda key: ratios[key]), self.tried)


def paper_it3(
    model: nn.Module,
    adapter: Adapter,
    *,
    steps: int,
    lr: float,
    norm: Norm = "source",
    stop_gradient: bool = False,
) -> IT3:
    """The paper's IT³, equation (6), and nothing of ours: no gate, no trust region.

    Args:
        model: a conditioned network, called as `model(x, signal)`.
        adapter: what kind of answer it gives.
        steps: gradient steps, one to three.
        lr: Adam's learning rate.
        norm: whose statistics batch norms use; the paper does not say, and "source" are the
            trained network's.
        stop_gradient: the other reading, see above.

    Example:
        >>> import torch
        >>> from it3_core import Regression, paper_it3, widen
        >>> adapter = Regression()
        >>> method = paper_it3(widen(torch.nn.Linear(3, 1), adapter), adapter, steps=3, lr=1e-4)
        >>> method.anchor_gradient, method.trust_region
        (True, False)
    """
    return IT3(
        model,
        paper_adapter(adapter),
        steps=steps,
        lr=lr,
        optimizer="Adam",
        parameters=None,
        anchor="frozen",
        anchor_gradient=not stop_gradient,
        power=1.0,
        norm=norm,
        per_instance=False,
        trust_region=False,
    )


def paper_online_it3(
    model: nn.Module, adapter: Adapter, *, steps: int, lr: float, norm: Norm = "source"
) -> OnlineIT3:
    """The paper's online IT³, equation (7): f goes on from batch to batch, its average is F.

    Args:
        model, adapter, steps, lr, norm: as for `paper_it3`.

    Example:
        >>> import torch
        >>> from it3_core import Regression, paper_online_it3, widen
        >>> adapter = Regression()
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> paper_online_it3(model, adapter, steps=1, lr=1e-4).trust_region
        False
    """
    return OnlineIT3(
        model,
        paper_adapter(adapter),
        steps=steps,
        lr=lr,
        decay=0.99,
        pull=0.0,
        gate=None,
        optimizer="Adam",
        parameters=None,
        anchor_gradient=True,
        power=1.0,
        norm=norm,
        trust_region=False,
    )


def paper_adapter(adapter: Adapter) -> Adapter:
    """The adapter with the paper's ‖·‖: for classes L1, whatever the default distance is."""
    if not isinstance(adapter, Classification | DenseMap):
        return adapter
    found = copy.copy(adapter)
    found.distance_name = "l1"
    return found


def choose_step(
    model: nn.Module,
    adapter: Adapter,
    data: Data,
    *,
    online: bool = False,
    norm: Norm = "source",
    rates: Sequence[float] = RATES,
) -> PaperStep:
    """The steps and the rate that lower the idempotence error most on these batches: no labels.

    The error is ‖F(x, y) − y‖ of the answers y, F the trained network. More steps are tried at the
    best rate for fewer steps and at the next smaller one.

    Args:
        model, adapter, norm: as for `paper_it3`.
        data: batches of validation inputs under shifts, whose labels are not used; for `online` in
            the stream's order.
        online: choose for `paper_online_it3`.
        rates: learning rates to try.

    Example:
        >>> import torch
        >>> from it3_core import Regression, choose_step, condition
        >>> _ = torch.manual_seed(0)
        >>> adapter = Regression()
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> model = condition(net, adapter, layer="0")
        >>> _ = torch.nn.init.normal_(model.embed.weight)  # stands in for training
        >>> step = choose_step(model, adapter, [torch.randn(16, 3)])
        >>> step.ratio < 1
        True
    """
    inputs = [x for x, _ in labelled(data)]
    functional, own = FunctionalModel(model, norm=norm), paper_adapter(adapter)
    source = Source(model, own, norm=norm)
    before = sum(float(source(x).error_before.sum()) for x in inputs)
    make = paper_online_it3 if online else paper_it3
    allowed = rates = sorted(rates)
    tried: list[tuple[int, float, float | None]] = []
    best: tuple[float, int, float] = (math.inf, 1, min(rates))
    for steps in range(1, MOST_STEPS + 1):
        for lr in rates:
            method, after = make(model, adapter, steps=steps, lr=lr, norm=norm), 0.0
            for x in inputs:
                answer = method(x).prediction
                after += float(idempotence_error(functional, own, x, answer).sum())
            ratio = after / before if before > 0 else math.nan
            tried.append((steps, lr, ratio if math.isfinite(ratio) else None))
            if ratio < best[0]:
                best = (ratio, steps, lr)
        ratios = {lr: r for n, lr, r in tried if n == steps and r is not None}
        top = min(ratios, key=lambda lr: ratios[lr]) if ratios else min(rates)
        rates = [lr for lr in allowed if lr <= top][-2:]
    if not math.isfinite(best[0]):  # no gap, or no step with a finite answer
        return PaperStep(tried=tuple(tried))
    return PaperStep(best[1], best[2], tuple(tried))
