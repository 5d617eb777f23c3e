"""Online IT³: what a stream leaves behind, and what it doesn't."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from it3_core import IT3, IT3Error, OnlineIT3, Source
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
    method = OnlineIT3(
        case.model, case.adapter, lr=1e-3, decay=0.9, anchor_gradient=True, trust_region=False
    )
    found = [method(x).prediction for x in inputs]
    expected = naive_stream(case, inputs, lr=1e-3, decay=0.9)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "Adagrad"])
@pytest.mark.parametrize("parameters", [None, "model.*.weight"])
def test_a_stream_resumes_with_identical_answers(
    case: Any, optimizer: str, parameters: str | None
) -> None:
    how: dict[str, Any] = {"lr": 1e-2, "optimizer": optimizer, "parameters": parameters}
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


def test_the_first_batch_is_episodic(case: Any) -> None:
    online = OnlineIT3(case.model, case.adapter, lr=1e-3)(case.x)
    episodic = IT3(case.model, case.adapter, lr=1e-3)(case.x)
    torch.testing.assert_close(online.prediction, episodic.prediction)
    torch.testing.assert_close(online.error_before, episodic.error_before)


def test_a_step_that_explodes_leaves_no_trace(build: Build) -> None:
    case = build("mlp")
    method = OnlineIT3(case.model, case.adapter, lr=1e-2)
    method(case.x)
    kept = {name: value.clone() for name, value in method.state_dict().items()}
    method._descent._lr = float("inf")  # type: ignore[union-attr]
    answer = method(case.x)
    assert answer.fallback is not None
    assert "undone" in answer.fallback
    assert torch.equal(answer.prediction, answer.initial)
    after = method.state_dict()
    assert kept.keys() == after.keys()
    assert all(torch.equal(kept[name], after[name]) for name in kept)


def test_a_small_trust_region_keeps_weights_near(build: Build) -> None:
    """Where answers are pulled back, weights go only that share of their way."""
    case = build("mlp")
    free = OnlineIT3(case.model, case.adapter, lr=0.5, trust_region=False)
    held = OnlineIT3(case.model, case.adapter, lr=0.5)
    free(case.x), held(case.x)
    start = dict(case.model.named_parameters())
    way = {}
    for name, method in {"free": free, "held": held}.items():
        state = method.state_dict()
        gaps = [(state[f"weights.{k}"] - v.detach()).norm() for k, v in start.items()]
        way[name] = torch.stack(gaps).norm()
    assert way["held"] < 0.5 * way["free"]


def test_a_state_of_another_network_is_refused(build: Build) -> None:
    method = OnlineIT3(build("mlp").model, build("mlp").adapter, lr=1e-3)
    other = build("cnn")
    foreign = OnlineIT3(other.model, other.adapter, lr=1e-3)
    foreign(other.x)
    with pytest.raises(IT3Error, match="another network"):
        method.load_state_dict(foreign.state_dict())


def test_later_errors_are_of_their_own_batch(build: Build) -> None:
    """error_after is read lazily, but against the moving average that its batch saw."""
    case = build("mlp")
    eager = OnlineIT3(case.model, case.adapter, lr=1e-2)
    expected = [eager(case.x).error_after for _ in range(3)]
    lazy = OnlineIT3(case.model, case.adapter, lr=1e-2)
    answers = [lazy(case.x) for _ in range(3)]
    for answer, error in zip(answers, expected, strict=True):
        assert torch.equal(answer.error_after, error)


def test_no_steps_is_source(build: Build) -> None:
    case = build("mlp")
    answer = OnlineIT3(case.model, case.adapter, steps=0)(case.x)
    source = Source(case.model, case.adapter)(case.x)
    assert torch.equal(answer.prediction, source.prediction)
    torch.testing.assert_close(answer.error_before, source.error_before)
