"""Online IT³: what a stream leaves behind, and what it doesn't."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from it3_core import (
    Classification,
    Conditioned,
    IT3Error,
    OnlineIT3,
    Regression,
    Source,
    condition,
    fit,
    widen,
)
from it3_core.batching import count, take
from it3_core.engine.functional import FunctionalModel

Build = Callable[..., Any]
NAN = float("nan")


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
    how: dict[str, Any] = {"anchor_gradient": True, "trust_region": False, "pull": 0, "gate": None}
    method = OnlineIT3(case.model, case.adapter, lr=1e-3, decay=0.9, **how)
    found = [method(x).prediction for x in inputs]
    expected = naive_stream(case, inputs, lr=1e-3, decay=0.9)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


HOW: list[dict[str, Any]] = [
    {},
    {"optimizer": "Adam", "gate": None},
    {"optimizer": "SGD", "parameters": "model.*.weight", "gate": None},
    {"optimizer": "Adagrad", "gate": None},
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
    method = OnlineIT3(case.model, case.adapter, lr=1e-2, gate=None)
    first = method(case.x).prediction
    assert not torch.equal(method(case.x).prediction, first)
    method.reset()
    assert torch.equal(method(case.x).prediction, first)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: {"optimizer.first": state["optimizer.first"] * NAN}, "optimizer.first"),
        (lambda state: {"ema.model.2.bias": state["ema.model.2.bias"] * NAN}, "ema.model.2.bias"),
        (lambda state: {"usual": torch.full((3,), NAN)}, "usual"),
        (lambda state: {"usual": -torch.ones(3)}, "not of OnlineIT3"),
        (lambda state: {"ema.model.2.bias": torch.zeros(9)}, "ema.model.2.bias.*another network"),
        (lambda state: {"optimizer.first": torch.zeros(9)}, "optimizer.first.*another network"),
        (lambda state: {"weights.other": torch.zeros(1)}, "not of OnlineIT3"),
        (lambda state: {"network": 2 * state["network"]}, "of another network, of the same shape"),
    ],
)
def test_a_damaged_or_foreign_state_is_refused_by_name(
    build: Build, damage: Callable[..., dict[str, Tensor]], message: str
) -> None:
    case = build("mlp")
    method = OnlineIT3(case.model, case.adapter, gate=None)
    method(case.x)
    state = method.state_dict()
    with pytest.raises(IT3Error, match=message):
        method.load_state_dict(state | damage(state))
    with pytest.raises(IT3Error, match="another network"):
        OnlineIT3(build("cnn").model, case.adapter).load_state_dict(state)


def pickled(method: OnlineIT3) -> OnlineIT3:
    found: OnlineIT3 = pickle.loads(pickle.dumps(method))  # noqa: S301
    return found


def through_torch(method: OnlineIT3) -> OnlineIT3:
    torch.save(method, buffer := io.BytesIO())
    buffer.seek(0)
    found: OnlineIT3 = torch.load(buffer, weights_only=False)  # noqa: TID251
    return found


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy, through_torch])
def test_a_copied_stream_goes_on(case: Any, copied: Callable[[OnlineIT3], OnlineIT3]) -> None:
    method = OnlineIT3(case.model, case.adapter, lr=1e-2, gate=None)
    method(case.x)
    method(case.x)
    other = copied(method)
    first = method(case.x)
    assert torch.equal(other(case.x).prediction, first.prediction)
    assert torch.equal(other(case.x).prediction, method(case.x).prediction)
    assert not torch.equal(first.prediction, first.initial)


def test_threads_take_turns(build: Build) -> None:
    case = build("mlp")
    method = OnlineIT3(case.model, case.adapter, gate=None)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: method(case.x), range(200)))
    assert all(answer.steps == 1 for answer in answers)
    alone = OnlineIT3(case.model, case.adapter, gate=None)
    for _ in range(200):
        alone(case.x)
    for name, value in alone.state_dict().items():
        assert torch.equal(method.state_dict()[name], value)


def test_threads_leave_attentions_fast_path_on() -> None:
    second_is_in, first_is_out = threading.Event(), threading.Event()

    class Waiting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if threading.current_thread().name == "first":
                assert second_is_in.wait(60)
            else:
                second_is_in.set()
                assert first_is_out.wait(60)
            return super().forward(x)

    adapter, x = Regression(), torch.randn(2, 3)
    fast = FunctionalModel(widen(nn.Sequential(nn.Identity(), nn.Linear(3, 1)), adapter))
    fast.module.model[0] = Waiting(3, 3)  # type: ignore[union-attr, operator, index]
    fast = FunctionalModel(fast.module)

    def run() -> None:
        with fast.session() as one:
            one.each(x, adapter.neutral(x), {})

    first, second = (threading.Thread(target=run, name=name) for name in ("first", "second"))
    first.start()
    while torch.backends.mha.get_fastpath_enabled():
        pass
    second.start()
    first.join()
    first_is_out.set()
    second.join()
    assert torch.backends.mha.get_fastpath_enabled()


def trained(classes: int) -> tuple[Conditioned, Any, Callable[[Tensor], Tensor]]:
    """A small network, and the truth: numbers, or three classes of them."""

    def truth(x: Tensor) -> Tensor:
        y = 20 + 3 * x[:, 0] ** 2 + torch.sin(4 * x[:, 1])
        return torch.bucketize(y, torch.tensor([20.8, 21.8])) if classes else y

    x = torch.rand(450, 2)
    adapter = Classification(3) if classes else Regression.fit(truth(x))
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
                        nn.Linear(32, classes or 1))  # fmt: skip
    if isinstance(adapter, Regression):
        net.append(adapter.rescale())
    model = condition(net, adapter, layer="2")
    fit(model, adapter, (x, truth(x)), epochs=20, lr=3e-3, progress=False)
    return model, adapter, truth


@pytest.mark.parametrize("classes", [0, 3])
def test_the_defaults_hold_on_usual_data_and_still_learn(classes: int) -> None:
    model, adapter, truth = trained(classes)
    stream, source = OnlineIT3(model, adapter), Source(model, adapter)

    def errors(inputs: Tensor) -> list[Tensor]:
        """The stream's mean error and the source's."""
        answers = [(stream(x).prediction, source(x).prediction) for x in inputs.split(16)]
        columns = [torch.cat(column) for column in zip(*answers, strict=True)]
        return [adapter.error(column, truth(inputs)).mean() for column in columns]

    errors(torch.rand(1500 * 16, 2))
    mine, sources = errors(torch.rand(500 * 16, 2))
    assert mine <= 1.05 * sources
    drifting = torch.rand(200 * 16, 2) + torch.linspace(0, 1, 200 * 16)[:, None] * torch.eye(2)[0]
    mine, sources = errors(drifting)
    assert mine <= (1.05 if classes else 0.9) * sources


def test_single_inputs_open_the_gate_together() -> None:
    model, adapter, _ = trained(0)
    stream = OnlineIT3(model, adapter)
    assert sum(stream(row).steps for row in torch.rand(600, 2).split(1)) <= 30
    shifted = torch.rand(200, 2) + torch.tensor([0.5, 0])
    assert sum(stream(row).steps for row in shifted.split(1)) >= 150
