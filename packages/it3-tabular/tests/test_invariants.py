"""What must hold whatever the data: repeatability, independence of rows, gaps, round trips."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer

from it3_core import IT3, IT3Error
from it3_tabular import IT3Classifier, IT3Regressor, load
from it3_tabular.learning import hold_out
from it3_tabular.preparing import Preparation, drop_values


def test_the_same_random_state_gives_the_same_answers(energy) -> None:
    x, y = energy
    one, two = (IT3Regressor(random_state=3, max_iter=5).fit(x, y) for _ in range(2))
    assert np.array_equal(one.predict(x), two.predict(x))
    assert one.tuning_ == two.tuning_
    other = IT3Regressor(random_state=4, max_iter=5).fit(x, y)
    assert not np.array_equal(one.predict(x), other.predict(x))


@pytest.mark.parametrize("adapt", ["instance", None, "auto"])
@pytest.mark.parametrize("signal", ["widen", "inject"])
def test_an_answer_is_the_row_s_own(energy, adapt, signal) -> None:
    x, y = energy
    model = IT3Regressor(adapt=adapt, signal=signal, random_state=0, max_iter=5).fit(x, y)
    alone = np.concatenate([model.predict(row[None]) for row in x[:5]])
    assert np.allclose(model.predict(x)[:5], alone, rtol=1e-9)


def test_instance_adaptation_changes_answers_and_lowers_the_gap(regressor, energy) -> None:
    x = energy[0] + 0.5
    regressor.set_params(adapt="instance", learning_rate_adapt=0.05)
    try:
        found = regressor.predict_detailed(x)
        assert not np.allclose(found.before, found.after)
        assert np.allclose(found.before, regressor.set_params(adapt=None).predict(x))
        again = IT3(regressor.network_, regressor.adapter_, lr=0.05, optimizer="SGD", power=2.0,
                    per_instance=True)(regressor.preparation_(x))  # fmt: skip
        assert np.allclose(again.prediction[:, 0], found.after)
        assert again.error_after.mean() < again.error_before.mean()
    finally:
        regressor.set_params(adapt="auto", learning_rate_adapt=0.01)


@pytest.mark.parametrize("adapt", ["batch", "online"])
def test_batches_are_consecutive_rows(regressor, energy, adapt) -> None:
    x = energy[0][:64]
    regressor.set_params(adapt=adapt, learning_rate_adapt=0.05)
    try:
        whole = regressor.predict(x)
        parts = np.concatenate([regressor.predict(x[:32]), regressor.predict(x[32:])])
        same = np.allclose(whole, parts, rtol=1e-9)
        assert same == (adapt == "batch")  # a stream goes on, and starts anew with each call
        assert np.array_equal(whole, regressor.predict(x))
    finally:
        regressor.set_params(adapt="auto", learning_rate_adapt=0.01)


def test_gaps_are_filled_from_correlated_columns() -> None:
    generator = np.random.default_rng(0)
    first = generator.normal(size=500)
    x = np.column_stack([first, 2 * first + 0.1 * generator.normal(size=500)])
    preparation = Preparation.fit(drop_values(x, 0.2, generator))
    filled = preparation(np.array([[1.5, np.nan], [np.nan, -3.0]]))
    assert filled[0, 1].item() == pytest.approx(1.5, abs=0.2)
    assert filled[1, 0].item() == pytest.approx(-1.5, abs=0.2)
    assert filled[:, 2:].tolist() == [[0, 1], [1, 0]]


def test_imputation_matches_the_textbook_formula() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(200, 5)) @ generator.normal(size=(5, 5))
    preparation = Preparation.fit(x)
    row = x[:1].copy()
    row[0, [1, 3]] = np.nan
    covariance = np.linalg.inv(preparation.precision.numpy())
    standard = (x[0] - preparation.mean.numpy()) / preparation.scale.numpy()
    o, m = [0, 2, 4], [1, 3]
    expected = covariance[np.ix_(m, o)] @ np.linalg.solve(covariance[np.ix_(o, o)], standard[o])
    assert np.allclose(preparation(row)[0, m].numpy(), expected)


def test_gaps_anywhere_never_crash(energy) -> None:
    x, y = energy
    x = drop_values(x, 0.3, np.random.default_rng(0))
    model = IT3Regressor(random_state=0, max_iter=3).fit(x, y)
    assert np.isfinite(model.predict(x)).all()
    assert np.isfinite(model.predict(np.full((2, 8), np.nan))).all()


def test_a_column_without_gaps_in_training_has_no_say_by_its_indicator(regressor) -> None:
    first = regressor.network_.model[0].weight
    assert not first[:, 8:16].any()


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_saved_and_loaded_is_the_same(kind, request, energy, tmp_path) -> None:
    model, x = request.getfixturevalue(kind), energy[0]
    model.save(tmp_path / "model.safetensors")
    for again in (
        load(tmp_path / "model.safetensors"),
        type(model).load(tmp_path / "model.safetensors"),
        pickle.loads(pickle.dumps(model)),  # noqa: S301
    ):
        assert np.array_equal(again.predict(x), model.predict(x))
        assert again.get_params() == model.get_params()
        assert again.tuning_.reason == model.tuning_.reason
        assert np.array_equal(again.trust(x).flag, model.trust(x).flag)
    assert again.predict(x).dtype == model.predict(x).dtype


@pytest.mark.parametrize("labels", [[1, 2, 3], [1.0, 2.0, 3.0], ["a", "b", "c"], [True, False]])
def test_labels_of_any_kind_survive(labels, tmp_path) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 2))
    y = np.array(labels)[(x[:, 0] > 0).astype(int)]
    model = IT3Classifier(random_state=0, max_iter=3, adapt=None).fit(x, y)
    model.save(tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert again.classes_.tolist() == model.classes_.tolist()
    assert again.classes_.dtype == model.classes_.dtype


def test_frames_with_names(energy, tmp_path) -> None:
    x, y = energy
    frame = pd.DataFrame(x, columns=list("abcdefgh"))
    model = IT3Regressor(random_state=0, max_iter=3).fit(frame, y)
    assert list(model.feature_names_in_) == list("abcdefgh")
    model.save(tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert np.array_equal(again.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename(columns={"a": "z"}))


def test_pipeline_search_and_parallel_scores(energy) -> None:
    x, y = energy[0][::4], energy[1][::4]
    model = make_pipeline(PowerTransformer(), IT3Regressor(random_state=0, max_iter=8))
    search = GridSearchCV(model, {"it3regressor__hidden_layer_sizes": [(8,), (16, 8)]}, cv=2)
    assert search.fit(x, y).best_score_ > -5
    scores = [cross_val_score(clone(model), x, y, cv=2, n_jobs=jobs) for jobs in (1, 2)]
    assert np.allclose(scores[0], scores[1])


def test_early_stopping_and_widths(energy) -> None:
    x, y = energy
    short = IT3Regressor((7,), early_stopping=False, max_iter=4, random_state=0).fit(x, y)
    assert short.n_iter_ == 4
    assert short.network_.model[0].out_features == 7
    assert len(IT3Regressor(max_iter=4, random_state=0).fit(x, y).history_.validation) == 4


def test_held_out_rows_take_the_same_share_of_each_class() -> None:
    groups = np.repeat([0, 1, 2], [300, 60, 1])
    kept, held_out = hold_out(groups, 0.1, np.random.default_rng(0))
    assert sorted([*kept, *held_out]) == list(range(361))
    assert np.bincount(groups[held_out], minlength=3).tolist() == [30, 6, 0]


def test_trust_flags_what_is_far_out(regressor, energy) -> None:
    x = energy[0]
    assert regressor.trust(x).flag.mean() < 0.15
    far = regressor.trust(x * 3)
    assert far.percentile.mean() > regressor.trust(x).percentile.mean()
    assert ((far.percentile >= 0) & (far.percentile <= 100)).all()
    assert np.allclose(regressor.idempotence_error(x), regressor.predict_detailed(x).error)


def test_probabilities_sum_to_one(classifier, energy) -> None:
    found = classifier.predict_proba(energy[0])
    assert np.allclose(found.sum(1), 1)
    assert np.array_equal(classifier.classes_[found.argmax(1)], classifier.predict(energy[0]))


@pytest.mark.parametrize(
    "setting",
    [{"adapt": "always"}, {"steps": -1}, {"hidden_layer_sizes": 30}, {"hidden_layer_sizes": (0,)},
     {"validation_fraction": 1.5}, {"signal": "none"}, {"imputation": "zero"}, {"max_iter": 0},
     {"learning_rate_adapt": float("nan")}, {"batch_size": 0}],
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
