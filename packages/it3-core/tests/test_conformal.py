"""Intervals, sets and probabilities: what is guaranteed, and by which arithmetic."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import betabinom
from torch import Tensor, nn

from it3_core import (
    AnswerStep,
    Classification,
    DenseMap,
    IT3Error,
    Quantiles,
    Regression,
    Source,
    calibrate,
    condition,
    load,
    save,
    tune,
)
from it3_core.trust.conformal import Predictor

Pair = tuple[Tensor, Tensor]
FIRST = nn.Identity()  # the input is the answer


def numbers(n: int) -> Pair:
    """Two answers an instance; the first one's error grows with the answer."""
    x = torch.rand(n, 2).double()
    return x, x + torch.randn(n, 2) * torch.stack([x[:, 0] ** 2, torch.ones(n)], 1)


def classes(n: int) -> Pair:
    """Logits that are three times too sure."""
    z = torch.randn(n, 5).double()
    return 3 * z, torch.multinomial(z.softmax(1), 1)[:, 0]


def maps(n: int) -> Pair:
    """Maps whose area the network overrates by a tenth or so; some pixels are unknown."""
    y = (torch.rand(n, 8, 8) < torch.rand(n, 1, 1)).long()
    x = (torch.where(torch.rand(n, 8, 8) < 0.1, 1, y) * 2.0 - 1)[:, None]
    return x, y.masked_fill(torch.rand(n, 8, 8) < 0.1, -1)


def area(labels: Tensor) -> Tensor:
    return (labels == 1).sum((1, 2))


def low(x: Tensor) -> Tensor:
    return x[:, 0]


KINDS: dict[str, tuple[Callable[[int], Pair], Any, dict[str, Any]]] = {
    "numbers": (numbers, Regression([0.0] * 2, [1.0] * 2), {}),
    "numbers with a score": (numbers, Regression([0.0] * 2, [1.0] * 2), {"score": low}),
    "quantiles": (lambda n: (torch.rand(n, 1) * torch.tensor([[-2.0, 0.0, 4.0]]), torch.randn(n)),
                  Quantiles([0.1, 0.5, 0.9]), {}),
    "classes": (classes, Classification(5), {}),
    "classes, RAPS": (classes, Classification(5), {"penalty": 0.05}),
    "maps": (maps, DenseMap(), {"number": area}),
}  # fmt: skip


def made(kind: str, n: int) -> tuple[Predictor, Callable[[int], Pair]]:
    draw, adapter, options = KINDS[kind]
    choosing = draw(400) if kind != "numbers" else None
    return calibrate(Source(FIRST, adapter), draw(n), choosing=choosing, **options), draw


def covered(predictor: Predictor, data: Pair, coverage: float) -> Tensor:
    """Of each row and output, whether the label is inside."""
    x, y = data
    p = predictor(x, coverage)
    if p.prediction_set is not None:
        return p.prediction_set.gather(1, y[:, None])
    truth = area(y) if p.number is not None else y
    return ((p.lower <= truth) & (truth <= p.upper)).view(len(y), -1)


class TestGuarantee:
    @pytest.mark.parametrize("coverage", [0.5, 0.9, 0.99])
    @pytest.mark.parametrize("kind", ["numbers", "numbers with a score", "quantiles", "classes"])
    def test_coverage_is_in_the_band_of_its_law(self, kind: str, coverage: float) -> None:
        """Of m test rows, beta-binomially many are covered; with ties (of classes), more."""
        n, m = 199, 2000
        predictor, draw = made(kind, n)
        rank = math.ceil((n + 1) * coverage)
        least, most = betabinom(m, rank, n + 1 - rank).ppf([0.0005, 0.9995])
        for count in covered(predictor, draw(m), coverage).sum(0).tolist():
            assert least <= count
            assert count <= most or kind == "classes"

    @pytest.mark.parametrize("kind", KINDS)
    def test_more_coverage_holds_all_that_less_does(self, kind: str) -> None:
        predictor, draw = made(kind, 99)
        x, _ = draw(50)
        answers = [predictor(x, coverage) for coverage in (0.05, 0.5, 0.9, 0.95, 0.99)]
        for less, more in itertools.pairwise(answers):
            if less.prediction_set is not None and more.prediction_set is not None:
                assert bool((less.prediction_set <= more.prediction_set).all())
                assert bool(less.prediction_set.any(1).all())  # none is empty
            else:
                assert bool((more.lower <= less.lower).all())
                assert bool((less.lower <= less.upper).all())
                assert bool((less.upper <= more.upper).all())
        assert torch.equal(answers[0].prediction, x)


class TestGolden:
    def test_numbers_as_split_conformal_by_hand(self) -> None:
        (x, y), adapter = numbers(57), KINDS["numbers"][1]
        half = np.sort(np.abs(y.numpy() - x.numpy()), 0)[math.ceil(58 * 0.8) - 1]
        p = calibrate(Source(FIRST, adapter), (x, y))(x[:5], coverage=0.8)
        np.testing.assert_array_equal(p.lower.numpy(), x[:5].numpy() - half)
        np.testing.assert_array_equal(p.upper.numpy(), x[:5].numpy() + half)

    @pytest.mark.parametrize(
        ("coverage", "half"), [(0.8, 1.594127829), (0.9, 1.798840622), (0.95, 2.095374287)]
    )
    def test_numbers_as_mapie_and_crepes_have_them(self, coverage: float, half: float) -> None:
        """MAPIE 1.6.0 (SplitConformalRegressor) and crepes 0.9.1 (ConformalRegressor) agree."""
        n = torch.arange(57.0, dtype=torch.float64)
        y = n.cos() + (3 * n).sin() * (1 + n / 50)
        predictor = calibrate(Source(FIRST, Regression()), (n.cos()[:, None], y))
        p = predictor(torch.tensor([[-1.0], [2.0]]).double(), coverage)
        ends = torch.stack([p.lower, p.upper]).flatten().tolist()
        assert ends == pytest.approx([-1 - half, 2 - half, -1 + half, 2 + half], abs=1e-9)

    def test_the_rank_is_of_the_decimal_that_was_written(self) -> None:
        y = torch.arange(1.0, 100)  # 100 · 0.07 is 7.000000000000001 in binary
        p = calibrate(Source(FIRST, Regression()), (torch.zeros(99, 1), y))(torch.zeros(1, 1), 0.07)
        assert p.upper == 7

    @pytest.mark.parametrize("penalty", [0.0, 0.1])
    def test_sets_as_by_hand(self, penalty: float) -> None:
        (x, y), adapter = classes(99), Classification(5)
        predictor = calibrate(Source(FIRST, adapter), (x, y), penalty=penalty)

        def ahead(row: Tensor, label: int) -> float:
            p = row.softmax(0).tolist()
            more = [q for q in p if q > p[label]]
            return float(sum(more) + penalty * len(more))

        limit = sorted(ahead(*pair) for pair in zip(x, y.tolist(), strict=True))[79]
        wanted = [[ahead(row, label) <= limit + 1e-12 for label in range(5)] for row in x]
        assert predictor(x, 0.8).prediction_set.tolist() == wanted

    def test_temperature_is_found_and_bounded(self) -> None:
        predictor, draw = made("classes", 1000)
        assert predictor.temperature == pytest.approx(3, rel=0.2)
        x, _ = draw(5000)
        right = calibrate(Source(FIRST, predictor.adapter), (x, x.argmax(1)))
        assert 0.01 < right.temperature < 0.5  # and not 0, by which the next error would be certain

    def test_of_maps_unknown_pixels_count_for_nothing(self) -> None:
        x, y = maps(199)
        predictor = calibrate(Source(FIRST, DenseMap()), (x, y), number=area)
        p, yes = predictor(x, 0.9), x[:, 0] > 0
        limit = (area(yes & (y >= 0)) - area(y)).abs().sort().values[179]
        assert torch.equal(p.upper, area(yes) + limit.float())
        share = float((y[yes & (y >= 0)] == 1).double().mean())
        assert float(p.probability[:, 1][yes].mean()) == pytest.approx(share, abs=0.05)


class TestWidth:
    def test_intervals_widen_where_the_score_says_so(self) -> None:
        predictor, draw = made("numbers with a score", 500)
        x, y = draw(4000)
        usual, odd = x[:, 0] < 0.3, x[:, 0] > 0.7
        plain = calibrate(Source(FIRST, predictor.adapter), draw(500))
        inside = {name: covered(one, (x, y), 0.9)[:, 0].double()
                  for name, one in {"scored": predictor, "plain": plain}.items()}  # fmt: skip
        gap = {name: float(one[usual].mean() - one[odd].mean()) for name, one in inside.items()}
        assert gap["scored"] < 0.6 * gap["plain"]

    def test_a_score_that_is_not_a_number_gives_all_numbers(self) -> None:
        predictor, draw = made("numbers with a score", 99)
        x, _ = draw(2)
        odd = Predictor(**{**vars(predictor), "score": lambda x: x[:, 0] * math.nan})
        assert odd(x).upper.isposinf().all()


class TestRobustness:
    @pytest.mark.parametrize(
        ("act", "sentence"),
        [
            (lambda m, x, y: calibrate(m, (x, y))(x, 1.0), "fraction between 0 and 1"),
            (lambda m, x, y: calibrate(m, (x, y))(x, math.nan), "fraction between 0 and 1"),
            (lambda m, x, y: calibrate(m, (x, y))(x, 0.95), "takes 19 calibration rows.* are 18"),
            (lambda m, x, y: calibrate(m, (x, y * math.nan)), "labels hold NaN"),
            (lambda m, x, y: calibrate(m, (x, y[:9])), "18 inputs and 9 labels"),
            (lambda m, x, y: calibrate(m, x), "needs labels"),
            (lambda m, x, y: calibrate(m, []), "no labelled rows"),
            (lambda m, x, y: calibrate(m, (x, y), penalty=-1), "penalty"),
            (lambda m, x, y: calibrate(m, (x, y), number=low), "number is of maps"),
            (lambda m, x, y: calibrate(FIRST, (x, y)), "Source"),
            (lambda m, x, y: m(x).lower, "calibrate\\(method"),
            (lambda m, x, y: m(x).probability, "calibrate\\(method"),
        ],
    )
    def test_what_cannot_be_done_is_said(self, act: Callable[..., object], sentence: str) -> None:
        with pytest.raises(IT3Error, match=sentence):
            act(Source(FIRST, Regression()), torch.randn(18, 1), torch.randn(18))


class TestPredictor:
    """Beside intervals: how doubtful an answer is, what was adapted, and a file of it all."""

    @pytest.fixture
    def net(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()

    def test_what_tune_chose_is_calibrated_asked_and_stored(
        self, net: nn.Module, tmp_path: Path
    ) -> None:
        adapter = Regression([0.0] * 2, [1.0] * 2)
        model = condition(net, adapter, layer="2").double()
        nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
        x = torch.randn(900, 2).double()
        y = net(x).detach() + torch.randn(900, 2)
        tuning = tune(model, adapter, (x[:400], y[:400]), shifts={"far": lambda x: x + 3},
                      train=x[:100], layer="model.1", progress=False)  # fmt: skip
        assert tuning.method is not None
        predictor = calibrate(tuning.method, (x[400:], y[400:]))
        assert len(predictor.widths) == 2
        fresh = torch.randn(400, 2).double()
        p = predictor(fresh, coverage=0.8)
        inside = (p.lower <= net(fresh) + 0) & (net(fresh) <= p.upper)  # type: ignore[operator]
        assert bool(inside.all())
        assert p.percentile is not None
        assert p.flagged is not None
        assert 0.0 < p.flagged.double().mean() < 0.12
        assert bool((p.percentile[p.flagged] >= 95).all())
        assert p.adapted is not None
        for word in ("method", "score", "flags", "intervals by 500 calibration rows"):
            assert word in str(predictor)
        path = tmp_path / "model.safetensors"
        save(predictor, path)
        again = load(path, condition(copy.deepcopy(net), adapter, layer="2").double())
        q = again(fresh, coverage=0.8)
        for name in ("prediction", "lower", "upper", "percentile", "flagged", "adapted"):
            assert torch.equal(getattr(q, name), getattr(p, name)), name
        assert str(again) == str(predictor)
        assert again.gate == predictor.gate

    def test_what_cannot_be_stored_or_read_is_said(self, net: nn.Module, tmp_path: Path) -> None:
        x = torch.randn(40, 2).double()
        adapter, path = Regression([0.0] * 2, [1.0] * 2), tmp_path / "model.safetensors"
        model = condition(net, adapter, layer="2").double()
        nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
        step = AnswerStep(model, adapter)
        with pytest.raises(IT3Error, match="AnswerStep is code"):
            save(calibrate(step, (x, x)), path)
        save(path, net, adapter=adapter, settings={})
        with pytest.raises(IT3Error, match="holds no predictor"):
            load(path, net)
        assert load(path).adapter_description["kind"] == "Regression"
        with pytest.raises(IT3Error, match="NaN"):
            calibrate(Source(net, adapter), (x, x * math.nan))
