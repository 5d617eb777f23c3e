"""Uncertainty scores beside the idempotence error, each against its definition in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from it3_core import Classification, Conditioned, IT3Error, Regression, Source, widen
from it3_core.experiment.statistics import (
    IDEMPOTENCE,
    OUT_OF_DISTRIBUTION,
    assess_scores,
    auroc,
    correlation,
)
from it3_core.scores.uncertainty import Ensemble, Entropy, Mahalanobis


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


class TestInvariants:
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
            (lambda m, a, x: Entropy(m, a), "no entropy"),
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
