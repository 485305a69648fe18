"""Backpropagation through whole episodes."""

from dataclasses import dataclass

from typing_extensions import override

from meta_train.estimators.episodic import EpisodeEstimator, backprop
from meta_train.estimators.population import make_sample


@dataclass(frozen=True)
class FullBackprop(EpisodeEstimator):
    """Exact backpropagation with one update per episode.

    Rematerialization keeps memory proportional to the square root of the horizon. The
    window length of `truncation` does not change the unroll, but horizons are multiples
    of it.
    """

    @property
    @override
    def is_unbiased(self):
        return True

    @property
    @override
    def steps_per_update(self):
        return self.truncation.horizon

    @override
    def init_member(self, system, data, theta, end, key):
        return ()

    @override
    def update_episode(self, system, data, theta, state, key):
        def unroll(theta):
            return (
                (),
                self.truncation.whole_episode(system, data, theta, key, remat=True),
            )

        mean_horizon = self.truncation.mean_horizon()
        grad, losses, _ = backprop(unroll, theta, mean_horizon)
        return make_sample(grad, losses, mean_horizon), ()
