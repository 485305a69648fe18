"""Truncated ES: PES without memory, hence biased."""

from dataclasses import dataclass
from typing import ClassVar

import jax
from typing_extensions import override

from meta_train.estimators.evolution import PairEstimator, antithetic, pair_sample


@dataclass(frozen=True)
class TruncatedES(PairEstimator):
    """Perturbs each window afresh, from a state that was never perturbed.

    Blind to how theta shaped that state: biased unless a window is an episode.
    """

    num_unrolls: ClassVar[int] = 3

    @property
    @override
    def is_unbiased(self):
        return self.truncation.is_whole

    @property
    @override
    def steps_per_update(self):
        return self.truncation.length

    @override
    def init_pair(self, system, data, theta, end, key):
        return self.truncation.init(system, data, theta, end, key)

    @override
    def update_pair(self, system, data, theta, state, noise, key):
        def advance(theta):
            return self.truncation.advance(system, data, theta, state, key)

        pair = antithetic(theta, noise)
        losses = jax.vmap(lambda theta: advance(theta)[1])(pair)
        sample = pair_sample(losses, noise, self.std, self.truncation.length)
        following, _ = advance(theta)
        return sample, following.restart_if(sample.diverged)
