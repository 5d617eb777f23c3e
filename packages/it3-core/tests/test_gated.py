"""Gated: which batches are adapted, and what comes back."""

from __future__ import annotations

import math
import pickle
import warnings

import pytest
import torch
from torch import Tensor

from it3_core import (
    AnswerStep,
    Candidate,
    Conditioned,
    Drift,
    Edge,
    Gate,
    Gated,
    IT3Error,
    OnlineIT3,
    Regression,
    Source,
    Tail,
    condition,
    tune,
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


def test_larger_batches_show_smaller_shifts() -> None:
    gate = Gate(mean=1.0, std=1.0)
    assert [gate.opens(torch.full((n,), 1.2)) for n in (1, 16, 64)] == [False, False, True]


def test_what_is_not_finite_is_left_alone() -> None:
    gate = Gate(mean=1.0, std=1.0)
    assert not gate.opens(torch.tensor([math.nan, 9.0]))
    assert not gate.opens(torch.tensor([math.inf, 9.0]))


def test_the_answer_is_the_methods_or_the_sources() -> None:
    adapter = Regression()
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = condition(net, adapter, layer="0")
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
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


def test_reset_reaches_what_remembers() -> None:
    adapter = Regression()
    model = condition(torch.nn.Sequential(torch.nn.Linear(3, 1)), adapter, layer="0")
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    online = OnlineIT3(model, adapter, lr=0.1, trust_region=False)
    gated = Gated(Source(model, adapter), online, Gate(mean=-1.0, std=0.0))
    x = torch.randn(6, 3)
    first = gated(x).prediction
    assert not torch.equal(gated(x).prediction, first)
    gated.reset()
    assert torch.equal(gated(x).prediction, first)


@pytest.mark.parametrize("wrong", [{"mean": math.nan}, {"std": -1.0}, {"false_alarms": 0.0}])
def test_gates_that_can_t_be(wrong: dict[str, float]) -> None:
    with pytest.raises(IT3Error):
        Gate(**{"mean": 0.1, "std": 0.1, **wrong})
    with pytest.raises(IT3Error, match="at least two"):
        Gate.fit(torch.tensor([1.0]))


def normed(adapter: Regression) -> tuple[Conditioned, torch.nn.BatchNorm2d]:
    """A network with a batch norm that has seen a mean and a deviation of its own."""
    norm = torch.nn.BatchNorm2d(4)
    net = torch.nn.Sequential(norm, torch.nn.Conv2d(4, 2, 1), torch.nn.Flatten(),
                              torch.nn.Linear(2 * 9, 1))  # fmt: skip
    with torch.no_grad():
        norm.running_mean.copy_(torch.randn(4))  # type: ignore[union-attr]
        norm.running_var.copy_(1 + torch.rand(4))  # type: ignore[union-attr]
        norm.bias.copy_(torch.randn(4))
        norm.weight.fill_(0.7)
    model = condition(net, adapter, layer="1").eval()
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    return model, norm


def images(norm: torch.nn.BatchNorm2d, n: int, shift: float = 0.0) -> Tensor:
    """As training's: each image's means vary by a third of a deviation."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    shape = (1, 4, 1, 1)
    usual = shift + torch.randn(n, 4, 1, 1) / 3 + torch.randn(n, 4, 3, 3)
    return norm.running_mean.view(shape) + norm.running_var.sqrt().view(shape) * usual


def test_a_drift_is_the_means_distance_from_training() -> None:
    adapter = Regression()
    model, norm = normed(adapter)
    x = images(norm, 8)
    found = Drift(model, adapter)(x)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    away = (x.mean((2, 3)) - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    assert torch.allclose(found.each, away.square().mean(1), atol=1e-5)
    assert torch.allclose(found.drift, 8 * away.mean(0).square().mean(), atol=1e-5)
    assert torch.equal(found.prediction, Source(model, adapter)(x).prediction)
    assert torch.allclose(found.error_before, Source(model, adapter)(x).error_before)
    sent = pickle.loads(pickle.dumps(found))  # noqa: S301 - as a pool sends it
    assert torch.equal(sent.drift, found.drift)


@pytest.mark.parametrize("size", [1, 16, 64])
def test_usual_batches_of_any_size_drift_alike_and_shifted_ones_do_not(size: int) -> None:
    adapter = Regression()
    model, norm = normed(adapter)
    drift = Drift(model, adapter)
    gate = Gate.fit(drift(images(norm, 3000)).each, of="drift")
    opened = sum(gate.opens(drift(images(norm, size)).drift) for _ in range(400)) / 400
    assert 0.04 < opened < 0.16
    if size > 1:
        shifted = sum(gate.opens(drift(images(norm, size, 0.5)).drift) for _ in range(50)) / 50
        assert shifted > 0.8


def test_a_gate_on_the_drift_is_kept_and_built_again() -> None:
    adapter = Regression()
    model, norm = normed(adapter)
    gate = Gate.fit(Drift(model, adapter)(images(norm, 500)).each, of="drift")
    candidate = Candidate("Source", {"norm": "batch"}, gate)
    again = Candidate.from_description(candidate.describe())
    assert again == candidate
    assert repr(again).endswith("gated by drift")
    method = again.build(model, adapter)
    usual, shifted = images(norm, 64), images(norm, 64, 1.0)
    assert torch.equal(method(usual).prediction, method(usual).initial)
    expected = Source(model, adapter, norm="batch")(shifted).prediction
    assert torch.equal(method(shifted).prediction, expected)
    with pytest.raises(IT3Error, match="needs `Drift`"):
        Gated(Source(model, adapter), Source(model, adapter), gate)(usual)


@pytest.mark.parametrize(("size", "sign"), [(64, "drift"), (1, "error")])
def test_what_a_gate_looks_at(size: int, sign: str) -> None:
    """Labels are right for usual images; under a shift, only batch statistics bring them back."""
    adapter = Regression()
    model, norm = normed(adapter)
    x = images(norm, 256)
    y = Source(model, adapter)(x).prediction.flatten()
    y = y + 0.05 * y.std() * torch.randn(256)  # some error on usual images
    choices = [Candidate("Source", {"norm": "batch"})]
    tuning = tune(model, adapter, x, y, shifts={"shift": lambda x: 1.5 * x + 3}, batch_size=size,
                  candidates=choices, false_alarms=0.01, progress=False)  # fmt: skip
    plain, drift = tuning.tried
    assert (plain["gate"], drift["gate"]["of"]) == (None, sign)
    if size == 1:
        return
    assert tuning.chosen.gate is not None
    assert drift["changes"]["shift"] == plain["changes"]["shift"]  # it opens for every batch
    assert drift["changes"]["clean"] < plain["changes"]["clean"]  # and for few that are usual


def test_a_norm_that_waits_for_a_signal_has_no_say() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blind, self.given = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
            self.last = torch.nn.Linear(3, 1)

        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            norm = self.given if bool(signal[:, -1].any()) else self.blind
            return self.last(norm(x)) + signal[:, :1]  # type: ignore[no-any-return]

    adapter = Regression()
    answer = Drift(Two().eval(), adapter)(torch.ones(4, 3))
    assert len(answer.means) == 1
    assert float(answer.drift) == pytest.approx(4.0, rel=1e-3)


def test_a_drift_needs_a_batch_norm() -> None:
    adapter = Regression()
    model = condition(torch.nn.Sequential(torch.nn.Linear(3, 1)), adapter, layer="0")
    with pytest.raises(IT3Error, match="no batch norm"):
        Drift(model, adapter)
    with pytest.raises(IT3Error, match="error or drift"):
        Gate(0.0, 1.0, of="sound")  # type: ignore[arg-type]


def test_an_edge_picks_answers_one_by_one() -> None:
    adapter = Regression()
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = condition(net, adapter, layer="0")
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    x = torch.randn(50, 3)
    source, step = Source(model, adapter), AnswerStep(model, adapter)
    first, second = source(x), step(x)
    edge = Edge.fit(first.prediction, 0.1, lower=True, upper=True)
    found = Gated(source, step, edge)(x)
    order = first.prediction.flatten().argsort()
    ends, rest = torch.cat([order[:5], order[-5:]]), order[5:-5]
    assert torch.equal(found.prediction[ends], second.prediction[ends])
    assert torch.equal(found.prediction[rest], first.prediction[rest])
    assert torch.allclose(found.error_after[ends], second.error_after[ends])
    assert torch.allclose(found.error_after[rest], first.error_before[rest])
    beyond_all = Edge.fit(first.prediction, 0.0, upper=True)
    assert beyond_all.low is None
    assert torch.equal(Gated(source, step, beyond_all)(x).prediction, first.prediction)
    candidate = Candidate("AnswerStep", {"alpha": 1.0}, edge)
    again = Candidate.from_description(candidate.describe())
    assert again == candidate
    assert torch.equal(again.build(model, adapter)(x).prediction, found.prediction)


def test_edges_that_can_t_be() -> None:
    with pytest.raises(IT3Error, match="finite"):
        Edge(high=math.inf)
    with pytest.raises(IT3Error, match="below a half"):
        Edge.fit(torch.rand(9), 0.5, upper=True)
    with pytest.raises(IT3Error, match="at least two"):
        Edge.fit(torch.rand(1), 0.1, upper=True)
    adapter = Regression([0.0, 0.0], [1.0, 1.0])
    model = condition(torch.nn.Sequential(torch.nn.Linear(3, 2)), adapter, layer="0")
    with pytest.raises(IT3Error, match="answers several"):
        Candidate("Source", {}, Edge(high=1.0)).build(model, adapter)(torch.randn(4, 3))


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


@pytest.mark.parametrize(
    ("steps", "moved"),
    [((0.5, 0.5, 0.5), True), ((0.5, 0.5, -0.5), False), ((0.5,), False)],
)
def test_a_tail_is_believed_where_three_networks_agree(
    steps: tuple[float, ...], moved: bool
) -> None:
    """Beyond what was trained; the network itself has nothing to show there."""
    torch.manual_seed(0)
    x = torch.rand(400, 1)
    y = x.flatten() + 0.01 * torch.randn(400)
    beyond = 1.3 + torch.rand(200, 1) / 2
    tails = [Tail(Saturating(0.8, step), beyond - 0.2, beyond.flatten() - 0.2) for step in steps]
    tuning = tune(
        Saturating(1.0, 0.5), Regression(), x, y,
        shifts={"noise": lambda x: x + 0.01 * torch.randn_like(x)},
        tail=tails if len(tails) > 1 else tails[0],
        candidates=[Candidate("AnswerStep", {"alpha": 1.0})],
        progress=False,
    )  # fmt: skip
    assert isinstance(tuning.chosen.gate, Edge) is moved
    if not moved:
        assert tuning.chosen == Candidate("Source")
        return
    method = tuning.build(Saturating(1.0, 0.5), Regression())
    assert torch.equal(method(x[x < 0.9][:, None]).prediction, x[x < 0.9][:, None])
    assert float((method(beyond).prediction - beyond).abs().mean()) < 0.3
    assert tuning.chosen.gate.low is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("steps", "moved"),
    [
        ((0.5, 0.5, 0.5), True),
        ((0.5, 0.5, 0.0), False),
        ((0.5,), False),
        ((0.02, 0.02, 0.02), True),  # 4 % of the error there, and half of that on the whole
        ((0.005, 0.005, 0.005), False),
    ],
)
def test_without_a_gate_three_networks_are_believed_too(
    steps: tuple[float, ...], moved: bool
) -> None:
    """Of a step that leaves known inputs alone anyway, and has nothing to gain under shifts."""
    torch.manual_seed(0)
    x = torch.rand(400, 1)
    beyond = 1.1 + torch.rand(200, 1) / 2
    step = Candidate("AnswerStep", {"alpha": 1.0})
    tuning = tune(
        Saturating(1.0, steps[0], 1e-3), Regression(), x, x.flatten() + 0.01 * torch.randn(400),
        shifts={"noise": lambda x: x + 0.01 * torch.randn_like(x)},
        tail=[Tail(Saturating(0.8, step, 1e-3), beyond, beyond.flatten()) for step in steps],
        candidates=[step],
        false_alarms=None,
        progress=False,
    )  # fmt: skip
    assert tuning.chosen == (step if moved else Candidate("Source"))


@pytest.mark.parametrize("noisy", [True, False])
def test_tails_that_disagree_are_named_as_the_reason(noisy: bool) -> None:
    """One of three networks has nothing to gain at the edge, and nothing to lose."""
    torch.manual_seed(0)
    x = 0.7 * torch.rand(400, 1)
    beyond = 1.1 + torch.rand(200, 1) / 2
    tuning = tune(
        Saturating(1.0, 0.5), Regression(), x, x.flatten() + 0.01 * torch.randn(400),
        shifts={"noise": lambda x: x + 0.01 * torch.randn_like(x)} if noisy else {},
        tail=[Tail(Saturating(0.8, step), beyond, beyond.flatten()) for step in (0.4, 0.4, 0.0)],
        candidates=[Candidate("AnswerStep", {"alpha": 1.0}, Edge(high=0.81))],
        progress=False,
    )  # fmt: skip
    assert tuning.chosen == Candidate("Source")
    assert "this network itself" not in tuning.reason
    assert "the networks trained without the label tail do not agree" in tuning.reason
    assert "one of 3 gains -0.0% (± 0.0%), where 2%" in tuning.reason


def test_tails_are_of_the_same_rows() -> None:
    x = torch.rand(20, 1)
    tails = [Tail(Saturating(0.8, 0.5), x[:n] + 1, x[:n, 0] + 1) for n in (8, 9)]
    with pytest.raises(IT3Error, match="different rows"):
        tune(Saturating(1.0, 0.5), Regression(), x, x[:, 0], shifts={}, tail=tails, progress=False)


def test_a_deaf_tail_is_nobodys_business() -> None:
    """Its network was trained for tuning alone; a warning would be taken for the user's own."""
    x = torch.rand(40, 1)
    deaf = Saturating(0.8, 0.0)
    deaf.forward = lambda x, signal: deaf.scale * x  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tune(
            Saturating(1.0, 0.5), Regression(), x, x[:, 0],
            shifts={"noise": lambda x: x + 0.01 * torch.randn_like(x)},
            tail=Tail(deaf, x + 1, x[:, 0] + 1),
            candidates=[Candidate("AnswerStep", {"alpha": 1.0})],
            progress=False,
        )  # fmt: skip


def test_one_odd_instance_does_not_close_a_gate_on_drift() -> None:
    usual = torch.rand(400, generator=torch.Generator().manual_seed(0)) + 0.5
    odd = torch.cat([usual, torch.tensor([500.0])])
    plain, robust = (Gate.fit(drifts, of="drift") for drifts in (usual, odd))
    assert robust.std == pytest.approx(plain.std, rel=0.05)
    assert robust.opens(torch.tensor([2.0]))
    assert not Gate.fit(odd).opens(torch.tensor([2.0]))  # errors are taken as they are
