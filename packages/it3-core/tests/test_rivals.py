"""Rivals of the idempotence error, each against its definition written out in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from it3_core import Classification, Conditioned, DenseMap, IT3Error, Regression, Source, widen
from it3_core.judging import IDEMPOTENCE, judge
from it3_core.metrics import auroc, correlation
from it3_core.rivals import Dropout, Ensemble, Entropy, Mahalanobis
from it3_core.tables import BEYOND


def perceptron(seed: int, outputs: int = 1, drop: float = 0.0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(3, 8), nn.ReLU(), nn.Dropout(drop), nn.Linear(8, outputs)]
    return nn.Sequential(*layers)


def listening(net: nn.Module, adapter: Regression | Classification) -> Conditioned:
    """As if trained: the signal's weights are not zero."""
    model = widen(net, adapter)
    nn.init.normal_(next(model.parameters()))
    return model


def first_answer(model: Conditioned, adapter: Regression | Classification, x: Tensor) -> Tensor:
    return model(x, adapter.neutral(x)).detach()


def hidden(model: Conditioned, x: Tensor) -> np.ndarray:
    """After the ReLU, with the neutral signal of a regression, two zeros."""
    weight, bias = (p.detach().double().numpy() for p in model.model[0].parameters())
    rows = np.concatenate([x.double().numpy(), np.zeros((len(x), 2))], 1)
    return np.maximum(rows @ weight.T + bias, 0)


class TestGolden:
    def test_entropy_of_classes(self) -> None:
        adapter, x = Classification(4), torch.randn(6, 3)
        model = listening(perceptron(0, 4), adapter)
        z = first_answer(model, adapter, x).double().numpy()
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        wanted = -(p * np.log(p)).sum(1)
        np.testing.assert_allclose(Entropy(model, adapter)(x).numpy(), wanted, rtol=1e-5)

    @pytest.mark.parametrize("classes", [1, 3])
    def test_entropy_of_maps(self, classes: int) -> None:
        adapter, x = DenseMap(classes), torch.randn(2, 3, 5, 4)
        model = widen(nn.Conv2d(3, classes, 1), adapter)
        z = model(x, adapter.neutral(x)).detach().double().numpy()
        if classes == 1:
            z = np.concatenate([z, np.zeros_like(z)], 1)
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        wanted = -(p * np.log(p)).sum(1).mean((1, 2))
        np.testing.assert_allclose(Entropy(model, adapter)(x).numpy(), wanted, rtol=1e-5)

    def test_mahalanobis_with_a_given_shrinkage(self) -> None:
        adapter, x, new = Regression(), torch.randn(40, 3), torch.randn(7, 3) * 3
        model = listening(perceptron(1), adapter)
        score = Mahalanobis.fit(model, adapter, x.split(16), "model.1", shrinkage=0.2)
        known = hidden(model, x)
        mean = known.mean(0)
        covariance = np.cov(known.T, bias=True)
        covariance = 0.8 * covariance + 0.2 * np.trace(covariance) / 8 * np.eye(8)
        gaps = hidden(model, new) - mean
        wanted = [gap @ np.linalg.inv(covariance) @ gap for gap in gaps]
        np.testing.assert_allclose(score(new).numpy(), wanted, rtol=1e-4)

    def test_mahalanobis_shrinks_as_ledoit_and_wolf_do(self) -> None:
        adapter, x = Regression(), torch.randn(12, 3)
        model = listening(perceptron(2), adapter)
        score = Mahalanobis.fit(model, adapter, [x], "model.1")
        gaps = hidden(model, x) - hidden(model, x).mean(0)
        covariance = gaps.T @ gaps / 12
        target = np.trace(covariance) / 8 * np.eye(8)
        spread = sum(((np.outer(g, g) - covariance) ** 2).sum() for g in gaps) / 12**2
        share = min(1.0, spread / ((covariance - target) ** 2).sum())
        wanted = np.linalg.inv((1 - share) * covariance + share * target)
        assert 0.01 < share < 1  # so few rows: it must matter
        np.testing.assert_allclose(score.precision.numpy(), wanted, rtol=1e-4, atol=1e-6)

    def test_mahalanobis_of_classes_is_to_the_nearest_mean(self) -> None:
        adapter, x, y = Regression(), torch.randn(60, 3), torch.arange(60) % 3
        model = listening(perceptron(3), adapter)
        score = Mahalanobis.fit(model, adapter, [x], "model.1", labels=y, shrinkage=0.1)
        known, k = hidden(model, x), y.numpy()
        means = np.stack([known[k == c].mean(0) for c in range(3)])
        gaps = known - means[k]
        covariance = gaps.T @ gaps / 60
        precision = np.linalg.inv(0.9 * covariance + 0.1 * np.trace(covariance) / 8 * np.eye(8))
        wanted = [min((row - m) @ precision @ (row - m) for m in means) for row in known]
        np.testing.assert_allclose(score(x).numpy(), wanted, rtol=1e-4)

    def test_ensemble_is_the_mean_gap_of_all_pairs(self) -> None:
        adapter, x = Regression(3.0, 2.0), torch.randn(5, 3)
        nets = [listening(perceptron(seed), adapter) for seed in range(5)]
        answers = [first_answer(net, adapter, x).double().numpy()[:, 0] for net in nets]
        pairs = [abs(a - b) / 2.0 for a, b in itertools.combinations(answers, 2)]
        assert len(pairs) == 10
        wanted = np.mean(pairs, axis=0)
        np.testing.assert_allclose(Ensemble(nets, adapter)(x).numpy(), wanted, rtol=1e-4)

    def test_dropout_before_the_last_layer(self) -> None:
        """So many passes that the mean gap of two answers is what the binomial says."""
        adapter = Regression()
        net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        model = widen(net, adapter)
        for layer in (model.model[0], model.model[1]):
            nn.init.constant_(layer.weight, 1.0)
            nn.init.zeros_(layer.bias)
        score = Dropout(model, adapter, rate=0.25, passes=400)
        # 0 with probability 1/4, else 3 / (3/4) = 4: two of them differ by 4 with 2 · 1/4 · 3/4.
        assert abs(float(score(torch.tensor([[3.0]]))) - 4 * 0.375) < 0.15
        assert "'model.1'" in score.how


class TestInvariants:
    def test_own_dropout_layers_are_used_and_the_network_stays_as_it_was(self) -> None:
        adapter, x = Regression(), torch.randn(4, 3)
        model = listening(perceptron(0, drop=0.5), adapter).eval()
        before = first_answer(model, adapter, x)
        score = Dropout(model, adapter, passes=5)
        assert score.how == "the network's own 1 dropout layers"
        state = torch.random.get_rng_state()
        assert torch.equal(score(x), score(x))
        assert float(score(x).min()) > 0
        assert torch.equal(torch.random.get_rng_state(), state)
        assert torch.equal(first_answer(model, adapter, x), before)
        assert not any(layer.training for layer in model.modules())

    def test_scores_do_not_depend_on_the_batch(self) -> None:
        adapter, x = Regression(), torch.randn(10, 3)
        nets = [listening(perceptron(seed), adapter) for seed in range(3)]
        for score in (
            Ensemble(nets, adapter),
            Mahalanobis.fit(nets[0], adapter, [torch.randn(30, 3)], "model.1"),
        ):
            whole = torch.cat([score(row[None]) for row in x])
            torch.testing.assert_close(score(x), whole, rtol=1e-4, atol=1e-6)

    def test_judge_says_what_the_metrics_say(self) -> None:
        adapter = Regression()
        model = listening(perceptron(0), adapter)
        levels = {"known": torch.randn(30, 3), "near": torch.randn(20, 3) + 1,
                  "far": torch.randn(20, 3) + 3}  # fmt: skip
        labelled = {name: (x, x.sum(1)) for name, x in levels.items()}
        lines = judge(model, adapter, {"size": lambda x: x.norm(dim=1)}, labelled, "known",
                      batch_size=7)  # fmt: skip
        table = {(line["level"], line["score"]): line for line in lines}
        answer = Source(model, adapter)(levels["far"])
        wrong = adapter.error(answer.prediction, labelled["far"][1])
        known = Source(model, adapter)(levels["known"]).error_before
        found = table["far", IDEMPOTENCE]
        assert found["spearman"] == pytest.approx(
            correlation(answer.error_before, wrong, "spearman")
        )
        assert found["auroc"] == pytest.approx(auroc(answer.error_before, known))
        assert table["known", "size"]["auroc"] is None
        both = torch.cat([levels["near"], levels["far"]]).norm(dim=1)
        assert table[BEYOND, "size"]["auroc"] == auroc(both, levels["known"].norm(dim=1))
        assert table[BEYOND, "size"]["n"] == 40
        # Two whole batches of seven a level: too few of each, enough of both.
        assert found["pearson"] is None
        parts = [levels[name][start : start + 7] for name in ("near", "far") for start in (0, 7)]
        sizes = [float(x.norm(dim=1).mean()) for x in parts]
        off = [float(adapter.error(Source(model, adapter)(x).prediction, x.sum(1)).mean())
               for x in parts]  # fmt: skip
        assert table[BEYOND, "size"]["pearson"] == pytest.approx(correlation(sizes, off))


class TestRobustness:
    def test_what_cannot_be_scored_is_named(self) -> None:
        adapter, x = Regression(), torch.randn(4, 3)
        model = widen(perceptron(0), adapter)
        with pytest.raises(IT3Error, match="no entropy"):
            Entropy(model, adapter)
        with pytest.raises(IT3Error, match="two networks"):
            Ensemble([model], adapter)
        with pytest.raises(IT3Error, match="two training instances"):
            Mahalanobis.fit(model, adapter, [x[:1]], "model.1")
        with pytest.raises(IT3Error, match="share from 0 to 1"):
            Mahalanobis.fit(model, adapter, [x], "model.1", shrinkage=2.0)
        with pytest.raises(IT3Error, match="4 inputs but 3 labels"):
            Mahalanobis.fit(model, adapter, [x], "model.1", labels=torch.zeros(3))
        with pytest.raises(IT3Error, match="rate"):
            Dropout(model, adapter, rate=1.0)
        with pytest.raises(IT3Error, match="no level 'known'"):
            judge(model, adapter, {}, {"far": (x, x.sum(1))}, "known")

    def test_dead_features_have_a_distance(self) -> None:
        """A unit that is never active has no spread; a distance must stay finite all the same."""
        adapter, x = Regression(), torch.randn(20, 3)
        model = listening(perceptron(0), adapter)
        with torch.no_grad():
            model.model[0].bias[0] = -1e3
        score = Mahalanobis.fit(model, adapter, [x], "model.1", shrinkage=0.0)
        assert bool(torch.isfinite(score(x)).all())
