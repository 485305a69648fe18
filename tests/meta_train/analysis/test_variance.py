"""Variance of estimates over whole episodes."""

import numpy as np
import pytest

from meta_train.analysis.theory import relative_variance
from meta_train.analysis.variance import episode_estimates, member_variance
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from tests.meta_train.analysis.test_theory import _Linear


@pytest.mark.parametrize("num_windows", [1, 4])
def test_the_variance_over_an_episode_is_that_of_theory(num_windows, key):
    windows = Truncation(1, num_windows, staggered=False)
    system, num_pairs = _Linear(), 4
    theta = system.init_theta(key)
    estimator = PES(windows, num_pairs, std=0.1)
    found = episode_estimates(estimator, system, (), theta, 20_000, key)
    gradient = np.full(3, (num_windows + 1) / 2)  # of the mean loss per step
    np.testing.assert_allclose(found.mean(axis=0), gradient, rtol=0.05)
    expected = relative_variance("triangular, identical", num_windows, 3)
    relative = member_variance(found, num_pairs) / (gradient @ gradient)
    np.testing.assert_allclose(relative, expected, rtol=0.05)
    staggered = PES(Truncation(1, num_windows), num_pairs, std=0.1)
    with pytest.raises(ValueError, match="must not stagger"):
        episode_estimates(staggered, system, (), theta, 2, key)
