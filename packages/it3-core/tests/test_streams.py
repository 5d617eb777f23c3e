"""Streams: which batches are adapted, what is remembered, and what comes back."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    Classification,
    Conditioned,
    IT3Error,
    Regression,
    Source,
    StatisticsShift,
    StreamGate,
    StreamStatistics,
    condition,
)


def listening(net: torch.nn.Module, layer: str = "0") -> Conditioned:
    """As if trained: the signal's weights are not zero."""
    model = condition(net, Regression(), layer=layer).eval()
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    return model


@pytest.mark.parametrize("size", [1, 4, 64])
@pytest.mark.parametrize("skewed", [False, True])
def test_one_usual_batch_in_ten_passes(size: int, skewed: bool) -> None:
    """Whatever the batch size, for errors that are spread evenly and for skewed ones."""

    def usual(n: int) -> Tensor:
        drawn = torch.rand(n, dtype=torch.float64)
        return -drawn.log() if skewed else drawn

    gate = StreamGate.fit(usual(5000))
    opened = sum(gate.opens(usual(size)) for _ in range(2000)) / 2000
    assert 0.06 < opened < 0.14


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: StreamGate(math.nan, 0.1), "finite"),
        (lambda: StreamGate(0.1, -1.0), "deviation"),
        (lambda: StreamGate(0.1, 0.1, false_alarms=0.0), "false_alarms"),
        (lambda: StreamGate.fit(torch.tensor([1.0])), "at least two"),
        (lambda: StreamGate(0.0, 1.0, of="sound"), "error or statistics"),  # type: ignore[arg-type]
        (lambda: StatisticsShift(nn.Linear(2, 1), Regression()), "no batch norm"),
    ],
)
def test_gates_of_streams_that_can_t_be(make: Callable[[], object], hint: str) -> None:
    with pytest.raises(IT3Error, match=hint):
        make()


def normed() -> tuple[Conditioned, torch.nn.BatchNorm2d]:
    """A network with a batch norm that has seen a mean and a deviation of its own."""
    norm = torch.nn.BatchNorm2d(4)
    net = torch.nn.Sequential(norm, torch.nn.Conv2d(4, 2, 1), torch.nn.Flatten(),
                              torch.nn.Linear(2 * 9, 1))  # fmt: skip
    with torch.no_grad():
        norm.running_mean.copy_(torch.randn(4))  # type: ignore[union-attr]
        norm.running_var.copy_(1 + torch.rand(4))  # type: ignore[union-attr]
        norm.bias.copy_(torch.randn(4))
        norm.weight.fill_(0.7)
    return listening(net, "1"), norm


def images(norm: torch.nn.BatchNorm2d, n: int, shift: float = 0.0) -> Tensor:
    """As training's: each image's means vary by a third of a deviation."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    shape = (1, 4, 1, 1)
    usual = shift + torch.randn(n, 4, 1, 1) / 3 + torch.randn(n, 4, 3, 3)
    return norm.running_mean.view(shape) + norm.running_var.sqrt().view(shape) * usual


def test_a_shift_is_the_means_distance_from_training() -> None:
    adapter, (model, norm) = Regression(), normed()
    x = images(norm, 8)
    score = StatisticsShift(model, adapter)
    passes = score.observe(x)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    away = (x.mean((2, 3)) - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    assert torch.allclose(score.of(passes), away.square().mean(1), atol=1e-5)
    assert torch.allclose(score.of_batch(passes), 8 * away.mean(0).square().mean(), atol=1e-5)
    assert torch.equal(passes.answer, Source(model, adapter)(x).prediction)


@pytest.mark.parametrize("size", [1, 16, 64])
def test_shifted_batches_of_any_size_are_told_from_training_like_ones(
    size: int,
) -> None:
    adapter, (model, norm) = Regression(), normed()
    score = StatisticsShift(model, adapter)
    gate = StreamGate.fit(score(images(norm, 3000)), of="statistics")

    def opens(shift: float = 0.0) -> bool:
        return gate.opens(score.of_batch(score.observe(images(norm, size, shift))).view(1))

    opened = sum(opens() for _ in range(400)) / 400
    assert 0.04 < opened < 0.16
    if size > 1:
        shifted = sum(opens(0.5) for _ in range(50)) / 50
        assert shifted > 0.8


Known = tuple[Conditioned, Tensor, Tensor]
CLASSES = 3
SELDOM = 1e-4  # false alarms: the means of a few channels vary more than those of hundreds


@pytest.fixture
def known() -> Known:
    """A network that tells three directions apart, and what it knows."""
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = x[:, :CLASSES].argmax(1)
    norm = nn.BatchNorm1d(6)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(x.mean(0))
    norm.running_var.copy_(x.var(0, correction=0))
    head = nn.Linear(6, CLASSES)
    nn.init.eye_(head.weight)
    nn.init.zeros_(head.bias)
    model = condition(nn.Sequential(norm, head), Classification(CLASSES), layer="1")
    return model.eval(), x, y


def gate_of(model: Conditioned, x: Tensor) -> StreamGate:
    return StreamGate.fit(
        StatisticsShift(model, Classification(CLASSES))(x), SELDOM, of="statistics"
    )


def stream(known: Known, **settings: float) -> StreamStatistics:
    model, x, _ = known
    return StreamStatistics(model, Classification(CLASSES), gate_of(model, x), **settings)  # type: ignore[arg-type]


def fog(x: Tensor) -> Tensor:
    """One direction is lifted, and all fade."""
    return 0.5 * x + torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0, 0.0])


def wrong(method: StreamStatistics | Source, x: Tensor, y: Tensor, size: int) -> float:
    parts = zip(x.split(size), y.split(size), strict=True)
    return float(
        torch.cat([(method(a).prediction.argmax(1) != b).float() for a, b in parts]).mean()
    )


@pytest.mark.parametrize("size", [1, 16])
def test_a_usual_stream_is_left_alone(known: Known, size: int) -> None:
    model, x, _ = known
    method, source = stream(known), Source(model, Classification(CLASSES))
    for part in x.split(size):
        assert torch.equal(method(part).prediction, source(part).prediction)


@pytest.mark.parametrize("size", [1, 4, 16])
def test_few_at_a_time_are_nearly_as_good_as_many(known: Known, size: int) -> None:
    model, x, y = known
    source = Source(model, Classification(CLASSES))
    many = Source(model, Classification(CLASSES), norm="batch")
    assert wrong(source, fog(x), y, 64) > 0.5
    assert wrong(many, fog(x), y, 64) < 0.1
    assert wrong(stream(known), fog(x), y, size) < 0.25  # its beginning among them
    if size > 1:
        alone = Source(model, Classification(CLASSES), norm=size / (size + 16))
        assert wrong(stream(known), fog(x), y, size) < wrong(alone, fog(x), y, size)


def test_statistics_are_those_of_a_plain_recursion(known: Known) -> None:
    model, x, _ = known
    method = stream(known, prior=8.0, memory=20)
    norm, head = model.model[0], model.model[1]  # type: ignore[index]
    mean, var, weight = norm.running_mean.clone(), norm.running_var.clone(), 8.0
    for part in (fog(x) + 4).split(4)[:8]:  # unusual from the first batch on
        found = method(part).prediction
        share = 4 / (weight + 4)
        mean = (1 - share) * mean + share * part.mean(0)
        var = (1 - share) * var + share * part.var(0, correction=0)
        weight = min(weight + 4, 20.0)
        seen = (part - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias
        plain = nn.functional.linear(seen, head.weight, head.bias)
        torch.testing.assert_close(found, plain.detach())


def test_a_stream_that_turns_is_forgotten(known: Known) -> None:
    model, x, _ = known
    method, fresh = stream(known), stream(known)
    for part in fog(x).split(16)[:6]:
        method(part)
    other = x - 3.0
    for part in other.split(16)[:3]:
        assert torch.equal(method(part).prediction, fresh(part).prediction)
    last = x.split(16)[0]  # and back to what is usual
    assert torch.equal(method(last).prediction, Source(model, method.adapter)(last).prediction)


def test_what_is_not_finite_falls_back_and_leaves_no_trace() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    adapter = Regression()
    model = condition(net, adapter, layer="1").eval()
    method = StreamStatistics(
        model, adapter, StreamGate(mean=0.0, std=0.0, of="statistics"), prior=0
    )
    huge = torch.tensor([[2e19], [-1e19]])  # its square is not finite
    answer = method(huge)
    assert answer.fallback is not None
    assert torch.equal(answer.prediction, answer.initial)
    assert bool(torch.isfinite(method(torch.tensor([[3.0], [4.0]])).prediction).all())


def test_what_makes_no_sense_is_refused(known: Known) -> None:
    model, adapter = known[0], Classification(CLASSES)
    with pytest.raises(IT3Error, match="gated by its statistics"):
        StreamStatistics(model, adapter, StreamGate(mean=1.0, std=1.0))
    with pytest.raises(IT3Error, match="numbers of instances"):
        stream(known, prior=-1.0)
    plain = condition(nn.Linear(6, CLASSES), adapter, layer="")
    with pytest.raises(IT3Error, match="no batch norm"):
        StreamStatistics(plain, adapter, StreamGate(mean=1.0, std=1.0, of="statistics"))
