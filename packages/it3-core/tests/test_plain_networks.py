"""Networks of `x` alone: what needs no signal answers as it does with one that nothing hears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    ETA,
    IT3,
    Activations,
    ActMAD,
    AnswerStep,
    BatchStatistics,
    Classification,
    Conditioned,
    Gated,
    IT3Error,
    OnlineIT3,
    Regression,
    Source,
    StatisticsShift,
    StreamGate,
    StreamStatistics,
    Tent,
    Trust,
    condition,
    sensitivity,
)
from it3_core.scores.uncertainty import Ensemble, Entropy, Mahalanobis

A = Classification(3)
X = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))


class Masked(nn.Sequential):
    """Its second argument may be left out, so that it is no signal."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is None
        output: Tensor = super().forward(x)
        return output


def network() -> nn.Module:
    torch.manual_seed(0)
    return Masked(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def _named(net: nn.Module, layer: str) -> str:
    return f"model.{layer}" if isinstance(net, Conditioned) else layer


def _actmad(net: nn.Module) -> ActMAD:
    known = Activations.collect(net, A, [X], [_named(net, "1")])
    return ActMAD(net, A, known, parameters="norms", lr=0.1)


def _stream(net: nn.Module) -> StreamStatistics:
    return StreamStatistics(net, A, StreamGate.fit(StatisticsShift(net, A)(X), of="statistics"))


def _gated(net: nn.Module) -> Gated:
    return Gated(Tent(net, A), StatisticsShift(net, A), X, false_positive_rate=0.5)


METHODS: dict[str, Callable[[nn.Module], Any]] = {
    "Source": lambda net: Source(net, A),
    "BatchStatistics": lambda net: BatchStatistics(net, A, prior=16),
    "Tent": lambda net: Tent(net, A, lr=0.1),
    "ETA": lambda net: ETA(net, A, sure=1.0, lr=0.1),
    "ActMAD": _actmad,
    "StreamStatistics": _stream,
    "Gated": _gated,
}
SCORES: dict[str, Callable[[nn.Module], Any]] = {
    "Entropy": lambda net: Entropy(net, A),
    "Mahalanobis": lambda net: Mahalanobis.fit(net, A, [X], _named(net, "2")),
    "Ensemble": lambda net: Ensemble([net, network().apply(_other)], A),
    "shift": lambda net: StatisticsShift(net, A),
}


SETTINGS = {
    "Source": "norm='source'",
    "BatchStatistics": "prior=16",
    "Tent": "online=True, steps=1, lr=0.1, optimizer='Adam', norm='batch'",
    "ETA": "fisher=None, fisher_weight=2000.0, sure=1.0, new=0.4, decay=0.9, online=True, steps=1, "
    "lr=0.1, optimizer=SGD(momentum=0.9), norm='batch'",
    "ActMAD": "activations=Activations(layers=('1',), rows=32), steps=1, lr=0.1, optimizer='Adam', "
    "parameters='norms', norm='source'",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_method_shows_its_settings(name: str) -> None:
    wanted = f"{name}(model=Masked, adapter=Classification(3, distance='l1'), {SETTINGS[name]})"
    assert repr(METHODS[name](network())) == wanted


def _other(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        nn.init.constant_(layer.weight, 0.1)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_answers_as_with_a_signal_that_nothing_hears(name: str) -> None:
    net = network()
    own = {key: value.clone() for key, value in net.state_dict().items()}
    plain, deaf = METHODS[name](net), METHODS[name](condition(net, A, layer="1"))
    for shift in (0.0, 3.0, 3.0):
        answer = plain(X + shift)
        assert torch.equal(answer.prediction, deaf(X + shift).prediction)
    assert name == "Source" or not torch.equal(answer.prediction, Source(net, A)(X + 3).prediction)
    assert all(torch.equal(value, own[key]) for key, value in net.state_dict().items())
    with pytest.raises(IT3Error, match="the idempotence error needs a second input"):
        _ = answer.error_before


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_the_same(name: str) -> None:
    net = network()
    found = SCORES[name](net)(X)
    assert found.shape == (32,)
    assert torch.equal(found, SCORES[name](condition(net, A, layer="1"))(X))


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("IT3", IT3),
        ("OnlineIT3", OnlineIT3),
        ("AnswerStep", AnswerStep),
        ("the sensitivity", lambda net, adapter: sensitivity(net, adapter, X)),
        ("the idempotence error", lambda net, adapter: Trust.fit(net, adapter, [X])),
    ],
)
def test_what_needs_a_signal_says_so(what: str, make: Callable[..., Any]) -> None:
    with pytest.raises(IT3Error, match=f"^{what}.* needs a second input.*condition") as raised:
        make(network(), A)
    assert "\n" not in str(raised.value)


def test_a_regression_and_a_signal_that_may_be_left_out() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor, signal: Tensor | None = None) -> Tensor:  # type: ignore[override]
            return super().forward(x) + (0 if signal is None else 1)

    model, x = Own(4, 1), X.flip(0)
    assert torch.equal(Source(model, Regression())(x).prediction, model(x) + 1)
    assert Source(nn.Linear(4, 1), Regression())(x).prediction.shape == (32, 1)
