"""scikit-learn's own contract for estimators, whole, with no expected failures."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from it3_tabular import IT3Classifier, IT3Regressor

ESTIMATORS = [
    IT3Regressor(),
    IT3Regressor(adapt="instance"),
    IT3Classifier(),
    IT3Classifier(adapt="instance"),
]


# scikit-learn warns of its own checks' odd data; a network that never learnt to listen to its
# signal, on 20 rows of noise, warns as well.
@pytest.mark.filterwarnings("default")
@parametrize_with_checks(ESTIMATORS)
def test_estimator_contract(estimator, check) -> None:
    check(estimator)
