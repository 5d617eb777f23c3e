"""scikit-learn's own contract for estimators, whole, with no expected failures."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from it3_tabular import IT3Classifier, IT3Regressor

KINDS = (IT3Regressor, IT3Classifier)


# scikit-learn warns of its own checks' odd data; a network that never learnt to listen to its
# signal, on 20 rows of noise, warns as well.
@pytest.mark.filterwarnings("default")
@parametrize_with_checks([kind(adapt=adapt) for kind in KINDS for adapt in ("auto", "instance")])
def test_estimator_contract(estimator, check) -> None:
    check(estimator)
