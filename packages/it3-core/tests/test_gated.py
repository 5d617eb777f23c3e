"""Gated: which batches are adapted, and what comes back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from it3_core import (
    AnswerStep,
    Candidate,
    Gate,
    Gated,
    IT3Error,
    OnlineIT3,
    Regression,
    Source,
    condition,
)


@pytest.mark.parametrize("size", [1, 4, 64])
@pytest.mark.parametrize("skewed", [False, True])
def test_one_usual_batch_in_ten_passes(size: int, skewed: bool) -> None:
    """Whatever the batch size, for errors that are spread evenly and for skewed ones."""

    def usual(n: int) -> Tensor:
        drawn = torch.rand(n, dtype=torch.float64)
        return -drawn.log() if skewed else drawn

    gate = Gate.fit(usual(5000))
    opened = sum(gate.opens(usual(size)) for _ in range(2000)) / 2000
    assert 0.06 < opened < 0.14


def test_larger_batches_show_smaller_shifts() -> None:
    gate = Gate(mean=1.0, std=1.0)
    assert [gate.opens(torch.full((n,), 1.2)) for n in (1, 16, 64)] == [False, False, True]


def test_what_is_not_finite_is_left_alone() -> None:
    gate = Gate(mean=1.0, std=1.0)
    assert not gate.opens(torch.tensor([math.nan, 9.0]))
    assert not gate.opens(torch.tensor([math.inf, 9.0]))


def test_the_answer_is_the_methods_or_the_sources() -> None:
    adapter = Regression()
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = condition(net, adapter, layer="0")
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    x = torch.randn(6, 3)
    source, step = Source(model, adapter), AnswerStep(model, adapter)
    always, never = Gate(mean=-1.0, std=0.0), Gate(mean=99.0, std=0.0)
    opened, shut = Gated(source, step, always)(x), Gated(source, step, never)(x)
    assert torch.equal(opened.prediction, step(x).prediction)
    assert torch.equal(opened.initial, source(x).prediction)
    assert torch.allclose(opened.error_before, source(x).error_before)
    assert torch.allclose(opened.error_after, step(x).error_after)
    assert torch.equal(shut.prediction, source(x).prediction)
    assert torch.allclose(shut.error_after, shut.error_before)
    built = Candidate("AnswerStep", {"alpha": 1.0}, always).build(model, adapter)
    assert torch.equal(built(x).prediction, opened.prediction)


def test_reset_reaches_what_remembers() -> None:
    adapter = Regression()
    model = condition(torch.nn.Sequential(torch.nn.Linear(3, 1)), adapter, layer="0")
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    online = OnlineIT3(model, adapter, lr=0.1, trust_region=False)
    gated = Gated(Source(model, adapter), online, Gate(mean=-1.0, std=0.0))
    x = torch.randn(6, 3)
    first = gated(x).prediction
    assert not torch.equal(gated(x).prediction, first)
    gated.reset()
    assert torch.equal(gated(x).prediction, first)


@pytest.mark.parametrize("wrong", [{"mean": math.nan}, {"std": -1.0}, {"false_alarms": 0.0}])
def test_gates_that_can_t_be(wrong: dict[str, float]) -> None:
    with pytest.raises(IT3Error):
        Gate(**{"mean": 0.1, "std": 0.1, **wrong})
    with pytest.raises(IT3Error, match="at least two"):
        Gate.fit(torch.tensor([1.0]))
