"""The paper's IT³ is one definition, and equals the algorithm as the paper tells it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    Classification,
    PaperStep,
    Regression,
    choose_step,
    condition,
    paper_it3,
    paper_online_it3,
)
from it3_core.model.conditioning import Conditioned
from reference import reference


def network(adapter: Regression | Classification, out: int) -> Conditioned:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
    net.append(nn.Linear(16, out))
    model = condition(net, adapter, "0").double()
    assert model.embed is not None
    nn.init.normal_(model.embed.weight)  # type: ignore[arg-type]
    return model


def absolute(gap: Tensor) -> Tensor:
    return gap.abs().sum(1)


ADAPTERS = [
    (Regression(0.5, 2.0), 1, lambda y: y / 2.0),
    (Classification(4), 4, partial(torch.softmax, dim=1)),  # whatever its own distance
]


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("adapter", "out", "read"), ADAPTERS)
def test_equals_the_algorithm_as_the_paper_tells_it(adapter, out, read, steps, online):  # type: ignore[no-untyped-def]
    model = network(adapter, out)
    stream = [torch.randn(5, 3, dtype=torch.float64) + shift for shift in range(4)]
    make = paper_online_it3 if online else paper_it3
    method = make(model, adapter, steps=steps, lr=1e-3)
    wanted = reference(
        model, adapter.neutral, adapter.encode, absolute, stream,
        steps=steps, lr=1e-3, online=online, as_probabilities=read,
    )  # fmt: skip
    for x, answer in zip(stream, wanted, strict=True):
        torch.testing.assert_close(method(x).prediction, answer, rtol=0, atol=1e-6)
        assert not torch.allclose(answer, model(x, adapter.neutral(x)), atol=1e-4)


def test_the_other_reading_stops_the_gradient_and_changes_nothing_else() -> None:
    adapter = Regression()
    paper, other = (
        paper_it3(network(adapter, 1), adapter, steps=2, lr=1e-3, stop_gradient=stop)
        for stop in (False, True)
    )
    differs = {name for name, v in vars(paper).items() if name[0] != "_" and name != "model"
               and vars(other)[name] != v}  # fmt: skip
    assert differs == {"anchor_gradient"}


@pytest.mark.parametrize("online", [False, True])
def test_a_step_is_chosen_without_labels_by_the_idempotence_error_after_it(online: bool) -> None:
    adapter = Regression()
    model = network(adapter, 1)
    parts = [torch.randn(8, 3, dtype=torch.float64) for _ in range(3)]
    found = choose_step(model, adapter, parts, online=online)
    assert found.ratio == min(ratio for *_, ratio in found.tried if ratio is not None)
    assert found.ratio < 1
    assert {steps for steps, *_ in found.tried} == {1, 2, 3}
    assert found.of(2).steps == 2
    assert found.of(2).ratio >= found.ratio
    make = paper_online_it3 if online else paper_it3
    method, after = make(model, adapter, steps=found.steps, lr=found.lr), 0.0
    before = 0.0
    for x in parts:
        y, y0 = method(x).prediction, model(x, adapter.neutral(x))
        with torch.no_grad():
            after += float((model(x, adapter.encode(y)) - y).abs().sum())
            before += float((model(x, adapter.encode(y0)) - y0).abs().sum())
    assert after / before == pytest.approx(found.ratio)


def test_without_a_choice_it_is_the_authors_step() -> None:
    assert (PaperStep().steps, PaperStep().lr, PaperStep().ratio) == (1, 2e-4, None)
    assert PaperStep().of(3) == PaperStep(3)
