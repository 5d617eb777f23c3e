"""IT³, idempotent test-time training: adapters, conditioning, losses and methods.

Train `f(x, signal)` with `zigzag_loss`; at test time `IT3(model, adapter)(x)` answers a batch,
says how unusual it is, and leaves the model as it was. The README has a worked example.
"""

from it3_core.adapters import Adapter, Classification, DenseMap, Regression, adapter_from
from it3_core.conditioning import Conditioned, condition, widen
from it3_core.errors import IT3Error, IT3Warning
from it3_core.losses import idempotence_loss, zigzag_loss
from it3_core.methods import (
    IT3,
    Activations,
    ActMAD,
    Adaptation,
    AnswerStep,
    Method,
    OnlineIT3,
    Source,
)
from it3_core.sensitivity import sensitivity
from it3_core.trust import Trust

__version__ = "0.1.0"

__all__ = [
    "IT3",
    "ActMAD",
    "Activations",
    "Adaptation",
    "Adapter",
    "AnswerStep",
    "Classification",
    "Conditioned",
    "DenseMap",
    "IT3Error",
    "IT3Warning",
    "Method",
    "OnlineIT3",
    "Regression",
    "Source",
    "Trust",
    "__version__",
    "adapter_from",
    "condition",
    "idempotence_loss",
    "sensitivity",
    "widen",
    "zigzag_loss",
]
