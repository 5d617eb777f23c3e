"""Statistics of a stream: what it remembers, when it adapts, and when it forgets."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    Candidate,
    Classification,
    Conditioned,
    Drift,
    Gate,
    IT3Error,
    Regression,
    Source,
    StreamStatistics,
    Tuning,
    condition,
    tune,
)
from it3_core.tuning import Tail

CLASSES = 3
SELDOM = 1e-4  # false alarms: the means of a few channels vary more than those of hundreds


@pytest.fixture
def known() -> tuple[Conditioned, Tensor, Tensor]:
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
    return Gate.fit(Drift(model, Classification(CLASSES))(x).each, SELDOM, of="drift")


def stream(known: tuple[Conditioned, Tensor, Tensor], **settings: float) -> StreamStatistics:
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


@pytest.mark.parametrize("size", [1, 4, 16])
def test_a_usual_stream_is_left_alone(known: tuple[Conditioned, Tensor, Tensor], size: int) -> None:
    model, x, _ = known
    method, source = stream(known), Source(model, Classification(CLASSES))
    for part in x.split(size):
        assert torch.equal(method(part).prediction, source(part).prediction)


@pytest.mark.parametrize("size", [1, 4, 16])
def test_few_at_a_time_are_nearly_as_good_as_many(
    known: tuple[Conditioned, Tensor, Tensor], size: int
) -> None:
    model, x, y = known
    source = Source(model, Classification(CLASSES))
    many = Source(model, Classification(CLASSES), norm="batch")
    assert wrong(source, fog(x), y, 64) > 0.5
    assert wrong(many, fog(x), y, 64) < 0.1
    assert wrong(stream(known), fog(x), y, size) < 0.25  # its beginning among them
    if size > 1:
        alone = Source(model, Classification(CLASSES), norm=size / (size + 16))
        assert wrong(stream(known), fog(x), y, size) < wrong(alone, fog(x), y, size)


def test_statistics_are_those_of_a_plain_recursion(
    known: tuple[Conditioned, Tensor, Tensor],
) -> None:
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


def test_a_stream_that_turns_is_forgotten(known: tuple[Conditioned, Tensor, Tensor]) -> None:
    model, x, _ = known
    method, fresh = stream(known), stream(known)
    for part in fog(x).split(16)[:6]:
        method(part)
    other = x - 3.0
    for part in other.split(16)[:3]:
        assert torch.equal(method(part).prediction, fresh(part).prediction)
    last = x.split(16)[0]  # and back to what is usual
    assert torch.equal(method(last).prediction, Source(model, method.adapter)(last).prediction)


def test_of_a_mixed_stream_what_is_usual_is_left_alone(
    known: tuple[Conditioned, Tensor, Tensor],
) -> None:
    """A batch of either in turn: the memory is half-way, and each goes to where it is nearer."""
    model, x, y = known
    method, source = stream(known), Source(model, Classification(CLASSES))
    kept, errors = [], []
    for part, label in zip(x.split(4), y.split(4), strict=True):
        kept.append(torch.equal(method(part).prediction, source(part).prediction))
        errors.append((method(fog(part)).prediction.argmax(1) != label).float())
    assert sum(kept) / len(kept) > 0.8
    assert float(torch.cat(errors).mean()) < 0.5 * wrong(source, fog(x), y, 4)


def test_what_is_not_finite_is_not_remembered(known: tuple[Conditioned, Tensor, Tensor]) -> None:
    method, parts = stream(known), fog(known[1]).split(4)
    alike = stream(known)
    for part in parts[:4]:
        method(part), alike(part)
    method(torch.full((4, 6), 1e38) * torch.tensor([[1.0], [1.0], [-1.0], [1.0]]))
    assert torch.equal(method(parts[4]).prediction, alike(parts[4]).prediction)


def test_it_forgets_when_told_and_leaves_the_network_alone(
    known: tuple[Conditioned, Tensor, Tensor],
) -> None:
    model, x, _ = known
    before = copy.deepcopy(model.state_dict())
    method, parts = stream(known), fog(x).split(4)
    first = [method(part).prediction for part in parts[:4]]
    method.reset()
    again = [method(part).prediction for part in parts[:4]]
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_errors_that_are_read_later_are_of_their_own_batch(
    known: tuple[Conditioned, Tensor, Tensor],
) -> None:
    parts = fog(known[1]).split(4)[:6]
    eager = stream(known)
    expected = [eager(part).error_after for part in parts]
    lazy = stream(known)
    answers = [lazy(part) for part in parts]
    for answer, error in zip(answers, expected, strict=True):
        assert torch.equal(answer.error_after, error)


def test_what_is_not_finite_falls_back_and_leaves_no_trace() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    adapter = Regression()
    model = condition(net, adapter, layer="1").eval()
    method = StreamStatistics(model, adapter, Gate(mean=0.0, std=0.0, of="drift"), prior=0)
    huge = torch.tensor([[2e19], [-1e19]])  # its square is not finite
    answer = method(huge)
    assert answer.fallback is not None
    assert torch.equal(answer.prediction, answer.initial)
    assert bool(torch.isfinite(method(torch.tensor([[3.0], [4.0]])).prediction).all())


def test_tune_finds_it_and_a_checkpoint_can_hold_it(
    known: tuple[Conditioned, Tensor, Tensor],
) -> None:
    model, x, y = known
    adapter = Classification(CLASSES)
    tuning = tune(
        model,
        adapter,
        x,
        y,
        shifts={"fog": fog},
        batch_size=4,
        false_alarms=SELDOM,
        progress=False,
        candidates=[Candidate("Source", {"norm": 0.2}), Candidate("StreamStatistics")],
    )
    assert tuning.chosen.method == "StreamStatistics"
    assert isinstance(tuning.chosen.gate, Gate)
    again = Tuning.from_description(json.loads(json.dumps(tuning.describe())))
    one, two = (told.build(model, adapter) for told in (tuning, again))
    for part in fog(x).split(4):
        assert torch.equal(one(part).prediction, two(part).prediction)


def test_tune_gives_each_network_a_gate_of_its_own() -> None:
    """A tail is answered by another network, whose drifts are of another size."""
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    adapter = Regression()
    networks = []
    for scale in (1.0, 100.0):
        norm = nn.BatchNorm1d(3)
        assert norm.running_var is not None
        norm.running_var.fill_(1 / scale)
        networks.append(condition(nn.Sequential(norm, nn.Linear(3, 1)), adapter, layer="1").eval())
    model, other = networks
    y = model(x, adapter.neutral(x)).detach()
    tail = Tail(other, x.flip(0), other(x.flip(0), adapter.neutral(x)).detach())
    tuning = tune(
        model, adapter, x, y, shifts={"none": lambda x: x}, tail=tail, batch_size=16,
        candidates=[Candidate("StreamStatistics")], false_alarms=SELDOM, progress=False,
    )  # fmt: skip
    assert tuning.tried[0]["changes"]["label tail"] == 0.0  # nothing is unusual to it


def test_where_there_is_no_batch_norm_tune_does_not_try_it() -> None:
    adapter, x = Regression(), torch.randn(16, 3)
    model = condition(nn.Linear(3, 1), adapter, layer="").eval()
    assert model.embed is not None
    nn.init.normal_(model.embed.weight)  # type: ignore[arg-type]
    tuning = tune(
        model, adapter, x, torch.randn(16), shifts={"noise": lambda x: x + 1}, progress=False,
        candidates=[Candidate("StreamStatistics"), Candidate("AnswerStep", {"alpha": 1.0})],
    )  # fmt: skip
    assert {one["method"] for one in tuning.tried} == {"AnswerStep"}


def test_what_makes_no_sense_is_refused(known: tuple[Conditioned, Tensor, Tensor]) -> None:
    model, adapter = known[0], Classification(CLASSES)
    with pytest.raises(IT3Error, match="gated by their drift"):
        StreamStatistics(model, adapter, Gate(mean=1.0, std=1.0))
    with pytest.raises(IT3Error, match="numbers of instances"):
        stream(known, prior=-1.0)
    with pytest.raises(IT3Error, match="needs a gate on the drift"):
        Candidate("StreamStatistics").build(model, adapter)
    plain = condition(nn.Linear(6, CLASSES), adapter, layer="")
    with pytest.raises(IT3Error, match="no batch norm"):
        StreamStatistics(plain, adapter, Gate(mean=1.0, std=1.0, of="drift"))
