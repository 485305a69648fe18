"""PES with the contribution of the current window's noise computed analytically."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import struct
from typing_extensions import override

from meta_train.core.truncation import Episode
from meta_train.estimators.antithetic import (
    PairEstimator,
    antithetic,
)
from meta_train.estimators.base import Derivatives
from meta_train.estimators.episodic import backprop
from meta_train.estimators.population import cap_losses, make_sample
from tasks.base import State, Theta


class PESAnalyticState(struct.PyTreeNode):
    """State of a pair between windows.

    Attributes:
        episode: Episode whose state has the two partners as its leading axis.
        center: State of the unperturbed trajectory of this episode.
        accumulator: Sum of the perturbations since the start of the episode.
    """

    episode: Episode
    center: State
    accumulator: Theta


@dataclass(frozen=True)
class PESAnalytic(PairEstimator):
    """PES for past windows and backpropagation for the current window.

    The gradient with respect to `theta` in the current window is backpropagated along
    the unperturbed trajectory. PES estimates only the dependence on past windows, which
    reduces the variance considerably.
    """

    derivatives: ClassVar[Derivatives] = "reverse"
    num_unrolls: ClassVar[int] = 3

    @property
    @override
    def is_unbiased(self):
        return not self.is_normalized

    @override
    def init_member(self, system, data, theta, end, key):
        episode = self.truncation.init_partners(system, data, theta, end, key)
        return PESAnalyticState(
            episode=episode,
            center=jax.tree.map(lambda x: x[0], episode.state),
            accumulator=jax.tree.map(jnp.zeros_like, theta),
        )

    @override
    def update_pair(self, system, data, theta, state, noise, key):
        length = self.truncation.length

        def unperturbed(theta):
            own = state.episode.replace(state=state.center)
            return self.truncation.advance(system, data, theta, own, key)

        analytic, _, center = backprop(unperturbed, theta, length)
        episode, losses = self.truncation.advance_partners(
            system, data, antithetic(theta, noise), state.episode, key
        )
        past = jax.tree.map(
            lambda a: jnp.where(state.episode.is_new, 0.0, a), state.accumulator
        )
        # The first-order effect of this window's noise on its losses is known and is
        # independent of past noise. Subtracting it is a control variate: it reduces
        # the variance and leaves the expectation unchanged.
        capped, _ = cap_losses(losses)
        rise = jnp.sum(capped[0] - capped[1]) / (2 * length)
        weight = (rise - optax.tree.vdot(noise, analytic)) / self.std**2
        grad = jax.tree.map(lambda g, p: g + weight * p, analytic, past)
        accumulator = jax.tree.map(jnp.add, past, noise)
        sample = make_sample(grad, losses, length, accumulator=accumulator)
        return sample, PESAnalyticState(
            episode=episode.restart_if(sample.diverged),
            center=center.state,
            accumulator=accumulator,
        )
