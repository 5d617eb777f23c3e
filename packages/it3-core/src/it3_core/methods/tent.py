"""Tent: the entropy of the answers, lowered by the scales and shifts of norm layers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor, nn

from it3_core.engine.functional import FunctionalModel, Session
from it3_core.engine.inner_optimizer import InnerOptimizer, Norm, OptimizerFactory
from it3_core.methods.base import Adaptation, batch_norm_choice, check_settings
from it3_core.methods.stream import StreamMethod, entropy
from it3_core.model.adapters import Adapter


@dataclass(eq=False, repr=False)
class Tent(StreamMethod):
    """Minimises H(ŷ) = −Σ_c p(ŷ_c) log p(ŷ_c) over γ and β of the normalisation layers.

    Wang et al. 2021. Online, as in the authors' code, a batch is answered with the pass that the
    last step was computed from, so that a step helps only the batches after it; in episodes, with
    one more pass. A batch whose step comes out non-finite leaves no trace.

    Args:
        model: any network, called as `model(x)`; as `model(x, signal)` where it takes a signal.
        adapter: what kind of answer it gives.
        online: whether a batch goes on from the last one; if not, each starts from the trained
            network.
        steps: gradient steps a batch.
        lr, optimizer: Adam with 1e-3 is the paper's for CIFAR; for ImageNet it is
            `partial(torch.optim.SGD, momentum=0.9)` with 2.5e-4.
        norm: whose statistics batch norms use, see `Source`; a network without batch norm has no
            choice.

    Example:
        >>> import torch
        >>> from it3_core import Tent, Classification
        >>> net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
        >>> Tent(net, Classification(3))(torch.randn(8, 4)).prediction.shape
        torch.Size([8, 3])
    """

    model: nn.Module
    adapter: Adapter
    _: KW_ONLY
    online: bool = True
    steps: int = 1
    lr: float = 1e-3
    optimizer: OptimizerFactory = "Adam"
    norm: Norm = "batch"

    def __post_init__(self) -> None:
        check_settings(self.steps, self.lr)
        self._functional = FunctionalModel(
            self.model, "norms", batch_norm_choice(self.model, self.norm)
        )
        self.reset()

    def _answer(
        self, run: Session, descent: InnerOptimizer, x: Tensor, neutral: Tensor
    ) -> Adaptation:
        return self._stepped(run, descent, x, neutral, lambda y: entropy(y).mean())
