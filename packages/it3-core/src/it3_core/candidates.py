"""What `tune` tries: a method by name, its settings, and which batches it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from it3_core.adapters import Adapter
from it3_core.conditioning import Conditioned
from it3_core.errors import IT3Error
from it3_core.methods import (
    IT3,
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
from it3_core.methods.gated import Sign

__all__ = ["CARRYING", "STREAMING", "Candidate", "default_candidates", "observer"]

STREAMING = "StreamStatistics"
"""The method that is made with a gate, on drift, and never without."""

CARRYING = ("OnlineIT3", STREAMING)
"""Methods that remember: what they answer depends on the batches before."""

_METHODS: dict[str, Callable[..., Method]] = {
    "Source": Source,
    "AnswerStep": AnswerStep,
    "IT3": IT3,
    "OnlineIT3": OnlineIT3,
    STREAMING: StreamStatistics,
}


@dataclass(frozen=True)
class Candidate:
    """A method by name and its settings: plain values, so that a checkpoint can hold them.

    Args:
        method: the name of its class.
        settings: its arguments.
        gate: where there is one, only what it picks is adapted: unusual batches, or instances.

    Example:
        >>> Candidate("AnswerStep", {"alpha": 0.5})
        AnswerStep(alpha=0.5)
        >>> Candidate("Source", {"norm": "batch"}, Gate(mean=0.2, std=0.1))
        Source(norm='batch'), gated by error
        >>> Candidate("AnswerStep", {"alpha": 1.0}, Edge(high=60.0))
        AnswerStep(alpha=1.0), gated by answer
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    gate: Gate | Edge | None = None

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise IT3Error(f"no method to tune is called {self.method!r}; there are "
                           f"{', '.join(_METHODS)}")  # fmt: skip

    def build(self, model: nn.Module, adapter: Adapter) -> Method:
        """The method, for this network.

        Example:
            >>> import torch
            >>> from it3_core import Candidate, Regression, widen
            >>> adapter = Regression()
            >>> Candidate("Source").build(widen(torch.nn.Linear(3, 1), adapter), adapter)
            <it3_core.methods.source.Source object at ...>
        """
        gated = [self.gate] if self.method == STREAMING else []
        if gated and not isinstance(self.gate, Gate):
            raise IT3Error(f"{self.method} needs a gate on the drift, which `tune` fits")
        try:
            method = _METHODS[self.method](model, adapter, *gated, **self.settings)
        except TypeError as problem:
            raise IT3Error(f"{self!r} has a setting that {self.method} does not know") from problem
        return method if gated else self.behind_gate(method, model, adapter)

    def behind_gate(self, method: Method, model: nn.Module, adapter: Adapter) -> Method:
        """The method for what this candidate's gate picks, and the source for all else.

        Example:
            >>> import torch
            >>> from it3_core import AnswerStep, Regression, widen
            >>> adapter = Regression()
            >>> model = widen(torch.nn.Linear(3, 1), adapter)
            >>> candidate = Candidate("AnswerStep", gate=Edge(high=60.0))
            >>> candidate.behind_gate(AnswerStep(model, adapter), model, adapter)
            <it3_core.methods.gated.Gated object at ...>
        """
        if self.gate is None:
            return method
        if isinstance(self.gate, Edge):
            return Gated(Source(model, adapter), method, self.gate)
        return Gated(observer(self.gate.of, model, adapter), method, self.gate)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        name = f"{self.method}({settings})"
        if self.gate is None:
            return name
        return f"{name}, gated by {'answer' if isinstance(self.gate, Edge) else self.gate.of}"

    def describe(self) -> dict[str, Any]:
        """This candidate as JSON, from which `from_description` makes it again."""
        gate = None if self.gate is None else self.gate.describe()
        return {"method": self.method, "settings": dict(self.settings), "gate": gate}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Candidate:
        """The candidate that `describe()` described.

        Example:
            >>> gated = Candidate("Source", {"norm": "batch"}, Gate(mean=0.2, std=0.1))
            >>> Candidate.from_description(gated.describe()) == gated
            True
        """
        told = description.get("gate")
        gate: Gate | Edge | None = None
        if told is not None:
            gate = Edge(**told) if "high" in told else Gate(**told)
        return cls(str(description["method"]), dict(description["settings"]), gate)


def observer(of: Sign, model: nn.Module, adapter: Adapter) -> Method:
    """Answers as the source does, and shows what a gate looks at.

    Example:
        >>> import torch
        >>> from it3_core import Regression, widen
        >>> adapter = Regression()
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> observer("error", model, adapter)
        <it3_core.methods.answer_step.AnswerStep object at ...>
    """
    if of == "drift":
        return Drift(model, adapter)
    # Its second pass shares what lies below the signal with the first.
    return AnswerStep(model, adapter, alpha=0.0)


def default_candidates(model: nn.Module) -> list[Candidate]:
    """What `tune` tries unless told otherwise, the cheapest first.

    Answer steps of either sign; gradient steps in proportion to the gap (SGD on its square) and
    the paper's (Adam on the gap itself); of all weights and, where the network was made by
    `condition()`, of those above the signal only.

    Example:
        >>> import torch
        >>> from it3_core import Regression, widen
        >>> default_candidates(widen(torch.nn.Linear(3, 1), Regression()))[0]
        AnswerStep(alpha=-1.0)
    """
    found = [Candidate("AnswerStep", {"alpha": a}) for a in (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)]
    above = isinstance(model, Conditioned) and model.embed is not None
    for parameters in ["above", None] if above else [None]:
        for lr in (0.01, 0.05):
            settings = {"lr": lr, "optimizer": "SGD", "power": 2.0, "parameters": parameters}
            found.append(Candidate("IT3", {**settings, "steps": 1}))
            found.append(Candidate("IT3", {**settings, "steps": 3}))
        found.append(Candidate("IT3", {"lr": 2e-4, "optimizer": "Adam", "parameters": parameters}))
    return found
