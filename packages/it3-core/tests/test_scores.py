"""Uncertainty scores beside the idempotence error, each against its definition in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    Binary,
    Classification,
    Conditioned,
    IT3Error,
    Regression,
    Source,
    sensitivity,
    widen,
)
from it3_core.experiment.statistics import (
    IDEMPOTENCE,
    OUT_OF_DISTRIBUTION,
    assess_scores,
    auroc,
    correlation,
)
from it3_core.scores.answers import (
    AnswerDistance,
    Energy,
    Idempotence,
    LargestProbability,
    Sensitivity,
)
from it3_core.scores.uncertainty import Ensemble, Entropy, Mahalanobis, NearestNeighbours


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
    """After the ReLU, with the neutral signal: of a regression two zeros."""
    weight, bias = (p.detach().double().numpy() for p in model.model[0].parameters())
    classes = weight.shape[1] - 4  # of a classification, and 1 of a regression
    neutral = [0.0, 0.0] if classes == 1 else [1 / classes] * classes + [0.0]
    rows = np.concatenate([x.double().numpy(), np.tile(neutral, (len(x), 1))], 1)
    return np.maximum(rows @ weight.T + bias, 0)


class TestGolden:
    def test_entropy_of_classes(self) -> None:
        adapter, x = Classification(4), torch.randn(6, 3)
        model = listening(perceptron(0, 4), adapter)
        z = first_answer(model, adapter, x).double().numpy()
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        wanted = -(p * np.log(p)).sum(1)
        np.testing.assert_allclose(Entropy(model, adapter)(x).numpy(), wanted, rtol=1e-5)

    def test_mahalanobis_shrinks_as_ledoit_and_wolf_do(self) -> None:
        adapter, x = Regression(), torch.randn(12, 3)
        model = listening(perceptron(2), adapter)
        score = Mahalanobis.fit(model, adapter, [x], "model.1")
        gaps = hidden(model, x) - hidden(model, x).mean(0)
        covariance = gaps.T @ gaps / 12
        target = np.trace(covariance) / 8 * np.eye(8)
        spread = sum(((np.outer(g, g) - covariance) ** 2).sum() for g in gaps) / 12**2
        fraction = min(1.0, spread / ((covariance - target) ** 2).sum())
        wanted = np.linalg.inv((1 - fraction) * covariance + fraction * target)
        assert 0.01 < fraction < 1  # so few rows: it must matter
        np.testing.assert_allclose(score.precision.numpy(), wanted, rtol=1e-4, atol=1e-6)

    def test_mahalanobis_of_classes_is_to_the_nearest_mean(self) -> None:
        adapter, x, y = Classification(3), torch.randn(60, 3), torch.arange(60) % 3
        model = listening(perceptron(3, 3), adapter)
        score = Mahalanobis.fit(model, adapter, (x, y), "model.1")
        known, k = hidden(model, x), y.numpy()
        means, precision = np.stack([known[k == c].mean(0) for c in range(3)]), score.precision
        wanted = [min((row - m) @ precision.numpy() @ (row - m) for m in means) for row in known]
        np.testing.assert_allclose(score(x).numpy(), wanted, rtol=1e-4)

    def test_ensemble_is_the_mean_gap_of_all_pairs(self) -> None:
        adapter, x = Regression(3.0, 2.0), torch.randn(5, 3)
        nets = [listening(perceptron(seed), adapter) for seed in range(5)]
        answers = [first_answer(net, adapter, x).double().numpy()[:, 0] for net in nets]
        pairs = [abs(a - b) / 2.0 for a, b in itertools.combinations(answers, 2)]
        assert len(pairs) == 10
        wanted = np.mean(pairs, axis=0)
        np.testing.assert_allclose(Ensemble(nets, adapter)(x).numpy(), wanted, rtol=1e-4)

    def test_largest_probability_and_energy_of_a_plain_network(self) -> None:
        net, x = perceptron(0, 4).eval(), torch.randn(6, 3)
        z = net(x).detach().double().numpy()
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        doubt, energy = (kind(net, Classification(4))(x) for kind in (LargestProbability, Energy))
        np.testing.assert_allclose(doubt.numpy(), 1 - p.max(1), rtol=1e-5)
        np.testing.assert_allclose(energy.numpy(), -np.log(np.exp(z).sum(1)), rtol=1e-5)
        sure = torch.tensor([20.0, -30.0, 1.0])  # of one logit: yes and no count alike
        for kind in (LargestProbability, Energy):
            assert kind(nn.Identity(), Binary())(sure).argsort().tolist() == [1, 0, 2]

    def test_answer_distance_is_in_standard_deviations(self) -> None:
        adapter = Regression(mean=[1.0, -1.0], std=[2.0, 4.0])
        score = AnswerDistance(nn.Identity(), adapter)
        assert score(torch.tensor([[1.0, -1.0], [5.0, 3.0]])).tolist() == [0.0, 1.5]

    @pytest.mark.parametrize("kept", [12, 30])
    def test_nearest_neighbours_are_of_a_bounded_bank(self, kept: int) -> None:
        net, x, new = perceptron(2).eval(), torch.randn(100, 3), torch.randn(7, 3)
        score = NearestNeighbours.fit(net, Regression(), [*x.split(9)], "1", k=3, at_most=kept)
        known, asked = (net[:2](rows).detach().double().numpy() for rows in (x, new))
        bank = score.bank.numpy()
        assert len({*map(bytes, bank)} & {*map(bytes, known)}) == len(bank) == kept
        std = np.where(bank.std(0) > 0, bank.std(0), 1)
        gaps = np.linalg.norm((asked[:, None] - bank) / std, axis=2)
        np.testing.assert_allclose(score(new).numpy(), np.sort(gaps, 1)[:, 2], rtol=1e-6)

    def test_sensitivity_of_each_row_makes_that_of_the_batch(self) -> None:
        adapter, x = Regression([0.0] * 2, [1.0] * 2), torch.randn(5, 3)
        model = listening(perceptron(2, 2), adapter)
        each = -Sensitivity(model, adapter)(x)
        assert float(each.std()) > 0
        assert float(each.square().mean().sqrt()) == pytest.approx(sensitivity(model, adapter, x))
        alone = torch.cat([Sensitivity(model, adapter)(row[None]) for row in x])
        assert torch.allclose(-alone, each)


class Counted(nn.Linear):
    """Counts the passes of all its copies."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        Counted.passes += len(x)
        return super().forward(x)


class TestInvariants:
    def test_scores_share_the_passes_of_a_prediction(self) -> None:
        adapter, x = Classification(3), torch.randn(4, 3)
        net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), Counted(5, 3))
        model = listening(net, adapter)
        features = [(x, torch.tensor([0, 1, 2, 0]))]
        near = NearestNeighbours.fit(model, adapter, features, "model.1", k=2)
        far = Mahalanobis.fit(model, adapter, features, "model.1")
        ones = [kind(model, adapter) for kind in (Entropy, LargestProbability, Energy)]
        twos = [kind(model, adapter) for kind in (Sensitivity, Idempotence)]
        both = Ensemble([model, model], adapter)
        Counted.passes = 0
        passes = near.observe(x)
        found = [score.of(passes) for score in (near, far, *ones)]
        assert Counted.passes == 4
        found += [score.of(passes) for score in twos]
        assert Counted.passes == 8
        found.append(both.of(passes))  # the other network's
        assert Counted.passes == 12
        for score, value in zip((near, far, *ones, *twos, both), found, strict=True):
            assert torch.allclose(score(x), value)
            assert value.shape == (4,)
        assert torch.equal(passes.answer, Source(model, adapter)(x).prediction)

    def test_assessment_says_what_the_metrics_say(self) -> None:
        adapter = Regression()
        model = listening(perceptron(0), adapter)
        levels = {"known": torch.randn(30, 3), "near": torch.randn(20, 3) + 1,
                  "far": torch.randn(20, 3) + 3}  # fmt: skip
        labelled = {name: (x, x.sum(1)) for name, x in levels.items()}
        lines = assess_scores(model, adapter, {"size": lambda x: x.norm(dim=1)}, labelled, "known",
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
        assert table[OUT_OF_DISTRIBUTION, "size"]["auroc"] == auroc(
            both, levels["known"].norm(dim=1)
        )
        assert table[OUT_OF_DISTRIBUTION, "size"]["n"] == 40
        # Two whole batches of seven a level: too few of each, enough of both.
        assert found["pearson"] is None
        parts = [levels[name][start : start + 7] for name in ("near", "far") for start in (0, 7)]
        sizes = [float(x.norm(dim=1).mean()) for x in parts]
        off = [float(adapter.error(Source(model, adapter)(x).prediction, x.sum(1)).mean())
               for x in parts]  # fmt: skip
        assert table[OUT_OF_DISTRIBUTION, "size"]["pearson"] == pytest.approx(
            correlation(sizes, off)
        )


class TestRobustness:
    @pytest.mark.parametrize(
        ("make", "hint"),
        [
            (
                lambda m, a, x: Entropy(m, a),
                "Entropy needs log prob.* Regression has none",
            ),
            (lambda m, a, x: Energy(m, a), "Energy needs logits"),
            (lambda m, a, x: AnswerDistance(m, Classification(2)), "Classification has none"),
            (lambda m, a, x: Idempotence(nn.Identity(), a), "needs a second input"),
            (lambda m, a, x: Sensitivity(nn.Identity(), a), "needs a second input"),
            (lambda m, a, x: NearestNeighbours.fit(m, a, x, "model.1"), "10-th nearest of 4"),
            (lambda m, a, x: NearestNeighbours.fit(m, a, x, "model.9"), "no layer"),
            (lambda m, a, x: Ensemble([m], a), "two networks"),
            (lambda m, a, x: Mahalanobis.fit(m, a, [x[:1]], "model.1"), "two training instances"),
            (
                lambda m, a, x: assess_scores(m, a, {}, {"far": (x, x.sum(1))}, "known"),
                "no level 'known'",
            ),
        ],
    )
    def test_what_cannot_be_scored_is_named(self, make: Callable[..., object], hint: str) -> None:
        adapter = Regression()
        with pytest.raises(IT3Error, match=hint):
            make(widen(perceptron(0), adapter), adapter, torch.randn(4, 3))
