"""tune: what it chooses, what it refuses, and that it says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    Candidate,
    Classification,
    ExtrapolationSplit,
    Gate,
    IT3Error,
    Regression,
    Tuning,
    condition,
    default_candidates,
    extrapolation_split,
    tune,
)
from it3_core.trust.candidates import CandidateResult, choose

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


def tuned(model: float | nn.Module, **change: Any) -> Tuning:
    x, y = data()
    model = Biased(model) if isinstance(model, float) else model
    rows = (change.pop("x", x), change.pop("y", y))
    request = {"model": model, "adapter": Regression(), "data": rows, "shifts": {"shift": shift}}
    return tune(**{**request, "candidates": STEPS, "progress": False, **change})


@pytest.mark.parametrize(("step", "alpha"), [(0.8, 1.0), (-0.8, -1.0)])
def test_the_step_that_helps_is_chosen_with_its_sign(step: float, alpha: float) -> None:
    tuning, (x, y) = tuned(step), data()
    assert (tuning.chosen.method, tuning.chosen.settings) == ("AnswerStep", {"alpha": alpha})
    assert tuning.chosen.gate is not None  # usual rows gain nothing either way: they are left alone
    assert "under shift" in tuning.reason
    assert len(tuning.tried) == 8  # each for all batches, and for unusual ones alone
    changes = {one["candidate"]: one["changes"] for one in tuning.tried}
    assert changes[str(tuning.chosen)]["shift"] == pytest.approx(-0.8, abs=0.05)
    assert changes[str(tuning.chosen)]["clean"] == 0.0
    answer = tuning.build(Biased(step), Regression())(shift(x))
    assert (answer.prediction.flatten() - y).abs().mean() < 0.3 * (
        answer.initial.flatten() - y
    ).abs().mean()


def test_without_a_gate_that_can_tell_all_rows_are_adapted() -> None:
    """Clean rows are as inconsistent as shifted ones: a gate leaves nine of ten shifted alone."""

    class Everywhere(Biased):
        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            truth, told = x[:, :1], signal[:, -1:]
            answer = self.scale * truth * (1 - self.bias)
            return answer + told * self.step * (truth - answer)

    tuning = tuned(Everywhere(0.8), batch_size=64)
    assert tuning.chosen == Candidate("AnswerStep", {"alpha": 1.0})


def test_harm_on_clean_data_forbids_a_gain_elsewhere() -> None:
    class Harmful(Biased):
        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            return super().forward(x, signal) + 0.1 * x[:, :1] * signal[:, -1:] * (1 - x[:, 1:2])

    x, y = data()
    tuning = tuned(Harmful(0.8), x=x, y=y, false_alarms=None)
    assert tuning.chosen == Candidate("Source")
    assert "No adaptation" in tuning.reason
    assert "on clean" in tuning.reason
    # Clean rows have an error of 0.1 to 0.2, shifted ones of 0.4 or more: a gate tells.
    gated = tuned(Harmful(0.8), x=x, y=y)
    assert gated.chosen.gate is not None
    assert (gated.chosen.method, gated.chosen.settings) == ("AnswerStep", {"alpha": 1.0})
    method = gated.build(Harmful(0.8), Regression())
    usual, unusual = method(x), method(shift(x))
    assert torch.equal(usual.prediction, usual.initial)
    assert (unusual.prediction.flatten() - y).abs().mean() < 0.2
    changes = {one["candidate"]: one["changes"] for one in gated.tried}[str(gated.chosen)]
    after = (unusual.prediction.flatten() - y).abs().mean()
    before = (unusual.initial.flatten() - y).abs().mean()
    assert changes["shift"] == pytest.approx(float(after / before) - 1, abs=1e-4)  # as promised


def test_the_trial_that_forbids_it_is_named_and_not_one_that_may_be_chance() -> None:
    wild = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(32)
    change = {"clean": 0 * wild + 0.03, "blur": 0 * wild - 0.9, "noise": wild + 0.05}
    harmful = CandidateResult.of(STEPS[0], change, [])
    assert harmful.changes["noise"] > harmful.changes["clean"] > 0.01
    reason = choose([harmful], max_harm=0.01).reason
    assert "changes it by +3.0% on clean" in reason


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
        tuning = tune(Noise(), Regression(), (x, y), shifts={"none": lambda x: x},
                      candidates=candidates, progress=False)  # fmt: skip
        chosen += tuning.chosen.method != "Source"
    assert chosen <= 3  # 5 % of 30, with room for luck


def test_a_label_tail_counts_as_much_as_all_shifts() -> None:
    (x, y), (tail_x, tail_y) = data(), data(32)
    same = {"x": x, "y": y, "extrapolation": ExtrapolationSplit(Biased(0.8), shift(tail_x), tail_y)}
    tuning = tuned(0.0, shifts={}, **same)
    assert replace(tuning.chosen, gate=None) == Candidate("AnswerStep", {"alpha": 1.0})
    assert "under extrapolation split" in tuning.reason
    # A second network gains, this one does not: what helps that one may harm this one.
    assert tuned(0.0, **same).chosen == Candidate("Source")
    both = tuned(0.8, **same)
    assert replace(both.chosen, gate=None) == Candidate("AnswerStep", {"alpha": 1.0})
    # The shifts say −1 and the tail says +1: there is no harmless choice.
    assert tuned(-0.8, **same).chosen == Candidate("Source")


def test_answers_that_are_not_finite_are_never_chosen() -> None:
    class Explodes(Biased):
        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            output = super().forward(x, signal)
            return torch.where(signal[:, -1:] > 0, output * 1e38 * 10, output)

    assert tuned(Explodes(0.8)).chosen == Candidate("Source")


@pytest.mark.parametrize(("side", "tail"), [("upper", [2, 5]), ("lower", [1, 4]), ("both", [4, 5])])
def test_split_tail(side: str, tail: list[int]) -> None:
    y = torch.tensor([5.0, 2.0, 8.0, 6.0, 1.0, 9.0])
    kept, found = extrapolation_split(y, 1 / 3, side)
    assert found.tolist() == tail
    assert sorted([*kept.tolist(), *tail]) == list(range(6))


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"shifts": {}}, "at least one shift"),
        ({"shifts": {"extrapolation split 2": shift}}, "names of trials"),
        ({"y": torch.full((64,), torch.nan)}, "the labels hold NaN or Inf on trial 'clean'"),
        (
            {"extrapolation": ExtrapolationSplit(Biased(0.8), torch.ones(5, 2), torch.ones(4))},
            "5 inputs but 4 labels",
        ),
        (
            {"extrapolation": ExtrapolationSplit(Biased(0.8), torch.ones(1, 2), torch.ones(1))},
            "of one row",
        ),
        (
            {
                "extrapolation": [
                    ExtrapolationSplit(Biased(0.8), torch.ones(n, 2), torch.ones(n)) for n in (8, 9)
                ]
            },
            "different rows",
        ),
        ({"y": torch.zeros(3)}, "64 inputs to tune on but 3 labels"),
        ({"x": torch.zeros(3, 2), "y": torch.zeros(3)}, "at least 8"),
        ({"candidates": [Candidate("IT3", {"speed": 1})]}, "IT3 has no such setting"),
        ({"model": Biased(0.8, torch.inf)}, "not finite"),
    ],
)
def test_bad_requests_say_what_to_change(change: dict[str, Any], hint: str) -> None:
    with pytest.raises(IT3Error, match=hint):
        tuned(**{"model": 0.8, **change})


def test_candidates_in_words() -> None:
    """Sentences hold no constructor calls, and no two candidates read alike."""
    model = condition(nn.Linear(4, 3), Classification(3), "")
    words = [str(one) for one in default_candidates(model)]
    assert len(set(words)) == len(words)
    assert not any("(" in word or "_" in word or "=None" in word for word in words)
    assert words[0] == "answer step, α = −1"
    chosen = {"lr": 2e-4, "parameters": ["head.*"], "anchor_gradient": True, "trust_region": False}
    assert str(Candidate("IT3", chosen)) == (
        "IT³, 1 step, learning rate 0.0002, chosen weights, gradient through the anchor, "
        "no trust region"
    )
    gate = Gate(0.0, 1.0, of="statistics")
    assert str(Candidate("Source", {"norm": 0.2}, gate)) == (
        "batch statistics, fraction 0.2, only on batches whose statistics shift"
    )
    assert str(Candidate("Source")) == "no adaptation"


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(IT3Error, match="no method to tune is called 'Magic'"):
        Candidate("Magic")
    with pytest.raises(IT3Error, match="description of a tuning"):
        Tuning.from_description({"method": "Source"})
