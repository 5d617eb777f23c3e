"""Numbers worked out by hand, or by an independent formula."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    Activations,
    ActMAD,
    AnswerStep,
    Classification,
    DenseMap,
    IT3Error,
    IT3Warning,
    Regression,
    Source,
    Trust,
    adapter_from,
    condition,
    idempotence_loss,
    sensitivity,
    zigzag_loss,
)
from it3_core.distances import js_divergence, kl_divergence, l2_distance


class Fixed(nn.Module):
    """f(x, s) = x + a·value·indicator + b·indicator: every answer can be worked out by hand."""

    def __init__(self, a: float, b: float = 0.0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))
        self.b = nn.Parameter(torch.tensor(b))

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        value, indicator = signal[:, :1], signal[:, -1:]
        return x + (self.a * value + self.b) * indicator


def test_regression_signal() -> None:
    adapter = Regression(mean=[10.0, 0.0], std=[5.0, 2.0])
    x = torch.zeros(1, 7)
    assert adapter.channels == 3
    assert adapter.neutral(x).tolist() == [[0.0, 0.0, 0.0]]
    assert adapter.encode(torch.tensor([[20.0, -4.0]])).tolist() == [[2.0, -2.0, 1.0]]


def test_regression_distances_and_errors() -> None:
    first, second = torch.tensor([[10.0, 0.0]]), torch.tensor([[25.0, 8.0]])  # gaps 3 and 4 std
    expected = {"absolute": 3.5, "euclidean": math.sqrt(12.5), "squared": 12.5}
    for name, value in expected.items():
        adapter = Regression([10.0, 0.0], [5.0, 2.0], name)  # type: ignore[arg-type]
        assert adapter.distance(first, second).item() == pytest.approx(value)
    assert adapter.error(first, second).item() == pytest.approx((15 + 8) / 2)
    assert adapter.loss(first, second).item() == pytest.approx(12.5)


def test_a_column_and_a_vector_of_labels_are_the_same() -> None:
    """(batch, 1) outputs minus (batch,) labels must not broadcast to a square."""
    adapter, column = Regression(), torch.tensor([[1.0], [2.0], [3.0]])
    label = torch.tensor([1.0, 2.0, 5.0])
    assert adapter.error(column, label).tolist() == [0.0, 0.0, 2.0]
    assert adapter.loss(column, label).tolist() == [0.0, 0.0, 4.0]
    assert torch.equal(adapter.encode(column), adapter.encode(column.flatten()))


def test_probability_distances_have_their_textbook_values() -> None:
    p, q = torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[0.5, 0.5]]).log()
    kl = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    middle = [0.375, 0.625]
    js = (
        0.25 * math.log(0.25 / middle[0]) + 0.75 * math.log(0.75 / middle[1])
        + 0.5 * math.log(0.5 / middle[0]) + 0.5 * math.log(0.5 / middle[1])
    ) / 2  # fmt: skip
    assert kl_divergence(p, q).item() == pytest.approx(kl)
    assert js_divergence(p, q).item() == pytest.approx(js)
    assert js_divergence(q, p).item() == pytest.approx(js)
    assert l2_distance(p, q).item() == pytest.approx(math.sqrt(2) / 4)
    for name, value in {"kl": kl, "js": js, "l2": math.sqrt(2) / 4}.items():
        assert Classification(2, name).distance(p, q).item() == pytest.approx(value)  # type: ignore[arg-type]


def test_distances_stay_finite_for_certain_answers() -> None:
    certain = torch.tensor([[200.0, -200.0]], requires_grad=True)
    for name in ("js", "kl", "l2"):
        distance = Classification(2, name).distance(certain, -certain.detach())  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(distance.sum(), certain)
        assert torch.isfinite(distance).all()
        assert torch.isfinite(gradient).all()
        at_zero = Classification(2, name).distance(certain, certain.detach())  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(at_zero.sum(), certain)
        assert at_zero.item() == 0
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


@pytest.mark.parametrize(
    "adapter",
    [
        Regression([1.0, 2.0], [3.0, 4.0], "squared"),
        Classification(7, "kl"),
        DenseMap(4, "l2"),
    ],
)
def test_adapters_survive_json(adapter: Any) -> None:
    assert repr(adapter_from(adapter.describe())) == repr(adapter)


def test_zigzag_is_the_sum_of_both_passes() -> None:
    adapter, x, y = Regression(), torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 2.0])
    model = Fixed(a=0.5)
    # neutral: 1, 2 → squared errors 1, 0; with the label 2 given: 2, 3 → 0, 1
    assert zigzag_loss(model, adapter, x, y).item() == pytest.approx(0.5 + 0.5)
    assert zigzag_loss(model, adapter, x, y, weight=0.5).item() == pytest.approx(0.5 + 0.25)
    with pytest.raises(IT3Error, match="weight"):
        zigzag_loss(model, adapter, x, y, weight=0.0)
    assert zigzag_loss(model, adapter, x, y, given=0.0).item() == pytest.approx(0.5)
    assert zigzag_loss(model, adapter, x, y, given=1.0).item() == pytest.approx(0.5)
    # own answers 1, 2 given: 1.5, 3 → 0.25, 1
    own = zigzag_loss(model, adapter, x, y, second="own")
    assert own.item() == pytest.approx(0.5 + 0.625)
    assert zigzag_loss(model, adapter, x, y, second="own", given=1.0).item() == pytest.approx(0.625)


def test_zigzag_with_mixed_answers_gives_labels_and_own_ones_at_even_odds() -> None:
    torch.manual_seed(0)
    adapter, x, y = Regression(), torch.ones(4000, 1), torch.full((4000,), 3.0)
    # f(x, s) = x + s: with the label 4, with its own answer 1 it is 2: both are off by 1
    assert zigzag_loss(Fixed(a=1.0), adapter, x, y, second="mixed", given=1.0).item() == 1.0
    # f(x, s) = x + s/2: with the label 2.5, off by 0.5; with its own answer 1.5, off by 1.5
    mixed = zigzag_loss(Fixed(a=0.5), adapter, x, y, second="mixed", given=1.0).item()
    assert mixed == pytest.approx((0.25 + 2.25) / 2, rel=0.05)


@pytest.mark.parametrize("second", ["label", "own"])
def test_zigzag_of_both_passes_at_once_is_that_of_one_after_the_other(second: Any) -> None:
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
        loss = zigzag_loss(model, adapter, x, y, second=second, together=together)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        found[together] = (loss, *gradients)
        assert len(runs) == (1 if together and second == "label" else 2)
    for one, other in zip(found[False], found[True], strict=True):
        torch.testing.assert_close(one, other)


def test_both_passes_at_once_leave_batch_norms_with_the_neutral_pass_s_statistics() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3),
                        nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(6, 4))  # fmt: skip
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
    # The second pass is on the first one's statistics: those that a batch norm now has, undone.
    norm, before = model.model[4], copy.deepcopy(net[4])  # type: ignore[index]
    share = norm.momentum
    frozen = copy.deepcopy(model).eval()
    for layer, was in ((frozen.model[1], net[1]), (frozen.model[4], before)):  # type: ignore[index]
        rows = 6 * (36 if layer.num_features == 8 else 16)
        layer.running_mean = (layer.running_mean - (1 - share) * was.running_mean) / share
        unbiased = (layer.running_var - (1 - share) * was.running_var) / share
        layer.running_var = unbiased * (rows - 1) / rows
    torch.testing.assert_close(told, frozen(x, adapter.encode(y)), rtol=1e-4, atol=1e-4)


def test_zigzag_with_own_answers_has_no_gradient_through_them() -> None:
    adapter, x, y = Regression(), torch.tensor([[1.0]]), torch.tensor([2.0])
    model = Fixed(a=0.5)
    x.requires_grad_()
    zigzag_loss(model, adapter, x, y, second="own", given=1.0).backward()
    # f(x, own) = x + 0.5·own with own = 1 held fixed: d/dx (x + 0.5 − 2)² = 2·(1.5 − 2)·1
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(-1.0)


def test_zigzag_noise_is_noise_of_the_label() -> None:
    torch.manual_seed(0)
    adapter, x, y = Regression(), torch.zeros(4000, 1), torch.zeros(4000)
    loss = zigzag_loss(Fixed(a=1.0), adapter, x, y, second="noisy", noise=0.3, given=1.0)
    assert loss.item() == pytest.approx(0.09, rel=0.1)  # the variance of the noise
    classes = Classification(10)
    noisy = classes.perturb(classes.encode(torch.zeros(4000, dtype=torch.long)), 0.5)
    assert noisy.sum(1).eq(2).all()  # still one class, and the indicator
    assert noisy[:, 0].mean().item() == pytest.approx(0.5 + 0.5 / 10, abs=0.03)


def test_zigzag_tells_each_instance_with_its_probability() -> None:
    torch.manual_seed(0)
    adapter, x, y = Regression(), torch.zeros(4000, 1), torch.zeros(4000)
    loss = zigzag_loss(Fixed(a=0.0, b=1.0), adapter, x, y, given=0.25)  # the indicator alone
    assert loss.item() == pytest.approx(0.25, abs=0.03)


def test_idempotence_loss_and_its_power() -> None:
    y1, y0 = torch.tensor([3.0, 1.0]), torch.zeros(2)
    assert idempotence_loss(Regression(), y1, y0).item() == 2.0
    assert idempotence_loss(Regression(), y1, y0, power=2).item() == 5.0


def test_answer_step() -> None:
    adapter, x = Regression(), torch.tensor([[2.0], [-4.0]])
    model = Fixed(a=0.5)  # y0 = x, y1 = 1.5 x
    for alpha, expected in {1.0: [3.0, -6.0], 0.5: [2.5, -5.0], -1.0: [1.0, -2.0]}.items():
        answer = AnswerStep(model, adapter, alpha)(x)
        assert answer.prediction.flatten().tolist() == expected
        assert answer.error_before.tolist() == [1.0, 2.0]
    assert AnswerStep(model, adapter, 1.0)(x).error_after.tolist() == [0.5, 1.0]


def test_source_reads_its_error_when_asked() -> None:
    answer = Source(Fixed(a=0.5), Regression(std=2.0))(torch.tensor([[2.0]]))
    assert answer.error_before.item() == answer.error_after.item() == 0.25  # (2 + 0.5 − 2) / 2


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


def test_trust_counts_only_what_is_smaller() -> None:
    ties = Trust.from_errors(torch.cat([torch.zeros(90), torch.linspace(0.1, 1, 10)]))
    assert ties.percentile(torch.tensor([0.0])).item() == 0.0
    few = Trust([1.0, 1.0, 1.0, 2.0])
    found = few.percentile(torch.tensor([0.5, 1.0, 1.5, 3.0])).tolist()
    assert found == [0.0, 0.0, pytest.approx(250 / 3), 100.0]


@pytest.mark.parametrize("size", [20, 50, 200])
def test_false_alarms_are_as_many_as_promised_however_small_the_data(size: int) -> None:
    torch.manual_seed(0)
    rates = []
    for _ in range(300):
        trust = Trust.from_errors(torch.randn(size).abs(), false_alarms=0.1)
        rates.append(trust.flag(torch.randn(500).abs()).float().mean())
    assert torch.stack(rates).mean().item() == pytest.approx(0.1, abs=0.012)


def test_too_few_errors_for_the_promise_are_named() -> None:
    with pytest.warns(IT3Warning, match="at least 19"):
        Trust.from_errors(torch.rand(10))


@pytest.mark.parametrize("name", ["js", "kl", "l2"])
def test_a_class_that_is_ruled_out_is_no_trouble(name: Any) -> None:
    first = torch.tensor([[0.0, 1.0, float("-inf")]], requires_grad=True)
    second = torch.tensor([[0.0, 1.5, float("-inf")]])
    distance = Classification(3, name).distance(first, second)
    expected = Classification(2, name).distance(first[:, :2], second[:, :2])
    assert distance.item() == pytest.approx(expected.item(), abs=1e-6)


def test_labels_of_any_integer_type() -> None:
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16):
        label = torch.tensor([[[1, 0]]]).to(dtype)
        assert DenseMap().error(torch.tensor([[[[5.0, -5.0]]]]), label).item() == 0
        assert Classification(3).encode(torch.tensor([2]).to(dtype))[0, 2] == 1
        signal = Regression().perturb(Regression().encode(torch.tensor([3]).to(dtype)), 0.1)
        assert signal.is_floating_point()
    mask = torch.tensor([[[[True, False]]]])  # (batch, 1, height, width)
    assert DenseMap().loss(torch.zeros(1, 1, 1, 2), mask).item() == pytest.approx(math.log(2))
    series = torch.zeros(2, 1, 7)  # one-dimensional maps, labels with and without a channel
    assert DenseMap().loss(series, torch.zeros(2, 1, 7).long()).shape == (2,)
    assert DenseMap().loss(series, torch.zeros(2, 7).long()).shape == (2,)
