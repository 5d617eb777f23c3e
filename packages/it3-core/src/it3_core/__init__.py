"""IT³, idempotent test-time training: adapters, conditioning, losses and methods.

Train `f(x, signal)` with `zigzag_loss`; at test time `IT3(model, adapter)(x)` answers a batch,
says how unusual it is, and leaves the model as it was. The README has a worked example.
"""

from it3_core.adapters import Adapter, Classification, DenseMap, Regression, adapter_from
from it3_core.candidates import Candidate, default_candidates
from it3_core.checkpoint import Checkpoint, load, save
from it3_core.conditioning import Conditioned, condition, widen
from it3_core.errors import IT3Error, IT3Warning
from it3_core.evaluation import evaluate, read_records
from it3_core.losses import idempotence_loss, zigzag_loss
from it3_core.marginal import Marginal
from it3_core.methods import (
    IT3,
    Activations,
    ActMAD,
    Adaptation,
    AnswerStep,
    Drift,
    Edge,
    Gate,
    Gated,
    Method,
    OnlineIT3,
    Source,
    StreamStatistics,
)
from it3_core.metrics import auroc, correlation
from it3_core.sensitivity import sensitivity
from it3_core.summary import markdown, overview, summarise
from it3_core.training import History, fit
from it3_core.trust import Trust
from it3_core.tuning import Tail, Tuning, split_tail, tune

__version__ = "0.1.0"

__all__ = [
    "IT3",
    "ActMAD",
    "Activations",
    "Adaptation",
    "Adapter",
    "AnswerStep",
    "Candidate",
    "Checkpoint",
    "Classification",
    "Conditioned",
    "DenseMap",
    "Drift",
    "Edge",
    "Gate",
    "Gated",
    "History",
    "IT3Error",
    "IT3Warning",
    "Marginal",
    "Method",
    "OnlineIT3",
    "Regression",
    "Source",
    "StreamStatistics",
    "Tail",
    "Trust",
    "Tuning",
    "__version__",
    "adapter_from",
    "auroc",
    "condition",
    "correlation",
    "default_candidates",
    "evaluate",
    "fit",
    "idempotence_loss",
    "load",
    "markdown",
    "overview",
    "read_records",
    "save",
    "sensitivity",
    "split_tail",
    "summarise",
    "tune",
    "widen",
    "zigzag_loss",
]
