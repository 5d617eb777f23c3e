"""What must hold whatever the data: repeatability, independence of rows, gaps, round trips."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer

from it3_core import IT3, IT3Error
from it3_core.batching import batches
from it3_tabular import IT3Classifier, IT3Regressor, load
from it3_tabular.fitting import Preprocessing, split_rows
from it3_tabular.protocol import _best_gradient_step, _methods
from reference import reference


def test_the_same_random_state_gives_the_same_predictions(energy) -> None:
    x, y = energy
    one, two = (IT3Regressor(random_state=3, max_iter=5).fit(x, y) for _ in range(2))
    assert np.array_equal(one.predict(x), two.predict(x))
    assert one.tuning_ == two.tuning_


@pytest.mark.parametrize("adapt", ["instance", None, "auto"])
def test_a_prediction_is_the_row_s_own(regressor, energy, adapt) -> None:
    x, model = energy[0], copy.copy(regressor).set_params(adapt=adapt)
    alone = np.concatenate([model.predict(row[None]) for row in x[:5]])
    assert np.allclose(model.predict(x)[:5], alone, rtol=1e-9)


def test_instance_adaptation_changes_answers_and_lowers_the_gap(regressor, energy) -> None:
    x = energy[0] + 0.5
    model = copy.copy(regressor).set_params(adapt="instance", learning_rate_adapt=0.05)
    found = model.predict_full(x)
    assert not np.allclose(found.initial, found.prediction)
    assert np.allclose(found.initial, model.set_params(adapt=None).predict(x))
    again = IT3(model.network_, model.adapter_, lr=0.05, optimizer="SGD", power=2.0,
                per_instance=True)(model.preprocessing_(x))  # fmt: skip
    assert np.allclose(again.prediction[:, 0], found.prediction)
    assert again.error_after.mean() < again.error_before.mean()


@pytest.mark.parametrize("adapt", ["batch", "online"])
def test_batches_are_consecutive_rows(regressor, energy, adapt) -> None:
    x = energy[0][:64] + 3  # which a stream's gate opens for
    model = copy.copy(regressor).set_params(adapt=adapt, learning_rate_adapt=0.05)
    whole = model.predict(x)
    parts = np.concatenate([model.predict(x[:32]), model.predict(x[32:])])
    same = np.allclose(whole, parts, rtol=1e-9)
    assert same == (adapt == "batch")  # a stream goes on, and starts anew with each call
    assert np.array_equal(whole, model.predict(x))


@pytest.mark.parametrize("name", ["IT³ (paper)", "online IT³ (paper)"])
def test_the_papers_rows_equal_the_algorithm_as_the_paper_tells_it(regressor, energy, name) -> None:
    x, y = energy
    network, adapter, step = regressor.network_, regressor.adapter_, {"steps": 2, "lr": 1e-3}
    chosen = {"source": step, "online": step}
    row = _methods(regressor, network, x[:40], y[:40], 0, chosen)[1][name]
    rows = regressor.preprocessing_(x[:40] + 0.5)
    assert rows.dtype == torch.float64
    stream = list(batches(rows, 8))
    wanted = reference(
        network, adapter.neutral, adapter.encode, lambda gap: gap.abs().sum(1) / adapter.std[0],
        stream, **step, online="online" in name,
    )  # fmt: skip
    for part, answer in zip(stream, wanted, strict=True):
        found = row({"zeroed": part})
        torch.testing.assert_close(found.prediction, answer, rtol=0, atol=1e-6)
        assert not torch.allclose(answer, found.initial, atol=1e-3)


def test_imputation_matches_the_textbook_formula() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(200, 5)) @ generator.normal(size=(5, 5))
    preprocessing = Preprocessing.fit(x)
    row = x[:1].copy()
    row[0, [1, 3]] = np.nan
    covariance = np.linalg.inv(preprocessing.precision.numpy())
    standard = (x[0] - preprocessing.mean.numpy()) / preprocessing.scale.numpy()
    o, m = [0, 2, 4], [1, 3]
    expected = covariance[np.ix_(m, o)] @ np.linalg.solve(covariance[np.ix_(o, o)], standard[o])
    assert np.allclose(preprocessing(row)[0, m].numpy(), expected)


def test_gaps_anywhere_never_crash(energy, regressor) -> None:
    x, y = energy
    x = np.where(np.random.default_rng(0).random(x.shape) < 0.3, np.nan, x)
    model = IT3Regressor(random_state=0, max_iter=3).fit(x, y)
    assert np.isfinite(model.predict(x)).all()
    assert np.isfinite(model.predict(np.full((2, 8), np.nan))).all()
    assert not regressor.network_.model[0].weight[:, 8:16].any()  # no gap in training: no say


def test_saved_and_loaded_is_the_same(regressor, energy, tmp_path) -> None:
    x = energy[0]
    regressor.save(tmp_path / "m")
    for again in (load(tmp_path / "m"), pickle.loads(pickle.dumps(regressor))):  # noqa: S301
        expected = regressor.predict_full(x)
        assert all(map(np.array_equal, again.predict_full(x), expected))
        assert again.get_params() == regressor.get_params()
        assert again.tuning_.reason == regressor.tuning_.reason


@pytest.mark.parametrize("labels", [[1, 2, 3], [1.0, 2.0, 3.0], ["a", "b", "c"], [True, False]])
def test_labels_of_any_kind_survive(labels, tmp_path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = np.array(labels)[(x[:, 0] > 0).astype(int)]
    model = IT3Classifier(random_state=0, max_iter=3, adapt=None).fit(x, y)
    found = model.predict_proba(x)
    assert np.allclose(found.sum(1), 1)
    assert np.array_equal(model.classes_[found.argmax(1)], model.predict(x))
    model.save(tmp_path / "m")
    again = load(tmp_path / "m").predict(x)
    assert np.array_equal(again, model.predict(x))
    assert again.dtype == y.dtype


def test_pipeline_search_and_parallel_scores(energy) -> None:
    x, y = energy[0][::4], energy[1][::4]
    model = make_pipeline(PowerTransformer(), IT3Regressor(random_state=0, max_iter=8))
    search = GridSearchCV(model, {"it3regressor__hidden_layer_sizes": [(8,), (16, 8)]}, cv=2)
    assert search.fit(x, y).best_score_ > -5
    scores = cross_val_score(clone(model), x, y, cv=2, n_jobs=2)
    assert np.allclose(scores, cross_val_score(clone(model), x, y, cv=2))


def test_validation_rows_are_the_same_fraction_of_each_class() -> None:
    groups = np.repeat([0, 1, 2], [300, 60, 1])
    training, validation = split_rows(groups, 0.1, np.random.default_rng(0))
    assert sorted([*training, *validation]) == list(range(361))
    assert np.bincount(groups[validation], minlength=3).tolist() == [30, 6, 0]


def test_trust_flags_what_is_far_out(regressor, energy) -> None:
    x = energy[0]
    known, far = regressor.predict_full(x), regressor.predict_full(x * 3)
    assert known.flagged.mean() < 0.15
    assert far.percentile.mean() > known.percentile.mean()
    assert ((far.percentile >= 0) & (far.percentile <= 100)).all()


def test_a_gain_that_is_no_number_is_not_the_best(regressor) -> None:
    model = copy.copy(regressor)
    tried = [{**one, "gain": None} for one in model.tuning_.tried]
    tuning = replace(model.tuning_, tried=tried)
    method = tuning.build(model.network_, model.adapter_)
    model.predictor_ = replace(model.predictor_, method=method)
    assert _best_gradient_step(model).method == "IT3"


def test_intervals_cover_and_sets_hold_the_class(energy) -> None:
    x, y = energy
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:600], order[600:]
    model = IT3Regressor(random_state=0, max_iter=40).fit(x[train], y[train])
    ends = model.predict_interval(x[test], coverage=0.8)
    assert 0.65 < ((ends[:, 0] <= y[test]) & (y[test] <= ends[:, 1])).mean() < 0.95
    full = model.predict_full(x[test], coverage=0.8)
    assert np.array_equal(full.lower, ends[:, 0])
    assert np.array_equal(full.prediction[~full.adapted], full.initial[~full.adapted])
    usual, far = model.score_samples(x[test]), model.score_samples(x[test] * 3)
    assert far.mean() < usual.mean()
    for word in ("method", "score", "flags", "intervals by"):
        assert word in model.report_
    with pytest.raises(IT3Error, match="coverage is a fraction"):
        model.predict_interval(x, coverage=1.5)
    with pytest.raises(IT3Error, match="there are no intervals"):
        model.set_params(adapt="batch").predict_interval(x)
    kinds = IT3Classifier(random_state=0, max_iter=40).fit(x[train], y[train] > 20)
    inside = kinds.predict_set(x[test])
    assert inside[np.arange(len(test)), (y[test] > 20).astype(int)].mean() > 0.8
    assert (kinds.predict_full(x[test]).probability > 0.4).all()


@pytest.mark.parametrize(
    "setting",
    [{"adapt": "always"}, {"steps": -1}, {"hidden_layer_sizes": 30}, {"hidden_layer_sizes": (0,)},
     {"validation_fraction": 1.5}, {"max_iter": 0},
     {"learning_rate_adapt": float("nan")},
     {"learning_rate_init": 0}, {"learning_rate_init": True}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_named(setting, energy) -> None:
    with pytest.raises(IT3Error, match=next(iter(setting))):
        IT3Regressor(**setting).fit(*energy)


def test_targets_that_say_nothing(energy) -> None:
    with pytest.raises(IT3Error, match="in every row"):
        IT3Regressor().fit(energy[0], np.ones(768))
    with pytest.raises(IT3Error, match="one class"):
        IT3Classifier().fit(energy[0], np.ones(768))
    with pytest.raises(IT3Error, match="column 1 has no value"):
        IT3Regressor().fit(np.where(np.arange(8) == 1, np.nan, energy[0]), energy[1])
