"""Evolution strategies on whole episodes: unbiased, one update per episode."""

from dataclasses import dataclass

import jax
from typing_extensions import override

from meta_train.estimators.evolution import PairEstimator, antithetic, pair_sample


@dataclass(frozen=True)
class FullES(PairEstimator):
    """Unrolls whole episodes under one perturbation each.

    Only the horizons of `truncation` matter; its windows do not.
    """

    @property
    @override
    def is_unbiased(self):
        return not self.is_normalized

    @property
    @override
    def steps_per_update(self):
        return self.truncation.horizon

    @override
    def init_member(self, system, data, theta, end, key):
        return ()

    @override
    def update_pair(self, system, data, theta, state, noise, key):
        losses = jax.vmap(
            lambda theta: self.truncation.whole_episode(system, data, theta, key)
        )(antithetic(theta, noise))
        mean_horizon = self.truncation.mean_horizon()
        return pair_sample(losses, noise, self.std, mean_horizon), ()
