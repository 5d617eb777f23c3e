"""tune: what it chooses, which rows it looks at, what it refuses, and that it says why."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from it3_core import (
    Candidate,
    Classification,
    ExtrapolationSplit,
    IT3Error,
    Regression,
    ScoreKind,
    Source,
    Tuning,
    calibrate,
    condition,
    default_candidates,
    extrapolation_split,
    tune,
)
from it3_core.trust.candidates import default_scores, observed
from it3_core.trust.trials import auroc
from it3_core.trust.tune import apart

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


def data(rows: int = 400) -> tuple[Tensor, Tensor]:
    truth = 1 + torch.rand(rows, 1)
    return torch.cat([truth, torch.zeros(rows, 1)], 1), truth.flatten() + 0.1 * torch.randn(rows)


def shift(x: Tensor) -> Tensor:
    return x + torch.tensor([0.0, 1.0])


STEPS = [Candidate("AnswerStep", {"alpha": a}) for a in (-1.0, -0.5, 0.5, 1.0)]


def tuned(model: float | nn.Module, **change: Any) -> Tuning:
    torch.manual_seed(0)
    x, y = data()
    model = Biased(model) if isinstance(model, float) else model
    rows = (change.pop("x", x), change.pop("y", y))
    request = {"model": model, "adapter": Regression(), "data": rows, "shifts": {"shift": shift}}
    return tune(**{**request, "candidates": STEPS, "progress": False, **change})


@pytest.mark.parametrize(("step", "sign"), [(0.8, 1), (-0.8, -1)])
def test_the_step_that_helps_is_chosen_with_its_sign_behind_a_gate(step: float, sign: int) -> None:
    tuning, (x, y) = tuned(step), data()
    assert tuning.chosen.method == "AnswerStep"
    assert sign * tuning.chosen.settings["alpha"] > 0
    assert tuning.opens == ScoreKind("Idempotence")
    assert tuning.rows == {"choosing": 100, "threshold": 300}
    assert tuning.gate is not None
    assert tuning.gate.n == 300
    assert tuning.gate.false_positive_rate == pytest.approx(0.02 / tuning.cap)
    assert len(tuning.tried) <= 12
    assert "lowers the error by" in tuning.reason
    assert tuning.method is not None
    usual, shifted = tuning.method(x), tuning.method(shift(x))
    assert usual.adapted.double().mean() <= 0.05
    assert shifted.adapted.all()
    move = (shifted.prediction - shifted.initial).abs()
    assert float(move.max()) <= tuning.cap * tuning.error[0] * 1.001
    before, after = ((one[:, 0] - y).abs().mean() for one in (shifted.initial, shifted.prediction))
    assert after < before
    again = Tuning.from_description(json.loads(json.dumps(tuning.describe())), tuning.tensors)
    assert again == tuning
    built = again.build(Biased(step), Regression())
    assert torch.equal(built(shift(x)).prediction, shifted.prediction)


def test_doing_nothing_is_a_choice_and_the_doubtful_are_named_all_the_same() -> None:
    tuning = tuned(0.0)
    assert tuning.chosen == Candidate("Source")
    assert tuning.gate is None
    assert "No adaptation: the best of" in tuning.reason
    assert tuning.doubt is not None
    method, x = tuning.method, data()[0]
    assert method is not None
    assert method.score is not None
    assert torch.equal(method(x).prediction, Source(Biased(0.0), Regression())(x).prediction)
    assert not method(x).adapted.any()


def test_where_no_answer_is_wrong_some_score_is_named_all_the_same() -> None:
    y = torch.arange(64) % 3
    x = 9.0 * nn.functional.one_hot(y, 3)
    found = tune(nn.Identity(), Classification(3), (x, y), shifts={"nearer": lambda x: 0.9 * x},
                 progress=False)  # fmt: skip
    assert found.doubt is not None
    assert all(one["auroc_wrong"] is None for one in found.scores)
    assert found.method is not None
    assert calibrate(found.method, (x, y)).trust is not None


def test_too_few_rows_for_a_threshold_say_how_many_would_do() -> None:
    x, y = data(24)
    assert "18 rows are too few to set a threshold; 24 would do" in tuned(0.8, x=x, y=y).reason
    x, y = data(60)
    found = tuned(0.8, x=x, y=y, thresholds=data(30)[0])  # 24, but not 49
    assert found.cap == 0.5
    assert found.rows == {"choosing": 60, "threshold": 30}
    sure = tuned(0.8, x=x, y=y, thresholds=data(30)[0], confidence=0.95)
    assert "74 would do" in sure.reason


def test_thresholds_and_choices_see_rows_of_their_own() -> None:
    """Labels of threshold rows are never read; groups stay together."""
    x, y = data()
    _, limits = apart(len(y), [0.25, 0.75], 0)
    spoilt = y.clone()
    spoilt[limits] = 1e6
    assert tuned(0.8, x=x, y=y) == tuned(0.8, x=x, y=spoilt)
    groups = torch.arange(400) // 4
    parts = apart(400, [1, 2, 1], 3, groups)
    marks = [{int(groups[row]) for row in part} for part in parts]
    assert sum(map(len, marks)) == len(set.union(*marks)) == 100
    assert [len(part) for part in parts] == [100, 200, 100]


def test_two_questions_may_have_two_answers() -> None:
    """What finds shifted rows opens the gate, and what finds wrong answers flags them."""

    class Noisy(nn.Module):
        """x₁ marks a shift that harms nobody; the answer errs where x₂ is large."""

        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Identity()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            seen = self.features(x)
            return self.scale * seen[:, :1] + 0.1 * seen[:, 2:] * signal[:, -1:]

    def shifted(x: Tensor) -> Tensor:
        return x + torch.tensor([0.0, 9.0, 0.0])

    x = torch.randn(400, 3)
    y = x[:, 0] + x[:, 2]
    kinds = [ScoreKind("Idempotence"), ScoreKind("Mahalanobis", "features")]
    tuning = tune(Noisy(), Regression(), (x, y), shifts={"far": shifted}, scores=kinds, train=x,
                  candidates=STEPS, progress=False)  # fmt: skip
    assert tuning.doubt == kinds[0]
    table = {one["kind"]: one for one in tuning.scores}
    assert table["Idempotence"]["auroc_wrong"] > 0.95
    assert table["Mahalanobis"]["auroc_shifted"] > 0.95
    assert table["Idempotence"]["auroc_shifted"] < 0.6
    best = max(tuning.tried, key=lambda one: one["gain"])
    assert best["cap"] in (0.5, 1.0, 2.0, 4.0, 8.0)
    if tuning.opens is not None:
        assert {"opens.means", "opens.precision"} <= set(tuning.tensors)


def test_an_extrapolation_split_weighs_as_much_as_all_shifts() -> None:
    tail = data(64)
    split = ExtrapolationSplit(Biased(0.8), shift(tail[0]), tail[1])
    alone = tuned(0.0, shifts={}, extrapolation=split)
    assert alone.chosen.method == "AnswerStep"
    opposed = tuned(-0.8, extrapolation=[split, split])
    changes = opposed.tried[0]["changes"]
    assert set(changes) == {"clean", "shift", "extrapolation split", "extrapolation split 2"}
    best = max(opposed.tried, key=lambda one: one["gain"])
    # What the one gains, the other loses, and each counts half.
    assert best["gain"] < 0.75 * max(one["gain"] for one in alone.tried)


def test_plain_networks_batches_and_loaders() -> None:
    """A classifier of x alone: batch statistics bring back what an offset has taken."""
    torch.manual_seed(0)
    x = torch.randn(1600, 6)
    y = x[:, :3].argmax(1)
    net = nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3))
    net(x[:800])
    with torch.no_grad():
        net[1].weight.copy_(torch.eye(3, 6))  # type: ignore[union-attr, operator]
        net[1].bias.zero_()  # type: ignore[union-attr, operator]
    net.eval()

    def fog(x: Tensor) -> Tensor:
        return x + torch.tensor([3.0, 0, 0, 0, 0, 0])

    loader = DataLoader(TensorDataset(x, y), 100)
    tuning = tune(net, Classification(3), loader, shifts={"fog": fog}, unit=16, progress=False)
    assert tuning.chosen.method == "Source"
    assert tuning.opens == ScoreKind("StatisticsShift")
    assert tuning.rows == {"choosing": 400, "threshold": 75}
    method = tuning.method
    assert method is not None
    fresh = torch.randn(512, 6)
    opened = [method(part) for part in fresh.split(16)]
    assert sum(bool(one.adapted.any()) for one in opened) <= 6
    far = torch.cat([method(fog(part)).prediction for part in fresh.split(16)]).argmax(1)
    right = (far == fresh[:, :3].argmax(1)).double().mean()
    source = (net(fog(fresh)).argmax(1) == fresh[:, :3].argmax(1)).double().mean()
    assert right > source + (0.3 if tuning.cap == 1 else 0.1)


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
        ({"y": torch.full((400,), torch.nan)}, "the labels hold NaN or Inf"),
        (
            {"extrapolation": ExtrapolationSplit(Biased(0.8), torch.ones(5, 2), torch.ones(4))},
            "5 inputs but 4 labels",
        ),
        (
            {
                "extrapolation": [
                    ExtrapolationSplit(Biased(0.8), torch.ones(n, 2), torch.ones(n)) for n in (8, 9)
                ]
            },
            "different rows",
        ),
        ({"y": torch.zeros(3)}, "400 inputs to tune on but 3 labels"),
        ({"x": torch.zeros(3, 2), "y": torch.zeros(3)}, "at least 8"),
        ({"candidates": [Candidate("IT3", {"speed": 1})]}, "IT3 has no such setting"),
        ({"model": Biased(0.8, torch.inf)}, "own answers hold NaN or Inf"),
        ({"scores": [ScoreKind("Mahalanobis", "nowhere")], "train": torch.ones(9, 2)}, "nowhere"),
        ({"unit": 0}, "unit is"),
        ({"max_harm": 2}, "max_harm is a fraction"),
        ({"groups": [1, 2]}, "400 rows and 2 groups"),
    ],
)
def test_bad_requests_say_what_to_change(change: dict[str, Any], hint: str) -> None:
    with pytest.raises(IT3Error, match=hint):
        tuned(**{"model": 0.8, **change})


def test_candidates_and_scores_in_words() -> None:
    """Sentences hold no constructor calls, and no two candidates read alike."""
    model = condition(nn.Linear(4, 3), Classification(3), "")
    for unit in ("row", 16):
        tries = default_candidates(model, unit)  # type: ignore[arg-type]
        words = [str(one) for one in tries]
        assert len(set(words)) == len(words)
        assert not any("(" in word or "_" in word or "=None" in word for word in words)
    assert [str(one) for one in default_scores(model, Classification(3))][:2] == [
        "idempotence error", "entropy",
    ]  # fmt: skip
    assert str(Candidate("Source", {"norm": 0.2})) == "batch statistics, fraction 0.2"
    assert str(Candidate("Source")) == "no adaptation"
    assert auroc(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])) == pytest.approx(0.875)


def test_scores_share_the_passes_that_they_can() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).eval()
    adapter, x = Classification(3), torch.randn(8, 3)
    features = [ScoreKind(name, "0") for name in ("Mahalanobis", "NearestNeighbours")]
    kinds = [*default_scores(net, adapter), *features]
    scores = [kind.fit(net, adapter, torch.randn(64, 3)) for kind in kinds]
    made = observed(scores, x)
    assert len({id(one) for one in made}) == 2  # one with features, one with statistics
    for score, passes in zip(scores, made, strict=True):
        assert torch.allclose(score.of(passes), score(x))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(IT3Error, match="no method to tune is called 'Magic'"):
        Candidate("Magic")
    with pytest.raises(IT3Error, match="no score is called 'Magic'"):
        ScoreKind("Magic")
    with pytest.raises(IT3Error, match="description of a tuning"):
        Tuning.from_description({"method": "Source"})
