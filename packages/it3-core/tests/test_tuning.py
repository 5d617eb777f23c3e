"""tune: what it chooses, what it refuses, and that it says why."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    Candidate,
    Classification,
    Gate,
    IT3Error,
    Regression,
    Tail,
    Tuning,
    default_candidates,
    split_tail,
    tune,
)
from it3_core.choosing import Tried, choose

# On clean inputs the networks below ignore their signal, and are told so.
pytestmark = pytest.mark.filterwarnings("ignore:the network's answer does not depend")


class Biased(nn.Module):
    """f(x, neutral) = (1 − bias) x₀, and y1 moves it by `step` times the truth's distance.

    Under a shift (marked by x₁ = 1) the bias is there; on clean inputs it is not. With step > 0
    the second pass goes the right way, with step < 0 the wrong way.
    """

    def __init__(self, step: float, bias: float = 0.5) -> None:
        super().__init__()
        self.step, self.bias = step, bias
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        truth, shifted, told = x[:, :1], x[:, 1:2], signal[:, -1:]
        answer = self.scale * truth * (1 - self.bias * shifted)
        return answer + told * self.step * shifted * (truth - answer)


def data(rows: int = 64) -> tuple[Tensor, Tensor]:
    truth = 1 + torch.rand(rows, 1)
    return torch.cat([truth, torch.zeros(rows, 1)], 1), truth.flatten() + 0.01 * torch.randn(rows)


def shift(x: Tensor) -> Tensor:
    return x + torch.tensor([0.0, 1.0])


STEPS = [Candidate("AnswerStep", {"alpha": a}) for a in (-1.0, -0.5, 0.5, 1.0)]


@pytest.mark.parametrize(("step", "alpha"), [(0.8, 1.0), (-0.8, -1.0)])
def test_the_step_that_helps_is_chosen_with_its_sign(step: float, alpha: float) -> None:
    x, y = data()
    tuning = tune(
        Biased(step), Regression(), x, y, shifts={"shift": shift}, candidates=STEPS, progress=False
    )
    assert (tuning.chosen.method, tuning.chosen.settings) == ("AnswerStep", {"alpha": alpha})
    assert tuning.chosen.gate is not None  # usual rows gain nothing either way: they are left alone
    assert "lowers the error by 7" in tuning.reason or "lowers the error by 8" in tuning.reason
    assert "under shift" in tuning.reason
    assert "8 candidates" in tuning.reason  # each for all batches, and for unusual ones alone
    changes = {one["candidate"]: one["changes"] for one in tuning.tried}
    assert changes[repr(tuning.chosen)]["shift"] == pytest.approx(-0.8, abs=0.05)
    assert changes[repr(tuning.chosen)]["clean"] == 0.0
    answer = tuning.build(Biased(step), Regression())(shift(x))
    assert (answer.prediction.flatten() - y).abs().mean() < 0.3 * (
        answer.initial.flatten() - y
    ).abs().mean()


def test_gradient_steps_are_candidates_too() -> None:
    x, y = data()
    only = [Candidate("IT3", {"lr": 0.1, "optimizer": "SGD", "power": 2.0, "steps": 3})]
    tuning = tune(
        Biased(0.8), Regression(), x, y, shifts={"shift": shift}, candidates=only, progress=False
    )
    assert replace(tuning.chosen, gate=None) == only[0]


def test_without_a_gate_that_can_tell_all_rows_are_adapted() -> None:
    """Clean rows are as inconsistent as shifted ones: a gate leaves nine of ten shifted alone."""

    class Everywhere(Biased):
        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            truth, told = x[:, :1], signal[:, -1:]
            answer = self.scale * truth * (1 - self.bias)
            return answer + told * self.step * (truth - answer)

    x, y = data()
    tuning = tune(Everywhere(0.8), Regression(), x, y, shifts={"shift": shift}, candidates=STEPS,
                  batch_size=64, progress=False)  # fmt: skip
    assert tuning.chosen == Candidate("AnswerStep", {"alpha": 1.0})


def test_harm_on_clean_data_forbids_a_gain_elsewhere() -> None:
    class Harmful(Biased):
        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            return super().forward(x, signal) + 0.1 * x[:, :1] * signal[:, -1:] * (1 - x[:, 1:2])

    x, y = data()
    same: dict[str, Any] = {"shifts": {"shift": shift}, "candidates": STEPS, "progress": False}
    tuning = tune(Harmful(0.8), Regression(), x, y, false_alarms=None, **same)
    assert tuning.chosen == Candidate("Source")
    assert "No adaptation" in tuning.reason
    assert "raises the error" in tuning.reason
    assert "on clean" in tuning.reason
    # Clean rows have an error of 0.1 to 0.2, shifted ones of 0.4 or more: a gate tells.
    gated = tune(Harmful(0.8), Regression(), x, y, **same)
    assert gated.chosen.gate is not None
    assert (gated.chosen.method, gated.chosen.settings) == ("AnswerStep", {"alpha": 1.0})
    method = gated.build(Harmful(0.8), Regression())
    usual, unusual = method(x), method(shift(x))
    assert torch.equal(usual.prediction, usual.initial)
    assert (unusual.prediction.flatten() - y).abs().mean() < 0.2
    changes = {one["candidate"]: one["changes"] for one in gated.tried}[repr(gated.chosen)]
    after = (unusual.prediction.flatten() - y).abs().mean()
    before = (unusual.initial.flatten() - y).abs().mean()
    assert changes["shift"] == pytest.approx(float(after / before) - 1, abs=1e-4)  # as promised


def test_the_trial_that_forbids_it_is_named_and_not_one_that_may_be_chance() -> None:
    wild = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(32)
    change = {"clean": 0 * wild + 0.03, "blur": 0 * wild - 0.9, "noise": wild + 0.05}
    harmful = Tried.of(STEPS[0], change, [], 0.95)
    assert harmful.changes["noise"] > harmful.changes["clean"] > 0.01
    reason = choose([harmful], worth=0.02, harm=0.01, confidence=0.95).reason
    assert "raises the error by 3.0% on clean" in reason
    # A harmless one that gains beyond chance, but too little.
    tiny = Tried.of(STEPS[1], {"clean": 0 * wild, "blur": 0 * wild - 0.01}, [], 0.95)
    reason = choose([harmful, tiny], worth=0.02, harm=0.01, confidence=0.95).reason
    assert "no harmless one gains enough" in reason


def test_chance_is_not_a_gain() -> None:
    """A second pass of pure noise, many candidates: in almost all of the runs none is chosen."""

    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            noise = torch.sin(1e4 * x[:, :1]) * signal[:, -1:]  # unrelated to the truth
            return self.scale * x[:, :1] + 0.05 * noise

    alphas = [a / 100 for a in range(-10, 11, 2) if a]
    candidates = [Candidate("AnswerStep", {"alpha": a}) for a in alphas]
    chosen = 0
    for seed in range(30):
        torch.manual_seed(seed)
        x = torch.randn(48, 2)
        y = x[:, 0] + 0.3 * torch.randn(48)
        tuning = tune(Noise(), Regression(), x, y, shifts={"none": lambda x: x},
                      candidates=candidates, progress=False)  # fmt: skip
        chosen += tuning.chosen.method != "Source"
    assert chosen <= 3  # 5 % of 30, with room for luck


def test_a_label_tail_counts_as_much_as_all_shifts() -> None:
    x, y = data()
    tail_x, tail_y = data(32)
    tail = Tail(Biased(0.8), shift(tail_x), tail_y)
    same: dict[str, Any] = {"shifts": {}, "candidates": STEPS, "progress": False}
    tuning = tune(Biased(0.0), Regression(), x, y, tail=tail, **same)
    assert replace(tuning.chosen, gate=None) == Candidate("AnswerStep", {"alpha": 1.0})
    assert "under label tail" in tuning.reason
    # A second network gains, this one does not: what helps that one may harm this one.
    other = {**same, "shifts": {"shift": shift}}
    alone = tune(Biased(0.0), Regression(), x, y, tail=tail, **other)
    assert alone.chosen == Candidate("Source")
    assert "on this network itself" in alone.reason
    both = tune(Biased(0.8), Regression(), x, y, tail=tail, **other)
    assert replace(both.chosen, gate=None) == Candidate("AnswerStep", {"alpha": 1.0})
    # The shifts say −1 and the tail says +1: there is no harmless choice.
    torn = tune(Biased(-0.8), Regression(), x, y, tail=tail, **{**same, "shifts": {"shift": shift}})
    assert torn.chosen == Candidate("Source")


def test_answers_that_are_not_finite_are_never_chosen() -> None:
    class Explodes(Biased):
        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            output = super().forward(x, signal)
            return torch.where(signal[:, -1:] > 0, output * 1e38 * 10, output)

    x, y = data()
    tuning = tune(Explodes(0.8), Regression(), x, y, shifts={"shift": shift}, candidates=STEPS,
                  progress=False)  # fmt: skip
    assert tuning.chosen == Candidate("Source")


def test_classification_and_default_candidates() -> None:
    from it3_core import condition

    adapter = Classification(3)
    model = condition(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), adapter, "0")
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    x = torch.randn(40, 4)
    y = model(x, adapter.neutral(x)).argmax(1)
    tuning = tune(model, adapter, x, y, shifts={"noise": lambda x: x + torch.randn_like(x)},
                  progress=False)  # fmt: skip
    assert len(tuning.tried) == 2 * len(default_candidates(model)) == 32
    assert tuning.chosen.method in ("Source", "AnswerStep", "IT3")


def test_what_was_chosen_survives_json() -> None:
    x, y = data()
    tuning = tune(
        Biased(0.8), Regression(), x, y, shifts={"shift": shift}, candidates=STEPS, progress=False
    )
    tuning = replace(tuning, chosen=replace(tuning.chosen, gate=Gate(0.2, 0.1)))
    again = Tuning.from_description(json.loads(json.dumps(tuning.describe())))
    assert again == tuning
    assert str(again) == tuning.reason


def test_every_candidate_sees_the_same_shifted_inputs() -> None:
    calls = []

    def once(x: Tensor) -> Tensor:
        calls.append(1)
        return shift(x)

    x, y = data()
    tune(Biased(0.8), Regression(), x, y, shifts={"shift": once}, candidates=STEPS, progress=False)
    assert len(calls) == 1


@pytest.mark.parametrize(("side", "tail"), [("upper", [2, 5]), ("lower", [1, 4]), ("both", [4, 5])])
def test_split_tail(side: str, tail: list[int]) -> None:
    y = torch.tensor([5.0, 2.0, 8.0, 6.0, 1.0, 9.0])
    kept, found = split_tail(y, 1 / 3, side)
    assert found.tolist() == tail
    assert sorted([*kept.tolist(), *tail]) == list(range(6))


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"shifts": {}}, "at least one shift"),
        ({"shifts": {"clean": shift}}, "names of trials"),
        ({"shifts": {"label tail 2": shift}}, "names of trials"),
        ({"confidence": 95}, "confidence must lie between 0 and 1, but is 95"),
        ({"y": torch.full((64,), torch.nan)}, "the labels hold NaN or Inf on trial 'clean'"),
        ({"tail": Tail(Biased(0.8), torch.ones(5, 2), torch.ones(4))}, "5 inputs but 4 labels"),
        ({"tail": Tail(Biased(0.8), torch.ones(1, 2), torch.ones(1))}, "less than 2 rows"),
        ({"y": torch.zeros(3)}, "64 inputs to tune on but 3 labels"),
        ({"x": torch.zeros(3, 2), "y": torch.zeros(3)}, "at least 8"),
        ({"candidates": [Candidate("IT3", {"speed": 1})]}, "IT3 does not know"),
    ],
)
def test_bad_requests_say_what_to_change(change: dict[str, Any], hint: str) -> None:
    x, y = data()
    request = {"x": x, "y": y, "shifts": {"shift": shift}, "progress": False} | change
    with pytest.raises(IT3Error, match=hint):
        tune(Biased(0.8), Regression(), request.pop("x"), request.pop("y"), **request)


def test_what_goes_wrong_leaves_the_terminal_on_a_new_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    x, y = data()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    bad = [STEPS[0], Candidate("IT3", {"speed": 1})]
    with pytest.raises(IT3Error, match="IT3 does not know"):
        tune(Biased(0.8), Regression(), x, y, shifts={"shift": shift}, candidates=bad)
    assert terminal.getvalue().endswith("\n")


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(IT3Error, match="no method to tune is called 'Magic'"):
        Candidate("Magic")
    with pytest.raises(IT3Error, match="no description of a tuning"):
        Tuning.from_description({"method": "Source"})
