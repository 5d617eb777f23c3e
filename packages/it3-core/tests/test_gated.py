"""Gates and streams: which batches are adapted, what is remembered, and what comes back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    AnswerRange,
    AnswerStep,
    Candidate,
    Classification,
    Conditioned,
    ExtrapolationSplit,
    Gate,
    Gated,
    IT3Error,
    Regression,
    Source,
    StatisticsShift,
    StreamStatistics,
    Tuning,
    condition,
    tune,
)


def listening(net: torch.nn.Module, layer: str = "0") -> Conditioned:
    """As if trained: the signal's weights are not zero."""
    model = condition(net, Regression(), layer=layer).eval()
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    return model


def perceptron() -> Conditioned:
    return listening(
        torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
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


def test_the_answer_is_the_methods_or_the_sources() -> None:
    adapter, model = Regression(), perceptron()
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


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: Gate(math.nan, 0.1), "finite"),
        (lambda: Gate(0.1, -1.0), "deviation"),
        (lambda: Gate(0.1, 0.1, false_alarms=0.0), "false_alarms"),
        (lambda: Gate.fit(torch.tensor([1.0])), "at least two"),
        (lambda: Gate(0.0, 1.0, of="sound"), "error or statistics"),  # type: ignore[arg-type]
        (lambda: StatisticsShift(perceptron(), Regression()), "no batch norm"),
        (lambda: AnswerRange(high=math.inf), "finite"),
        (lambda: AnswerRange.fit(torch.rand(9), 0.5, upper=True), "below a half"),
        (lambda: AnswerRange.fit(torch.rand(1), 0.1, upper=True), "at least two"),
    ],
)
def test_gates_that_can_t_be(make: Callable[[], object], hint: str) -> None:
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
    found = StatisticsShift(model, adapter)(x)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    away = (x.mean((2, 3)) - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    assert torch.allclose(found.each, away.square().mean(1), atol=1e-5)
    assert torch.allclose(found.shift, 8 * away.mean(0).square().mean(), atol=1e-5)
    assert torch.equal(found.prediction, Source(model, adapter)(x).prediction)
    assert torch.allclose(found.error_before, Source(model, adapter)(x).error_before)


@pytest.mark.parametrize("size", [1, 16, 64])
def test_shifted_batches_of_any_size_are_told_from_training_like_ones(
    size: int,
) -> None:
    adapter, (model, norm) = Regression(), normed()
    observe = StatisticsShift(model, adapter)
    gate = Gate.fit(observe(images(norm, 3000)).each, of="statistics")
    opened = sum(gate.opens(observe(images(norm, size)).shift) for _ in range(400)) / 400
    assert 0.04 < opened < 0.16
    if size > 1:
        shifted = sum(gate.opens(observe(images(norm, size, 0.5)).shift) for _ in range(50)) / 50
        assert shifted > 0.8


def test_a_gate_on_statistics_is_kept_and_built_again() -> None:
    adapter, (model, norm) = Regression(), normed()
    gate = Gate.fit(StatisticsShift(model, adapter)(images(norm, 500)).each, of="statistics")
    candidate = Candidate("Source", {"norm": "batch"}, gate)
    again = Candidate.from_description(candidate.describe())
    assert again == candidate
    method = again.build(model, adapter)
    usual, shifted = images(norm, 64), images(norm, 64, 1.0)
    assert torch.equal(method(usual).prediction, method(usual).initial)
    expected = Source(model, adapter, norm="batch")(shifted).prediction
    assert torch.equal(method(shifted).prediction, expected)
    with pytest.raises(IT3Error, match="needs StatisticsShift"):
        Gated(Source(model, adapter), Source(model, adapter), gate)(usual)


@pytest.mark.parametrize(("size", "sign"), [(64, "statistics"), (1, "error")])
def test_what_a_gate_looks_at(size: int, sign: str) -> None:
    """Labels are right for usual images; under a shift, only batch statistics bring them back."""
    adapter, (model, norm) = Regression(), normed()
    x = images(norm, 256)
    y = Source(model, adapter)(x).prediction.flatten()
    y = y + 0.05 * y.std() * torch.randn(256)  # some error on usual images
    choices = [Candidate("Source", {"norm": "batch"})]
    tuning = tune(model, adapter, (x, y), shifts={"shift": lambda x: 1.5 * x + 3}, batch_size=size,
                  candidates=choices, false_alarms=0.01, progress=False)  # fmt: skip
    plain, gated = tuning.tried
    assert (plain["gate"], gated["gate"]["of"]) == (None, sign)
    if size == 1:
        return
    assert tuning.chosen.gate is not None
    assert gated["changes"]["shift"] == plain["changes"]["shift"]  # it opens for every batch
    assert gated["changes"]["clean"] < plain["changes"]["clean"]  # and for few that are usual


def test_a_range_picks_answers_one_by_one() -> None:
    adapter, model = Regression(), perceptron()
    x = torch.randn(50, 3)
    source, step = Source(model, adapter), AnswerStep(model, adapter)
    first, second = source(x), step(x)
    limits = AnswerRange.fit(first.prediction, 0.1, lower=True, upper=True)
    found = Gated(source, step, limits)(x)
    order = first.prediction.flatten().argsort()
    ends, rest = torch.cat([order[:5], order[-5:]]), order[5:-5]
    assert torch.equal(found.prediction[ends], second.prediction[ends])
    assert torch.equal(found.prediction[rest], first.prediction[rest])
    assert torch.allclose(found.error_after[ends], second.error_after[ends])
    assert torch.allclose(found.error_after[rest], first.error_before[rest])
    beyond_all = AnswerRange.fit(first.prediction, 0.0, upper=True)
    assert beyond_all.low is None
    assert torch.equal(Gated(source, step, beyond_all)(x).prediction, first.prediction)
    candidate = Candidate("AnswerStep", {"alpha": 1.0}, limits)
    again = Candidate.from_description(candidate.describe())
    assert again == candidate
    assert torch.equal(again.build(model, adapter)(x).prediction, found.prediction)


class Saturating(torch.nn.Module):
    """Answers x up to `top` and a little beyond; there, the second pass moves answers by `step`.

    Below, it moves them at random, so that without a gate it harms.
    """

    def __init__(self, top: float, step: float, unrest: float = 0.3) -> None:
        super().__init__()
        self.top, self.step, self.unrest = top, step, unrest
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        over = (x - self.top).clamp_min(0)
        answer = self.scale * (x - 0.9 * over)
        told = signal[:, -1:]
        way = torch.where(over > 0, self.step * torch.ones_like(x), self.unrest * (997 * x).sin())
        return answer + told * way


STEP = Candidate("AnswerStep", {"alpha": 1.0})


def tuned(model: torch.nn.Module, tails: Callable[[Tensor], Any], **change: Any) -> Tuning:
    torch.manual_seed(0)
    x = torch.rand(400, 1)
    y = x.flatten() + 0.01 * torch.randn(400)
    return tune(
        model, Regression(), (x, y), extrapolation=tails(torch.rand(200, 1) / 2), candidates=[STEP],
        shifts={"noise": lambda x: x + 0.01 * torch.randn_like(x)}, progress=False, **change,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "moved"),
    [((0.5, 0.5, 0.5), True), ((0.5, 0.5, -0.5), False), ((0.5, 0.5, 0.0), False), ((0.5,), False)],
)
def test_an_extrapolation_split_is_believed_where_three_networks_agree(
    steps: tuple[float, ...], moved: bool
) -> None:
    """Beyond what was trained; the network itself has nothing to show there."""

    def tails(x: Tensor) -> ExtrapolationSplit | list[ExtrapolationSplit]:
        found = [
            ExtrapolationSplit(Saturating(0.8, step), x + 1.1, x[:, 0] + 1.1) for step in steps
        ]
        return found if len(found) > 1 else found[0]

    tuning = tuned(Saturating(1.0, 0.5), tails)
    assert isinstance(tuning.chosen.gate, AnswerRange) is moved
    if not moved:
        assert tuning.chosen == Candidate("Source")
        return
    method = tuning.build(Saturating(1.0, 0.5), Regression())
    x, beyond = torch.rand(400, 1), 1.3 + torch.rand(200, 1) / 2
    assert torch.equal(method(x[x < 0.9][:, None]).prediction, x[x < 0.9][:, None])
    assert float((method(beyond).prediction - beyond).abs().mean()) < 0.3
    assert tuning.chosen.gate.low is None  # type: ignore[union-attr]


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


def gate_of(model: Conditioned, x: Tensor) -> Gate:
    return Gate.fit(
        StatisticsShift(model, Classification(CLASSES))(x).each, SELDOM, of="statistics"
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
    method = StreamStatistics(model, adapter, Gate(mean=0.0, std=0.0, of="statistics"), prior=0)
    huge = torch.tensor([[2e19], [-1e19]])  # its square is not finite
    answer = method(huge)
    assert answer.fallback is not None
    assert torch.equal(answer.prediction, answer.initial)
    assert bool(torch.isfinite(method(torch.tensor([[3.0], [4.0]])).prediction).all())


def test_tune_finds_it_and_a_checkpoint_can_hold_it(known: Known) -> None:
    model, x, y = known
    adapter = Classification(CLASSES)
    candidates = [Candidate("Source", {"norm": 0.2}), Candidate("StreamStatistics")]
    tuning = tune(
        model, adapter, (x, y), shifts={"fog": fog}, batch_size=4, candidates=candidates,
        false_alarms=SELDOM, progress=False,
    )  # fmt: skip
    assert tuning.chosen.method == "StreamStatistics"
    assert isinstance(tuning.chosen.gate, Gate)
    again = Tuning.from_description(json.loads(json.dumps(tuning.describe())))
    one, two = (told.build(model, adapter) for told in (tuning, again))
    for part in fog(x).split(4):
        assert torch.equal(one(part).prediction, two(part).prediction)


def test_what_makes_no_sense_is_refused(known: Known) -> None:
    model, adapter = known[0], Classification(CLASSES)
    with pytest.raises(IT3Error, match="gated by its statistics"):
        StreamStatistics(model, adapter, Gate(mean=1.0, std=1.0))
    with pytest.raises(IT3Error, match="numbers of instances"):
        stream(known, prior=-1.0)
    with pytest.raises(IT3Error, match="needs a gate on statistics"):
        Candidate("StreamStatistics").build(model, adapter)
    plain = condition(nn.Linear(6, CLASSES), adapter, layer="")
    with pytest.raises(IT3Error, match="no batch norm"):
        StreamStatistics(plain, adapter, Gate(mean=1.0, std=1.0, of="statistics"))
