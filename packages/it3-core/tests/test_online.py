"""Online IT³: what a stream leaves behind, and what it doesn't."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from it3_core import (
    IT3,
    Classification,
    DenseMap,
    IT3Error,
    Marginal,
    OnlineIT3,
    Regression,
    Source,
)
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


def test_a_stream_starts_anew_after_so_many_batches(case: Any) -> None:
    inputs = [shuffled(case.x, number) for number in range(6)]
    method = OnlineIT3(case.model, case.adapter, lr=1e-2, reset_every=3)
    found = [method(x).prediction for x in inputs]
    again = OnlineIT3(case.model, case.adapter, lr=1e-2)
    for x, answer in zip(inputs[3:], found[3:], strict=True):
        assert torch.equal(again(x).prediction, answer)


def test_a_stream_that_turns_to_something_else_starts_anew(build: Build) -> None:
    case = build("mlp")
    usual = [shuffled(case.x, number) for number in range(3)]
    other = 30 * case.x
    gap = Source(case.model, case.adapter)(other).error_before.mean()
    assert gap > 2 * Source(case.model, case.adapter)(case.x).error_before.mean()
    kept = OnlineIT3(case.model, case.adapter, lr=1e-2)
    reset = OnlineIT3(case.model, case.adapter, lr=1e-2, reset_above=2.0)
    for x in usual:
        assert torch.equal(kept(x).prediction, reset(x).prediction)
    fresh = OnlineIT3(case.model, case.adapter, lr=1e-2)(other).prediction
    assert torch.equal(reset(other).prediction, fresh)
    assert not torch.equal(kept(other).prediction, fresh)


def test_what_a_reset_looks_at_survives_a_restart(build: Build) -> None:
    case = build("mlp")
    how: dict[str, Any] = {"lr": 1e-2, "reset_every": 4, "reset_above": 2.0}
    first = OnlineIT3(case.model, case.adapter, **how)
    for number in range(3):
        first(shuffled(case.x, number))
    second = OnlineIT3(case.model, case.adapter, **how)
    second.load_state_dict(load(save(first.state_dict())))
    for x in (30 * case.x, case.x, case.x, case.x, case.x):
        assert torch.equal(second(x).prediction, first(x).prediction)
    before = {k: v for k, v in first.state_dict().items() if not k.startswith("stream.")}
    second.load_state_dict(before)  # of a version that did not count
    assert second(case.x).steps == 1


def test_a_marginal_is_the_gradient_that_it_should_be(case: Any) -> None:
    """One step of SGD, beside the same by autograd on a plain copy of the network."""
    mix = Marginal(case.adapter, case.y)
    method = OnlineIT3(
        case.model, case.adapter, lr=0.05, optimizer="SGD", trust_region=False, marginal=mix,
        marginal_weight=3.0,
    )  # fmt: skip
    found = method(case.x).prediction
    f = copy.deepcopy(case.model).eval()
    neutral = case.adapter.neutral(case.x)
    y0 = f(case.x, neutral)
    y1 = f(case.x, case.adapter.encode(y0.detach())).detach()
    loss = case.adapter.distance(y1, y0).mean() + 3 * mix.gap(y0)
    gradient = torch.autograd.grad(loss, list(f.parameters()), allow_unused=True)
    with torch.no_grad():
        for weight, slope in zip(f.parameters(), gradient, strict=True):
            if slope is not None:
                weight -= 0.05 * slope
        torch.testing.assert_close(found, f(case.x, neutral), rtol=0, atol=1e-6)


def test_a_marginal_brings_a_batch_back_to_its_mix(build: Build) -> None:
    case = build("cnn")
    labels = torch.arange(300) % 3
    mix = Marginal(case.adapter, labels)
    with torch.no_grad():
        case.model.model.head.bias += torch.tensor([3.0, 0.0, -3.0])  # all say the first class
    method = OnlineIT3(
        case.model, case.adapter, lr=0.05, trust_region=False, marginal=mix, marginal_weight=5.0
    )
    gaps = [float(mix.gap(method(case.x).prediction)) for _ in range(20)]
    assert gaps[-1] < 0.2 * float(mix.gap(Source(case.model, case.adapter)(case.x).prediction))


def test_the_mix_of_numbers_maps_and_classes() -> None:
    numbers = Marginal(Regression(10.0, 2.0), torch.tensor([8.0, 10.0, 12.0, 14.0]))
    assert numbers.gap(torch.tensor([[14.0], [12.0], [10.0], [8.0]])) < 1e-6
    assert numbers.gap(torch.tensor([[10.0], [12.0], [14.0], [16.0]])) > 0.5  # all are larger
    assert numbers.gap(torch.tensor([[11.0], [11.0], [11.0]])) > 0.5  # all are the same
    assert numbers.gap(torch.tensor([[11.0]])) < 1e-6  # one has no deviation
    roads = torch.tensor([[[0, 1], [1, -1]], [[0, 0], [0, 0]]])  # two of seven known pixels
    half = Marginal(DenseMap(), roads)
    assert half.mean.tolist() == pytest.approx([5 / 7, 2 / 7])
    assert half.gap(torch.full((1, 1, 2, 2), float(torch.tensor(2 / 5).log()))) < 1e-6
    three = Marginal(Classification(3), torch.tensor([0, 0, 1]))  # one class never came
    assert torch.isfinite(three.gap(torch.tensor([[90.0, 0.0, -90.0]])))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"reset_every": 0}, "reset_every is a number of batches from 1 on, not 0"),
        ({"reset_above": 1.0}, "reset_above is a multiple beyond 1, not 1.0"),
        ({"marginal_weight": -1.0}, "marginal_weight is a number from 0 on, not -1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    build: Build, settings: dict[str, Any], told: str
) -> None:
    case = build("mlp")
    with pytest.raises(IT3Error, match=told):
        OnlineIT3(case.model, case.adapter, **settings)


def test_a_mix_of_nothing_is_refused() -> None:
    with pytest.raises(IT3Error, match="a mix of 1 labels is none"):
        Marginal(Classification(2), torch.tensor([1]))
    with pytest.raises(IT3Error, match="NaN or Inf"):
        Marginal(Regression(), torch.tensor([1.0, float("nan")]))
