"""Numbers worked out by hand, or by an independent formula; each equation by its number."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    Activations,
    ActMAD,
    AnswerStep,
    Classification,
    DenseMap,
    Regression,
    Trust,
    adapter_from,
    condition,
    sensitivity,
    zigzag_loss,
)


class Fixed(nn.Module):
    """f(x, s) = x + a·value·indicator + b·indicator: every answer can be worked out by hand."""

    def __init__(self, a: float, b: float = 0.0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))
        self.b = nn.Parameter(torch.tensor(b))

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        value, indicator = signal[:, :1], signal[:, -1:]
        return x + (self.a * value + self.b) * indicator


def test_regression() -> None:
    adapter = Regression([10.0, 0.0], [5.0, 2.0])
    assert adapter.neutral(torch.zeros(1, 7)).tolist() == [[0.0, 0.0, 0.0]]
    assert adapter.encode(torch.tensor([[20.0, -4.0]])).tolist() == [[2.0, -2.0, 1.0]]
    first, second = torch.tensor([[10.0, 0.0]]), torch.tensor([[25.0, 8.0]])  # gaps 3 and 4 std
    assert adapter.distance(first, second).item() == pytest.approx(3.5)
    assert adapter.error(first, second).item() == pytest.approx((15 + 8) / 2)
    assert adapter.loss(first, second).item() == pytest.approx(12.5)


def test_probability_distances_have_their_textbook_values() -> None:
    p, q = torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[0.5, 0.5]]).log()
    kl = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    middle = [0.375, 0.625]
    js = (
        0.25 * math.log(0.25 / middle[0]) + 0.75 * math.log(0.75 / middle[1])
        + 0.5 * math.log(0.5 / middle[0]) + 0.5 * math.log(0.5 / middle[1])
    ) / 2  # fmt: skip
    for name, value in {"kl": kl, "js": js, "l1": 0.5, "l2": math.sqrt(2) / 4}.items():
        assert Classification(2, name).distance(p, q).item() == pytest.approx(value)  # type: ignore[arg-type]


def test_distances_stay_finite_for_certain_answers() -> None:
    certain = torch.tensor([[200.0, -200.0]], requires_grad=True)
    for name, sign in itertools.product(("js", "kl", "l1", "l2"), (-1, 1)):
        distance = Classification(2, name).distance(certain, sign * certain.detach())  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(distance.sum(), certain)
        assert torch.isfinite(distance).all()
        assert (distance.item() == 0) == (sign == 1)
        assert torch.isfinite(gradient).all()


def test_dense_maps() -> None:
    adapter = DenseMap()
    logits = torch.tensor([[[[0.0, 100.0], [-100.0, 100.0]]]])
    label = torch.tensor([[[1, 1], [1, -1]]])  # unsure, right, wrong, unknown
    assert adapter.error(logits, label).item() == pytest.approx(2 / 3)  # a tie is not road
    assert adapter.loss(logits, label).item() == pytest.approx((math.log(2) + 0 + 100) / 3)
    signal = adapter.encode(label)
    assert signal[0, 0].tolist() == [[1.0, 1.0], [1.0, 0.5]]
    assert signal[0, 1].tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert adapter.encode(logits)[0, 0, 0, 0].item() == 0.5
    many = DenseMap(3)
    assert many.encode(torch.tensor([[[2, -1]]]))[0, :, 0].T.tolist() == [
        [0.0, 0.0, 1.0, 1.0],
        [pytest.approx(1 / 3)] * 3 + [0.0],
    ]
    assert many.loss(torch.zeros(1, 3, 1, 2), torch.tensor([[[2, -1]]])).item() == pytest.approx(
        math.log(3)
    )


def test_adapters_survive_json() -> None:
    for adapter in (Regression([1.0], [3.0]), Classification(7, "l1"), DenseMap(4, "l2")):
        assert repr(adapter_from(adapter.describe())) == repr(adapter)


def test_zigzag_of_both_passes_at_once_is_that_of_one_after_the_other() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 3),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten())  # fmt: skip
    adapter = Classification(4)
    model = condition(net, adapter, layer="1")
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr,arg-type]
    x, y = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    runs = []
    model.model[0].register_forward_hook(lambda *_: runs.append(1))  # type: ignore[index]
    found = {}
    for together in (False, True):
        runs.clear()
        loss = zigzag_loss(model, adapter, x, y, shared_prefix=together)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        found[together] = (loss, *gradients)
        assert len(runs) == (1 if together else 2)
    for one, other in zip(found[False], found[True], strict=True):
        torch.testing.assert_close(one, other)


def test_both_passes_at_once_leave_batch_norms_with_the_neutral_pass_s_statistics() -> None:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(8, momentum=1.0), nn.BatchNorm2d(6, momentum=1.0)]
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norms[0], nn.ReLU(), nn.Conv2d(8, 6, 3), norms[1],
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))  # fmt: skip
    adapter = Classification(4)
    model = condition(net, adapter, layer="1").train()
    nn.init.normal_(model.embed.weight, std=3.0)  # type: ignore[union-attr,arg-type]
    x, y = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    plain = copy.deepcopy(model)
    alone = plain(x, adapter.neutral(x))
    first, told = model.several(x, adapter.neutral(x), adapter.encode(y))
    torch.testing.assert_close(first, alone)  # as if the second pass were not there
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    assert "forward" not in vars(model.model[1])  # type: ignore[index]
    # The second pass is on the first one's statistics, which with such a momentum are kept.
    frozen = copy.deepcopy(model).eval()
    for layer, rows in ((frozen.model[1], 6 * 36), (frozen.model[4], 6 * 16)):  # type: ignore[index]
        layer.running_var *= (rows - 1) / rows  # torch keeps the unbiased one
    torch.testing.assert_close(told, frozen(x, adapter.encode(y)), rtol=1e-4, atol=1e-4)


def test_answer_step() -> None:
    adapter, x = Regression(), torch.tensor([[2.0], [-4.0]])
    model = Fixed(a=0.5)  # y0 = x, y1 = 1.5 x
    for alpha, expected in {1.0: [3.0, -6.0], 0.5: [2.5, -5.0], -1.0: [1.0, -2.0]}.items():
        answer = AnswerStep(model, adapter, alpha)(x)
        assert answer.prediction.flatten().tolist() == expected
        assert answer.error_before.tolist() == [1.0, 2.0]
    assert AnswerStep(model, adapter, 1.0)(x).error_after.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("a", [0.0, 0.4, 1.0])
def test_sensitivity_is_the_derivative(a: float) -> None:
    found = sensitivity(Fixed(a=a), Regression(mean=3.0, std=1.0), torch.randn(16, 1))
    assert found == pytest.approx(a, abs=1e-6)


def test_activations_stream_to_the_moments_of_all_rows() -> None:
    torch.manual_seed(0)
    adapter, net = Regression(), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model = condition(net, adapter, "0")
    x = 100 + torch.randn(103, 3)
    found = Activations.collect(model, adapter, x.split(10), ["model.0", "model.1"])
    with torch.no_grad():
        expected = net[0](x.double().float()).double()
    assert found.rows == 103
    torch.testing.assert_close(found.means[0].double(), expected.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        found.variances[0].double(), expected.var(0, correction=0), rtol=1e-4, atol=1e-5
    )
    again = Activations.collect(model, adapter, x.flip(0).split(7), ["model.0", "model.1"])
    torch.testing.assert_close(again.variances[1], found.variances[1])


@pytest.mark.parametrize("size", [1, 5])
def test_actmad_equals_its_definition(size: int) -> None:
    torch.manual_seed(0)
    adapter = Regression()
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model = condition(net, adapter, "0")
    known = Activations.collect(
        model, adapter, [torch.randn(50, 3, dtype=torch.float64)], ["model.0", "model.1"]
    )
    x = 2 + torch.randn(size, 3, dtype=torch.float64)
    answer = ActMAD(model, adapter, known, lr=0.01, optimizer="SGD", steps=2)(x)
    f = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    f.load_state_dict(net.state_dict())
    step = torch.optim.SGD(f.parameters(), lr=0.01)
    for _ in range(2):
        loss = torch.zeros((), dtype=torch.float64)
        for layer, mean, variance in zip((1, 2), known.means, known.variances, strict=True):
            seen = f[:layer](x)
            loss = loss + (seen.mean(0) - mean).abs().mean()
            if size > 1:
                loss = loss + (seen.var(0, correction=0) - variance).abs().mean()
        step.zero_grad()
        loss.backward()
        step.step()
    with torch.no_grad():
        torch.testing.assert_close(answer.prediction, f(x), rtol=0, atol=1e-9)
    assert torch.isfinite(answer.prediction).all()
    assert not torch.allclose(answer.prediction, answer.initial)


def test_trust_percentiles_and_flags() -> None:
    torch.manual_seed(0)
    usual = torch.rand(50_000)
    trust = Trust.from_errors(usual, false_alarms=0.05)
    asked = torch.tensor([0.0, 0.1, 0.5, 0.987, 1.0, 7.0])
    torch.testing.assert_close(
        trust.percentile(asked), torch.tensor([0.0, 10.0, 50.0, 98.7, 100.0, 100.0]),
        rtol=0, atol=0.5,
    )  # fmt: skip
    assert trust.flag(torch.rand(20_000)).float().mean().item() == pytest.approx(0.05, abs=0.01)
    assert trust.flag(torch.tensor([float("nan"), 0.2])).tolist() == [True, False]
    assert math.isnan(trust.percentile(torch.tensor([float("nan")])).item())
    again = Trust.from_description(trust.describe())
    assert torch.equal(again.percentile(asked), trust.percentile(asked))


@pytest.mark.parametrize("size", [20, 200])
def test_false_alarms_are_as_many_as_promised_however_small_the_data(size: int) -> None:
    torch.manual_seed(0)
    rates = []
    for _ in range(300):
        trust = Trust.from_errors(torch.randn(size).abs(), false_alarms=0.1)
        rates.append(trust.flag(torch.randn(500).abs()).float().mean())
    assert torch.stack(rates).mean().item() == pytest.approx(0.1, abs=0.012)
