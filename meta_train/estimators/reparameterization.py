"""Reparameterization gradient of the smoothed meta-loss (Metz et al., 2019)."""

from dataclasses import dataclass

import jax
from typing_extensions import override

from meta_train.estimators.antithetic import check_std, draw_noise
from meta_train.estimators.episodic import EpisodeEstimator, backprop
from meta_train.estimators.population import make_sample


@dataclass(frozen=True)
class Reparameterization(EpisodeEstimator):
    """Backpropagation at a perturbed `theta`, through whole episodes or windows."""

    std: float = 0.01
    """Standard deviation of the perturbations of theta."""
    whole_episodes: bool = True
    """Unroll whole episodes. Otherwise unroll one window at a time, which is biased."""

    def __post_init__(self):
        EpisodeEstimator.__post_init__(self)
        check_std(self.std)

    @property
    @override
    def is_unbiased(self):
        return self.whole_episodes or self.truncation.is_whole

    @property
    @override
    def steps_per_update(self):
        window = self.truncation
        return window.horizon if self.whole_episodes else window.length

    @override
    def init_member(self, system, data, theta, end, key):
        if self.whole_episodes:
            return ()
        return self.truncation.init(system, data, theta, end, key)

    @override
    def update_episode(self, system, data, theta, state, key):
        key_noise, key_unroll = jax.random.split(key)
        noise = draw_noise(theta, 1, self.std, key_noise)
        perturbed = jax.tree.map(lambda t, n: t + n[0], theta, noise)
        truncation, whole = self.truncation, self.whole_episodes
        mean_length = truncation.mean_horizon() if whole else truncation.length

        def unroll(theta):
            if not whole:
                return truncation.advance(system, data, theta, state, key_unroll)
            losses = truncation.whole_episode(
                system, data, theta, key_unroll, remat=True
            )
            return None, losses

        grad, losses, following = backprop(unroll, perturbed, mean_length)
        sample = make_sample(grad, losses, mean_length)
        return sample, following.restart_if(sample.diverged) if following else ()
