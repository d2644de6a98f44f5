"""The estimators keep scikit-learn's conventions, and learn from sources."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from steelyard import SteelyardError
from steelyard.estimators import TargetClassifier, TargetRegressor

FAST = {"encoder_options": {"hidden": [32]}, "learning_rate": 1e-2}


@parametrize_with_checks([TargetClassifier(**FAST), TargetRegressor(**FAST)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    rows, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    rows, labels = rows[order], labels[order]
    sources = {
        "parity": (rows[50:550], labels[50:550] % 2),
        "names": (rows[50:550], np.array([f"digit {label}" for label in labels[50:550]])),
        "shuffled": (rows[50:550], np.random.default_rng(1).integers(0, 2, 500)),
        "size": (rows[50:550], labels[50:550] * 1000.5),
    }
    return (rows[:50], labels[:50]), sources, (rows[1000:], labels[1000:])


def test_sources_help_and_are_weighed(digits):
    (rows, labels), sources, (test_rows, test_labels) = digits
    alone = TargetClassifier(epochs=60).fit(rows, labels)
    helped = TargetClassifier(epochs=10).fit(rows, labels, sources=sources)
    assert alone.source_weights_ == {}
    assert set(helped.source_weights_) == set(sources)
    assert helped.source_weights_["names"] > helped.source_weights_["shuffled"]
    assert helped.score(test_rows, test_labels) > alone.score(test_rows, test_labels) + 0.02
    probabilities = helped.predict_proba(test_rows)
    assert probabilities.shape == (len(test_rows), 10)
    assert np.allclose(probabilities.sum(1), 1)
    again = pickle.loads(pickle.dumps(helped))  # noqa: S301
    assert np.array_equal(again.predict(test_rows), helped.predict(test_rows))


def test_a_regression_is_told_in_its_own_units():
    rows, values = make_regression(300, 5, noise=1.0, random_state=0)
    sources = {"same": (rows[100:], values[100:] * 1e-4), "sign": (rows[100:], values[100:] > 0)}
    settings = {"epochs": 40, "learning_rate": 1e-2}
    found = [
        TargetRegressor(**settings).fit(rows[:100], scale * values[:100] + 7, sources).predict(rows)
        for scale in (1, 1e6)
    ]
    assert np.allclose(found[0] - 7, (found[1] - 7) / 1e6, rtol=1e-3, atol=1e-2)
    assert np.corrcoef(found[0], values)[0, 1] > 0.98
    two = TargetRegressor(epochs=2).fit(rows, np.stack([values, -values], 1))
    assert two.predict(rows[:3]).shape == (3, 2)


def test_it_stands_in_pipelines_and_searches(digits):
    (rows, labels), sources, _ = digits
    piped = make_pipeline(MinMaxScaler(), TargetClassifier(epochs=2))
    piped.fit(rows, labels, targetclassifier__sources=sources)
    assert piped.predict(rows).shape == labels.shape
    few = labels < 3
    assert len(cross_val_score(TargetClassifier(epochs=2), rows[few], labels[few], cv=2)) == 2
    found = GridSearchCV(TargetClassifier(epochs=2), {"method": ["uniform", "tawt"]}, cv=2)
    found.fit(rows[few], labels[few], sources={"parity": sources["parity"]})
    assert found.best_params_["method"] in ("uniform", "tawt")


def test_the_seed_decides_everything(digits):
    (rows, labels), sources, _ = digits
    first, second, other = (
        TargetClassifier(epochs=2, random_state=seed).fit(rows, labels, sources).predict_proba(rows)
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_bad_input(digits):
    (rows, labels), sources, _ = digits
    model = TargetClassifier(epochs=1)
    wrong = {
        "5 features, the target 64": {"a": (np.zeros((4, 5)), [0, 1, 0, 1])},
        "64 features|3 rows but 4 labels": {"a": (rows[:3], [0, 1, 0, 1])},
        "source 'a': Input X contains NaN|source 'a': Input contains NaN": {"a": (rows[:4] * np.nan, [0, 1, 0, 1])},
        "cannot be called 'target'": {"target": sources["parity"]},
    }
    for words, given in wrong.items():
        with pytest.raises(SteelyardError, match=words):
            model.fit(rows, labels, given)
    with pytest.raises(SteelyardError, match="there is no method 'tawd'"):
        TargetClassifier(method="tawd").fit(rows, labels, sources)
    with pytest.raises(SteelyardError, match="dev_fraction = 2"):
        TargetClassifier(dev_fraction=2).fit(rows, labels)
