"""Evolution strategies on whole episodes."""

from dataclasses import dataclass

import jax
from typing_extensions import override

from meta_train.estimators.antithetic import PairEstimator, antithetic, pair_sample


@dataclass(frozen=True)
class FullES(PairEstimator):
    """Unbiased antithetic ES with one perturbation and one update per episode.

    The window length of `truncation` does not change the unroll, but horizons are
    multiples of it.
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
