"""Online IT³: what a stream leaves behind, and what it doesn't."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from it3_core import IT3Error, OnlineIT3
from it3_core.batching import count, take

Build = Callable[..., Any]


def shuffled(x: Any, number: int) -> Any:
    """Another batch of the same make."""
    generator = torch.Generator().manual_seed(number)
    return take(x, torch.randperm(count(x), generator=generator).tolist()[: count(x) - 1])


def naive_stream(case: Any, inputs: list[Any], lr: float, decay: float) -> list[Tensor]:
    f, ema = copy.deepcopy(case.model).eval(), copy.deepcopy(case.model).eval()
    step = torch.optim.Adam(f.parameters(), lr=lr)
    answers = []
    for x in inputs:
        neutral = case.adapter.neutral(x)
        y0 = f(x, neutral)
        y1 = ema(x, case.adapter.encode(y0))
        step.zero_grad()
        case.adapter.distance(y1, y0).mean().backward()
        step.step()
        with torch.no_grad():
            answers.append(f(x, neutral))
            for slow, fast in zip(ema.parameters(), f.parameters(), strict=True):
                slow.copy_(decay * slow + (1 - decay) * fast)
    return answers


def test_a_stream_equals_a_naive_reference(case: Any) -> None:
    inputs = [shuffled(case.x, number) for number in range(5)]
    how: dict[str, Any] = {"anchor_gradient": True, "trust_region": False}
    method = OnlineIT3(case.model, case.adapter, lr=1e-3, decay=0.9, **how)
    found = [method(x).prediction for x in inputs]
    expected = naive_stream(case, inputs, lr=1e-3, decay=0.9)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


HOW: list[dict[str, Any]] = [
    {"optimizer": "Adam"},
    {"optimizer": "SGD", "parameters": "model.*.weight"},
    {"optimizer": "Adagrad"},
]


@pytest.mark.parametrize("how", HOW)
def test_a_stream_resumes_with_identical_answers(case: Any, how: dict[str, Any]) -> None:
    how = {"lr": 1e-2, **how}
    inputs = [shuffled(case.x, number) for number in range(6)]
    whole = OnlineIT3(case.model, case.adapter, **how)
    expected = [whole(x).prediction for x in inputs]
    first = OnlineIT3(case.model, case.adapter, **how)
    for x in inputs[:3]:
        first(x)
    stored = load(save(first.state_dict()))  # through a file's bytes, as after a restart
    second = OnlineIT3(case.model, case.adapter, **how)
    second.load_state_dict(stored)
    assert stored.keys() == second.state_dict().keys()
    for x, answer in zip(inputs[3:], expected[3:], strict=True):
        assert torch.equal(second(x).prediction, answer)


def test_reset_forgets_the_stream(case: Any) -> None:
    method = OnlineIT3(case.model, case.adapter, lr=1e-2)
    first = method(case.x).prediction
    assert not torch.equal(method(case.x).prediction, first)
    method.reset()
    assert torch.equal(method(case.x).prediction, first)


def test_a_state_of_another_network_is_refused(build: Build) -> None:
    method = OnlineIT3(build("mlp").model, build("mlp").adapter, lr=1e-3)
    other = build("cnn")
    foreign = OnlineIT3(other.model, other.adapter, lr=1e-3)
    foreign(other.x)
    with pytest.raises(IT3Error, match="another network"):
        method.load_state_dict(foreign.state_dict())
