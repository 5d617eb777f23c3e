"""Gated: what its construction guarantees, whatever the method does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from torch import Tensor, nn

from it3_core import (
    Adaptation,
    AnswerStep,
    Classification,
    DenseMap,
    Gate,
    Gated,
    IT3Error,
    OnlineIT3,
    Quantiles,
    Regression,
    Source,
    condition,
)
from it3_core.methods.gated import fewest
from it3_core.scores.answers import AnswerDistance, Idempotence, LargestProbability

NUMBERS, CLASSES = Regression(), Classification(3)
SAME = nn.Identity()  # the input is the answer


class Adversary:
    """Answers whatever does most harm, and whatever is no number."""

    def __init__(self, adapter: Any, answer: Callable[[Tensor], Tensor]) -> None:
        self.model, self.adapter, self.answer, self.seen = SAME, adapter, answer, 0

    def __call__(self, x: Tensor) -> Adaptation:
        self.seen += len(x)
        return Adaptation(self.answer(x), x, 1, before=torch.zeros(len(x)))

    def reset(self) -> None:
        self.seen = 0


def gated(adapter: Any, usual: Any, answer: Callable[[Tensor], Tensor], **change: Any) -> Gated:
    score = AnswerDistance if isinstance(adapter, Regression) else LargestProbability
    given = {"error": 0.5} if isinstance(adapter, Regression) else {}
    return Gated(Adversary(adapter, answer), score(SAME, adapter), usual, **{**given, **change})


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.01, 0.05, 0.2]), st.floats(0.3, 8),
       st.booleans())  # fmt: skip
def test_harm_is_bounded_for_exchangeable_rows_whatever_the_method_does(
    seed: int, rate: float, cap: float, ties: bool
) -> None:
    """Over draws of threshold and test rows: opened at most α, harm at most α · cap · error."""
    generator = torch.Generator().manual_seed(seed)
    n, tested, draws = fewest(rate), 40, 60
    opened, harm = [], []
    for _ in range(draws):
        x = torch.randn(n + tested, 1, generator=generator, dtype=torch.float64)
        x = x.round() if ties else x
        y = x[:, 0] + torch.randn(len(x), generator=generator)
        method = gated(
            NUMBERS, x[:n], lambda x: x + 1e6 * x.sign(), false_positive_rate=rate, cap=cap
        )
        answer = method(x[n:])
        opened.append(answer.adapted.double().mean())
        move = (answer.prediction - answer.initial).abs()
        assert float(move.max()) <= cap * 0.5 * (1 + 1e-9)
        assert torch.equal(answer.prediction[~answer.adapted], x[n:][~answer.adapted])
        before, after = ((one[:, 0] - y[n:]).abs() for one in (x[n:], answer.prediction))
        harm.append((after - before).mean())
    share, worse = torch.stack(opened), torch.stack(harm)
    spread = float(share.std()) / draws**0.5
    assert float(share.mean()) <= rate + 4 * spread + 1e-9
    assert float(worse.mean()) <= cap * 0.5 * (rate + 4 * spread) + 1e-9


def test_the_opened_share_follows_its_beta_law_and_confidence_holds_for_one_model() -> None:
    torch.manual_seed(0)
    shares, sure = [], []
    for _ in range(300):
        usual, fresh = torch.rand(199), torch.rand(4000)
        shares.append(Gate.fit(usual, 0.02).opens(fresh).double().mean())
        sure.append(Gate.fit(usual, 0.02, confidence=0.95).opens(fresh).double().mean())
    law = beta(200 - 196, 196)  # of n + 1 − k and k
    assert abs(float(torch.stack(shares).mean()) - law.mean()) < 0.002
    assert float((torch.stack(sure) <= 0.02).double().mean()) > 0.9
    assert Gate.fit(torch.rand(fewest(0.02, 0.95) - 1), 0.02, confidence=0.95).threshold is None
    assert Gate.fit(torch.rand(fewest(0.02, 0.95)), 0.02, confidence=0.95).threshold is not None


def test_too_few_never_open_and_say_how_many_would_do() -> None:
    method = gated(NUMBERS, torch.randn(98, 1), torch.neg, false_positive_rate=0.01)
    assert not method(torch.full((3, 1), 1e9)).adapted.any()
    assert "98 threshold rows are too few for 1 %, which 99 would do" in repr(method)
    assert gated(NUMBERS, torch.randn(99, 1), torch.neg)(torch.full((3, 1), 1e9)).adapted.all()


def test_of_a_batch_s_classes_at_most_a_share_changes_the_least_certain_first() -> None:
    torch.manual_seed(0)
    sure = torch.eye(3)[torch.arange(64) % 3] * torch.linspace(1, 9, 64)[:, None]
    usual = 50 * torch.eye(3)[torch.randint(3, (40 * 64,))]

    def other(x: Tensor) -> Tensor:
        return x.roll(1, 1)

    method = gated(CLASSES, usual, other, false_positive_rate=0.05, cap=0.25, unit=64)
    answer = method(sure)
    changed = answer.prediction.argmax(1) != answer.initial.argmax(1)
    assert int(changed.sum()) == 16
    assert bool(changed[:16].all())
    assert torch.equal(answer.adapted, changed)
    assert torch.equal(answer.prediction[16:], sure[16:])
    for size in (63, 65):  # a batch size that was not calibrated is answered by the source
        assert torch.equal(method(sure[:1].expand(size, 3)).prediction, sure[:1].expand(size, 3))
    whole = gated(CLASSES, usual, other, false_positive_rate=0.05, unit=64)
    assert whole(sure).adapted.all()
    assert whole(usual[:64]).adapted.sum() == 0
    assert method.method.seen == 64  # type: ignore[attr-defined]


def test_a_map_changes_as_a_whole_and_quantiles_row_by_row() -> None:
    torch.manual_seed(0)
    maps = gated(
        DenseMap(), 9 * torch.randn(60, 1, 4, 4).sign(), torch.neg, false_positive_rate=0.02
    )
    x = torch.cat([0.1 * torch.randn(2, 1, 4, 4), 9 * torch.ones(2, 1, 4, 4)])
    answer = maps(x)
    assert answer.adapted.tolist() == [True, True, False, False]
    assert torch.equal(answer.prediction[:2], -x[:2])
    levels = Quantiles([0.1, 0.5, 0.9])
    method = gated(levels, torch.randn(99, 3), lambda x: x + 100, error=[0.1, 0.2, 0.3], cap=2.0)
    moved = method(torch.full((1, 3), 50.0))
    assert torch.allclose(moved.prediction - 50, torch.tensor([[0.2, 0.4, 0.6]]), atol=1e-4)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_finite_is_answered_by_the_source(broken: float) -> None:
    method = gated(NUMBERS, torch.randn(99, 1), lambda x: torch.full_like(x, broken))
    x = torch.tensor([[9.0], [0.1]])
    answer = method(x)
    assert torch.equal(answer.prediction, x)
    assert not answer.adapted.any()


def listening() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    model = condition(net, NUMBERS, layer="0").eval()
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    return model


def test_what_a_stream_has_learnt_cannot_open_the_gate() -> None:
    torch.manual_seed(0)
    model, usual = listening(), torch.randn(200, 3)
    stream = OnlineIT3(model, NUMBERS, gate=None, lr=0.1)
    method = Gated(stream, Idempotence(model, NUMBERS), usual, error=0.1, cap=2.0)
    fresh = torch.randn(400, 3)
    before = method(fresh).adapted
    for _ in range(5):
        method(9 + torch.randn(16, 3))
    after = method(fresh)
    assert torch.equal(after.adapted, before)
    source = Source(model, NUMBERS)(fresh)
    assert torch.equal(after.prediction[~before], source.prediction[~before])
    assert torch.allclose(after.error_before, source.error_before)
    method.reset()


def test_a_gate_is_kept_and_built_again() -> None:
    torch.manual_seed(0)
    model = listening()
    step, score = AnswerStep(model, NUMBERS), Idempotence(model, NUMBERS)
    method = Gated(step, score, torch.randn(99, 3), error=0.3)
    stored = json.loads(json.dumps(vars(method.gate)))
    again = Gated(step, score, Gate(**stored), error=0.3)
    x = 3 * torch.randn(50, 3)
    assert torch.equal(again(x).prediction, method(x).prediction)
    assert "idempotence" in str(method.gate)


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"threshold_inputs": None}, "needs threshold inputs"),
        ({"false_positive_rate": 1.5}, "false-positive rate lies between 0 and 1"),
        ({"confidence": 2}, "confidence lies between 0 and 1"),
        ({"error": None}, "give error="),
        ({"cap": 0}, "a cap is a number above 0"),
        ({"unit": 0}, "unit is"),
        ({"score": Source(SAME, NUMBERS)}, "score of the source network"),
        ({"score": lambda x: x[:, 0] * math.nan}, "not a number"),
        ({"method": Adversary(CLASSES, torch.exp), "cap": 2.0}, "share of a batch"),
        ({"method": torch.exp}, "no network of its own"),
    ],
)
def test_gates_that_can_t_be(change: dict[str, Any], hint: str) -> None:
    request: dict[str, Any] = {
        "method": Adversary(NUMBERS, torch.exp), "score": AnswerDistance(SAME, NUMBERS),
        "threshold_inputs": torch.randn(99, 1), "error": 0.5,
    }  # fmt: skip
    request |= change
    with pytest.raises(IT3Error, match=hint):
        Gated(
            request.pop("method"), request.pop("score"), request.pop("threshold_inputs"), **request
        )
