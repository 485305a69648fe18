"""Truncated backpropagation through time."""

from dataclasses import dataclass

from typing_extensions import override

from meta_train.estimators.episodic import EpisodeEstimator, backprop
from meta_train.estimators.population import make_sample


@dataclass(frozen=True)
class TruncatedBackprop(EpisodeEstimator):
    """Backpropagation within a window; biased unless a window is a whole episode."""

    @property
    @override
    def is_unbiased(self):
        return self.truncation.is_whole

    @override
    def init_member(self, system, data, theta, end, key):
        return self.truncation.init(system, data, theta, end, key)

    @override
    def update_episode(self, system, data, theta, state, key):
        def advance(theta):
            return self.truncation.advance(system, data, theta, state, key)

        grad, losses, following = backprop(advance, theta, self.truncation.length)
        sample = make_sample(grad, losses, self.truncation.length)
        return sample, following.restart_if(sample.diverged)
