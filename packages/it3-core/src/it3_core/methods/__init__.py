"""Methods that answer a batch at test time, one file each."""

from it3_core.methods.actmad import Activations, ActMAD
from it3_core.methods.answer_step import AnswerStep
from it3_core.methods.base import Adaptation, Method
from it3_core.methods.drift import Drift, Drifted
from it3_core.methods.gated import Edge, Gate, Gated
from it3_core.methods.it3 import IT3
from it3_core.methods.online import OnlineIT3
from it3_core.methods.source import Source
from it3_core.methods.stream import StreamStatistics

__all__ = [
    "IT3",
    "ActMAD",
    "Activations",
    "Adaptation",
    "AnswerStep",
    "Drift",
    "Drifted",
    "Edge",
    "Gate",
    "Gated",
    "Method",
    "OnlineIT3",
    "Source",
    "StreamStatistics",
]
